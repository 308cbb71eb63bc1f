"""What estimators with an encoder do beside labelling: scores of latents, centroids that adapt.

Letters: ``n`` rows, ``d`` features, ``m`` numbers of a latent, ``k`` clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from clam_dist.data.arrays import Part, Parts
from clam_dist.data.sampling import row_hash, smallest
from clam_dist.errors import DataError
from clam_dist.estimators.trained import Trained
from clam_dist.evaluation.silhouette import silhouette_sampled
from clam_dist.models.rows import to_tensors
from clam_dist.models.settling import CHUNK_ROWS, Chunk, Settling
from clam_dist.train.loop import one_thread_each

SCORED_ROWS = 10_000
"""Rows that the silhouette of latents is of, at most."""


def drawn(parts: Iterable[Part], most: int, seed: int) -> Part:
    """``most`` of the rows with a value and a positive weight, or all where they are fewer.

    A row's lot depends on its place and the seed alone.
    """
    held: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
    first = 0
    for x, weight in parts:
        lots = row_hash(seed, "latents", "", first, len(x))
        first += len(x)
        usable = _usable(x, weight)
        held.append((lots[usable], x[usable], None if weight is None else weight[usable]))
        held = [_least(held, most)]
    return held[0][1], held[0][2]


def _least(
    held: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]], most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    lots = np.concatenate([part[0] for part in held])
    x = np.concatenate([part[1] for part in held])
    weights = [part[2] for part in held if part[2] is not None]
    weight = np.concatenate(weights) if weights else None
    chosen = np.sort(smallest(lots, np.arange(len(lots)), most))
    return lots[chosen], x[chosen], None if weight is None else weight[chosen]


def silhouette_of_latents(trained: Trained, parts: Parts, seed: int) -> float:
    """Silhouette of :meth:`Trained.represent` of at most :data:`SCORED_ROWS` rows.

    nan where they are all in one cluster, or each in one of its own.
    """
    x, weight = drawn(parts(), SCORED_ROWS, seed)
    labels = trained.labels(x)
    if not 1 < len(np.unique(labels)) < len(x):
        return float("nan")
    latents = trained.represent(x, np.float32)
    found = silhouette_sampled(
        latents, labels, sample_size=None, seed=seed, weight=weight, threads=trained.threads
    )
    return float(found.value)


def adapted(trained: Trained, parts: Parts) -> Trained:
    """The model with its centroids settled in other rows, in ``1 + blocks`` passes over them.

    Raises
    ------
    DataError
        No row has a value and a positive weight.
    """
    model = trained.model()
    assert isinstance(model, Settling)

    def chunks() -> Iterator[Chunk]:
        for x, weight in parts():
            kept = np.flatnonzero(_usable(x, weight))
            for first in range(0, len(kept), CHUNK_ROWS):
                chosen = kept[first : first + CHUNK_ROWS]
                rows, observed = to_tensors(trained.scale(x[chosen]), device=trained.device)
                held = None
                if weight is not None:
                    held = torch.from_numpy(weight[chosen]).to(trained.device, torch.float32)
                yield rows, held, observed

    with one_thread_each(1):
        if next(chunks(), None) is None:
            raise DataError("there is no row with a value and a positive weight to adapt to")
        stacked = {name: value[None] for name, value in trained.tensors().items()}
        found = model.adapt(stacked, chunks)
    arrays = {name: value[0].cpu().numpy().copy() for name, value in found.items()}
    return replace(trained, parameters={**trained.parameters, **arrays})


def _usable(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Rows ``(n,)`` bool that have a value and count."""
    usable: np.ndarray = ~np.isnan(x).all(axis=1)
    return usable if weight is None else usable & (weight > 0)
