"""One global batch: micro-batches side by side, combined in the fixed order, one update."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor as ThreadPool
from itertools import product

import numpy as np
import torch

from clam_dist.executor import Collective
from clam_dist.models.rows import to_tensors
from clam_dist.train.population import Group
from clam_dist.train.reduction import combine

WORK_FOR_THREADS = 5e6
"""Multiply-adds of a task from which on threads gain: 1.3 to 1.7 times at 64 features and more;
below, handing over the interpreter's lock costs more than it brings (14 features: .8 times)."""

LaneBatch = tuple[int, np.ndarray, "np.ndarray | None"]


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
    """
    prepared = {
        lane: _prepare(x, weight, has_missing, device) for lane, x, weight in batches if len(x)
    }
    shared = lanes == 1 and collective.world_size > 1
    if shared:  # one micro-batch: not lanes but groups are shared out
        rank, world_size = collective.rank, collective.world_size
        pairs = [(0, g) for g in range(len(groups)) if g % world_size == rank and prepared]
    else:
        pairs = list(product(prepared, range(len(groups))))

    def compute(pair: tuple[int, int]) -> torch.Tensor:
        lane, position = pair
        return groups[position].sums(*prepared[lane], (*key, lane))

    work = max((groups[g].work(len(prepared[lane][0])) for lane, g in pairs), default=0.0)
    threads = pool is not None and work >= WORK_FOR_THREADS
    values = pool.map(compute, pairs) if pool is not None and threads else map(compute, pairs)
    by_pair = dict(zip(pairs, values, strict=True))
    lengths = [group.length for group in groups]
    if shared:
        return _gather_groups(by_pair, lengths, device, collective)
    zero = torch.zeros(sum(lengths), dtype=torch.float64, device=device)
    flat = {
        lane: torch.cat([by_pair[lane, position] for position in range(len(groups))])
        if lane in prepared
        else zero
        for lane, _, _ in batches
    }
    return list(combine(flat, lanes, sum(lengths), collective).split(lengths))


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
    x: np.ndarray, weight: np.ndarray | None, has_missing: bool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    rows, observed = to_tensors(x, has_missing=has_missing, device=device)
    weights = None if weight is None else torch.from_numpy(weight).to(device, torch.float32)
    return rows, weights, observed
