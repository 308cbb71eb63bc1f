"""Networks trained on reconstruction first, and the sweep's members that begin from them.

One network a restart is pretrained; then, for each number of clusters, prototypes are placed in
its latent space, and all members of that restart begin from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from clam_dist.models.factory import initial_parameters
from clam_dist.train.members import Member
from clam_dist.train.schedule import LEARNING_RATE

if TYPE_CHECKING:
    from clam_dist.train.state import TrainState

Place = tuple[int, int]
"""A number of clusters and a restart."""


def pretrained_members(members: Sequence[Member]) -> list[Member]:
    """One member for each restart, whose network the others of that restart begin from."""
    first: dict[int, Member] = {}
    for member in members:
        first.setdefault(member.restart, replace(member, learning_rate=LEARNING_RATE))
    return [first[restart] for restart in sorted(first)]


def rescaled(
    members: Sequence[Member], inertia: Mapping[Place, float], fixed: bool
) -> list[Member]:
    """Members with beta and its scale in the unit of their own latents.

    Parameters
    ----------
    inertia
        Of k-means in the latent space, a row, by number of clusters and restart.
    fixed
        The betas were asked for; else the scales ``c = beta * inertia`` were.
    """
    found = []
    for member in members:
        unit = inertia[member.n_clusters, member.restart]
        if fixed:
            found.append(replace(member, scale=member.beta * unit))
        else:
            found.append(replace(member, beta=member.scale / unit))
    return found


def begin_members(state: TrainState) -> None:
    """Take the networks as pretraining left them, place prototypes, build the sweep's groups.

    Rank 0's places are everyone's.
    """
    plan, collective = state.plan, state.collective
    group = state.groups[0]
    for position, member in enumerate(group.members):
        state.networks[member.restart] = {
            name: group.best[name][position].clone()
            for name in group.names
            if name.startswith(NETWORK)
        }
        state.pretrained_loss[member.restart] = float(group.plateau.best[position])
    x, observed = state.sample_tensors(slice(0, None))
    weight = state.sample_weights()
    for k, restart in sorted({(m.n_clusters, m.restart) for m in plan.members}):
        settings = next(m for m in plan.members if (m.n_clusters, m.restart) == (k, restart))
        model = plan.build_model(plan.model_settings, settings.to_json())
        begun, unit = model.begin(state.networks[restart], x, weight, observed, plan.seed + restart)
        state.begun[k, restart] = {
            name: collective.broadcast(value.contiguous()) for name, value in sorted(begun.items())
        }
        value = torch.tensor([unit], dtype=torch.float64)
        state.inertia[k, restart] = float(collective.broadcast(value)[0])
    state.build_groups()


NETWORK = ("encoder.", "decoder.")
"""How the names of a network's parameters begin."""


def first_parameters(state: TrainState, members: Sequence[Member]) -> dict[str, torch.Tensor]:
    """Where members begin, ``(P, ...)`` by name: from their pretrained networks, or as drawn."""
    if state.networks:
        held = [state.networks[m.restart] | state.begun[m.n_clusters, m.restart] for m in members]
        return {name: torch.stack([one[name] for one in held]) for name in sorted(held[0])}
    starts = None if state.pretraining else state.starts(members)
    settings = [member.to_json() for member in members]
    found = initial_parameters(state.plan.model_settings, settings, starts)
    return {name: value.to(state.device) for name, value in found.items()}
