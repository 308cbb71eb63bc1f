"""Sums of Euclidean distances from queries to the references of each cluster, blockwise.

Letters: ``q`` queries, ``d`` features, ``k`` clusters, ``r`` references, ``g`` columns: the
references that are certain, then the jackknife groups of those drawn by chance.
One product gives a block of squared distances (rows extended by their squared norm and 1), its
square root is summed by a second product with the references' weights by group. Both sides are
first shifted by the cluster's mean, so that products lose no digits to where the cluster lies,
and scaled, so that float32 neither overflows nor underflows; precision, scale and blocks follow
from the references alone. Every block is computed on one thread of the linear algebra library, so
the sums do not depend on ``threads``.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from clam_dist.evaluation.moments import grouped_sums
from clam_dist.evaluation.references import References

QUERY_BLOCK = 256
REFERENCE_BLOCK = 1024  # with QUERY_BLOCK, one float32 block of distances is 1 MiB
SLAB = 16_384
"""References shifted and extended at a time: bounds the working copy of a large cluster."""
EXACT_VALUES = 1 << 22
"""Up to so many values of references, products are in float64 (twice as slow, without the noise
of 3e-4 relative that float32 products leave on distances between near duplicates)."""


@dataclass(frozen=True)
class DistanceSums:
    """Sums over references by cluster and column; those of other references can be added.

    Column 0 holds the references that every draw would hold, the others are jackknife groups.
    """

    distance: np.ndarray
    """float64 (q, k, g): weighted sums of distances."""
    square: np.ndarray
    """float64 (q, k, g): weighted sums of squared distances to the same references."""
    weight: np.ndarray
    """float64 (k, g): summed weights of the references, times the rows each stands for."""
    itself: np.ndarray
    """int64 (q,): ``cluster * g + column`` where the query itself is a reference, else -1."""
    own: np.ndarray
    """float64 (q,): its weight there, else 0."""

    def merge(self, other: DistanceSums) -> DistanceSums:
        """Sums over both sets of references, for the same queries."""
        return DistanceSums(
            self.distance + other.distance,
            self.square + other.square,
            self.weight + other.weight,
            np.maximum(self.itself, other.itself),
            self.own + other.own,
        )

    def take(self, index: np.ndarray) -> DistanceSums:
        """The sums of some of the queries, by their positions."""
        return DistanceSums(
            self.distance[index],
            self.square[index],
            self.weight,
            self.itself[index],
            self.own[index],
        )


def distance_sums(
    x: np.ndarray,
    rows: np.ndarray,
    references: References,
    *,
    threads: int = 1,
) -> DistanceSums:
    """Sum the distances from each query to the references of each cluster.

    Memory is ``16 q k g`` bytes for the sums and a few MiB a thread for the blocks. With every
    row of the data set as a reference, call it once for each part of them
    (``References.everything``) and merge the results.

    Parameters
    ----------
    x : ndarray of float32 or float64, shape (q, d)
        Queries, without missing entries.
    rows : ndarray of int64, shape (q,)
        Global row of each query.
    references : References
    threads : int
        Clusters worked on side by side.
    """
    g = references.groups + 1
    q, k = len(x), references.moments.n_clusters
    itself = _where_queries_are(rows, references.rows)
    scale = _scale(references)
    exact = references.x.size <= EXACT_VALUES
    dtype = np.dtype(np.float64 if exact else np.float32)
    distance, square = np.zeros((q, k, g)), np.zeros((q, k, g))
    weight = np.zeros((k, g))
    centres = references.moments.means
    column = _columns(references)
    stands_for = references.weight * references.design

    def sum_cluster(cluster: int) -> None:
        first, stop = int(references.starts[cluster]), int(references.starts[cluster + 1])
        queries = (np.asarray(x, np.float64) - centres[cluster]) / scale
        norms = np.einsum("qd,qd->q", queries, queries)
        left = _extended(-2.0 * queries, norms, np.ones(q)).astype(dtype)
        for start in range(first, stop, SLAB):
            end = min(start + SLAB, stop)
            group = column[start:end]
            slab_weight = stands_for[start:end]
            slab = (references.x[start:end].astype(np.float64) - centres[cluster]) / scale
            slab_norms = np.einsum("rd,rd->r", slab, slab)
            right = _extended(slab, np.ones(end - start), slab_norms).astype(dtype)
            by_group = np.zeros((end - start, g), dtype)
            by_group[np.arange(end - start), group] = slab_weight
            seen = (itself >= start) & (itself < end)
            found = np.where(seen, itself - start, -1)
            distance[:, cluster] += _summed_roots(left, right, by_group, found)
            # Squares need no pass over the pairs: they follow from the groups' own moments.
            total = np.bincount(group, slab_weight, g)
            summed = grouped_sums(slab, group, g, slab_weight)
            spread = np.bincount(group, slab_weight * slab_norms, g)
            squares = norms[:, None] * total - 2.0 * (queries @ summed.T) + spread
            square[:, cluster] += np.maximum(squares, 0.0)
            weight[cluster] += total

    with threadpool_limits(limits=1, user_api="blas"):
        _run(sum_cluster, np.flatnonzero(references.count), threads)
    distance *= scale
    square *= scale * scale
    found = itself >= 0
    cluster = np.searchsorted(references.starts, itself, side="right") - 1
    place = np.where(found, cluster * g + column[itself], -1)
    return DistanceSums(distance, square, weight, place, np.where(found, stands_for[itself], 0.0))


def _columns(references: References) -> np.ndarray:
    """Column of each reference: 0 if certain, else its jackknife group, 1 to g - 1, in turn."""
    chance = ~references.certain
    before = np.concatenate([[0], np.cumsum(chance)])
    cluster = np.repeat(np.arange(len(references.count)), references.count)
    turn = before[:-1] - before[references.starts[:-1]][cluster]
    return np.where(chance, turn % max(references.groups, 1) + 1, 0)


def _run(function, items: Sequence[int] | np.ndarray, threads: int) -> None:
    if threads <= 1 or len(items) <= 1:
        for item in items:
            function(int(item))
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(function, (int(item) for item in items)):
            pass


def _summed_roots(
    left: np.ndarray, right: np.ndarray, by_group: np.ndarray, found: np.ndarray
) -> np.ndarray:
    """Sums of distances: left (q, d + 2), right (r, d + 2), by_group (r, g) -> float64 (q, g).

    ``found`` (q,) is the place of the query itself in ``right``, or -1: its distance is 0, which
    a product only gives up to rounding.
    """
    q, r = len(left), len(right)
    sums = np.zeros((q, by_group.shape[1]))
    buffer = np.empty(min(q, QUERY_BLOCK) * min(r, REFERENCE_BLOCK), left.dtype)
    for i in range(0, q, QUERY_BLOCK):
        rows = left[i : i + QUERY_BLOCK]
        places = found[i : i + QUERY_BLOCK]
        for j in range(0, r, REFERENCE_BLOCK):
            columns = right[j : j + REFERENCE_BLOCK]
            block = buffer[: len(rows) * len(columns)].reshape(len(rows), len(columns))
            np.matmul(rows, columns.T, out=block)
            np.maximum(block, 0, out=block)
            np.sqrt(block, out=block)
            here = np.flatnonzero((places >= j) & (places < j + len(columns)))
            block[here, places[here] - j] = 0
            sums[i : i + QUERY_BLOCK] += block @ by_group[j : j + REFERENCE_BLOCK]
    return sums


def _extended(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Rows with two more columns: (n, d) -> (n, d + 2)."""
    return np.concatenate([x, first[:, None], second[:, None]], axis=1)


def _where_queries_are(rows: np.ndarray, reference_rows: np.ndarray) -> np.ndarray:
    """Position of each query among the references, -1 where it is none of them: int64 (q,)."""
    order = np.argsort(reference_rows, kind="stable")
    place = np.searchsorted(reference_rows, rows, sorter=order)
    place = order[np.minimum(place, len(order) - 1)]
    return np.where(reference_rows[place] == rows, place, -1)


def _scale(references: References) -> float:
    """A length of the order of the clusters' spread about the origin; 1 where all rows are 0."""
    moments = references.moments
    total = float(moments.weight.sum())
    square = float(moments.squares.sum()) / total if total > 0 else 0.0
    return float(np.sqrt(square)) if square > 0 else 1.0
