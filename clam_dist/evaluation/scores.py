"""What one pass over labelled rows gives besides silhouettes: sizes, means, inertia, agreement.

Letters: ``n`` rows, ``d`` features, ``k`` clusters, ``c`` true classes. All sums are float64 and
mergeable by addition; missing entries and rows without a label are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clam_dist.errors import DataError
from clam_dist.evaluation.moments import ClusterMoments, grouped_sums

MOST_CLASSES = 10_000
"""Distinct true labels counted; a column with more is a key, not a class."""


@dataclass(frozen=True)
class AssignSums:
    """Sums over labelled rows by cluster; those of other rows can be merged in."""

    count: np.ndarray
    """int64 (k,): rows."""
    weight: np.ndarray
    """float64 (k,): summed row weights."""
    observed: np.ndarray
    """float64 (k, d): summed weights of the rows where the feature is seen."""
    sums: np.ndarray
    """float64 (k, d): weighted sums of seen values, scaled units."""
    squares: np.ndarray
    """float64 (k, d): weighted sums of squared seen values."""
    distance: np.ndarray
    """float64 (k,): weighted sums of distances to the prototype."""
    unlabelled: int = 0
    """Rows without a label: every feature missing, or by cosines 0."""
    classes: dict[str, np.ndarray] = field(default_factory=dict)
    """For each true label, int64 (k,): its rows in each cluster."""

    @classmethod
    def zeros(cls, n_clusters: int, width: int) -> AssignSums:
        """The sums of no rows."""
        k, d = n_clusters, width
        return cls(
            np.zeros(k, np.int64),
            np.zeros(k),
            np.zeros((k, d)),
            np.zeros((k, d)),
            np.zeros((k, d)),
            np.zeros(k),
        )

    @classmethod
    def of(
        cls,
        x: np.ndarray,
        labels: np.ndarray,
        n_clusters: int,
        *,
        distances: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        truth: tuple[np.ndarray, Sequence[str]] | None = None,
    ) -> AssignSums:
        """Sums over the rows given.

        Parameters
        ----------
        x : ndarray of float32, shape (n, d)
            Rows in scaled units, NaN where missing.
        labels : ndarray of int, shape (n,)
            Cluster of each row; negative for none.
        n_clusters : int
        distances : ndarray of float32, shape (n,), optional
            To the prototype.
        weight : ndarray of float64, shape (n,), optional
        truth : (ndarray of int of shape (n,), sequence of str), optional
            Code of each row's true label (negative where null), and the labels' names, as a
            dictionary-encoded column holds them.

        Raises
        ------
        DataError
            More than 10 000 distinct true labels.
        """
        n, k = len(labels), n_clusters
        kept = np.flatnonzero(labels >= 0)
        x, labels = np.asarray(x[kept], np.float64), labels[kept]
        w = None if weight is None else np.asarray(weight, np.float64)[kept]
        missing = np.isnan(x)
        values = np.where(missing, 0.0, x)
        totals = np.bincount(labels, w, k).astype(np.float64)
        if missing.any():
            observed = grouped_sums(~missing, labels, k, w)
        else:
            observed = np.repeat(totals[:, None], x.shape[1], axis=1)
        distance = np.zeros(k)
        if distances is not None:
            d = np.asarray(distances, np.float64)[kept]
            distance += np.bincount(labels, d if w is None else d * w, k)
        classes = {}
        if truth is not None:
            classes = _counts_by_class(truth[0][kept], truth[1], labels, k)
        return cls(
            np.bincount(labels, minlength=k).astype(np.int64),
            totals,
            observed,
            grouped_sums(values, labels, k, w),
            grouped_sums(values * values, labels, k, w),
            distance,
            n - len(kept),
            classes,
        )

    def merge(self, other: AssignSums) -> AssignSums:
        """Sums over both sets of rows."""
        classes = dict(self.classes)
        for name, count in other.classes.items():
            classes[name] = classes[name] + count if name in classes else count
        _check_classes(len(classes))
        return AssignSums(
            self.count + other.count,
            self.weight + other.weight,
            self.observed + other.observed,
            self.sums + other.sums,
            self.squares + other.squares,
            self.distance + other.distance,
            self.unlabelled + other.unlabelled,
            classes,
        )

    @property
    def n_used(self) -> int:
        """Clusters with at least one row."""
        return int(np.count_nonzero(self.count))

    @property
    def means(self) -> np.ndarray:
        """float64 (k, d): mean of seen values, scaled units; NaN where none is seen."""
        return _divided(self.sums, self.observed)

    @property
    def deviations(self) -> np.ndarray:
        """float64 (k, d): standard deviation of seen values, scaled units; NaN where none."""
        variance = _divided(self.squares, self.observed) - self.means**2
        return np.sqrt(np.maximum(variance, 0.0))

    @property
    def mean_distances(self) -> np.ndarray:
        """float64 (k,): mean distance to the prototype; NaN where the cluster is empty."""
        return _divided(self.distance, self.weight)

    @property
    def inertia(self) -> float:
        """Weighted sum of squared distances to cluster means, seen entries, scaled units squared.

        As in k-means: over the means of the labelled rows, not over the prototypes.
        """
        within = self.squares - _divided(self.sums**2, self.observed, empty=0.0)
        return float(np.maximum(within, 0.0).sum())

    def moments(self) -> ClusterMoments:
        """The same pass's moments for silhouettes, missing entries being 0 there."""
        return ClusterMoments(self.count, self.weight, self.sums, self.squares.sum(axis=1))

    def contingency(self) -> np.ndarray:
        """int64 (c, k): rows of each true label, in order of name, in each cluster."""
        if not self.classes:
            return np.zeros((0, len(self.count)), np.int64)
        return np.stack([self.classes[name] for name in sorted(self.classes)])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays (no pickle), as ``numpy.savez`` takes them."""
        return {
            "count": self.count,
            "weight": self.weight,
            "observed": self.observed,
            "sums": self.sums,
            "squares": self.squares,
            "distance": self.distance,
            "unlabelled": np.array(self.unlabelled, np.int64),
            "class_names": np.array(sorted(self.classes), dtype=np.str_),
            "class_counts": self.contingency(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> AssignSums:
        """The inverse of :meth:`to_arrays`."""
        names = [str(name) for name in arrays["class_names"]]
        return cls(
            arrays["count"],
            arrays["weight"],
            arrays["observed"],
            arrays["sums"],
            arrays["squares"],
            arrays["distance"],
            int(arrays["unlabelled"]),
            dict(zip(names, arrays["class_counts"], strict=True)),
        )


def _divided(total: np.ndarray, by: np.ndarray, empty: float = np.nan) -> np.ndarray:
    return np.where(by > 0, total / np.where(by > 0, by, 1.0), empty)


def _counts_by_class(
    codes: np.ndarray, names: Sequence[str], labels: np.ndarray, k: int
) -> dict[str, np.ndarray]:
    known = codes >= 0
    present, inverse = np.unique(codes[known], return_inverse=True)
    _check_classes(len(present))
    counts = np.bincount(inverse * k + labels[known], minlength=len(present) * k)
    rows = counts.reshape(len(present), k).astype(np.int64)
    return {str(names[code]): row for code, row in zip(present, rows, strict=True)}


def _check_classes(found: int) -> None:
    if found > MOST_CLASSES:
        raise DataError(
            f"source.label: more than {MOST_CLASSES} distinct values; name a column of classes, "
            "or leave it out"
        )


def cluster_profile(
    sums: AssignSums,
    names: Sequence[str],
    center: np.ndarray,
    scale: np.ndarray,
    bands: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Each cluster's means in original units, for the report and for tables.

    Parameters
    ----------
    sums : AssignSums
        In scaled units.
    names : sequence of str, length d
        Encoded features.
    center, scale : ndarray of float64, shape (d,)
        Original value = ``center + scale * scaled value``.
    bands : mapping, optional
        Silhouettes of each cluster, as ``silhouette_bands`` gives them.

    Returns
    -------
    dict
        ``features`` (list of names), ``overall`` (mean of each feature, original units) and
        ``clusters``, a list of ``cluster, rows, share, distance`` (mean to the prototype),
        ``silhouette`` (mean or None), ``means`` (original units) and ``z`` (the same in standard
        deviations from the overall mean); None where nothing is seen.
    """
    seen = sums.observed.sum(axis=0)
    overall = _divided(sums.sums.sum(axis=0), seen)
    spread = np.sqrt(np.maximum(_divided(sums.squares.sum(axis=0), seen) - overall**2, 0.0))
    z = _divided(sums.means - overall, np.broadcast_to(spread, sums.means.shape), empty=0.0)
    z = np.where(np.isnan(sums.means), np.nan, z)
    originals = center + scale * sums.means
    total = max(int(sums.count.sum()), 1)
    clusters = [
        {
            "cluster": c,
            "rows": int(sums.count[c]),
            "share": float(sums.count[c] / total),
            "distance": _number(sums.mean_distances[c]),
            "silhouette": (bands or {}).get(str(c), {}).get("mean"),
            "means": [_number(value) for value in originals[c]],
            "z": [_number(value) for value in z[c]],
        }
        for c in range(len(sums.count))
    ]
    return {
        "features": list(names),
        "overall": [_number(value) for value in center + scale * overall],
        "clusters": clusters,
    }


def _number(value: float) -> float | None:
    """A JSON number, None for NaN."""
    return None if np.isnan(value) else float(value)
