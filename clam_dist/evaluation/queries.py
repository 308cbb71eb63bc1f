"""Euclidean silhouettes of queries against references, from sums of distances.

Letters: ``q`` queries, ``d`` features, ``k`` clusters, ``g`` jackknife groups of references.
Definition: Rousseeuw, *Silhouettes: a graphical aid to the interpretation and validation of
cluster analysis* (1987), with row weights as multiplicities.
"""

from __future__ import annotations

import numpy as np

from clam_dist.evaluation.distances import DistanceSums, distance_sums
from clam_dist.evaluation.estimate import QueryScores
from clam_dist.evaluation.linear import check_scorable, nearest_other, own_rest, silhouettes
from clam_dist.evaluation.moments import filled
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
        some = count > 1e-9 * sums.weight.sum(axis=1)  # what subtraction leaves of nothing
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
