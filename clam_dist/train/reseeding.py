"""Prototypes that no row chooses, put on badly served rows, as k-means does with empty clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from clam_dist.train.population import Group
from clam_dist.train.state import TrainState

SUSPECT_ROWS = 4096
RESEED = 4
"""First part of the key of these draws."""


def reseed(state: TrainState) -> int:
    """Move every prototype that no row of the sample is nearest to; return how many moved.

    A first look at a part of the sample finds suspects, the whole sample decides. The new place
    is a row drawn with probability proportional to its squared distance from its prototype
    (Arthur and Vassilvitskii 2007), by a key of seed, round, member and prototype.
    """
    moved = 0
    for group in state.groups:
        if not group.model.reseeds:
            continue
        first = _represent(state, group, slice(0, SUSPECT_ROWS))
        unused = ~_used(group, first)
        if not bool(unused.any()):
            continue
        if len(state.sample) > SUSPECT_ROWS:
            unused &= ~_used(group, _represent(state, group, slice(0, None)))
        for position, prototype in torch.nonzero(unused).tolist():
            _move(state, group, position, prototype, first[position % len(first)])
            moved += 1
    return moved


def _represent(state: TrainState, group: Group, rows: slice) -> list[torch.Tensor]:
    """Rows of the sample ``(B, m)`` in each member's space, one for all where it is the same."""
    x, observed = state.sample_tensors(rows)
    count = len(group.members) if group.model.own_space else 1
    found = []
    for position in range(count):
        own = {name: value[position] for name, value in group.parameters.items()}
        found.append(group.model.represent(own, x, observed)[0])
    return found


def _scores(group: Group, members: slice, x: torch.Tensor) -> torch.Tensor:
    """``2 x·rho - |rho|²``, ``(P, k, B)``: greatest where the distance is least."""
    prototypes = group.parameters["prototypes"][members]
    if group.model.metric_name == "cosine":
        prototypes = torch.nn.functional.normalize(prototypes, dim=-1)
    return 2 * prototypes @ x.T - prototypes.square().sum(-1, keepdim=True)


def _used(group: Group, spaces: Sequence[torch.Tensor]) -> torch.Tensor:
    """``(P, k)`` bool: which prototypes some row is nearest to."""
    shape = group.parameters["prototypes"].shape[:2]
    used = torch.zeros(shape, dtype=torch.bool, device=spaces[0].device)
    for position, space in enumerate(spaces):
        members = slice(None) if len(spaces) == 1 else slice(position, position + 1)
        for part in space.split(4096):
            used[members].scatter_(1, _scores(group, members, part).argmax(1), True)
    return used


def _move(
    state: TrainState, group: Group, position: int, prototype: int, rows: torch.Tensor
) -> None:
    scores = _scores(group, slice(position, position + 1), rows)
    distance = rows.square().sum(-1) - scores.amax(1)[0]
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
    for name in group.model.by_cluster:
        if name not in group.parameters:
            continue
        if name != "prototypes":  # a weight of its own: that of an average prototype
            group.parameters[name][position, prototype] = group.parameters[name][position].mean()
        for store in (group.first, group.second):
            store[name][position, prototype] = 0.0
