"""From settings to a model: the one place that knows the models by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from clam_dist.errors import ConfigError
from clam_dist.models.base import Equations
from clam_dist.models.clam import ClAM
from clam_dist.models.coder import Coder
from clam_dist.models.dclam import DClAM
from clam_dist.models.metric import initial_metric
from clam_dist.models.nearest import Nearest
from clam_dist.models.tdcm import TDCM

Settings = Mapping[str, Any]


def build_model(settings: Settings, member: Settings) -> Equations:
    """The equations of one member of a sweep.

    Parameters
    ----------
    settings
        What all members share: ``kind``, ``step_size``, ``mask_value`` ``(d,)`` in scaled units,
        ``seed``; and what the kind takes beside them, each with a default.
    member
        Its own: ``n_clusters``, ``steps``, ``objective``, ``mask_rate``.

    Raises
    ------
    ConfigError
        No model has that name.
    """
    kind = settings["kind"]
    if kind not in MODELS:
        raise ConfigError(f"model.kind: {kind!r} is not available; use {', '.join(MODELS)}")
    record = MODELS[kind]
    if settings.get("pretraining") and record.pretraining is not None:
        return record.pretraining(settings, member)
    return record.build(settings, member)


def initial_parameters(
    settings: Settings, members: Sequence[Settings], starts: np.ndarray | None
) -> dict[str, torch.Tensor]:
    """Where members begin, ``(P, ...)`` by name.

    Parameters
    ----------
    settings, members
        As :func:`build_model` takes them, the members' with ``restart``.
    starts
        Starting prototypes ``(P,k,d)`` float32; None for networks that are to be pretrained.
    """
    if starts is None:
        return _networks(settings, members)
    parameters = {"prototypes": torch.from_numpy(starts)}
    if settings.get("weighted"):
        # All prototypes weigh the same at first (equation 10); training tells them apart.
        parameters["log_epsilon"] = torch.zeros(starts.shape[:2])
    metric = settings.get("metric", "none")
    if metric != "none":
        parameters["metric"] = initial_metric(metric, len(starts), starts.shape[2])
    return parameters


def _clam(settings: Settings, member: Settings) -> Equations:
    return ClAM(
        n_clusters=int(member["n_clusters"]),
        steps=int(member["steps"]),
        step_size=settings["step_size"],
        objective=member["objective"],
        # Unmasked members hide nothing; any rate will do.
        mask_rate=float(member["mask_rate"]) or 0.15,
        mask_value=settings["mask_value"],
        group_rows=int(settings.get("group_rows", 64)),
        seed=int(settings["seed"]),
        geometry=settings.get("geometry", "euclidean"),
        precision=settings.get("precision", "float32"),
        loss=settings.get("loss", "squared"),
        huber=float(settings.get("huber", 1.0)),
        noise=float(settings.get("noise", 0.3)),
        metric=settings.get("metric", "none"),
    )


def _dclam(settings: Settings, member: Settings) -> Equations:
    return _deep(settings, member, "clustering")


def _autoencoder(settings: Settings, member: Settings) -> DClAM:
    """The network alone, on its way there and back."""
    return _deep(settings, member, "reconstruction")


def _tdcm(settings: Settings, member: Settings) -> Equations:
    return TDCM(
        Coder(settings["network"], len(settings["mask_value"]), int(settings["latent"])),
        int(settings["latent"]),
        int(member["n_clusters"]),
        blocks=int(settings["blocks"]),
        tau=float(settings["temperature"]),
        sigma=settings["score"],
        balance=float(settings["balance"]),
        reconstruction=float(settings["reconstruction"]),
        mask_value=torch.tensor(settings["mask_value"], dtype=torch.float32),
        rates=_rates(settings, member),
    )


def _nearest(settings: Settings, member: Settings) -> Equations:
    spherical = MODELS[settings["kind"]].spherical
    return Nearest(int(member["n_clusters"]), "spherical" if spherical else "euclidean")


def _deep(
    settings: Settings, member: Settings, objective: Literal["clustering", "reconstruction"]
) -> DClAM:
    return DClAM(
        int(member["n_clusters"]),
        int(member["steps"]),
        settings["step_size"],
        width=len(settings["mask_value"]),
        latent=int(settings["latent"]),
        network=settings["network"],
        mask_value=settings["mask_value"],
        seed=int(settings["seed"]),
        objective=objective,
        rates=_rates(settings, member),
    )


def _rates(settings: Settings, member: Settings) -> dict[str, float]:
    """The networks' learning rates as factors on that of the prototypes."""
    first = float(member.get("learning_rate", 1.0))
    return {name: float(settings.get(f"{name}_rate", first)) / first for name in NETWORKS}


def _networks(settings: Settings, members: Sequence[Settings]) -> dict[str, torch.Tensor]:
    """Networks to be pretrained, one for each member's restart."""
    pretraining = MODELS[settings["kind"]].pretraining
    if pretraining is None:
        raise ConfigError(f"model.kind: a {settings['kind']} model has no network to pretrain")
    model = pretraining(settings, members[0])
    drawn = [model.initial_parameters(int(member["restart"])) for member in members]
    found = {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]}
    nowhere = torch.zeros(len(members), model.n_clusters, model.latent)
    return found | {"prototypes": nowhere}


NETWORKS = ("encoder", "decoder")
DEEP_SCALES = (2.0, 4.0, 8.0, 16.0)
"""``c = beta * s2`` in latents: each is a network of its own, so they are few, about what did best
on digits (8; 32 is beyond)."""
CLAM_RATE = 0.03
"""Adam's first step length in scaled units."""
DEEP_RATE = 0.003
"""Adam's first step length in networks and their latents."""


@dataclass(frozen=True)
class Kind:
    """A kind of model: how it is built, and what a sweep of it takes.

    Parameters
    ----------
    equations
        The model's class.
    build
        ``(settings, member)`` to the equations, as :func:`build_model` takes them.
    objectives
        Tried where ``model.objective`` is auto; the only ones where ``fixed_objective``.
    fixed_objective
        The model has no other.
    pretraining
        ``(settings, member)`` to the equations that train its network first; None without one.
    fitted_by
        How :mod:`clam_dist.train.baselines` fits it, where that is not by gradient.
    scales
        ``c`` in ``beta = c / s2`` for ``beta: auto``, ``s2`` being the k-means inertia a row; None
        for those of ClAM.
    betas
        For ``beta: auto`` in their place, where they have another unit.
    spherical
        Rows are clustered by their direction.
    learning_rate
        Adam's first step length where it is auto.
    steps
        At the most, in training on all rows and in pretraining, where epochs are auto; None for
        the few that ClAM takes.
    batch_rows
        Of a global batch at the least where they are auto.
    """

    equations: type[Equations]
    build: Callable[[Settings, Settings], Equations]
    objectives: tuple[str, ...]
    fixed_objective: bool = True
    pretraining: Callable[[Settings, Settings], DClAM] | None = None
    fitted_by: Literal["lloyd", "minibatch"] | None = None
    scales: tuple[float, ...] | None = None
    betas: tuple[float, ...] | None = None
    spherical: bool = False
    learning_rate: float = CLAM_RATE
    steps: int | None = None
    batch_rows: int = 1

    @property
    def pretrained(self) -> bool:
        """Whether it has a network, which is trained on its own first."""
        return self.pretraining is not None

    @property
    def by_gradient(self) -> bool:
        """Whether it is trained by gradients."""
        return self.fitted_by is None


def _baseline(
    name: str, fitted_by: Literal["lloyd", "minibatch"], *, spherical: bool = False
) -> Kind:
    return Kind(Nearest, _nearest, (name,), fitted_by=fitted_by, betas=(1.0,), spherical=spherical)


DEEP: dict[str, Any] = {
    "pretraining": _autoencoder,
    "learning_rate": DEEP_RATE,
    "steps": 3000,
    "batch_rows": 64,
}
MODELS: dict[str, Kind] = {
    "clam": Kind(ClAM, _clam, ("masked", "unmasked"), fixed_objective=False),
    "dclam": Kind(DClAM, _dclam, ("reconstruction",), scales=DEEP_SCALES, **DEEP),
    "tdcm": Kind(TDCM, _tdcm, ("reconstruction",), betas=(1.0,), **DEEP),
    "kmeans": _baseline("kmeans", "lloyd"),
    "minibatch_kmeans": _baseline("minibatch_kmeans", "minibatch"),
    "spherical_kmeans": _baseline("spherical_kmeans", "lloyd", spherical=True),
}
"""A new model is one file beside this one, its line here and its name in the config's kinds."""
