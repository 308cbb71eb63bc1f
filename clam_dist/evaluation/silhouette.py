"""Euclidean silhouette of arrays in memory, by sampled queries and references."""

from __future__ import annotations

from typing import Literal

import numpy as np

from clam_dist.data.sampling import row_hash, smallest
from clam_dist.errors import ConfigError, DataError
from clam_dist.evaluation.estimate import SilhouetteResult
from clam_dist.evaluation.moments import ClusterMoments
from clam_dist.evaluation.queries import score_queries
from clam_dist.evaluation.references import (
    ReferenceCollector,
    auto_references,
    reference_sizes,
)


def silhouette_sampled(
    x: np.ndarray,
    labels: np.ndarray,
    *,
    sample_size: int | None = 10_000,
    references: int | Literal["auto", "all"] = "auto",
    seed: int = 0,
    weight: np.ndarray | None = None,
    threads: int = 1,
) -> SilhouetteResult:
    """Mean Euclidean silhouette of an array in memory, by sampled queries and references.

    With ``sample_size`` of at least n and ``references="all"`` it is scikit-learn's
    ``silhouette_score``.

    Parameters
    ----------
    x : array_like of float, shape (n, d)
        Rows as they were clustered (scaled); NaN counts as the feature's mean.
    labels : array_like, shape (n,)
        Cluster of each row, any integers or names.
    sample_size : int, optional
        Queries, drawn uniformly; None scores every row.
    references : int, "auto" or "all"
        References of each cluster; "auto" is all rows of a small data set.
    seed : int
    weight : array_like of float64, shape (n,), optional
        Weight 2 equals the row twice.
    threads : int

    Raises
    ------
    DataError
        One cluster, as many clusters as rows, infinite values, or arrays of unequal length.
    ConfigError
        ``sample_size`` below 1 or ``references`` below 2.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> silhouette_sampled(rows, [0, 0, 1, 1]).value
    0.899...
    """
    data = _checked_rows(x)
    n = len(data)
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    weights = None if weight is None else np.asarray(weight, np.float64)
    for what, array in (("labels", codes), ("weight", weights)):
        if array is not None and array.shape != (n,):
            raise DataError(f"silhouette: {what} of shape {array.shape} for {n} rows")
    if weights is not None and not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise DataError("silhouette: weights must be finite and not negative")
    size = n if sample_size is None else sample_size
    if size < 1:
        raise ConfigError(f"silhouette: sample_size is {size}; it must be 1 or more")
    each = references
    limit = auto_references(n, len(names)) if each == "auto" else None if each == "all" else each

    rows = np.arange(n)
    sizes = None if limit is None else _sizes(data, codes, len(names), weights)
    collector = ReferenceCollector(len(names), data.shape[1], limit)
    hashes = row_hash(seed, "reference", "", 0, n)
    for start in range(0, n, 65_536):
        cut = slice(start, start + 65_536)
        part = None if weights is None else weights[cut]
        part_sizes = None if sizes is None else sizes[cut]
        collector.update(data[cut], codes[cut], hashes[cut], rows[cut], part, part_sizes)
    queries = np.sort(smallest(row_hash(seed, "query", "", 0, n), rows, size))
    scores = score_queries(
        data[queries],
        codes[queries],
        queries,
        collector.finish(),
        None if weights is None else weights[queries],
        threads=threads,
    )
    return scores.result(n, seed, limit)


def _sizes(rows: np.ndarray, labels: np.ndarray, k: int, weight: np.ndarray | None) -> np.ndarray:
    """Sizes of the rows as references: distances to the cluster means and a typical one."""
    moments = ClusterMoments.of(rows, labels, k, weight)
    distances = np.empty(len(rows))
    for start in range(0, len(rows), 65_536):
        cut = slice(start, start + 65_536)
        away = rows[cut] - moments.means[labels[cut]]
        distances[cut] = np.sqrt(np.einsum("nd,nd->n", away, away))
    return reference_sizes(distances, labels, np.sqrt(moments.variances))


def _checked_rows(x: np.ndarray) -> np.ndarray:
    """Rows as float64, centred, with 0 where missing; the caller's array is not changed."""
    data = np.array(x, np.float64)
    if data.ndim != 2:
        raise DataError(f"silhouette: rows must be a table of two axes, not of shape {data.shape}")
    if np.isinf(data).any():
        row, column = np.argwhere(np.isinf(data))[0]
        raise DataError(f"silhouette: row {row}, column {column} is infinite; remove or replace it")
    missing = np.isnan(data)
    seen = np.maximum((~missing).sum(axis=0), 1)
    data[missing] = 0.0
    data -= data.sum(axis=0) / seen
    data[missing] = 0.0
    return data
