"""What each kind of model adds to a worker's memory, from its settings alone.

Networks of any make are walked on the meta device: once through a training step of one member, and
once through the labelling of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clam_dist.config import Config
from clam_dist.models.autoencoders import build_network
from clam_dist.models.base import Equations
from clam_dist.models.factory import MODELS, build_model
from clam_dist.models.latents import BLOCK_ROWS
from clam_dist.stages.live_memory import like, peak_bytes
from clam_dist.stages.settings import network_settings, shared_settings
from clam_dist.stages.sizes import PLAIN, Form
from clam_dist.train.members import Member
from clam_dist.train.schedule import MICRO_BATCH_ROWS

PASS_ROWS = 2 * MICRO_BATCH_ROWS
"""Rows of a micro-batch are fewer than these."""


def form_of(
    config: Config,
    members: Sequence[Member],
    width: int,
    clusters: Sequence[int],
    rows: int,
    missing: bool,
) -> Form:
    """The form of a config's model.

    Parameters
    ----------
    members
        Of the sweep.
    width, clusters
        Features of a row, numbers of clusters to try.
    rows
        Of a micro-batch at the most.
    missing
        Whether cells can be missing.
    """
    model, kind = config.model, MODELS[config.model.kind]
    k = max(clusters)
    if not kind.by_gradient:
        return Form(by_gradient=False, columns=_columns(config, k, width))
    if kind.pretrained:
        return _deep(config, members, width, clusters, rows, missing)
    metric = {"none": 0, "diagonal": width, "full": width * width}[model.metric]
    plain = model.loss == "squared" and not metric and model.objective != "noise"
    form = Form(own_kernels=plain, metric=metric, columns=_columns(config, k, width))
    return PLAIN if form == PLAIN else form


def _columns(config: Config, k: int, shown: int) -> int:
    """Numbers a row of the columns asked for."""
    widths = {"memberships": k, "latent": shown}
    return sum(widths.get(name, 1) for name in config.evaluate.columns)


def _deep(
    config: Config,
    members: Sequence[Member],
    width: int,
    clusters: Sequence[int],
    rows: int,
    missing: bool,
) -> Form:
    settings = shared_settings(config.model, config.train) | {"mask_value": [0.0] * width}
    settings |= network_settings(config.model, config.train, width, clusters) | {"seed": 0}
    largest = max(members, key=lambda member: member.n_clusters)
    model = build_model(settings, largest.to_json())
    latent = int(settings["latent"])
    network = build_network(settings["network"], width, latent)
    shapes = {name: value.shape for name, value in network.named_parameters()}
    numbers = sum(shape.numel() for shape in shapes.values())

    def walked(of: Callable[[str], Callable[[], Any]]) -> int:
        try:
            return peak_bytes(of("meta"))
        except (NotImplementedError, RuntimeError):  # a user's own network that asks for numbers
            return peak_bytes(of("cpu"))

    def passes(device: str) -> Callable[[], Any]:
        parameters = _parameters(model, like(shapes, 1, device), largest.n_clusters, latent)
        x, observed = _rows(rows, width, missing, device)
        return lambda: _step(model, parameters, x, observed)

    def labels(device: str) -> Callable[[], Any]:
        parameters = _parameters(model, like(shapes, 1, device), largest.n_clusters, latent)
        x, observed = _rows(BLOCK_ROWS, width, missing, device)
        return lambda: model.predict_and_represent(parameters, 1.0, x, observed)

    held = _parameters(model, like(shapes, 1, "meta"), largest.n_clusters, latent)
    every = sum(value.numel() for value in held.values())
    return Form(
        latent=latent,
        network=numbers,
        derived=every - numbers - largest.n_clusters * latent,
        networks=len({member.restart for member in members}),
        exchanges=model.exchanges,
        pass_bytes=walked(passes),
        label_bytes=walked(labels),
        columns=_columns(config, largest.n_clusters, latent),
        reconstructs="reconstruction" in config.evaluate.columns,
    )


def _rows(rows: int, width: int, missing: bool, device: str) -> tuple[Tensor, Tensor | None]:
    x = torch.zeros((rows, width), device=device)
    return x, torch.ones((rows, width), dtype=torch.bool, device=device) if missing else None


def _parameters(
    model: Equations, network: dict[str, Tensor], k: int, latent: int
) -> dict[str, Tensor]:
    """All of one member's, with a leading axis of 1."""
    start = next(iter(network.values())).new_zeros((1, k, latent))
    return model.starting(network, start)


def _step(
    model: Equations, parameters: dict[str, Tensor], x: Tensor, observed: Tensor | None
) -> object:
    """A training pass over one micro-batch, whose sums are those of the whole batch."""
    beta = torch.ones(1, device=x.device)
    if not model.exchanges:
        return model.gradient_sums(parameters, beta, x, None, observed, (0,))
    steps = model.gradient_exchange(parameters, beta, x, None, observed, (0,))
    total = next(steps)
    while True:
        try:
            total = steps.send(total.clone())
        except StopIteration as end:
            return end.value
