"""Exact moments of each cluster in one pass: count, weight, sum, sum of squared norms.

Letters: ``n`` rows, ``d`` features, ``k`` clusters. From them follows exactly the mean squared
distance from any row to all rows of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse


def grouped_sums(
    values: np.ndarray, groups: np.ndarray, n_groups: int, weight: np.ndarray | None = None
) -> np.ndarray:
    """Weighted sums of rows by group, in float64, added in the order of the rows.

    Parameters
    ----------
    values : ndarray, shape (n, d)
    groups : ndarray of int, shape (n,)
        Group of each row, 0 to ``n_groups - 1``.
    n_groups : int
    weight : ndarray of float64, shape (n,), optional
        Row weights, 1 if absent.

    Returns
    -------
    ndarray of float64, shape (n_groups, d)
    """
    n = len(values)
    data = np.ones(n) if weight is None else np.asarray(weight, np.float64)
    # A sparse indicator adds each row once: seven times faster than sorting the rows by group.
    indicator = sparse.csr_array((data, groups, np.arange(n + 1)), shape=(n, n_groups))
    return np.asarray(indicator.T @ np.asarray(values, np.float64))


@dataclass(frozen=True)
class ClusterMoments:
    """What one pass over labelled rows leaves of each cluster; mergeable by addition.

    Missing entries are 0, the feature's mean in scaled units. Rows of weight 0 or without a label
    (negative) are left out.
    """

    count: np.ndarray
    """int64 (k,): rows."""
    weight: np.ndarray
    """float64 (k,): sum of row weights, equal to ``count`` where rows have none."""
    sums: np.ndarray
    """float64 (k, d): weighted sums of rows."""
    squares: np.ndarray
    """float64 (k,): weighted sums of squared norms."""

    @classmethod
    def zeros(cls, n_clusters: int, width: int) -> ClusterMoments:
        """The moments of no rows."""
        return cls(
            np.zeros(n_clusters, np.int64),
            np.zeros(n_clusters),
            np.zeros((n_clusters, width)),
            np.zeros(n_clusters),
        )

    @classmethod
    def of(
        cls,
        x: np.ndarray,
        labels: np.ndarray,
        n_clusters: int,
        weight: np.ndarray | None = None,
    ) -> ClusterMoments:
        """Moments of the rows given.

        Parameters
        ----------
        x : ndarray of float32 or float64, shape (n, d)
            Rows, best centred; NaN where missing.
        labels : ndarray of int, shape (n,)
            Cluster of each row; negative for none.
        n_clusters : int
        weight : ndarray of float64, shape (n,), optional
        """
        kept = labels >= 0
        if weight is not None:
            kept = kept & (weight > 0)
        if not kept.all():
            x, labels = x[kept], labels[kept]
            weight = None if weight is None else weight[kept]
        rows = filled(np.asarray(x, np.float64))
        norms = np.einsum("nd,nd->n", rows, rows)
        return cls(
            np.bincount(labels, minlength=n_clusters).astype(np.int64),
            np.bincount(labels, weight, minlength=n_clusters).astype(np.float64),
            grouped_sums(rows, labels, n_clusters, weight),
            np.bincount(labels, norms if weight is None else norms * weight, n_clusters),
        )

    def merge(self, other: ClusterMoments) -> ClusterMoments:
        """Moments of both sets of rows."""
        return ClusterMoments(
            self.count + other.count,
            self.weight + other.weight,
            self.sums + other.sums,
            self.squares + other.squares,
        )

    @property
    def n_clusters(self) -> int:
        """Clusters, used or not."""
        return len(self.count)

    @property
    def used(self) -> np.ndarray:
        """bool (k,): clusters with at least one row."""
        return self.count > 0

    @property
    def means(self) -> np.ndarray:
        """float64 (k, d): mean of each cluster; 0 where it has no rows."""
        return self.sums / np.where(self.used, self.weight, 1.0)[:, None]

    @property
    def variances(self) -> np.ndarray:
        """float64 (k,): mean squared distance of a cluster's rows to its mean."""
        means = self.means
        spread = self.squares / np.where(self.used, self.weight, 1.0)
        return np.maximum(spread - np.einsum("kd,kd->k", means, means), 0.0)

    def mean_squares(self, x: np.ndarray) -> np.ndarray:
        """Exact mean squared distance from each row to all rows of each cluster.

        Parameters
        ----------
        x : ndarray, shape (n, d)
            Rows without missing entries.

        Returns
        -------
        ndarray of float64, shape (n, k)
            Inf for clusters without rows.
        """
        squares = squared_distances(x, self.means) + self.variances
        squares[:, ~self.used] = np.inf
        return squares

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, as ``numpy.savez`` takes them."""
        return {
            "moments_count": self.count,
            "moments_weight": self.weight,
            "moments_sums": self.sums,
            "moments_squares": self.squares,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ClusterMoments:
        """The inverse of :meth:`to_arrays`."""
        return cls(
            arrays["moments_count"],
            arrays["moments_weight"],
            arrays["moments_sums"],
            arrays["moments_squares"],
        )


def filled(x: np.ndarray) -> np.ndarray:
    """Rows with 0 (the feature's mean in scaled units) in place of NaN; a copy only if needed."""
    missing = np.isnan(x)
    return np.where(missing, x.dtype.type(0), x) if missing.any() else x


def squared_distances(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances by one product in float64, clipped at 0: shape (n, k)."""
    rows = np.asarray(x, np.float64)
    norms = np.einsum("nd,nd->n", rows, rows)[:, None]
    squares = norms - 2.0 * (rows @ centres.T) + np.einsum("kd,kd->k", centres, centres)
    return np.maximum(squares, 0.0, out=squares)
