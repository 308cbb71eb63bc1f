"""Where prototypes start: k-means, k-means++, the paper's normal draw, or rows of a sample."""

from __future__ import annotations

from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

from clam_dist.errors import ConfigError

Kind = Literal["kmeans", "kmeans++", "normal", "rows"]
_KINDS: tuple[str, ...] = ("kmeans", "kmeans++", "normal", "rows")

NORMAL_MEAN, NORMAL_DEVIATION = 0.1, 0.1
"""The authors' start ``N(0.1, 0.1²)`` on standardised data."""

JITTER = 1e-3
"""Standard deviation, in scaled units, of what tells duplicated starts apart."""


def starts(
    x: np.ndarray,
    weight: np.ndarray | None,
    k: int,
    count: int,
    kind: Kind,
    seed: int,
) -> tuple[np.ndarray, int]:
    """Draw ``count`` sets of ``k`` starting prototypes from a sample of rows.

    The draws depend on the arguments alone: they run on one thread, each set under its own key.

    Parameters
    ----------
    x : ndarray (m,d) float32
        Scaled sample, nan where missing; missing entries are filled with the column's mean.
    weight : ndarray (m,), optional
        Row weights; rows of weight 0 are never drawn.
    k : int
        Prototypes of a set.
    count : int
        Number of sets.
    kind : {'kmeans', 'kmeans++', 'normal', 'rows'}
        Lloyd's k-means from k-means++; k-means++ alone (Arthur and Vassilvitskii 2007); the
        authors' ``N(0.1, 0.1²)``; distinct rows drawn uniformly, by weight where given.
    seed : int
        Non-negative.

    Returns
    -------
    prototypes : ndarray (count,k,d) float32
    n_distinct : int
        Distinct rows of the sample, counted no further than ``k``. Where it is below ``k`` (and
        ``kind`` is not 'normal') the distinct rows are repeated with a little noise.
    """
    if kind not in _KINDS:
        raise ConfigError(f"start {kind!r} is not known; choose one of {', '.join(_KINDS)}")
    if k < 1 or len(x) == 0:
        raise ConfigError(f"cannot start {k} prototypes from {len(x)} sampled rows")
    filled = fill_missing(x)
    if weight is not None:
        kept = weight > 0
        filled, weight = filled[kept], np.asarray(weight, dtype=np.float64)[kept]
    n_distinct = count_distinct(filled, k)
    found = np.empty((count, k, x.shape[1]), dtype=np.float32)
    with threadpool_limits(limits=1):
        for number in range(count):
            key = np.random.SeedSequence(seed, spawn_key=(number,))
            generator = np.random.Generator(np.random.Philox(key))
            if kind == "normal":
                found[number] = generator.normal(NORMAL_MEAN, NORMAL_DEVIATION, found.shape[1:])
            elif n_distinct < k:
                found[number] = _repeated(filled, k, generator)
            else:
                found[number] = _drawn(filled, weight, k, kind, generator)
    return found, n_distinct


def fill_missing(x: np.ndarray) -> np.ndarray:
    """``x`` as float32 with nan replaced by the column's mean, or 0 in a column of nan alone."""
    x = np.asarray(x, dtype=np.float32)
    missing = np.isnan(x)
    if not missing.any():
        return x
    seen = np.maximum((~missing).sum(0), 1)
    mean = np.where(missing, 0.0, x).sum(0, dtype=np.float64) / seen
    return np.where(missing, mean.astype(np.float32), x)


def count_distinct(x: np.ndarray, enough: int) -> int:
    """Distinct rows of ``x (m,d)``, or ``enough`` as soon as there are that many."""
    size = max(2 * enough, 64)
    while size < len(x):
        found = len(np.unique(x[:size], axis=0))
        if found >= enough:
            return enough
        size *= 4
    return min(len(np.unique(x, axis=0)), enough)


def _drawn(
    x: np.ndarray,
    weight: np.ndarray | None,
    k: int,
    kind: Kind,
    generator: np.random.Generator,
) -> np.ndarray:
    # 100 MiB with all that it imports: of a cluster's workers only those that draw starts hold it.
    from sklearn.cluster import KMeans, kmeans_plusplus

    state = int(generator.integers(2**31))  # scikit-learn takes legacy seeds only
    if kind == "kmeans":
        model = KMeans(k, n_init=1, random_state=state, algorithm="lloyd")
        return model.fit(x, sample_weight=weight).cluster_centers_
    if kind == "kmeans++":
        return kmeans_plusplus(x, k, sample_weight=weight, random_state=state)[0]
    rows, first = np.unique(x, axis=0, return_inverse=True)
    odds = None
    if weight is not None:
        odds = np.bincount(first.reshape(-1), weights=weight, minlength=len(rows))
        odds = odds / odds.sum()
    return rows[generator.choice(len(rows), size=k, replace=False, p=odds)]


def _repeated(x: np.ndarray, k: int, generator: np.random.Generator) -> np.ndarray:
    rows = np.unique(x, axis=0)
    repeated = rows[np.arange(k) % len(rows)]
    noise = generator.normal(0.0, JITTER, repeated.shape)
    noise[: len(rows)] = 0.0
    return repeated + noise
