"""How far to follow what is exactly known of mean squared distances: one number a cluster.

A mean distance estimated from references can be corrected by the error of their mean squared
distance, which is known exactly: ``mean(d) - slope (mean(d^2) - exact) / (2 sqrt(exact))``. A slope
of 1 is right where distances vary little about their mean (high dimension, round clusters); where
they are heavy-tailed it overshoots and made the estimate several times worse than none (measured:
lognormal clusters, 1000 references, error .022 against .008), and the least-squares slope is
much less.
"""

from __future__ import annotations

import numpy as np

from clam_dist.evaluation.moments import ClusterMoments, squared_distances

SLAB = 8192
"""References measured at a time: 16 MiB with all probes."""
PROBES = 256
"""Rows from which distances are taken to fit the slopes; a fortieth of 10 000 queries."""


def fit_slopes(
    x: np.ndarray,
    weight: np.ndarray,
    certain: np.ndarray,
    starts: np.ndarray,
    moments: ClusterMoments,
) -> np.ndarray:
    """Least-squares slope of mean distance on half the mean squared distance, by cluster.

    The probes are references themselves, picked at even steps of their cumulated weight, so that
    they stand for the rows of the data set. Over them, distances and squares are averaged for each
    reference, relative to the exact root mean square of its cluster; the slope between the two is
    what the mean over many queries needs.

    Parameters
    ----------
    x : ndarray, shape (r, d)
        References by cluster.
    weight : ndarray of float64, shape (r,)
        Weight of each in a mean: row weight times the rows it stands for.
    certain : ndarray of bool, shape (r,)
        References that every draw holds; their error is none, so they do not count.
    starts : ndarray of int64, shape (k + 1,)
    moments : ClusterMoments
        Of all rows.

    Returns
    -------
    ndarray of float64, shape (k,)
        0 to 1; 1 where nothing was drawn by chance.
    """
    k = len(starts) - 1
    slope = np.ones(k)
    drawn = np.add.reduceat(np.append(~certain, False), starts[:-1]) * (np.diff(starts) > 0)
    if not drawn.any():
        return slope
    steps = (np.arange(PROBES) + 0.5) / PROBES * weight.sum()
    picks = np.unique(np.searchsorted(np.cumsum(weight), steps))
    probes = x[np.minimum(picks, len(x) - 1)]
    exact = moments.mean_squares(probes)
    for cluster in np.flatnonzero(drawn):
        part = slice(int(starts[cluster]), int(starts[cluster + 1]))
        w = weight[part] / weight[part].sum()
        centre = moments.means[cluster]
        known = exact[:, cluster]
        some = known > 0
        if not some.any():  # all rows of the data set are equal
            continue
        root, half = _means(probes[some] - centre, x[part] - centre, known[some])
        chance = np.where(certain[part], 0.0, w)
        root_part = chance * (root - w @ root)
        half_part = chance * (half - w @ half)
        below = float(half_part @ half_part)
        slope[cluster] = np.clip(root_part @ half_part / below, 0.0, 1.0) if below > 0 else 1.0
    return slope


def _means(probes: np.ndarray, x: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over probes of ``d / sqrt(known)`` and of ``d^2 / (2 known)``, each (r,)."""
    root, half = np.empty(len(x)), np.empty(len(x))
    for start in range(0, len(x), SLAB):
        cut = slice(start, start + SLAB)
        square = squared_distances(probes, x[cut]) / known[:, None]  # (probes, slab)
        root[cut] = np.sqrt(square).mean(axis=0)
        half[cut] = 0.5 * square.mean(axis=0)
    return root, half
