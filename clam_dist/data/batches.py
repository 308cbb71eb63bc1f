"""Which rows of which shard make each batch: a pure plan, the same for any number of ranks.

Legend: s shards, S steps of an epoch, V lanes, G domains.

Shard ``i`` belongs to lane ``i mod V``. A global batch is cut into V micro-batches, the part that
each lane has of it, and a rank owns whole lanes; so no sum depends on who owns what.

Where shards are of several domains, each batch is of one: every domain has steps of its own, at
which its shards alone give rows, and its shards are dealt to the lanes anew, the largest first and
each to the lane with the fewest rows, so that every lane has its share at every step.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from clam_dist.data.sampling import generator

_GOLDEN_RATIO = 0.6180339887498949
_SLICES = 256
"""Shards that one batch draws from, at least if there are as many: more mix no better, and each
costs a read and a copy."""
_BLOCK = 2**12
"""Pairs of step and shard looked at together: 32 KiB of int64."""


class BatchPlan:
    """Cut every epoch into steps, each taking its share of every shard.

    At step ``t`` a shard of ``n`` rows gives the rows ``[b(t), b(t + 1))``, where
    ``b(t) = floor((t n + phase) / S)`` and ``0 <= phase < S``; so each row comes exactly once an
    epoch. A shard whose share would be less than ``batch_rows / 256`` rows gives that many at a
    time, at some steps only. Phases are spread evenly over a lane's shards (by multiples of the
    golden ratio), so that these do not all fall on the same steps. Each epoch a shard is read
    from another row on, drawn by ``(seed, epoch, shard)``, and wraps round. With domains, ``t`` and
    ``S`` count the steps of the shard's own.

    Parameters
    ----------
    rows : sequence of int, length s
        Rows of each shard, all lanes' included; 0 is allowed.
    lanes : int
        V.
    batch_rows : int
        Rows of a global batch, about: an epoch has ``ceil(sum(rows) / batch_rows)`` steps.
    seed : int
        The run's seed.
    domains : sequence of int, length s, optional
        Domain of each shard, from 0. A domain has ``ceil(its rows / batch_rows)`` steps of an
        epoch, spread evenly over it. One domain is as none.

    Attributes
    ----------
    steps : int
        S.
    domain_of_step : ndarray of int64, shape (S,), or None
        None without domains.
    """

    def __init__(
        self,
        rows: Sequence[int],
        lanes: int,
        batch_rows: int,
        seed: int,
        domains: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        if lanes < 1 or batch_rows < 1:
            raise ValueError(f"lanes and batch_rows must be at least 1, got {lanes}, {batch_rows}")
        self.rows = np.asarray(rows, np.int64)  # (s,)
        self.lanes = lanes
        self.seed = seed
        self.domain_of_step: np.ndarray | None = None
        self._domains = np.zeros(len(self.rows), np.int64)  # (s,)
        shard = np.arange(len(self.rows))
        if domains is None or len(np.unique(domains)) < 2:
            self.steps = max(1, -(-int(self.rows.sum()) // batch_rows))
            self._own_steps = np.full(len(self.rows), self.steps)  # (s,)
            place, self._lane = shard // lanes, shard % lanes
        else:
            self._domains = np.asarray(domains, np.int64)
            held = np.zeros(int(self._domains.max()) + 1, np.int64)  # (G,) rows
            np.add.at(held, self._domains, self.rows)
            steps = -(-held // batch_rows)  # (G,)
            self.domain_of_step = take_turns(steps)
            self.steps = max(1, len(self.domain_of_step))
            self._own_steps = np.maximum(steps, 1)[self._domains]
            self._comes = [np.flatnonzero(self.domain_of_step == g) for g in range(len(held))]
            self._lane, place = _deal(self.rows, self._domains, lanes)
        least = max(1, batch_rows // _SLICES)
        self._unit = np.where(self.rows >= least * self._own_steps, 1, least)  # (s,) rows
        self._units = -(-self.rows // self._unit)  # (s,)
        turn = place * _GOLDEN_RATIO + self._lane / lanes
        self._phase = np.floor((turn % 1.0) * self._own_steps).astype(np.int64)  # (s,)

    def shards_of(self, lane: int) -> np.ndarray:
        """Indices of the lane's shards, rising; int64."""
        return np.flatnonzero(self._lane == lane)

    def rows_a_step(self, shards: np.ndarray) -> np.ndarray:
        """Rows that each of ``shards`` gives at a step of its domain, on average: float64 (s,)."""
        own: np.ndarray = self.rows[shards] / self._own_steps[shards]
        return own

    def bounds(self, step: int | np.ndarray, shards: np.ndarray) -> np.ndarray:
        """Where step ``step`` begins in each of ``shards``.

        Parameters
        ----------
        step : int or ndarray of int64, shape (t, 1)
            From 0, which gives 0, to ``steps``, which gives the shard's rows.
        shards : ndarray of int64, shape (s,)

        Returns
        -------
        ndarray of int64, shape (s,) or (t, s)
            Counted from the epoch's first row of the shard; see `rotations`.
        """
        own = self._own_steps[shards]
        units = (self._come(step, shards) * self._units[shards] + self._phase[shards]) // own
        return np.minimum(units * self._unit[shards], self.rows[shards])

    def _come(self, step: int | np.ndarray, shards: np.ndarray) -> int | np.ndarray:
        """How many steps of each shard's domain lie before ``step``; as `bounds`."""
        if self.domain_of_step is None:
            return step
        found = [np.atleast_1d(np.searchsorted(comes, step)) for comes in self._comes]
        before = np.concatenate(found, axis=-1)  # (G,) or (t, G)
        return before[..., self._domains[shards]]

    def rotations(self, epoch: int) -> np.ndarray:
        """The row that each shard is read from in this epoch: int64, shape (s,)."""
        turn = generator(self.seed, "rotation", epoch).random(len(self.rows))
        return np.floor(turn * self.rows).astype(np.int64)

    def most_rows(self, shards: np.ndarray) -> int:
        """The most rows that these shards give together in any one step."""
        most = 0
        block = max(1, _BLOCK // max(1, len(shards)))
        for first in range(0, self.steps, block):
            steps = np.arange(first, min(first + block, self.steps) + 1)[:, None]
            # (t + 1, s) bounds -> (t, s) rows of each step and shard -> (t,) rows of each step
            rows = np.diff(self.bounds(steps, shards), axis=0).sum(axis=1)
            most = max(most, int(rows.max()))
        return most


def take_turns(steps: Sequence[int] | np.ndarray) -> np.ndarray:
    """The order in which domains with so many steps come: each spread evenly over all.

    Of a domain with ``n`` steps, step ``i`` is put at ``(i + phase) / n`` of the epoch, with
    another ``0 <= phase < 1`` for each domain, so that those with few steps do not meet.

    Parameters
    ----------
    steps : sequence of int, length G

    Returns
    -------
    ndarray of int64, shape (sum of steps,)
    """
    counts = np.asarray(steps, np.int64)
    domain = np.repeat(np.arange(len(counts)), counts)  # (S,)
    first = np.cumsum(counts) - counts
    number = np.arange(len(domain)) - first[domain]
    time = (number + (domain * _GOLDEN_RATIO) % 1.0) / counts[domain]
    return domain[np.lexsort((domain, time))]


def _deal(rows: np.ndarray, domains: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """The lane of each shard, and how many shards of its domain were dealt to the lane before.

    Returns
    -------
    lane, place : ndarray of int64, shape (s,)
    """
    lane, place = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for domain in np.unique(domains):
        shards = np.flatnonzero(domains == domain)
        loads = [(0, v) for v in range(lanes)]  # a heap, the lane of fewest rows first
        dealt = [0] * lanes
        for shard in shards[np.argsort(-rows[shards], kind="stable")].tolist():
            load, least = loads[0]
            heapq.heapreplace(loads, (load + int(rows[shard]), least))
            lane[shard], place[shard] = least, dealt[least]
            dealt[least] += 1
    return lane, place
