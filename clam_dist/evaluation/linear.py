"""What every silhouette is made of, and the three silhouettes that linear passes give exactly.

Letters: ``n`` rows, ``d`` features, ``k`` clusters. Squared, cosine and simplified silhouettes of
all rows cost one pass for the clusters' moments and one for the scores. They are other numbers than
the Euclidean silhouette, not approximations of it, and have their own names.

A weight of 2 equals the row twice: the twin of a row is one of its cluster's other rows.
"""

from __future__ import annotations

import numpy as np

from clam_dist.errors import DataError
from clam_dist.evaluation.moments import ClusterMoments, filled, squared_distances


def undefined_because(count: np.ndarray) -> str | None:
    """Why clusters of these sizes have no silhouette, or None if they have one.

    Parameters
    ----------
    count : ndarray of int, shape (k,)
        Rows of each cluster.
    """
    used, rows = int(np.count_nonzero(count)), int(np.sum(count))
    if rows == 0:
        return "silhouette: no row has a cluster"
    if used == 1:
        return (
            f"silhouette: all {rows} rows are in 1 cluster, and it compares at least 2; "
            "ask for 2 or more clusters, or for a larger beta"
        )
    if used == rows:
        return (
            f"silhouette: {rows} rows are in {used} clusters of one row each, and it needs a "
            "cluster of at least 2; ask for fewer clusters"
        )
    return None


def check_scorable(count: np.ndarray) -> None:
    """Raise :class:`DataError` where clusters of these sizes have no silhouette."""
    reason = undefined_because(count)
    if reason:
        raise DataError(reason)


def own_rest(own_weight: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight of the other rows of each row's cluster, without and with the row's own twins.

    A row of weight 2 is two equal rows, so one twin stays among the others, at distance 0. Below
    weight 1 there is no twin: the row takes out no more than it is.

    Returns
    -------
    others, rest : ndarray of float64, shape (n,)
        Weight of the other rows, and the same with the twins.
    """
    return own_weight - weight, own_weight - np.minimum(weight, 1.0)


def silhouettes(own: np.ndarray, other: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """``(b - a) / max(a, b)``; 0 for a row alone in its cluster or at no distance from both.

    Parameters
    ----------
    own, other : ndarray of float64, shape (n,)
        ``a``, the mean distance to the own cluster's other rows, and ``b``, the least mean
        distance to another cluster. Rousseeuw 1987.
    alone : ndarray of bool, shape (n,)
    """
    widest = np.maximum(own, other)
    defined = ~alone & (widest > 0) & np.isfinite(widest)
    return np.where(defined, (other - own) / np.where(defined, widest, 1.0), 0.0)


def nearest_other(distances: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split distances (n, k) into those to the own cluster and the least to another, each (n,)."""
    rows = np.arange(len(labels))
    own = distances[rows, labels]
    rest = distances.copy()
    rest[rows, labels] = np.inf
    return own, rest.min(axis=1)


def squared_silhouette(
    x: np.ndarray,
    labels: np.ndarray,
    moments: ClusterMoments | None = None,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Silhouette by squared Euclidean distances, exact for every row in linear time.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Rows to score; NaN counts as 0.
    labels : ndarray of int, shape (n,)
        Cluster of each row, 0 to k - 1.
    moments : ClusterMoments, optional
        Of all rows of the data set; of ``x`` itself if absent.
    weight : ndarray of float64, shape (n,), optional
        Weights of the rows of ``x``.

    Returns
    -------
    ndarray of float64, shape (n,)
        scikit-learn's ``silhouette_samples(x, labels, metric="sqeuclidean")``.

    Raises
    ------
    DataError
        One cluster, or as many clusters as rows.
    """
    if moments is None:
        moments = ClusterMoments.of(x, labels, int(labels.max()) + 1, weight)
    check_scorable(moments.count)
    ones = np.ones(len(labels)) if weight is None else np.asarray(weight, np.float64)
    own, other = nearest_other(moments.mean_squares(filled(x)), labels)
    _, rest = own_rest(moments.weight[labels], ones)
    alone = rest <= 0
    # The row itself adds 0 to the sum, so only the denominator leaves it out.
    own = own * moments.weight[labels] / np.where(alone, 1.0, rest)
    return silhouettes(own, other, alone)


def cosine_silhouette(
    x: np.ndarray,
    labels: np.ndarray,
    moments: ClusterMoments | None = None,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Silhouette by cosine distances, exact for every row in linear time.

    ``1 - cos(a, b) = ‖a - b‖² / 2`` for rows of length 1, and a silhouette does not change with
    the unit of its distances: so it is the squared silhouette of the normalised rows.

    Parameters
    ----------
    x, labels, weight
        As in :func:`squared_silhouette`; rows of any length but 0.
    moments : ClusterMoments, optional
        Of all normalised rows of the data set (:func:`directions`); of ``x`` if absent.

    Returns
    -------
    ndarray of float64, shape (n,)
        scikit-learn's ``silhouette_samples(x, labels, metric="cosine")``.
    """
    return squared_silhouette(directions(x), labels, moments, weight)


def directions(x: np.ndarray) -> np.ndarray:
    """Rows at length 1, float64; NaN counts as 0, and a row of zeros stays."""
    rows = filled(np.asarray(x, np.float64))
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return rows / np.where(lengths > 0, lengths, 1.0)[:, None]


def simplified_silhouette(x: np.ndarray, labels: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Silhouette by Euclidean distances to cluster means (Hruschka et al. 2004), linear.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Rows to score; NaN counts as 0.
    labels : ndarray of int, shape (n,)
    means : ndarray of float64, shape (k, d)
        Cluster means; rows of NaN for clusters not in use.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    used = ~np.isnan(means).any(axis=1)
    distances = np.sqrt(squared_distances(filled(x), np.where(used[:, None], means, 0.0)))
    distances[:, ~used] = np.inf
    if np.count_nonzero(used) < 2:
        raise DataError("simplified silhouette: it compares at least 2 clusters, and 1 is in use")
    own, other = nearest_other(distances, labels)
    return silhouettes(own, other, np.zeros(len(labels), bool))
