"""Prototypes that no row chooses, put on badly served rows, as k-means does with empty clusters."""

from __future__ import annotations

import numpy as np
import torch

from clam_dist.train.population import Group
from clam_dist.train.state import TrainState

RESEED = 4
"""First part of the key of these draws."""


def reseed(state: TrainState) -> int:
    """Move every prototype that no row of the sample is nearest to; return how many moved.

    A first look at a part of the sample finds suspects, the whole sample decides. The new place
    is a row drawn with probability proportional to its squared distance from its prototype
    (Arthur and Vassilvitskii 2007), by a key of seed, round, member and prototype.
    """
    first = state.sample_tensors(slice(0, 4096))[0]
    moved = 0
    for group in state.groups:
        unused = ~_used(group, first)
        if not bool(unused.any()):
            continue
        x = state.sample_tensors(slice(0, None))[0]
        if len(x) > len(first):
            unused &= ~_used(group, x)
        for position, prototype in torch.nonzero(unused).tolist():
            _move(state, group, position, prototype, first)
            moved += 1
    return moved


def _scores(prototypes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``2 x·rho - |rho|²``, ``(P, k, B)``: greatest where the distance is least."""
    return 2 * prototypes @ x.T - prototypes.square().sum(-1, keepdim=True)


def _used(group: Group, x: torch.Tensor) -> torch.Tensor:
    """``(P, k)`` bool: which prototypes some row is nearest to."""
    prototypes = group.parameters["prototypes"]
    used = torch.zeros(prototypes.shape[:2], dtype=torch.bool, device=x.device)
    for part in x.split(4096):
        used.scatter_(1, _scores(prototypes, part).argmax(1), True)
    return used


def _move(
    state: TrainState, group: Group, position: int, prototype: int, rows: torch.Tensor
) -> None:
    current = group.parameters["prototypes"][position : position + 1]
    distance = rows.square().sum(-1) - _scores(current, rows).amax(1)[0]
    odds = distance.clamp(min=0).to(torch.float64).cpu().numpy()
    member = group.members[position].index
    key = (RESEED, state.segment, state.rounds, member, prototype)
    generator = np.random.Generator(
        np.random.Philox(np.random.SeedSequence(state.plan.seed, spawn_key=key))
    )
    if not odds.sum() > 0:  # every row sits on a prototype: fewer distinct rows than clusters
        return
    row = int(generator.choice(len(odds), p=odds / odds.sum()))
    group.parameters["prototypes"][position, prototype] = rows[row]
    for name in group.names:
        if name != "prototypes":  # a weight of its own: that of an average prototype
            group.parameters[name][position, prototype] = group.parameters[name][position].mean()
        for store in (group.first, group.second):
            store[name][position, prototype] = 0.0
