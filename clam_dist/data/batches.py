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


class BatchPlan:
    """Cut every epoch into steps, each taking its share of every shard.

    At step ``t`` a shard of ``n`` rows gives the rows ``[b(t), b(t + 1))``, where
    ``b(t) = floor((t n + phase) / S)`` and ``0 <= phase < S``; so each row comes exactly once an
    epoch. Phases are spread evenly over a lane's shards (by multiples of the golden ratio), so
    that shards with fewer rows than steps do not all give their rows at the same steps. Each
    epoch a shard is read from another row on, drawn by ``(seed, epoch, shard)``, and wraps round.

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
        self.rows = np.asarray(rows, np.int64)  # (s,)
        self.lanes = lanes
        self.seed = seed
        self.steps = max(1, -(-int(self.rows.sum()) // batch_rows))
        shard = np.arange(len(self.rows))
        turn = (shard // lanes) * _GOLDEN_RATIO + (shard % lanes) / lanes
        self.phase = np.floor((turn % 1.0) * self.steps).astype(np.int64)  # (s,)

    def shards_of(self, lane: int) -> np.ndarray:
        """Indices of the lane's shards, rising; int64."""
        return np.arange(lane, len(self.rows), self.lanes)

    def bounds(self, step: int, shards: np.ndarray) -> np.ndarray:
        """Where step ``step`` begins in each of ``shards``: int64, shape of ``shards``.

        ``bounds(0)`` is 0 and ``bounds(steps)`` the shard's rows. Places are counted from the
        epoch's first row of the shard; see `rotations`.
        """
        return (step * self.rows[shards] + self.phase[shards]) // self.steps

    def rotations(self, epoch: int) -> np.ndarray:
        """The row that each shard is read from in this epoch: int64, shape (s,)."""
        turn = generator(self.seed, "rotation", epoch).random(len(self.rows))
        return np.floor(turn * self.rows).astype(np.int64)

    def most_rows(self, shards: np.ndarray) -> int:
        """A bound on the rows that these shards give together in any one step."""
        return int(np.sum(-(-self.rows[shards] // self.steps)))
