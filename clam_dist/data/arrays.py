"""Arrays in memory, or in parts that are, laid down as the training reads them.

Legend: n rows, d features. Two passes over the parts: statistics, then scaled rows in a shuffled
order, with a sample drawn from all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from clam_dist.data.npy import write_npy
from clam_dist.data.shards import ShardFile, plan_shard_rows, virtual_shards
from clam_dist.data.statistics import Scaling, Statistics, fit_scaling, merge_all
from clam_dist.errors import DataError

Part = tuple[np.ndarray, "np.ndarray | None"]
"""``x`` float (n, d), NaN where missing, and ``weight`` float64 (n,) or None."""
Parts = Callable[[], Iterable[Part]]
"""Gives the parts anew, in the same order, as often as it is called."""

_BLOCK_ROWS = 65_536
_SHUFFLE, _DRAW = 101, 102
"""First parts of the keys of the rows' order and of the sample."""


@dataclass(frozen=True)
class WrittenRows:
    """What :func:`write_rows` left in its folder, and what it knows of the rows."""

    shards: tuple[ShardFile, ...]
    sample_rows: int
    has_missing: bool
    statistics: Statistics
    scaling: Scaling


def write_rows(
    parts: Parts, folder: str, *, scaling: str, sample_rows: int, weighted: bool, seed: int
) -> WrittenRows:
    """Write shards, ``sample.x.npy`` and, where ``weighted``, the weights beside them.

    Rows without any value, and rows of weight 0, are left out.

    Parameters
    ----------
    parts
        The rows; one part is in memory at a time, twice.
    folder : str
        Exists; is filled.
    scaling : str
        A kind of :func:`~clam_dist.data.statistics.fit_scaling`.
    sample_rows : int
        Rows of the sample, at most.
    weighted : bool
        Whether the parts have weights.
    seed : int
        Orders the rows of each part, and draws the sample.

    Raises
    ------
    DataError
        Values too large for float32 once scaled; no row has any value and a positive weight.
    RunError
        The disk is full, or the folder cannot be written to.
    """
    statistics = merge_all(
        Statistics.of(np.asarray(x, dtype=np.float64), weight) for x, weight in _blocks(parts())
    )
    fitted = fit_scaling(statistics, scaling)
    width = len(statistics.mean)
    shards: list[ShardFile] = []
    sample = _Sample(sample_rows, seed)
    per_shard = plan_shard_rows(statistics.rows, width)
    for number, (x, weight) in enumerate(parts()):
        usable = ~np.isnan(x).all(axis=1)
        if weight is not None:
            usable &= weight > 0
        order = _generator(seed, _SHUFFLE, number).permutation(np.flatnonzero(usable))
        if len(order) == 0:
            continue
        path = f"rows-{number:05d}.x.npy"
        scaled = (
            fitted.apply(np.asarray(x[order[rows]], dtype=np.float64))
            for rows in _slices(len(order))
        )
        write_npy(f"{folder}/{path}", (len(order), width), np.dtype(np.float32), scaled)
        if weight is not None:
            values = np.asarray(weight, dtype=np.float64)[order]
            write_npy(f"{folder}/rows-{number:05d}.w.npy", values.shape, values.dtype, [values])
        missing = bool(np.isnan(x).any())
        shards += virtual_shards(path, len(order), per_shard, missing)
        sample.offer(x, weight, order, number)
    if not shards:
        raise DataError(
            "in every row all features are missing or the weight is zero, so there is nothing to "
            "cluster; give rows with values and positive weights"
        )
    chosen, weights = sample.rows()
    scaled_sample = fitted.apply(chosen)
    np.save(os.path.join(folder, "sample.x.npy"), scaled_sample)
    if weighted:
        np.save(os.path.join(folder, "sample.w.npy"), weights)
    return WrittenRows(
        tuple(shards),
        len(chosen),
        any(shard.has_missing for shard in shards),
        statistics,
        fitted,
    )


def merge_equal_rows(
    x: np.ndarray, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The distinct rows in a fixed order, each with the summed weight of its copies.

    What a set of rows becomes does not depend on how it is written: on the order of the rows, on
    whether a row stands twice or has weight 2, on rows of weight 0 or without any value.

    Parameters
    ----------
    x : ndarray of numbers, shape (n, d)
        NaN where missing.
    weight : ndarray of float64, shape (n,), optional

    Returns
    -------
    rows : ndarray of float64, shape (m, d)
    weight : ndarray of float64, shape (m,), or None
        None if every row has weight 1.
    """
    rows = np.array(x, dtype=np.float64, order="C")
    missing = np.isnan(rows)
    rows[missing] = np.nan  # one NaN of the many there are
    rows += 0.0  # -0 becomes 0
    kept = ~missing.all(axis=1)
    if weight is not None:
        kept &= weight > 0
    rows = rows[kept]
    weights = np.ones(len(rows)) if weight is None else np.asarray(weight, np.float64)[kept]
    if len(rows) == 0:
        return rows, None
    # A row as one value of so many bytes: compared whole, NaN equal to NaN.
    lines = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    _, first, copies = np.unique(lines, return_index=True, return_inverse=True)
    # Sorted before they are summed: the digits of a sum depend on the order of its terms.
    order = np.lexsort((weights, copies))
    totals = np.bincount(copies[order], weights[order], len(first))
    return rows[first], None if (totals == 1.0).all() else totals


class _Sample:
    """The ``m`` rows of least random number, whatever the parts."""

    def __init__(self, m: int, seed: int) -> None:
        self._m, self._seed = m, seed
        self._numbers = np.empty(0)
        self._x: np.ndarray | None = None
        self._weight = np.empty(0)

    def offer(self, x: np.ndarray, weight: np.ndarray | None, order: np.ndarray, part: int) -> None:
        numbers = _generator(self._seed, _DRAW, part).random(len(order))
        best = np.argsort(numbers, kind="stable")[: self._m]
        rows = np.asarray(x[order[best]], dtype=np.float64)
        weights = np.ones(len(best)) if weight is None else np.asarray(weight)[order[best]]
        if self._x is not None:
            rows = np.concatenate([self._x, rows])
            weights = np.concatenate([self._weight, weights])
        numbers = np.concatenate([self._numbers, numbers[best]])
        kept = np.argsort(numbers, kind="stable")[: self._m]
        self._numbers, self._x, self._weight = numbers[kept], rows[kept], weights[kept]

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """float64 ``(m, d)`` and ``(m,)``."""
        assert self._x is not None
        return self._x, self._weight.astype(np.float64)


def _blocks(parts: Iterable[Part]) -> Iterator[Part]:
    for x, weight in parts:
        for rows in _slices(len(x)):
            yield x[rows], None if weight is None else weight[rows]


def _slices(rows: int) -> Iterator[slice]:
    for first in range(0, rows, _BLOCK_ROWS):
        yield slice(first, min(first + _BLOCK_ROWS, rows))


def _generator(seed: int, purpose: int, part: int) -> np.random.Generator:
    key = np.random.SeedSequence(seed, spawn_key=(purpose, part))
    return np.random.Generator(np.random.Philox(key))
