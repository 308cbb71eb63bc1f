"""Which integer columns look like keys: those that only rise, or never repeat.

Such a column says which row it is, not what the row is like, and spoils distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

SKETCH = 256
"""Values watched for repeats: those of smallest hash, so the same ones for any cut into parts."""
FEWEST_ROWS = 20
"""With fewer rows than this, a column that rises or never repeats says nothing."""


@dataclass(frozen=True)
class KeyTrace:
    """What is known of an integer column over some consecutive rows.

    Traces of consecutive parts merge into exactly the trace of the whole. Up to ``SKETCH``
    distinct values the repeats are found exactly; beyond, a column is said to repeat when one of
    the ``SKETCH`` distinct values of smallest hash does.
    """

    rows: int
    rises: bool
    """Every row's value is above the row's before, and none is missing."""
    first: int | None
    """The first row's value; None without rows, or where ``repeats``."""
    last: int | None
    """The last row's value; None without rows, or where ``repeats``."""
    smallest: np.ndarray
    """uint64 (at most ``SKETCH``,): smallest hashes of the values, in order; none if repeats."""
    repeats: bool
    """Two rows share a watched value, or one is missing."""

    @classmethod
    def empty(cls) -> KeyTrace:
        """The trace of no rows: merging with it changes nothing."""
        return cls(0, True, None, None, np.empty(0, dtype=np.uint64), False)

    @classmethod
    def of(cls, values: pa.Array) -> KeyTrace:
        """The trace of one batch of an integer column."""
        rows = len(values)
        if rows == 0:
            return cls.empty()
        if values.null_count:
            return cls._no_key(rows)
        integers = values.to_numpy()
        smallest, repeats = _smallest(_scatter(integers))
        if repeats:
            return cls._no_key(rows)
        rises = bool((integers[1:] > integers[:-1]).all())
        return cls(rows, rises, int(integers[0]), int(integers[-1]), smallest, False)

    def merge(self, other: KeyTrace) -> KeyTrace:
        """The trace of this part's rows followed by the ``other``'s."""
        if self.rows == 0 or other.rows == 0:
            return self if other.rows == 0 else other
        rows = self.rows + other.rows
        if self.repeats or other.repeats:
            return self._no_key(rows)
        smallest, repeats = _smallest(np.concatenate([self.smallest, other.smallest]))
        if repeats:
            return self._no_key(rows)
        follows = self.last is not None and other.first is not None and other.first > self.last
        rises = self.rises and other.rises and follows
        return KeyTrace(rows, rises, self.first, other.last, smallest, False)

    @property
    def is_key(self) -> bool:
        """Whether the column looks like a key."""
        return self.rows >= FEWEST_ROWS and not self.repeats

    @classmethod
    def _no_key(cls, rows: int) -> KeyTrace:
        """The trace of a column that cannot become a key, whatever follows."""
        return cls(rows, False, None, None, np.empty(0, dtype=np.uint64), True)


def trace(known: KeyTrace, values: pa.Array) -> KeyTrace:
    """``known`` followed by a batch, at no cost once the column cannot be a key."""
    if known.repeats:
        return KeyTrace._no_key(known.rows + len(values))
    return known.merge(KeyTrace.of(values))


def _smallest(hashes: np.ndarray) -> tuple[np.ndarray, bool]:
    """The ``SKETCH`` smallest distinct hashes in order, and whether any of them comes twice."""
    if len(hashes) > 4 * SKETCH:
        # Enough of the smallest to hold SKETCH distinct ones unless some repeat, which is an
        # answer too; sorting all would cost more than reading them.
        hashes = np.partition(hashes, 2 * SKETCH)[: 2 * SKETCH]
    hashes = np.sort(hashes)
    same = hashes[1:] == hashes[:-1]
    distinct = hashes[np.concatenate([[True], ~same])][:SKETCH]
    return distinct, bool((same & (hashes[1:] <= distinct[-1])).any())


def _scatter(integers: np.ndarray) -> np.ndarray:
    """uint64 hashes that differ wherever the integers do: two rounds of multiply and shift."""
    # products of uint64 arrays wrap, as meant; each step can be undone, so none makes a collision
    hashes = integers.astype(np.int64, copy=False).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(29)
    return hashes
