"""What a config's model and training sections make of a sweep: members, and what all of them share.

Every automatic value is resolved here or in :mod:`clam_dist.stages.planning`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clam_dist.config import Config, ModelConfig, TrainConfig
from clam_dist.data.statistics import Scaling, Statistics
from clam_dist.errors import ConfigError
from clam_dist.models.autoencoders import resolve_network
from clam_dist.models.factory import MODELS, build_model
from clam_dist.stages.columns import check_columns
from clam_dist.train.members import AUTO_SCALES, STARTS, Member, plan_members
from clam_dist.train.schedule import auto_epochs


def check_model(config: Config) -> None:
    """Refuse what does not go together, before any work.

    Raises
    ------
    ConfigError
        Naming the keys.
    """
    model, kind = config.model, MODELS[config.model.kind]
    check_columns(kind.equations, config.evaluate.columns, model.kind)
    members = sweep(model, config.train, {2: 1.0})
    if not kind.pretrained:
        settings = shared_settings(model, config.train) | {"mask_value": [0.0, 0.0], "seed": 0}
        for member in members:
            build_model(settings, member.to_json())


def sweep(model: ModelConfig, train: TrainConfig, inertia: Mapping[int, float]) -> list[Member]:
    """Every member of the sweep.

    Parameters
    ----------
    inertia
        For each number of clusters to try the k-means inertia a row, the unit of beta.
    """
    kind = MODELS[model.kind]
    objectives: Sequence[str] = [model.objective]
    if kind.fixed_objective or model.objective == "auto":
        objectives = kind.objectives
    betas: Sequence[float] | None = kind.betas
    if model.beta != "auto":
        if kind.betas is not None:
            raise ConfigError(f"model.beta: {model.kind} has no inverse temperature; leave it auto")
        betas = as_list(model.beta)
    rates = [kind.learning_rate]
    if train.learning_rate != "auto":
        rates = as_list(train.learning_rate)
    # On the sphere |x - rho|² is 2 - 2 cos: half the inertia is the unit of a cosine's beta.
    unit = 0.5 if geometry_of(model) == "spherical" else 1.0
    return plan_members(
        n_clusters=list(inertia),
        steps=as_list(model.steps),
        objectives=objectives,
        mask_rates=as_list(model.mask_rate),
        betas=betas,
        learning_rates=rates,
        restarts=train.restarts,
        inertia={k: unit * value for k, value in inertia.items()},
        scales=kind.scales or AUTO_SCALES,
        starts=("kmeans",) if kind.pretrained else STARTS,
    )


def geometry_of(model: ModelConfig) -> str:
    """``spherical`` where rows are clustered by their direction."""
    return "spherical" if MODELS[model.kind].spherical else model.geometry


def pretrain_epochs(model: ModelConfig, n_rows: int, batch_rows: int) -> int | None:
    """Passes of the networks alone over all rows, None where there are none."""
    if not MODELS[model.kind].pretrained:
        return None
    if model.pretrain_epochs != "auto":
        return int(model.pretrain_epochs)
    return auto_epochs(n_rows, batch_rows, searched=False, steps=MODELS[model.kind].steps)


def check_image_shape(model: ModelConfig, width: int) -> None:
    """Make sure that rows are images of the shape that the config says.

    Raises
    ------
    ConfigError
        With both numbers.
    """
    shape = model.image_shape
    if shape is not None and math.prod(shape) != width:
        raise ConfigError(
            f"model.image_shape: {list(shape)} holds {math.prod(shape)} numbers, a row has {width} "
            "features; give [channels, height, width] of a row, or leave it out"
        )


def network_settings(
    model: ModelConfig, train: TrainConfig, width: int, clusters: Sequence[int]
) -> dict[str, Any]:
    """The network with every default written out, and its learning rates."""
    if not MODELS[model.kind].pretrained:
        return {}
    latent = max(clusters) if model.latent == "auto" else int(model.latent)
    described = dict(model.network)
    if described["kind"] in ("convolutional", "residual") and model.image_shape is not None:
        described.setdefault("image_shape", list(model.image_shape))
    rates = {"encoder_rate": train.encoder_rate, "decoder_rate": train.decoder_rate}
    first = MODELS[model.kind].learning_rate
    return {
        "latent": latent,
        "network": resolve_network(described, width, latent),
        **{name: first if rate == "auto" else rate for name, rate in rates.items()},
    }


def model_settings(
    model: ModelConfig, train: TrainConfig, statistics: Statistics, scaling: Scaling, seed: int
) -> dict[str, Any]:
    """What all members share, as JSON, with the hidden features' fill in scaled units."""
    columns = {"mean": statistics.mean, "min": statistics.minimum, "max": statistics.maximum}
    value = np.where(statistics.count > 0, columns[model.mask_value], scaling.center)
    scaled = scaling.apply(value[None])[0]
    shared = shared_settings(model, train)
    return shared | {"mask_value": [float(number) for number in scaled], "seed": seed}


def shared_settings(model: ModelConfig, train: TrainConfig) -> dict[str, Any]:
    """What all members share and no data decide."""
    return {
        "kind": model.kind,
        "step_size": model.step_size,
        "geometry": geometry_of(model),
        "weighted": model.weighted,
        "noise": model.noise,
        "loss": model.loss,
        "huber": model.huber,
        "metric": model.metric,
        "group_rows": model.group_rows,
        "precision": train.precision,
        "blocks": model.blocks,
        "score": model.score,
        "temperature": model.temperature,
        "balance": model.balance,
        "reconstruction": model.reconstruction,
    }


def as_list(value: Any) -> list[Any]:
    """A setting's values: a list makes a sweep, one value is a list of one."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
