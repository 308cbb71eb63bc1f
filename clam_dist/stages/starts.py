"""Where a sweep starts: k-means on the sample, what it scores there, and the restarts' draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clam_dist.errors import DataError
from clam_dist.evaluation.labelings import score_labelings
from clam_dist.models.base import Metric
from clam_dist.models.seeding import fill_missing, starts
from clam_dist.train.members import STARTS
from clam_dist.train.plan import Baseline, rung_queries

MOST_TRIES, KMEANS_TRIES, FEWER_TRIES = 50, 10, 4
"""k-means runs on the sample: at most, as a rule, and where a run costs much or many numbers of
clusters are tried. The least inertia gives beta its unit, and k-means is what members must beat:
on small data more runs cost nothing."""
TRIES_WORK, KMEANS_WORK = 2e7, 2e8
"""Multiply-adds a pass over the sample: times the runs where they are more than
:data:`KMEANS_TRIES`; and of one run from which on they are :data:`FEWER_TRIES`."""
NEAR_BEST = 1.05
"""Runs of at most this multiple of the least inertia can be the second start: local optima of
k-means differ more in silhouette than in inertia (.122 to .126 on a million rows of vowels)."""
SHORTEST = 1e-30
SMALLEST_INERTIA = 1e-6
"""Floor of the inertia a row that sets beta's unit: of rows that are all alike it is 0."""


@dataclass(frozen=True)
class Starts:
    """Starting prototypes for one number of clusters."""

    path: str
    inertia: float
    n_distinct: int
    baseline: Baseline


def kmeans_tries(work: int, few: bool) -> int:
    """k-means runs where one pass over the sample takes ``work`` multiply-adds."""
    if few or work > KMEANS_WORK:
        return FEWER_TRIES
    return int(min(max(TRIES_WORK / max(work, 1), KMEANS_TRIES), MOST_TRIES))


def compute_starts(
    n_clusters: int,
    *,
    shards_folder: str,
    folder: str,
    weighted: bool,
    restarts: int,
    seed: int,
    few: bool = False,
    geometry: str = "euclidean",
) -> Starts:
    """Starting prototypes ``(restarts, k, d)`` from the sample, written as ``.npy``.

    On the sphere of rows by their direction; those without one are left out.
    """
    x = np.load(Path(shards_folder) / "sample.x.npy")
    weight = np.load(Path(shards_folder) / "sample.w.npy") if weighted else None
    metric: Metric = "euclidean"
    if geometry == "spherical":
        metric = "cosine"
        x, weight = _directions(x, weight)
    count = kmeans_tries(x.size * n_clusters, few)
    tries, n_distinct = starts(x, weight, n_clusters, count, "kmeans", seed)
    if metric == "cosine":
        tries = tries / np.maximum(np.linalg.norm(tries, axis=-1, keepdims=True), SHORTEST)
    rows = fill_missing(x)
    nearest = [_nearest(rows, prototypes) for prototypes in tries]
    labels = np.stack([labels for labels, _ in nearest])
    inertias = [float(np.average(squared, weights=weight)) for _, squared in nearest]
    scores = _scores(rows, weight, labels, inertias, n_clusters, seed, metric)
    least = int(np.argmin(inertias))
    first = [least, _best_try(scores, least)]
    drawn = []
    for restart in range(restarts):
        kind = STARTS[restart % len(STARTS)]
        if restart < len(first):
            drawn.append(tries[first[restart]])
        elif kind == "kmeans" and restart < len(tries):
            drawn.append(tries[restart])
        else:
            # A seed of its own for each restart: those of one kind must differ.
            drawn.append(starts(x, weight, n_clusters, restart + 1, kind, seed)[0][restart])
    path = Path(folder) / f"starts-{n_clusters}.npy"
    np.save(path, np.stack(drawn))
    shares = np.bincount(labels[least], weights=weight, minlength=n_clusters) / (
        len(x) if weight is None else float(weight.sum())
    )
    value, error = scores[least]
    baseline = Baseline(inertias[least], value, error, float(shares.min()))
    return Starts(str(path), max(inertias[least], SMALLEST_INERTIA), n_distinct, baseline)


def _scores(
    rows: np.ndarray,
    weight: np.ndarray | None,
    labels: np.ndarray,
    inertias: Sequence[float],
    n_clusters: int,
    seed: int,
    metric: Metric,
) -> dict[int, tuple[float, float]]:
    """Silhouette with its error of the runs of nearly the least inertia; ``labels`` ``(n, m)``."""
    most = NEAR_BEST * min(inertias)
    near = [i for i, inertia in enumerate(inertias) if inertia <= most]
    clusters = [n_clusters] * len(near)
    queries = rung_queries(len(near))
    found = score_labelings(rows, labels[near], clusters, weight, seed, queries, metric=metric)
    return dict(zip(near, found, strict=True))


def _directions(x: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows of length 1, what is missing taken as 0; rows of zeros are left out."""
    rows = np.nan_to_num(x, nan=0.0)
    lengths = np.linalg.norm(rows, axis=1)
    placed = lengths > 0
    if not placed.any():
        raise DataError(
            "model.geometry: spherical needs rows with a direction, and every row of the sample is "
            "zero in all features; use euclidean, or other columns in source.features"
        )
    return rows[placed] / lengths[placed, None], None if weight is None else weight[placed]


def _best_try(scores: Mapping[int, tuple[float, float]], least: int) -> int:
    """The k-means run of greatest silhouette among those of nearly the least inertia.

    If that is the run of least inertia, the next best: two starts that are one are a waste.
    """
    others = {i: value for i, (value, _) in scores.items() if i != least}
    if not others:
        return least
    return max(others, key=lambda i: (others[i] if others[i] == others[i] else -2.0, -i))


def _nearest(rows: np.ndarray, prototypes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Label of the nearest prototype and squared distance to it, ``(m,)`` each."""
    norms = np.einsum("ij,ij->i", prototypes, prototypes)
    products = norms[None] - 2 * rows @ prototypes.T
    labels = products.argmin(axis=1)
    squared = products[np.arange(len(rows)), labels] + np.einsum("ij,ij->i", rows, rows)
    return labels, np.maximum(squared, 0)
