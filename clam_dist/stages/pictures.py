"""What a trained model can show of itself: the arrays that the report's pictures are drawn from.

Everything comes from the bounded sample that the shards stage drew, whose rows are in an order as
good as random, and from what the model can do, not from which one it is.

Letters: ``n`` rows, ``d`` features, ``k`` clusters, ``m`` dimensions of the space that prototypes
live in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from clam_dist.assign import Labeller
from clam_dist.data.statistics import Scaling
from clam_dist.models.adaptation import next_centroids
from clam_dist.models.base import Parameters
from clam_dist.stages.adapting import Adaptive
from clam_dist.stages.context import Context
from clam_dist.stages.scoring import assignment_of
from clam_dist.train.history import HISTORY_FILE, load_history

ENTROPY_ROWS = 8192
POINT_ROWS = 1500
PAIRS = 8
GRID = 80
"""Cells on a side, of the plane of two features: 6,400 rows to label for each beta."""
BINS = 40
FACTORS = (1 / 9, 1 / 3, 1.0, 3.0)
"""Of the inverse temperatures at which basins are drawn, to the model's own."""
QUANTILES = (0.005, 0.995)
"""Of each feature, between which the plane is drawn; beyond are the prototypes that lie there."""


@runtime_checkable
class Undecided(Protocol):
    """A model whose prototypes draw a row more or less alike."""

    def entropies(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """``(B,)``, natural units, 0 … ``log k``."""
        ...


@runtime_checkable
class Latent(Protocol):
    """A model whose prototypes live among what an encoder makes of rows."""

    latent: int


@runtime_checkable
class Decoding(Protocol):
    """A model that makes rows of latents."""

    def decode(self, parameters: Parameters, z: Tensor) -> Tensor:
        """``(n,d)`` in scaled units."""
        ...

    def reconstruct(self, parameters: Parameters, x: Tensor, observed: Tensor | None) -> Tensor:
        """``(B,d)`` in scaled units."""
        ...


@runtime_checkable
class Tempered(Protocol):
    """A model whose recursion depends on the inverse temperature."""

    steps: int


def model_arrays(context: Context) -> dict[str, Any]:
    """All that there is to show, as :func:`~clam_dist.reporting.model_plots.model_pictures` has it.

    At most :data:`ENTROPY_ROWS` rows of the sample are looked at, a model that adapts apart: its
    centroids take the whole sample, as in each of its rounds. With two features ``4 GRID²`` more
    rows are labelled.
    """
    labeller = Labeller(assignment_of(context))
    folder, shape = context.shards_folder, context.config.model.image_shape
    x = np.load(folder / "sample.x.npy", mmap_mode="r")
    some = np.array(x[:ENTROPY_ROWS])
    sizes = context.data("evaluate")["metrics"]["cluster_sizes"]
    found: dict[str, Any] = {
        "image_shape": shape,
        "sizes": sizes,
        **learned(labeller, context.scaling, some, sizes, images=shape is not None),
        "latents": latents(labeller, some),
        "entropies": entropies(labeller, some),
    }
    if shape is not None:
        way = load_history(context.work / "train" / HISTORY_FILE)
        found["prototype_history"] = [
            {"epoch": moment, "prototypes": context.scaling.invert(value)} for moment, value in way
        ]
    if isinstance(labeller.model, Adaptive):
        weighted = context.config.source.weight is not None
        weight = np.load(folder / "sample.w.npy") if weighted else None
        ways = centroid_paths(labeller, np.array(x), weight)
        found["paths"] = {"points": labeller.represent(some[:POINT_ROWS]), "paths": ways}
    if has_basins(labeller, context.scaling, x.shape[1]):
        beta = float(context.data("train")["winner"]["beta"])
        found["basins"] = basins(labeller, context.scaling, some, beta)
        found["basins"]["names"] = list(context.schema.names)
    return found


def learned(
    labeller: Labeller, scaling: Scaling, x: np.ndarray, sizes: Sequence[int], *, images: bool
) -> dict[str, Any]:
    """Prototypes, decoded where they are latents, and rows beside their reconstructions.

    Parameters
    ----------
    labeller, scaling
        Of the model.
    x
        ``(n, d)`` scaled rows, nan where missing.
    sizes
        ``(k,)`` rows of each cluster: the largest are shown.
    images
        Give original units, in which images look natural. Otherwise scaled ones, in which features
        are of one size.
    """
    shown = scaling.invert if images else np.asarray
    prototypes = labeller.parameters["prototypes"]
    if not isinstance(labeller.model, Latent):
        if labeller.metric == "cosine":  # a direction, at the length that rows have
            lengths = np.sqrt(np.nansum(np.square(x, dtype=np.float64), axis=1)).mean()
            norms = np.linalg.norm(prototypes, axis=1, keepdims=True)
            prototypes = prototypes / np.where(norms > 0, norms, 1.0) * lengths
        return {"prototypes": shown(prototypes)} if images else {}
    if not isinstance(labeller.model, Decoding):
        return {}
    rows = examples(labeller, x, sizes)
    inputs = x[rows]
    found: dict[str, Any] = {"decoded_prototypes": shown(labeller.values(_decoded, x[:1]))}
    if len(rows):
        found["reconstructions"] = {
            "inputs": shown(inputs),
            "outputs": shown(labeller.values(_reconstructed, inputs)),
            "clusters": labeller.label(inputs)[0],
        }
    return found


def _decoded(
    model: Any, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
) -> Tensor:
    del beta, x, observed
    decoded: Tensor = model.decode(parameters, parameters["prototypes"])
    return decoded


def _reconstructed(
    model: Any, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
) -> Tensor:
    del beta  # of the recursion, which would show the prototypes once more
    found: Tensor = model.reconstruct(parameters, x, observed)
    return found


def examples(labeller: Labeller, x: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Where the first complete rows of the largest clusters are, one of each in turn.

    Parameters
    ----------
    labeller, x, sizes
        As in :func:`learned`.

    Returns
    -------
    ndarray of int64
        At most :data:`PAIRS` positions, in the order of the clusters' sizes.
    """
    complete = np.flatnonzero(~np.isnan(x).any(axis=1))
    if len(complete) == 0:
        return complete
    labels = labeller.label(x[complete])[0]
    place = np.argsort(np.argsort(-np.asarray(sizes), kind="stable"))
    turn = np.zeros(len(labels), dtype=np.int64)
    for cluster in np.unique(labels):
        mine = labels == cluster
        turn[mine] = np.arange(mine.sum())
    known = labels >= 0
    order = np.lexsort((place[labels], turn))  # -1 is left out below
    return complete[order[known[order]][:PAIRS]]


def latents(labeller: Labeller, x: np.ndarray) -> dict[str, Any] | None:
    """Rows and prototypes in a space of the model's own, None of a model without one."""
    model = labeller.model
    if not model.own_space:
        return None
    labels, _, z = labeller.label_and_represent(x[:POINT_ROWS])
    return {
        "points": z,
        "labels": labels,
        "prototypes": labeller.values(lambda m, held, *_: m.placed(held), x[:1]),
        "encoded": isinstance(model, Latent),
    }


def entropies(labeller: Labeller, x: np.ndarray) -> dict[str, Any] | None:
    """Histogram of the rows' entropies (Saha et al., ICML 2023, equation 13), None without any.

    Rows without a value, and on the sphere without a direction, are left out.
    """
    model = labeller.model
    if not isinstance(model, Undecided):
        return None
    seen = x[~np.isnan(x).all(axis=1)]
    values = labeller.values(lambda m, *given: m.entropies(*given), seen)
    values = values[np.isfinite(values)]
    edges = np.linspace(0.0, math.log(max(model.n_clusters, 2)), BINS + 1)
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    return {"counts": counts, "edges": edges, "n_clusters": model.n_clusters}


def centroid_paths(labeller: Labeller, x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Centroids before the first block and after each, ``(L + 1, k, m)`` float64.

    Parameters
    ----------
    labeller
        Of a model that adapts.
    x, weight
        ``(n, d)`` scaled rows and their weights.
    """
    weights = None if weight is None else torch.from_numpy(weight).to(torch.float32)

    def ways(
        model: Any, parameters: Parameters, beta: float, rows: Tensor, observed: Tensor | None
    ) -> Tensor:
        del beta
        held = {name: value[None] for name, value in parameters.items()}
        given = (rows, None if weights is None else weights.to(rows.device), observed)
        statistics = model.latent_sums(held, *given)
        start = held["start"].to(torch.float64)
        way = [start]
        for _ in range(model.blocks):
            sums = model.adapt_sums(held, statistics, way[-1], *given)
            way.append(next_centroids(sums, start))
        return torch.cat(way)

    return labeller.values(ways, x)


def has_basins(labeller: Labeller, scaling: Scaling, width: int) -> bool:
    """Whether rows and prototypes lie in one plane, whose points the scaling keeps apart."""
    model = labeller.model
    flat = width == 2 and scaling.kind != "unit"
    return flat and not model.own_space and model.metric_name == "euclidean"


def basins(labeller: Labeller, scaling: Scaling, x: np.ndarray, beta: float) -> dict[str, Any]:
    """Where rows flow to each prototype, on a grid over the plane of the two features.

    Parameters
    ----------
    labeller, scaling
        Of a model that :func:`has_basins`.
    x
        ``(n, 2)`` scaled rows, nan where missing.
    beta
        The model's own inverse temperature.

    Returns
    -------
    dict
        ``labels (nb, GRID, GRID)``; the rest in original units, ``unit`` being the scaling's, in
        which distances are measured.
    """
    prototypes = labeller.parameters["prototypes"]
    low, high = (np.nanquantile(x, q, axis=0) for q in QUANTILES)
    low, high = np.minimum(low, prototypes.min(0)), np.maximum(high, prototypes.max(0))
    margin = np.maximum(0.05 * (high - low), 1e-6)
    low, high = low - margin, high + margin
    middles = (np.arange(GRID) + 0.5) / GRID
    across, upwards = (low[i] + middles * (high[i] - low[i]) for i in range(2))
    cells = np.stack(np.meshgrid(across, upwards), axis=-1).reshape(-1, 2).astype(np.float32)
    tempered = isinstance(labeller.model, Tempered)
    betas = [beta * factor for factor in FACTORS] if tempered else [beta]
    grids = [
        labeller.values(lambda m, held, _, *given, at=at: m.predict(held, at, *given)[0], cells)
        for at in betas
    ]
    left, bottom = scaling.invert(low)
    right, top = scaling.invert(high)
    return {
        "labels": np.stack(grids).reshape(-1, GRID, GRID),
        "betas": betas if tempered else [math.nan],
        "extent": [left, right, bottom, top],
        "prototypes": scaling.invert(prototypes),
        "points": scaling.invert(x[:POINT_ROWS]),
        "chosen": beta,
        "unit": scaling.scale,
    }
