"""Which rows of which shard make each batch: a pure plan, the same for any number of ranks.

Legend: s shards, S steps of an epoch, V lanes.

Shard ``i`` belongs to lane ``i mod V``. A global batch is cut into V micro-batches, the part that
each lane has of it, and a rank owns whole lanes; so no sum depends on who owns what.
"""

from __future__ import annotations

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
    from another row on, drawn by ``(seed, epoch, shard)``, and wraps round.

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
    """

    def __init__(self, rows: Sequence[int], lanes: int, batch_rows: int, seed: int) -> None:
        if lanes < 1 or batch_rows < 1:
            raise ValueError(f"lanes and batch_rows must be at least 1, got {lanes}, {batch_rows}")
        self.rows = np.asarray(rows, np.int64)  # (s,)
        self.lanes = lanes
        self.seed = seed
        self.steps = max(1, -(-int(self.rows.sum()) // batch_rows))
        least = max(1, batch_rows // _SLICES)
        self._unit = np.where(self.rows >= least * self.steps, 1, least)  # (s,) rows
        self._units = -(-self.rows // self._unit)  # (s,)
        shard = np.arange(len(self.rows))
        turn = (shard // lanes) * _GOLDEN_RATIO + (shard % lanes) / lanes
        self._phase = np.floor((turn % 1.0) * self.steps).astype(np.int64)  # (s,)

    def shards_of(self, lane: int) -> np.ndarray:
        """Indices of the lane's shards, rising; int64."""
        return np.arange(lane, len(self.rows), self.lanes)

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
        units = (step * self._units[shards] + self._phase[shards]) // self.steps
        return np.minimum(units * self._unit[shards], self.rows[shards])

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
