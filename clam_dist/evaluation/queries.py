"""Euclidean silhouettes of queries against references, from sums of distances.

Letters: ``q`` queries, ``d`` features, ``k`` clusters, ``g`` jackknife groups of references.
Definition: Rousseeuw, *Silhouettes: a graphical aid to the interpretation and validation of
cluster analysis* (1987), with row weights as multiplicities.
"""

from __future__ import annotations

import numpy as np

from clam_dist.evaluation.distances import DistanceSums, distance_sums
from clam_dist.evaluation.estimate import QueryScores
from clam_dist.evaluation.linear import (
    check_scorable,
    cosine_silhouette,
    nearest_other,
    own_rest,
    silhouettes,
)
from clam_dist.evaluation.moments import ClusterMoments, filled
from clam_dist.evaluation.references import References

CHUNK_VALUES = 1 << 21
"""Sums (q, k, g) held at once by :func:`score_queries`."""


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
    x = filled(x)
    k, g = references.moments.n_clusters, references.groups + 1
    step = max(CHUNK_VALUES // (k * g), 64)
    parts = []
    for start in range(0, max(len(rows), 1), step):
        cut = slice(start, start + step)
        sums = distance_sums(x[cut], rows[cut], references, threads=threads)
        parts.append(score_sums(x[cut], labels[cut], rows[cut], sums, references, ones[cut]))
    return QueryScores.join(parts)


def score_by(
    metric: str,
    x: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    references: References,
    weight: np.ndarray | None = None,
) -> QueryScores:
    """Silhouettes by ``euclidean`` distances to the references, or by ``cosine`` to all rows.

    The other parameters are those of :func:`score_queries`.
    """
    if metric == "cosine":
        return score_cosines(x, labels, rows, references.moments, weight)
    return score_queries(x, labels, rows, references, weight)


def score_cosines(
    x: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    moments: ClusterMoments,
    weight: np.ndarray | None = None,
) -> QueryScores:
    """Cosine silhouette of each query against all rows: the clusters' moments tell it exactly.

    Parameters
    ----------
    x, labels, rows, weight
        As in :func:`score_queries`.
    moments : ClusterMoments
        Of all normalised rows.

    Raises
    ------
    DataError
        As :func:`score_queries`.
    """
    check_scorable(moments.count)
    ones = np.ones(len(labels)) if weight is None else np.asarray(weight, np.float64)
    kept = np.flatnonzero(labels >= 0)
    x, labels, rows, ones = x[kept], labels[kept], rows[kept], ones[kept]
    score = np.empty(len(labels))
    step = max(CHUNK_VALUES // max(moments.n_clusters, x.shape[1]), 64)
    for start in range(0, len(rows), step):
        cut = slice(start, start + step)
        score[cut] = cosine_silhouette(x[cut], labels[cut], moments, ones[cut])
    return QueryScores(rows, labels, ones, score, np.zeros((len(rows), 0)))


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
        As in :func:`score_queries`, without missing entries.
    sums : DistanceSums
        Of the same queries.
    references : References
        Its moments, slopes and the share drawn by chance are used, not its rows.
    """
    moments = references.moments
    check_scorable(moments.count)
    w = np.ones(len(labels)) if weight is None else np.asarray(weight, np.float64)
    kept = np.flatnonzero(labels >= 0)
    if len(kept) < len(labels):
        x, labels, rows, w, sums = x[kept], labels[kept], rows[kept], w[kept], sums.take(kept)
    others, rest = own_rest(moments.weight[labels], w)
    alone = (others <= 0) & (rest <= 0)
    # Mean distance to the other rows -> to the other rows and the row's own twins, at distance 0.
    twins = np.where(alone, 1.0, others / _safe(rest))
    exact = moments.mean_squares(x)
    whole = moments.weight[labels]
    # The row adds nothing to its own cluster's sum: the mean over the others is that much more.
    exact[np.arange(len(labels)), labels] *= np.where(others > 0, whole / _safe(others), 1.0)

    g = sums.weight.shape[1]
    counted = np.broadcast_to(sums.weight, (len(labels), *sums.weight.shape)).copy()
    mine = np.flatnonzero((sums.itself >= 0) & (sums.itself // g == labels))
    counted[mine, labels[mine], sums.itself[mine] % g] -= sums.own[mine]
    nothing = 1e-9 * sums.weight.sum(axis=1)[:, None]  # what subtraction leaves of nothing
    counted[counted < nothing] = 0.0
    total = counted.sum(axis=2)
    some = total > 0

    def scored(distance: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Silhouettes (q,) from summed distances and squares (q, k)."""
        mean = corrected(distance / _safe(total), square / _safe(total), exact, references.slope)
        # Nothing to measure: a cluster not in use is never nearest; alone has its own score.
        mean = np.where(some, mean, np.where(moments.used, 0.0, np.inf))
        own, other = nearest_other(mean, labels)
        return silhouettes(own * twins, other, alone)

    distance, square = sums.distance.sum(axis=2), sums.square.sum(axis=2)
    score = scored(distance, square)
    replicates = np.repeat(score[:, None], g - 1, axis=1)
    chance = counted[:, :, 1:].sum(axis=2)  # (q, k)
    shrink = np.sqrt(references.drawn_share)
    for group in range(1, g):
        # The other groups take over the weight of the one left out; what is certain stays.
        left = chance - counted[:, :, group]
        grown = np.where(left > 0, chance / _safe(left), 1.0)
        change = []
        for part, whole_sum in ((sums.distance, distance), (sums.square, square)):
            by_chance = whole_sum - part[:, :, 0]
            moved = (by_chance - part[:, :, group]) * grown - by_chance
            change.append(whole_sum + shrink * np.where(left > 0, moved, 0.0))
        replicates[:, group - 1] = scored(*change)
    return QueryScores(rows, labels, w, score, replicates)


def corrected(
    mean: np.ndarray, mean_square: np.ndarray, exact: np.ndarray, slope: np.ndarray
) -> np.ndarray:
    """Mean distances to clusters, corrected by what is exactly known of their mean squares.

    ``mean(d) - slope (mean(d^2) - exact) / (2 sqrt(exact))``: references that lie too far on
    average show it in their squares. Kept between 0 and ``sqrt(exact)``, the most a mean distance
    can be.

    Parameters
    ----------
    mean, mean_square : ndarray of float64, shape (q, k)
        Over the references.
    exact : ndarray of float64, shape (q, k)
        Mean squared distance to all rows of the cluster; inf for a cluster not in use.
    slope : ndarray of float64, shape (k,)
        Between 0 (no correction) and 1.
    """
    known = np.where(np.isfinite(exact), exact, 0.0)
    root = np.sqrt(known)
    half = np.where(root > 0, 0.5 / _safe(root), 0.0)
    return np.clip(mean - slope * (mean_square - known) * half, 0.0, root)


def _safe(divisor: np.ndarray) -> np.ndarray:
    """The divisor, with 1 where it is not positive."""
    return np.where(divisor > 0, divisor, 1.0)
