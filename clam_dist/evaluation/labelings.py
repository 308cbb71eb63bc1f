"""Silhouettes of many labelings of the same rows at once, to choose between them.

All labelings are scored on the same queries against the same references, so that what separates
them is not the draw: distances are computed once and shared. Cosine distances are not computed at
all: their sums over a cluster follow from the sum of its normalised rows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

_QUERY_BLOCK = 64
_THREADS = 4
"""At most, each at a block of its own: 256 queries' distances are in memory at once."""

_COLUMNS = 1024


def score_labelings(
    x: np.ndarray,
    labelings: np.ndarray,
    clusters: Sequence[int],
    weight: np.ndarray | None = None,
    seed: int = 0,
    queries: int = 2048,
    references: int | None = None,
    metric: Literal["euclidean", "cosine"] = "euclidean",
) -> list[tuple[float, float]]:
    """Sampled silhouette of each labeling, with its standard error.

    Parameters
    ----------
    x
        ``(S, d)`` rows, finite. By cosines a row of zeros has no distance to others, and is left
        out.
    labelings
        ``(M, S)`` int64 labels, ``0 <= labelings[m] < clusters[m]``; those of rows that are left
        out do not matter.
    clusters
        Number of clusters of each labeling.
    weight
        ``(S,)`` weights of the rows, None for equal ones.
    seed
        Draws the rows; the queries are the first of the references.
    queries, references
        Rows to score and rows to score against, at most; the default is four times as many
        references as queries.
    metric
        Of the distances; cosines are of rows of any length.

    Returns
    -------
    list of (float, float)
        ``M`` values, nan where one cluster holds all references, and their standard errors as
        means of independent rows, nan where one row is scored. At ``queries`` and ``references``
        of at least ``S`` the values equal the exact silhouette.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    order = generator.permutation(len(x))
    if metric == "cosine":
        order = order[np.any(x != 0, axis=1)[order]]
    order = order[: references or 4 * queries]
    rows = np.ascontiguousarray(x[order], dtype=np.float32)
    if metric == "cosine":
        rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, None]
    rows -= rows.mean(axis=0)  # distances do not care, float32 products do
    weights = np.ones(len(rows)) if weight is None else np.asarray(weight, np.float64)[order]
    values: list[tuple[float, float]] = []
    first = 0
    # Products of blocks this small lose by threads of their own: half the processor time on one
    # (measured), and minutes instead of seconds on a machine that is busy otherwise. Whole blocks
    # side by side do not: 1.8 times as fast on two cores.
    threads = min(_THREADS, os.cpu_count() or 1)
    with threadpool_limits(limits=1), ThreadPoolExecutor(threads) as pool:
        while first < len(labelings):
            last = first + 1
            while last < len(labelings) and sum(clusters[first : last + 1]) <= _COLUMNS:
                last += 1
            part = labelings[first:last][:, order]
            few = min(queries, len(rows))
            values += _score(rows, part, clusters[first:last], weights, few, metric, pool)
            first = last
    return values


def _score(
    rows: np.ndarray,
    labelings: np.ndarray,
    clusters: Sequence[int],
    weights: np.ndarray,
    queries: int,
    metric: str,
    pool: ThreadPoolExecutor,
) -> list[tuple[float, float]]:
    starts = np.concatenate([[0], np.cumsum(clusters)])
    members = np.zeros((len(rows), starts[-1]), dtype=np.float32)  # (R, sum of k)
    for start, labels in zip(starts, labelings, strict=False):
        members[np.arange(len(rows)), start + labels] = weights
    totals = members.sum(axis=0, dtype=np.float64)
    counts = np.concatenate(
        [np.bincount(row, minlength=k) for row, k in zip(labelings, clusters, strict=True)]
    )
    summed = _cosine_sums(rows, members) if metric == "cosine" else _sums(rows, members)

    def moments(block: slice) -> np.ndarray:
        """Of each labeling's scores of some queries: sum, of squares, of products; (M, 3)."""
        to_clusters = summed(block)  # (q, sum of k)
        weight = weights[block]
        found = np.empty((len(labelings), 3))
        for position, labels in enumerate(labelings):
            columns = slice(starts[position], starts[position + 1])
            scores = _silhouettes(
                to_clusters[:, columns], labels[block], weight, totals[columns], counts[columns]
            )
            squared = weight**2
            found[position] = scores @ weight, scores**2 @ squared, scores @ squared
        return found

    blocks = range(0, queries, _QUERY_BLOCK)
    parts = pool.map(moments, (slice(i, min(i + _QUERY_BLOCK, queries)) for i in blocks))
    # In their order, whichever thread is done first: the same sums on any number of threads.
    # The variance of a weighted mean is sum(w² (s - mean)²) / sum(w)²; expanded, one pass gives it.
    sums, squares, crossed = sum(parts, np.zeros((len(labelings), 3))).T
    total = float(weights[:queries].sum())
    used = [int((counts[starts[i] : starts[i + 1]] > 0).sum()) for i in range(len(labelings))]
    means = sums / total
    spread = squares - 2 * means * crossed + means**2 * float((weights[:queries] ** 2).sum())
    scored = int((weights[:queries] > 0).sum())
    correction = scored / (scored - 1) if scored > 1 else np.nan
    errors = np.sqrt(np.maximum(spread, 0) * correction) / total
    nothing = (float("nan"), float("nan"))
    return [
        (float(mean), float(error)) if n > 1 else nothing
        for mean, error, n in zip(means, errors, used, strict=True)
    ]


def _sums(rows: np.ndarray, members: np.ndarray) -> Callable[[slice], np.ndarray]:
    """From some of the rows to their summed Euclidean distances to clusters, float64."""
    norms = np.einsum("ij,ij->i", rows, rows)
    spaces = threading.local()

    def summed(block: slice) -> np.ndarray:
        if not hasattr(spaces, "own"):
            spaces.own = np.empty((2, _QUERY_BLOCK, len(rows)), dtype=np.float32)
        squared, products = spaces.own[:, : block.stop - block.start]  # (q, R) each
        np.add(norms[block, None], norms[None], out=squared)
        np.matmul(rows[block], rows.T, out=products)
        products *= 2
        squared -= products
        own = np.arange(block.start, block.stop)
        squared[own - block.start, own] = 0
        distances = np.sqrt(np.maximum(squared, 0, out=squared), out=squared)
        return (distances @ members).astype(np.float64)

    return summed


def _cosine_sums(rows: np.ndarray, members: np.ndarray) -> Callable[[slice], np.ndarray]:
    """As :func:`_sums` by squared distances of normalised rows, which are twice ``1 - cos``."""
    norms = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    totals, squares = members.sum(axis=0, dtype=np.float64), np.zeros(members.shape[1])
    centres = np.zeros((rows.shape[1], members.shape[1]))  # weighted sums of each cluster's rows
    for begin in range(0, len(rows), _COLUMNS):
        part = slice(begin, begin + _COLUMNS)
        weights = members[part].astype(np.float64)
        squares += norms[part] @ weights
        centres += rows[part].T.astype(np.float64) @ weights

    def summed(block: slice) -> np.ndarray:
        products = rows[block].astype(np.float64) @ centres
        return np.maximum(norms[block, None] * totals + squares - 2 * products, 0.0)

    return summed


def _silhouettes(
    sums: np.ndarray, labels: np.ndarray, weight: np.ndarray, totals: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """``(b - a) / max(a, b)`` of queries from their summed distances ``(q, k)``; singletons 0."""
    index = np.arange(len(labels))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(counts > 0, sums / totals, np.inf)
        # A row of weight 2 stands twice: its twin, at distance 0, is one of its cluster's others.
        a = sums[index, labels] / (totals[labels] - np.minimum(weight, 1.0))
        means[index, labels] = np.inf
        b = means.min(axis=1)
        scores = (b - a) / np.maximum(a, b)
    # Copies of one row are no singleton, whether they stand as rows or as a weight; alike as they
    # are, their cluster is as tight as can be.
    alone = (counts[labels] <= 1) & (weight <= 1.0)
    return np.where(~alone & np.isfinite(scores), scores, 0.0)
