"""One global batch: micro-batches side by side, combined in the fixed order, one update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as ThreadPool
from itertools import product
from typing import Any

import numpy as np
import torch

from clam_dist.executor import Collective
from clam_dist.models.rows import aligned, to_tensors
from clam_dist.train.device_memory import with_halving
from clam_dist.train.exchange import exchange_sums
from clam_dist.train.population import Group
from clam_dist.train.reduction import combine

WORK_FOR_THREADS = 5e6
"""Multiply-adds of a task from which on threads gain: 1.3 to 1.7 times at 64 features and more;
below, handing over the interpreter's lock costs more than it brings (14 features: .8 times)."""

LaneBatch = tuple[int, Any, Any]
"""``(lane, x (B, d), weight (B,) | None)``: arrays of the host, or tensors on the device."""
Rows = tuple[torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"]


def _silent(message: str) -> None:
    """Nobody asked."""


def batch_sums(
    groups: Sequence[Group],
    batches: Sequence[LaneBatch],
    *,
    lanes: int,
    key: tuple[int, ...],
    has_missing: bool,
    device: torch.device,
    collective: Collective,
    pool: ThreadPool | None,
    say: Callable[[str], None] = _silent,
) -> list[torch.Tensor]:
    """Sums of one global batch for each group: the same bits on every rank.

    Parameters
    ----------
    groups
        The population.
    batches
        ``(lane, x, weight)`` of this rank's lanes.
    lanes
        Micro-batches of the global batch.
    key
        Keys the masks together with the lane; the same for every group, so that members see
        the same rows under nested masks.
    pool
        Threads to compute (lane, group) pairs on, None for none. Each runs at one intra-op
        thread, since products differ by thread count.
    say
        Takes what the user should know of the device's memory.
    """
    prepared = {lane: _prepare(x, w, has_missing, device) for lane, x, w in batches}
    shared = lanes == 1 and collective.world_size > 1
    if shared:  # one micro-batch: not lanes but groups are shared out
        mine = [g for g in range(len(groups)) if g % collective.world_size == collective.rank]
    else:
        mine = list(range(len(groups)))
    found = _independent(groups, mine, prepared, key, pool, say)
    for position in mine:
        if groups[position].model.exchanges:
            # Where groups are shared out, whoever has one has all its rows.
            partners = None if shared else collective
            sums = exchange_sums(
                groups[position], prepared, key, lanes, partners, _mapper(pool, groups, prepared)
            )
            found |= {(lane, position): value for lane, value in sums.items()}
    lengths = [group.length for group in groups]
    if shared:
        return _gather_groups(found, lengths, device, collective)
    flat = {
        lane: torch.cat(
            [
                found.get((lane, g), torch.zeros(n, dtype=torch.float64, device=device))
                for g, n in enumerate(lengths)
            ]
        )
        for lane in prepared
    }
    return list(combine(flat, lanes, sum(lengths), collective).split(lengths))


def _independent(
    groups: Sequence[Group],
    mine: Sequence[int],
    prepared: Mapping[int, Rows],
    key: tuple[int, ...],
    pool: ThreadPool | None,
    say: Callable[[str], None],
) -> dict[tuple[int, int], torch.Tensor]:
    """Sums of each micro-batch that has rows, for each group that needs no other's."""
    filled = [lane for lane, rows in prepared.items() if len(rows[0])]
    pairs = list(product(filled, [g for g in mine if not groups[g].model.exchanges]))

    def compute(pair: tuple[int, int]) -> torch.Tensor:
        lane, position = pair
        x, weight, observed = prepared[lane]

        def block(rows: slice) -> torch.Tensor:
            # What a block draws follows from where it begins: a device whose memory ran out once
            # hides other cells than one that holds the whole micro-batch.
            begun = (rows.start,) if rows.start else ()
            return groups[position].sums(
                x[rows],
                None if weight is None else weight[rows],
                None if observed is None else observed[rows],
                (*key, lane, *begun),
            )

        return with_halving(block, len(x), say)

    return dict(zip(pairs, _mapper(pool, groups, prepared)(compute, pairs), strict=True))


def _mapper(
    pool: ThreadPool | None, groups: Sequence[Group], prepared: Mapping[int, Rows]
) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """``map``, on threads where that gains."""
    most = max((len(rows[0]) for rows in prepared.values()), default=0)
    work = max((group.work(most) for group in groups), default=0.0)
    return pool.map if pool is not None and work >= WORK_FOR_THREADS else map


def _gather_groups(
    by_pair: dict[tuple[int, int], torch.Tensor],
    lengths: Sequence[int],
    device: torch.device,
    collective: Collective,
) -> list[torch.Tensor]:
    """Each group's sums from the one rank that computed them."""
    parts = [
        by_pair.get((0, g), torch.zeros(length, dtype=torch.float64, device=device))
        for g, length in enumerate(lengths)
    ]
    gathered = collective.all_gather(torch.cat(parts))
    owners = (gathered[g % collective.world_size] for g in range(len(lengths)))
    splits = [owner.split(list(lengths)) for owner in owners]
    return [splits[g][g] for g in range(len(lengths))]


def _prepare(
    x: np.ndarray | torch.Tensor,
    weight: np.ndarray | torch.Tensor | None,
    has_missing: bool,
    device: torch.device,
) -> Rows:
    weights = None if weight is None else torch.as_tensor(weight).to(device, torch.float32)
    if isinstance(x, torch.Tensor):  # sent ahead
        seen = ~torch.isnan(x) if has_missing else None
        return (x if seen is None else torch.where(seen, x, 0.0)), weights, seen
    rows, observed = to_tensors(x, has_missing=has_missing, device=device)
    rows = aligned(rows)
    return rows, weights, observed
