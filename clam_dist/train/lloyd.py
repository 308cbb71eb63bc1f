"""Lloyd's k-means over rows of any number: sums of parts, merged in a fixed order.

A pass maps one function over the parts of the rows and adds what comes back in the order of the
parts, in float64, so that the result is the same to the last bit whoever computes which part. The
parts decide where sums are cut; keep them, and nothing else matters.

With missing values the objective is the sum of squares over the entries seen: rows go to the
prototype nearest there, and a prototype is in each feature the mean of its rows' seen values (Chi,
Chi and Baraniuk 2016, k-POD). Both steps lower it, as without missing values.

On the sphere (Dhillon and Modha 2001) rows and prototypes have length 1 and the objective is the
sum of ``1 - cos``. A row's missing values are left out of its length; with them the objective may
rise a little from one pass to the next, and the best pass is kept.

Letters: ``P`` starts that run side by side, ``B`` rows of a block, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from scipy.sparse import csr_matrix

from clam_dist.models.nearest import Geometry, nearest
from clam_dist.models.rows import to_tensors
from clam_dist.train.loop import one_thread_each

Block = tuple[np.ndarray, "np.ndarray | None"]
"""``x`` float32 (B,d), nan where missing, and ``weight`` float64 (B,) or None."""
MapParts = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""``map``, or an executor's: results in the order of the parts."""

SPARE_ROWS = 64
"""Worst served rows looked at beyond four for each cluster, among which equal ones count once."""


class RowsPart(Protocol):
    """Some of the rows; small enough to send to where its rows are read."""

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks, the same ones at each call."""


@dataclass(frozen=True)
class LloydSums:
    """Sums over rows by the prototypes that they are nearest to.

    Parameters
    ----------
    weight : ndarray (P,k) float64
        Summed weights of the rows; those without any value, or on the sphere without a direction,
        are left out.
    seen : ndarray (P,k,d) or (P,k,1) float64
        Summed weights of the values seen; one column where nothing is missing.
    total : ndarray (P,k,d) float64
        Weighted sums of the values seen, on the sphere of rows of length 1.
    inertia : ndarray (P,) float64
        Weighted sum of squared distances over the values seen, on the sphere of ``1 - cos``.
    """

    weight: np.ndarray
    seen: np.ndarray
    total: np.ndarray
    inertia: np.ndarray

    def __add__(self, other: LloydSums) -> LloydSums:
        """Sums over the rows of both."""
        return LloydSums(
            self.weight + other.weight,
            self.seen + other.seen,  # one column of weights spreads over all
            self.total + other.total,
            self.inertia + other.inertia,
        )

    def prototypes(self, before: np.ndarray, geometry: Geometry) -> np.ndarray:
        """The means ``(P,k,d)`` float32; ``before`` where no value was seen."""
        mean = self.total / np.where(self.seen > 0, self.seen, 1.0)
        mean = np.where(self.seen > 0, mean, before)
        return unit(mean, before) if geometry == "spherical" else mean.astype(np.float32)


@dataclass(frozen=True)
class Lloyd:
    """What the passes came to.

    Parameters
    ----------
    prototypes : ndarray (P,k,d) float32
    inertia : ndarray (P,) float64
        Of these prototypes, a row: divided by ``weight``.
    iterations : ndarray (P,) int64
        Passes over the rows.
    weight : float
        Summed weights of the rows that count.
    """

    prototypes: np.ndarray
    inertia: np.ndarray
    iterations: np.ndarray
    weight: float


def lloyd(
    starts: np.ndarray,
    parts: Sequence[RowsPart],
    geometry: Geometry = "euclidean",
    *,
    tolerance: float = 1e-4,
    most_iterations: int = 300,
    map_parts: MapParts = map,
) -> Lloyd:
    """Alternate assignment and means from each start until the inertia hardly falls.

    A prototype that no row is nearest to moves to the row that is served worst, a second one to
    the next distinct row, and so on, at the price of one more pass over the rows.

    Parameters
    ----------
    starts : ndarray (P,k,d) float32
    parts : sequence of RowsPart
    geometry : {'euclidean', 'spherical'}
    tolerance : float
        Stop once a pass lowers the inertia by less than this share of it; 0 goes on until nothing
        changes.
    most_iterations : int
        Passes at most, at least 1.
    map_parts : callable
        Applies a function to the parts, here or elsewhere.

    Returns
    -------
    Lloyd
        For each start the state of least inertia that a pass has measured.
    """
    current = np.array(starts, dtype=np.float32)
    if geometry == "spherical":
        current = unit(current.astype(np.float64), current)
    best = current.copy()
    least = np.full(len(starts), np.inf)
    last = np.full(len(starts), np.inf)
    iterations = np.zeros(len(starts), dtype=np.int64)
    running = np.arange(len(starts))
    weight = 0.0
    while len(running):
        sums = sums_of(current[running], parts, geometry, map_parts)
        weight = float(sums.weight[0].sum())
        iterations[running] += 1
        better = sums.inertia < least[running]
        best[running[better]] = current[running[better]]
        least[running[better]] = sums.inertia[better]
        fell = last[running] - sums.inertia
        ended = fell <= tolerance * sums.inertia
        last[running] = sums.inertia
        moved = sums.prototypes(current[running], geometry)
        empty = sums.weight == 0
        for place in np.flatnonzero(empty.any(1) & (sums.inertia > 0)):
            ended[place] = False
            rows = worst_rows(current[running[place]], parts, geometry, map_parts)
            slots = np.flatnonzero(empty[place])[: len(rows)]
            moved[place, slots] = rows[: len(slots)]
        current[running] = moved
        running = running[~ended & (iterations[running] < most_iterations)]
    return Lloyd(best, least / max(weight, np.finfo(np.float64).tiny), iterations, weight)


def sums_of(
    prototypes: np.ndarray,
    parts: Sequence[RowsPart],
    geometry: Geometry,
    map_parts: MapParts = map,
) -> LloydSums:
    """One pass: the sums of all parts, added in their order."""
    function = partial(part_sums, prototypes=prototypes, geometry=geometry)
    results = iter(map_parts(function, parts))
    total: LloydSums = next(results)
    for sums in results:
        total = total + sums
    return total


def part_sums(part: RowsPart, *, prototypes: np.ndarray, geometry: Geometry) -> LloydSums:
    """Sums of one part for ``prototypes (P,k,d)``, on one thread: products differ by their number.

    Each start's sums are those it would have on its own.
    """
    members, k, d = prototypes.shape
    weight, inertia = np.zeros((members, k)), np.zeros(members)
    seen, total = np.zeros((members, k, 1)), np.zeros((members, k, d))
    held = torch.from_numpy(prototypes)
    with one_thread_each(1):
        for x, observed, w in _usable(part, geometry):
            values = _directions(x, observed) if geometry == "spherical" else x.numpy()
            values = values.astype(np.float64)
            shown = None if observed is None else observed.numpy().astype(np.float64)
            if shown is not None:
                values *= shown
                seen = seen if seen.shape[2] == d else np.repeat(seen, d, axis=2)
            for member in range(members):
                labels, distances = nearest(x, observed, held[member], geometry)
                far = distances.numpy().astype(np.float64)
                cost = far if geometry == "spherical" else far * far
                inertia[member] += (w * cost).sum()  # not a product: its digits follow threads
                columns = np.arange(len(w))
                chosen = csr_matrix((w, (labels.numpy(), columns)), shape=(k, len(w)))  # (k,B)
                weight[member] += np.bincount(labels.numpy(), weights=w, minlength=k)
                total[member] += chosen @ values
                each = chosen.sum(1) if shown is None else chosen @ shown
                seen[member] += np.asarray(each).reshape(k, -1)
    return LloydSums(weight, seen, total, inertia)


def worst_rows(
    prototypes: np.ndarray,
    parts: Sequence[RowsPart],
    geometry: Geometry,
    map_parts: MapParts = map,
) -> np.ndarray:
    """The distinct rows served worst by ``prototypes (k,d)``, at most ``k``, worst first.

    Returns
    -------
    ndarray (n,d) float32
        What a row misses is that of its prototype.
    """
    function = partial(part_worst, prototypes=prototypes, geometry=geometry)
    found = list(map_parts(function, parts))
    rows = np.concatenate([rows for rows, _ in found])
    far = np.concatenate([far for _, far in found])
    return _farthest(rows, far, len(prototypes))[0]


def part_worst(
    part: RowsPart, *, prototypes: np.ndarray, geometry: Geometry
) -> tuple[np.ndarray, np.ndarray]:
    """The worst served rows ``(n,d)`` of one part with their distances ``(n,)``."""
    k, d = prototypes.shape
    held = torch.from_numpy(prototypes)
    rows, far = np.empty((0, d), np.float32), np.empty(0, np.float32)
    with one_thread_each(1):
        for x, observed, _ in _usable(part, geometry):
            labels, distances = nearest(x, observed, held, geometry)
            values = _directions(x, observed) if geometry == "spherical" else x.numpy()
            if observed is not None:
                values = np.where(observed.numpy(), values, prototypes[labels.numpy()])
            rows = np.concatenate([rows, values])
            far = np.concatenate([far, distances.numpy()])
            rows, far = _farthest(rows, far, k)
    return rows, far


def _farthest(rows: np.ndarray, far: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` farthest distinct rows that are away from their prototype, farthest first."""
    order = np.argsort(-far, kind="stable")[: 4 * k + SPARE_ROWS]
    order = order[far[order] > 0]
    _, first = np.unique(rows[order], axis=0, return_index=True)
    kept = order[np.sort(first)][:k]
    return rows[kept], far[kept]


def unit(values: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """``values (…,d)`` at length 1, float32; ``otherwise`` where the length is 0."""
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    scaled = values / np.where(lengths > 0, lengths, 1.0)
    return np.where(lengths > 0, scaled, otherwise).astype(np.float32)


def _directions(x: torch.Tensor, observed: torch.Tensor | None) -> np.ndarray:
    """Rows at length 1 over what is seen, 0 where missing."""
    rows = x.numpy() if observed is None else np.where(observed.numpy(), x.numpy(), 0.0)
    return unit(rows.astype(np.float64), np.zeros_like(rows))


def _usable(
    part: RowsPart, geometry: Geometry
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None, np.ndarray]]:
    """Blocks ``(x, observed, weight)`` of the rows that have a weight and anything to go by."""
    for x, weight in part.blocks():
        shown = x != 0 if geometry == "spherical" else np.ones(x.shape, bool)
        kept = (shown & ~np.isnan(x)).any(1)
        if weight is not None:
            kept &= weight > 0
        if not kept.any():
            continue
        rows = x if kept.all() else x[kept]
        values, observed = to_tensors(rows)
        w = np.ones(len(rows)) if weight is None else np.asarray(weight[kept], dtype=np.float64)
        yield values, observed, w
