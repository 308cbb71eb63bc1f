"""The members of a sweep: every setting and start that is trained side by side, planned purely."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from clam_dist.models.seeding import Kind
from clam_dist.train.schedule import LEARNING_RATE

AUTO_SCALES: tuple[float, ...] = tuple(float(c) for c in np.geomspace(0.05, 32.0, 8).round(4))
"""``c = beta * s2`` for ``beta: auto``, ``s2`` being the k-means inertia a row: the best values
found by the paper's own search (table 5) run from .15 to 20 in this unit."""

MANY_MEMBERS = 320
"""Members from which on ``beta: auto`` tries every second scale: of many numbers of clusters."""

STARTS: tuple[Kind, ...] = (
    "kmeans",
    "kmeans",
    "normal",
    "rows",
)
"""Where restarts begin, in turn: no single start wins on all data sets. The first is the k-means
run of least inertia, the second that of greatest silhouette; at a large ``c`` they keep the sweep
from falling below k-means."""

ELEMENTS_IN_PRODUCT = 65_536
"""Of ``(P, k, rows)`` arrays: fewer than half as many leave a step to the fixed cost of its calls
(.4 to .7 ms, measured), more leave the second-level cache."""
LEAST_IN_GROUP = 16


@dataclass(frozen=True)
class Member:
    """One setting with one start.

    Parameters
    ----------
    index
        Its place in the plan; kept when others are dropped.
    n_clusters, steps, objective, mask_rate
        Settings that must be equal within a group; ``mask_rate`` is 0 for the unmasked objective.
    beta, scale
        Inverse temperature in 1/length² of scaled units, and ``beta * s2``.
    learning_rate
        Adam's first step length.
    restart, start
        Number of the restart, and where it begins (one of :data:`STARTS`).
    """

    index: int
    n_clusters: int
    steps: int
    objective: str
    mask_rate: float
    beta: float
    scale: float
    learning_rate: float
    restart: int
    start: str

    def to_json(self) -> dict[str, Any]:
        """The member as a JSON object."""
        return asdict(self)


def plan_members(
    *,
    n_clusters: Sequence[int],
    steps: Sequence[int],
    objectives: Sequence[str],
    mask_rates: Sequence[float],
    betas: Sequence[float] | None,
    learning_rates: Sequence[float] | None,
    restarts: int,
    inertia: Mapping[int, float],
    scales: Sequence[float] = AUTO_SCALES,
    starts: Sequence[str] = STARTS,
) -> list[Member]:
    """Every combination of the settings, ``restarts`` times.

    Parameters
    ----------
    betas
        Inverse temperatures; None for ``scales`` over each ``inertia``.
    learning_rates
        None for the default.
    inertia
        For each number of clusters ``s2``, the k-means inertia a row in scaled units, positive.
    scales
        Every second of them where many numbers of clusters make many members.
    starts
        Where restarts begin, in turn.
    """
    members: list[Member] = []
    rates_of = {"masked": len(mask_rates)}
    each = len(steps) * sum(rates_of.get(objective, 1) for objective in objectives) * restarts
    each *= len(learning_rates or [LEARNING_RATE]) * len(scales)
    if len(n_clusters) > 1 and each * len(n_clusters) > MANY_MEMBERS:
        scales = scales[1::2]
    for k, depth, objective in product(n_clusters, steps, objectives):
        choices = betas if betas is not None else [c / inertia[k] for c in scales]
        rates = mask_rates if objective == "masked" else [0.0]
        for beta, mask_rate, rate, restart in product(
            choices, rates, learning_rates or [LEARNING_RATE], range(restarts)
        ):
            member = Member(
                index=len(members),
                n_clusters=k,
                steps=depth,
                objective=objective,
                mask_rate=float(mask_rate),
                beta=float(beta),
                scale=float(beta * inertia[k]),
                learning_rate=float(rate),
                restart=restart,
                start=starts[restart % len(starts)],
            )
            members.append(member)
    return members


def group_members(members: Sequence[Member], rows: int) -> list[list[Member]]:
    """Members that go as one product: equal in all but beta, learning rate and start.

    ``rows`` are those of a micro-batch: the fewer there are, the more members go together.
    """
    groups: dict[tuple[Any, ...], list[Member]] = {}
    for member in members:
        key = (member.n_clusters, member.steps, member.objective, member.mask_rate)
        groups.setdefault(key, []).append(member)
    cut: list[list[Member]] = []
    for group in groups.values():
        most = max(LEAST_IN_GROUP, ELEMENTS_IN_PRODUCT // (group[0].n_clusters * rows))
        parts = -(-len(group) // most)
        bounds = [part * len(group) // parts for part in range(parts + 1)]
        cut += [group[start:stop] for start, stop in itertools.pairwise(bounds)]
    return cut
