"""Rows of shards read from start to end, block by block: what passes over all rows are made of.

Letters: ``n`` rows, ``B`` rows of a block, ``d`` features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clam_dist.data.npy import OpenNpyFiles
from clam_dist.data.shards import ShardFile
from clam_dist.train.lloyd import Block

BLOCK_BYTES = 8 * 2**20
"""Bytes of a block of rows of a streamed pass, which holds them a few times over."""


@dataclass(frozen=True)
class ShardPart:
    """The rows of one shard, read block by block where they are needed."""

    folder: str
    shard: ShardFile
    width: int
    weighted: bool

    @property
    def rows(self) -> int:
        """Rows of the shard."""
        return self.shard.rows

    def blocks(self) -> Iterator[Block]:
        """``x`` ``(B,d)`` float32, nan where missing, and weights ``(B,)``; each block is new."""
        step = max(1, BLOCK_BYTES // (4 * max(self.width, 1)))
        x_files = OpenNpyFiles(self.width, np.dtype(np.float32))
        w_files = OpenNpyFiles(None, np.dtype(np.float64))
        try:
            for first in range(0, self.rows, step):
                count = min(step, self.rows - first)
                x = np.empty((count, self.width), np.float32)
                at = self.shard.offset + first
                x_files.read_into(str(Path(self.folder, self.shard.path)), at, x)
                weight = None
                if self.weighted:
                    weight = np.empty(count)
                    w_files.read_into(str(Path(self.folder, self.shard.sibling("w"))), at, weight)
                yield x, weight
        finally:
            x_files.close()
            w_files.close()


@dataclass(frozen=True)
class ShardRows:
    """Scaled rows as shards with a sample of them.

    Parameters
    ----------
    folder
        Holds the shards, ``sample.x.npy`` and, where ``weighted``, ``sample.w.npy``.
    shards
        At least one row in each.
    width
        Features ``d``.
    weighted, has_missing
        Whether rows have weights, and whether any cell is missing (nan).
    """

    folder: str
    shards: tuple[ShardFile, ...]
    width: int
    weighted: bool
    has_missing: bool

    @property
    def n_rows(self) -> int:
        """``n``."""
        return sum(shard.rows for shard in self.shards)

    def parts(self) -> list[ShardPart]:
        """A part for each shard, in order."""
        return [ShardPart(self.folder, shard, self.width, self.weighted) for shard in self.shards]

    def sample(self) -> Block:
        """The sample ``(m,d)``, nan where missing, and its weights."""
        x = np.load(Path(self.folder, "sample.x.npy"))
        return x, np.load(Path(self.folder, "sample.w.npy")) if self.weighted else None

    def all(self) -> Block:
        """All rows in memory, in the order of the shards."""
        return joined([block for part in self.parts() for block in part.blocks()])


def joined(blocks: Sequence[Block]) -> Block:
    """The rows of all blocks in one."""
    weights = [weight for _, weight in blocks if weight is not None]
    x = np.concatenate([x for x, _ in blocks])
    return x, np.concatenate(weights) if weights else None
