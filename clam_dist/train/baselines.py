"""The baselines behind the same face: k-means, mini-batch k-means and spherical k-means.

All take rows from shards, so that data of any size will do, and give prototypes for
:class:`clam_dist.models.nearest.Nearest`. The draws and sums depend on the arguments and the shards
alone, not on how many workers there are.

Letters: ``P`` restarts, ``n`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits

from clam_dist.data.reader import ShardReader
from clam_dist.data.sampling import generator
from clam_dist.errors import ConfigError, DataError
from clam_dist.models.factory import MODELS
from clam_dist.models.nearest import Geometry
from clam_dist.models.seeding import fill_missing, starts
from clam_dist.train.lloyd import Block, Lloyd, MapParts, lloyd, sums_of, unit
from clam_dist.train.shard_rows import ShardRows, joined

MEMORY_BYTES = 64 * 2**20
"""Rows of at most so many bytes are held in memory, where scikit-learn fits them."""
BATCH_ROWS = 1024
"""Rows of a mini-batch, at least four for each cluster; as in scikit-learn."""
PASSES = 10
"""Passes over all rows of mini-batch k-means."""


def fit_baseline(
    kind: str,
    rows: ShardRows,
    n_clusters: int,
    *,
    seed: int,
    restarts: int = 1,
    memory_bytes: int = MEMORY_BYTES,
    passes: int = PASSES,
    tolerance: float = 1e-4,
    most_iterations: int = 300,
    map_parts: MapParts = map,
) -> Lloyd:
    """Prototypes of a baseline from each of several k-means++ starts drawn from the sample.

    ``kmeans``
        Lloyd's algorithm on all rows: scikit-learn's where the rows fit ``memory_bytes`` and none
        misses a value, :func:`clam_dist.train.lloyd.lloyd` over the shards otherwise.
    ``minibatch_kmeans``
        scikit-learn's mini-batch steps; each batch draws from all shards, in an order drawn by
        seed and pass. Missing values are filled with the sample's means for the steps.
    ``spherical_kmeans``
        Lloyd's algorithm on directions, over the shards.

    Parameters
    ----------
    kind : str
        One of :data:`clam_dist.models.factory.MODELS` with ``fitted_by``.
    rows : ShardRows
    n_clusters : int
        ``k``.
    seed : int
        Non-negative.
    restarts : int
        ``P``.
    memory_bytes : int
        Bound on ``4 n d``, which scikit-learn's fit holds about twice.
    passes : int
        Over all rows, of the mini-batch steps.
    tolerance, most_iterations
        Of Lloyd's algorithm; ``tolerance`` is a share of the inertia, or in scikit-learn's fit of
        the features' variance that prototypes move by.
    map_parts : callable
        ``map``, or an executor's; each pass applies a function to the shards with it.

    Returns
    -------
    Lloyd
        Prototypes ``(P,k,d)`` float32, the inertia a row of each on all rows over the values seen
        (``1 - cos`` a row on the sphere), and iterations (mini-batch steps) ``(P,)``.

    Raises
    ------
    ConfigError
        No baseline has that name.
    DataError
        There are fewer rows than clusters, or on the sphere no row has a direction.
    """
    baselines = [name for name, record in MODELS.items() if record.fitted_by is not None]
    if kind not in baselines:
        raise ConfigError(f"model.kind: {kind!r} is unknown; use {', '.join(baselines)}")
    small = 4 * rows.n_rows * rows.width <= memory_bytes and not rows.has_missing
    if rows.n_rows < n_clusters:
        raise DataError(
            f"model.n_clusters: {n_clusters} clusters were asked for and there are {rows.n_rows} "
            f"rows; ask for {rows.n_rows} or fewer"
        )
    begun = draw_starts(kind, rows, n_clusters, restarts, seed)
    if MODELS[kind].fitted_by == "minibatch":
        found, steps = minibatch(begun, rows, seed, passes)
        return _measured(found, steps, rows, map_parts)
    if small and geometry_of(kind) == "euclidean":
        found, steps = in_memory(begun, *rows.all(), tolerance, most_iterations)
        return _measured(found, steps, rows, map_parts)
    return lloyd(
        begun,
        rows.parts(),
        geometry_of(kind),
        tolerance=tolerance,
        most_iterations=most_iterations,
        map_parts=map_parts,
    )


def geometry_of(kind: str) -> Geometry:
    """Of the model that labels rows by a baseline's prototypes."""
    return "spherical" if MODELS[kind].spherical else "euclidean"


def draw_starts(kind: str, rows: ShardRows, k: int, restarts: int, seed: int) -> np.ndarray:
    """k-means++ (Arthur and Vassilvitskii 2007) on the sample, on the sphere on its directions.

    Returns
    -------
    ndarray (P,k,d) float32
    """
    x, weight = rows.sample()
    if geometry_of(kind) == "spherical":
        x = np.nan_to_num(x, nan=0.0)
        kept = x.any(1)
        if not kept.any():
            raise DataError(
                f"source.features: none of the {len(x)} rows sampled has a direction, all their "
                "values are 0; use model.kind kmeans, or features that differ from 0"
            )
        x, weight = unit(x[kept], x[kept]), None if weight is None else weight[kept]
    return starts(x, weight, k, restarts, "kmeans++", seed)[0]


def in_memory(
    begun: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    tolerance: float,
    most_iterations: int,
) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's KMeans from each start: prototypes ``(P,k,d)`` and iterations ``(P,)``."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    found, steps = np.empty_like(begun), np.empty(len(begun), np.int64)
    if weight is not None:
        x, weight = x[weight > 0], weight[weight > 0]
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Fewer distinct rows than clusters: whoever asked is told elsewhere, before the training.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for place, start in enumerate(begun):
            model = KMeans(
                len(start),
                init=start,
                n_init=1,
                algorithm="lloyd",
                tol=tolerance,
                max_iter=most_iterations,
            ).fit(x, sample_weight=weight)
            found[place], steps[place] = model.cluster_centers_, model.n_iter_
    return found, steps


def minibatch(
    begun: np.ndarray, rows: ShardRows, seed: int, passes: int
) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's MiniBatchKMeans from each start; all restarts see the same batches.

    Returns
    -------
    prototypes : ndarray (P,k,d) float32
    steps : ndarray (P,) int64
        Batches taken.
    """
    from sklearn.cluster import MiniBatchKMeans

    k = begun.shape[1]
    states = generator(seed, "minibatch_kmeans").integers(2**31, size=len(begun))
    models = [
        MiniBatchKMeans(k, init=start, n_init=1, random_state=int(state))
        for start, state in zip(begun, states, strict=True)
    ]
    fill = _column_means(rows.sample()[0]) if rows.has_missing else None
    steps = 0
    with threadpool_limits(limits=1):
        for x, weight in _at_least(_batches(rows, max(BATCH_ROWS, 4 * k), seed, passes), k):
            filled = x if fill is None else np.where(np.isnan(x), fill, x)
            for model in models:
                model.partial_fit(filled, sample_weight=weight)
            steps += 1
    found = np.stack([model.cluster_centers_ for model in models]).astype(np.float32)
    return found, np.full(len(begun), steps, np.int64)


def _batches(rows: ShardRows, batch_rows: int, seed: int, passes: int) -> Iterator[Block]:
    """Batches that each draw from all shards; rows of weight 0 are left out."""
    reader = ShardReader(
        rows.folder,
        rows.shards,
        width=rows.width,
        lanes=1,
        owned=[0],
        batch_rows=batch_rows,
        seed=seed,
        weighted=rows.weighted,
    )
    with reader:
        for epoch in range(passes):
            for _, batches in reader.epoch(epoch):
                for _, x, weight in batches:
                    if weight is None:
                        yield x, None
                    elif (weight > 0).any():
                        yield x[weight > 0], weight[weight > 0]


def _at_least(batches: Iterator[Block], k: int) -> Iterator[Block]:
    """The batches, the first ones joined to one of at least ``k`` rows: scikit-learn's first."""
    held: list[Block] = []
    rows = 0
    for x, weight in batches:
        held.append((x.copy(), None if weight is None else weight.copy()))
        rows += len(x)
        if rows >= k:
            yield joined(held)
            break
    yield from ((x, weight) for x, weight in batches if len(x))


def _column_means(x: np.ndarray) -> np.ndarray:
    """Of the values seen, float32 ``(d,)``; 0 in a column without any."""
    return fill_missing(np.concatenate([x, np.full((1, x.shape[1]), np.nan, x.dtype)]))[-1]


def _measured(
    prototypes: np.ndarray, steps: np.ndarray, rows: ShardRows, map_parts: MapParts
) -> Lloyd:
    """The prototypes with their inertia on all rows, from one pass."""
    sums = sums_of(prototypes, rows.parts(), "euclidean", map_parts)
    weight = float(sums.weight[0].sum())
    inertia = sums.inertia / max(weight, np.finfo(np.float64).tiny)
    return Lloyd(prototypes, inertia, steps, weight)
