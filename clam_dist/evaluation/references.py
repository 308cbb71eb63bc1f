"""The rows that silhouette queries are measured against: a fixed number of each cluster.

Letters: ``n`` rows, ``d`` features, ``k`` clusters, ``r`` references. One pass over labelled rows
keeps, for each cluster, the rows of smallest hash (bottom-k sampling: a uniform sample that does
not depend on how the rows were cut or merged) and the exact moments of all its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clam_dist.errors import ConfigError
from clam_dist.evaluation.moments import ClusterMoments

TOTAL_REFERENCES = 20_000
"""References in all by default; 2000 a cluster at k = 9 leave an error below .0003 (measured)."""
MOST_A_CLUSTER = 2000
FEWEST_A_CLUSTER = 200
JACKKNIFE_GROUPS = 20
"""Groups of references left out in turn; the reference error is then known to about a sixth."""


def auto_references(n_rows: int, n_clusters: int) -> int | None:
    """References a cluster by default; None, all rows, where the data set is that small.

    Depends on the data set alone, never on the machine.
    """
    share = TOTAL_REFERENCES // max(n_clusters, 1)
    each = min(max(share, FEWEST_A_CLUSTER), MOST_A_CLUSTER)
    return None if n_rows <= max(each * n_clusters, TOTAL_REFERENCES) else each


@dataclass(frozen=True)
class References:
    """References by cluster, in order of hash within a cluster, with the exact moments."""

    x: np.ndarray
    """float32 or float64 (r, d): rows in the units of the queries, without missing entries."""
    rows: np.ndarray
    """int64 (r,): global row of each, so that a query is never its own reference."""
    weight: np.ndarray
    """float64 (r,): row weights."""
    starts: np.ndarray
    """int64 (k + 1,): references of cluster c are ``starts[c]:starts[c + 1]``."""
    moments: ClusterMoments
    """Of all labelled rows of the data set, not of the references alone."""

    @property
    def count(self) -> np.ndarray:
        """int64 (k,): references of each cluster."""
        return np.diff(self.starts)

    @property
    def complete(self) -> np.ndarray:
        """bool (k,): clusters all of whose rows are references; they bring no error."""
        return self.count >= self.moments.count

    @property
    def groups(self) -> int:
        """Jackknife groups: 1 if every cluster is complete, else as many as the fewest fill."""
        sampled = self.count[~self.complete]
        return 1 if len(sampled) == 0 else max(min(JACKKNIFE_GROUPS, int(sampled.min())), 2)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, as ``numpy.savez`` takes them."""
        return {
            "x": self.x,
            "rows": self.rows,
            "weight": self.weight,
            "starts": self.starts,
            **self.moments.to_arrays(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> References:
        """The inverse of :meth:`to_arrays`."""
        moments = ClusterMoments.from_arrays(arrays)
        return cls(arrays["x"], arrays["rows"], arrays["weight"], arrays["starts"], moments)


class ReferenceCollector:
    """Gathers :class:`References` from labelled rows, in any number of parts.

    Parameters
    ----------
    n_clusters : int
    width : int
        Features of a row.
    per_cluster : int or None
        References of each cluster, at least 2; None keeps every row.

    Raises
    ------
    ConfigError
        ``per_cluster`` is below 2.
    """

    def __init__(self, n_clusters: int, width: int, per_cluster: int | None) -> None:
        if per_cluster is not None and per_cluster < 2:
            raise ConfigError(
                f"evaluate.references: {per_cluster} a cluster is too few; use 2 or more, "
                "`all`, or `auto`"
            )
        self.per_cluster = per_cluster
        self.moments = ClusterMoments.zeros(n_clusters, width)
        self._parts: list[dict[str, np.ndarray]] = []
        self._waiting = 0
        # A row can be among the smallest of its cluster only up to this hash.
        self._bound = np.full(n_clusters, np.iinfo(np.uint64).max, np.uint64)

    def update(
        self,
        x: np.ndarray,
        labels: np.ndarray,
        hashes: np.ndarray,
        rows: np.ndarray,
        weight: np.ndarray | None = None,
    ) -> None:
        """Take in labelled rows.

        Parameters
        ----------
        x : ndarray of float32 or float64, shape (n, d)
            NaN where missing.
        labels : ndarray of int, shape (n,)
            Negative for rows without a cluster, which are left out.
        hashes : ndarray of uint64, shape (n,)
            Keyed hash of each row, for the purpose "reference".
        rows : ndarray of int64, shape (n,)
            Global rows.
        weight : ndarray of float64, shape (n,), optional
        """
        n_clusters = self.moments.n_clusters
        self.moments = self.moments.merge(ClusterMoments.of(x, labels, n_clusters, weight))
        kept = (labels >= 0) & (hashes <= self._bound[labels])
        if weight is not None:
            kept &= weight > 0
        index = np.flatnonzero(kept)
        picked = x[index]
        self._add(
            {
                "x": np.where(np.isnan(picked), x.dtype.type(0), picked),
                "labels": labels[index].astype(np.int64),
                "hashes": hashes[index],
                "rows": rows[index],
                "weight": np.ones(len(index)) if weight is None else weight[index],
            }
        )

    def merge(self, other: ReferenceCollector) -> None:
        """Take in all that another collector of the same kind holds."""
        self.moments = self.moments.merge(other.moments)
        self._add(other._compact())

    def finish(self) -> References:
        """The references gathered so far."""
        part = self._compact()
        counts = np.bincount(part["labels"], minlength=self.moments.n_clusters)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return References(part["x"], part["rows"], part["weight"], starts, self.moments)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All of the collector's state as plain arrays (no pickle), for ``numpy.savez``."""
        limit = -1 if self.per_cluster is None else self.per_cluster
        return {
            **self._compact(),
            **self.moments.to_arrays(),
            "per_cluster": np.array(limit, np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ReferenceCollector:
        """The inverse of :meth:`to_arrays`."""
        moments = ClusterMoments.from_arrays(arrays)
        limit = int(arrays["per_cluster"])
        collector = cls(moments.n_clusters, moments.sums.shape[1], None if limit < 0 else limit)
        collector.moments = moments
        collector._add({name: arrays[name] for name in _COLUMNS})
        return collector

    def _add(self, part: dict[str, np.ndarray]) -> None:
        self._parts.append(part)
        self._waiting += len(part["rows"])
        limit = self.per_cluster
        # Sorting only when twice the kept rows have come bounds memory and keeps sorts rare.
        if limit is not None and self._waiting > 2 * limit * self.moments.n_clusters:
            self._compact()

    def _compact(self) -> dict[str, np.ndarray]:
        if not self._parts:
            width = self.moments.sums.shape[1]
            return {
                "x": np.zeros((0, width), np.float32),
                "labels": np.zeros(0, np.int64),
                "hashes": np.zeros(0, np.uint64),
                "rows": np.zeros(0, np.int64),
                "weight": np.zeros(0),
            }
        joined = {name: np.concatenate([part[name] for part in self._parts]) for name in _COLUMNS}
        order = np.lexsort((joined["rows"], joined["hashes"], joined["labels"]))
        if self.per_cluster is not None:
            counts = np.bincount(joined["labels"], minlength=self.moments.n_clusters)
            first = np.cumsum(counts) - counts
            rank = np.arange(len(order)) - np.repeat(first, counts)
            last = first + self.per_cluster - 1
            full = counts >= self.per_cluster
            self._bound[full] = joined["hashes"][order[last[full]]]
            order = order[rank < self.per_cluster]
        part = {name: values[order] for name, values in joined.items()}
        self._parts, self._waiting = [part], len(order)
        return part


_COLUMNS = ("x", "labels", "hashes", "rows", "weight")
