"""Euclidean silhouette of sampled queries, with a standard error that covers both samples.

Letters: ``n`` rows, ``q`` queries drawn from them, ``k`` clusters, ``r`` references a cluster,
``g`` jackknife groups. Definition: Rousseeuw, *Silhouettes: a graphical aid to the interpretation
and validation of cluster analysis* (1987), with row weights as multiplicities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from clam_dist.data.sampling import row_hash, smallest
from clam_dist.errors import ConfigError, DataError
from clam_dist.evaluation.distances import DistanceSums, distance_sums
from clam_dist.evaluation.moments import (
    check_scorable,
    filled,
    nearest_other,
    own_rest,
    silhouettes,
)
from clam_dist.evaluation.references import (
    ReferenceCollector,
    References,
    auto_references,
)

CHUNK_VALUES = 1 << 21
"""Sums (q, k, g) held at once by :func:`score_queries`."""


@dataclass(frozen=True)
class SilhouetteResult:
    """A silhouette and all that must be named with it."""

    value: float
    """Weighted mean over the queries, -1 to 1."""
    standard_error: float | None
    """Of ``value`` about the score of all rows against all rows; None where one query was drawn."""
    rows: int
    """Queries."""
    references: int | Literal["all"]
    """References of each cluster (fewer where the cluster has fewer), or every row."""
    seed: int
    metric: str = "euclidean"
    form: str = "pairwise"

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class QueryScores:
    """Scores of some queries, joined from any number of parts."""

    rows: np.ndarray
    """int64 (q,): global rows."""
    labels: np.ndarray
    """int64 (q,)."""
    weight: np.ndarray
    """float64 (q,)."""
    silhouette: np.ndarray
    """float64 (q,)."""
    replicates: np.ndarray
    """float64 (q, g): the scores with one group of references left out, each deviation already
    shrunk by ``sqrt(1 - r/n)`` of its cluster; equal to ``silhouette`` with all references."""

    @classmethod
    def join(cls, parts: Sequence[QueryScores]) -> QueryScores:
        """All parts as one, in order of global row, so that their order does not matter."""
        rows = np.concatenate([part.rows for part in parts])
        order = np.argsort(rows, kind="stable")
        return cls(
            rows[order],
            np.concatenate([part.labels for part in parts])[order],
            np.concatenate([part.weight for part in parts])[order],
            np.concatenate([part.silhouette for part in parts])[order],
            np.concatenate([part.replicates for part in parts])[order],
        )

    def result(
        self, n_rows: int, seed: int, references: int | Literal["all"] | None
    ) -> SilhouetteResult:
        """The estimate for a data set of ``n_rows`` rows.

        Parameters
        ----------
        n_rows : int
            Labelled rows the queries were drawn from.
        seed : int
            Named in the result.
        references : int, "all" or None
            Named in the result; None means "all".

        Raises
        ------
        DataError
            There are no queries, or none with a weight.
        """
        value, error = combine(
            self.silhouette, self.weight, n_rows, reference_error(self.replicates, self.weight)
        )
        name: int | Literal["all"] = "all" if references is None else references
        return SilhouetteResult(value, error, len(self.rows), name, seed)


def combine(
    silhouette: np.ndarray,
    weight: np.ndarray | None,
    n_rows: int,
    reference_error: float = 0.0,
) -> tuple[float, float | None]:
    """Estimate the mean silhouette of ``n_rows`` rows from uniformly drawn queries.

    The weighted mean is a ratio of two sums over the queries; its variance is that of the
    linearised ratio without replacement, ``(1 - q/n) sum(w^2 (s - mean)^2) / (mean(w)^2 q (q-1))``
    (Cochran, *Sampling Techniques*, 6.4), plus the squared ``reference_error``.

    Parameters
    ----------
    silhouette : ndarray, shape (q,)
    weight : ndarray of float64, shape (q,), optional
        Row weights, 1 if absent.
    n_rows : int
        Rows the queries were drawn from.
    reference_error : float
        Standard error that the queries' shared references bring.

    Returns
    -------
    value : float
    standard_error : float or None
        None where a single query was drawn of several rows: it says nothing of the spread.

    Raises
    ------
    DataError
        No query, or no weight.
    """
    s = np.asarray(silhouette, np.float64)
    w = np.ones(len(s)) if weight is None else np.asarray(weight, np.float64)
    q = len(s)
    if q == 0 or not w.sum() > 0:
        raise DataError(
            f"silhouette: {q} queries with a total weight of {w.sum():g}; it needs at least one "
            "row with a positive weight"
        )
    value = float(np.sum(w * s) / np.sum(w))
    if q >= n_rows:
        return value, float(reference_error)
    if q == 1:
        return value, None
    squares = float(np.sum((w * (s - value)) ** 2)) / float(np.mean(w)) ** 2
    variance = (1.0 - q / n_rows) * squares / (q * (q - 1))
    return value, float(np.sqrt(variance + reference_error**2))


def reference_error(replicates: np.ndarray, weight: np.ndarray | None) -> float:
    """Standard error from the references: the delete-a-group jackknife of the weighted mean.

    All queries share the references, so their error does not average out over queries; leaving
    out one group of references for all queries at once shows how far the mean moves with them.

    Parameters
    ----------
    replicates : ndarray of float64, shape (q, g)
    weight : ndarray of float64, shape (q,), optional
    """
    g = replicates.shape[1]
    if g < 2:
        return 0.0
    w = np.ones(len(replicates)) if weight is None else np.asarray(weight, np.float64)
    means = (w @ replicates) / np.sum(w)
    return float(np.sqrt((g - 1) / g * np.sum((means - means.mean()) ** 2)))


def score_queries(
    x: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    references: References,
    weight: np.ndarray | None = None,
    *,
    threads: int = 1,
) -> QueryScores:
    """Silhouette of each query against the references.

    Parameters
    ----------
    x : ndarray of float32 or float64, shape (q, d)
        Queries in the references' units; NaN (missing) counts as 0, the feature's scaled mean.
    labels : ndarray of int, shape (q,)
        Cluster of each query, given by the same model as the references'; negative rows are left
        out of the result.
    rows : ndarray of int64, shape (q,)
        Global rows.
    references : References
    weight : ndarray of float64, shape (q,), optional
    threads : int
        Clusters worked on side by side; the result does not depend on it.

    Raises
    ------
    DataError
        The data set has one cluster in use, or as many clusters as rows.
    """
    check_scorable(references.moments.count)
    ones = np.ones(len(labels)) if weight is None else np.asarray(weight, np.float64)
    kept = np.flatnonzero(labels >= 0)
    x, labels, rows, ones = filled(x[kept]), labels[kept], rows[kept], ones[kept]
    k, g = references.moments.n_clusters, references.groups
    step = max(CHUNK_VALUES // (k * g), 64)
    parts = []
    for start in range(0, max(len(rows), 1), step):
        cut = slice(start, start + step)
        sums = distance_sums(x[cut], rows[cut], references, threads=threads)
        parts.append(score_sums(x[cut], labels[cut], rows[cut], sums, references, ones[cut]))
    return QueryScores.join(parts)


def score_sums(
    x: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    sums: DistanceSums,
    references: References,
    weight: np.ndarray | None = None,
) -> QueryScores:
    """Silhouettes from sums of distances, which may have been merged from several parts.

    Parameters
    ----------
    x, labels, rows, weight
        As in :func:`score_queries`, without missing entries and without negative labels.
    sums : DistanceSums
        Of the same queries.
    references : References
        Only its moments are used.
    """
    moments = references.moments
    g = sums.weight.shape[1]
    w = np.ones(len(labels)) if weight is None else np.asarray(weight, np.float64)
    others, rest = own_rest(moments.weight[labels], w)
    alone = (others <= 0) & (rest <= 0)
    index = np.arange(len(labels))

    exact = moments.mean_squares(x)
    whole = moments.weight[labels]
    exact[index, labels] *= whole / np.where(others > 0, others, whole)
    counted = np.broadcast_to(sums.weight, (len(labels), *sums.weight.shape)).copy()
    mine = np.flatnonzero((sums.itself >= 0) & (sums.itself // g == labels))
    counted[mine, labels[mine], sums.itself[mine] % g] -= w[mine]
    complete = sums.count >= moments.count
    # Mean distance to the other rows -> to the other rows and the row's own twins, at distance 0.
    twins = np.where(alone, 1.0, others / np.where(rest > 0, rest, 1.0))

    def scored(distances: np.ndarray) -> np.ndarray:
        own, other = nearest_other(distances, labels)
        return silhouettes(own * twins, other, alone)

    def means(distance: np.ndarray, square: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Mean distances (q, k) from sums; NaN where nothing was counted."""
        some = count > 1e-12 * np.maximum(moments.weight, 1e-300)
        count = np.where(some, count, 1.0)
        mean = np.where(complete, distance / count, corrected(distance, square, count, exact))
        return np.where(some, mean, np.nan)

    totals = sums.distance.sum(2), sums.square.sum(2), counted.sum(2)
    full = means(*totals)
    # Nothing to measure: a cluster not in use is never nearest; alone has its own score.
    full = np.where(np.isnan(full), np.where(moments.used, 0.0, np.inf), full)
    score = scored(full)
    replicates = np.repeat(score[:, None], g, axis=1)
    shrink = np.sqrt(1.0 - np.minimum(sums.count / np.maximum(moments.count, 1), 1.0))
    for group in range(g if g > 1 else 0):
        left_out = means(
            totals[0] - sums.distance[:, :, group],
            totals[1] - sums.square[:, :, group],
            totals[2] - counted[:, :, group],
        )
        usable = np.isfinite(left_out) & np.isfinite(full)
        moved = np.where(usable, left_out - np.where(usable, full, 0.0), 0.0)
        replicates[:, group] = scored(full + shrink * moved)
    return QueryScores(rows, labels, w, score, replicates)


def corrected(
    distance: np.ndarray, square: np.ndarray, count: np.ndarray, exact: np.ndarray
) -> np.ndarray:
    """Mean distance to a cluster, corrected by what is exactly known of its mean square.

    ``mean(d) - (mean(d^2) - exact) / (2 sqrt(exact))``: references that lie too far on average
    show it in their squares. Kept between 0 and ``sqrt(exact)``, the most a mean distance can be.

    Parameters
    ----------
    distance, square, count : ndarray
        Sums over the references, and their weight.
    exact : ndarray
        Mean squared distance to all rows of the cluster; inf for a cluster not in use.
    """
    known = np.where(np.isfinite(exact), exact, 0.0)
    root = np.sqrt(known)
    slope = np.where(root > 0, 0.5 / np.where(root > 0, root, 1.0), 0.0)
    return np.clip(distance / count - (square / count - known) * slope, 0.0, root)


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
    collector = ReferenceCollector(len(names), data.shape[1], limit)
    collector.update(data, codes, row_hash(seed, "reference", "", 0, n), rows, weights)
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
