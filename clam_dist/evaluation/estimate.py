"""From scores of sampled queries to the silhouette of the data set, with its standard error.

Letters: ``q`` queries, ``k`` clusters, ``g`` jackknife groups of references.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from clam_dist.errors import DataError


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
    shrunk by the chance of a reference not to be drawn; g = 0 with all references."""

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
        self,
        n_rows: int,
        seed: int,
        references: int | Literal["all"] | None,
        metric: str = "euclidean",
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
        metric : str
            Named in the result.

        Raises
        ------
        DataError
            There are no queries, or none with a weight.
        """
        value, error = combine(
            self.silhouette, self.weight, n_rows, reference_error(self.replicates, self.weight)
        )
        name: int | Literal["all"] = "all" if references is None else references
        return SilhouetteResult(value, error, len(self.rows), name, seed, metric)


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


def silhouette_bands(
    labels: np.ndarray, silhouette: np.ndarray, n_clusters: int, points: int = 48
) -> dict[str, dict[str, Any]]:
    """Each cluster's scores in few numbers, for a silhouette plot.

    Parameters
    ----------
    labels : ndarray of int, shape (q,)
    silhouette : ndarray, shape (q,)
    n_clusters : int
    points : int
        Quantiles of each cluster.

    Returns
    -------
    dict
        For each cluster, by its number as a string: ``rows`` (queries), ``mean`` (None without
        queries) and ``quantiles`` (list of float, from the greatest score to the least).
    """
    at = (np.arange(points) + 0.5) / points
    bands: dict[str, dict[str, Any]] = {}
    for cluster in range(n_clusters):
        scores = np.asarray(silhouette, np.float64)[labels == cluster]
        some = len(scores) > 0
        bands[str(cluster)] = {
            "rows": len(scores),
            "mean": float(scores.mean()) if some else None,
            "quantiles": np.quantile(scores, 1.0 - at).tolist() if some else [],
        }
    return bands
