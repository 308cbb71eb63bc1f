"""The bundle: a trained model as one labelled data set, which loads without its source.

An ``xarray.Dataset`` in a Zarr folder, with everything else as JSON attributes, and what has no
axis of clusters or features (a network's weights) in a safetensors file beside; no pickle.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from safetensors.torch import load_file

from clam_dist.errors import ConfigError
from clam_dist.models.base import Equations
from clam_dist.models.bundle_folder import NETWORK_FILE, PARAMETERS, replace_model
from clam_dist.models.factory import build_model
from clam_dist.models.rows import to_tensors

FORMAT_VERSION = 2
"""Raised when a reader of this version could no longer read what is written."""

PREDICT_ROWS = 16384
"""Rows scaled and labelled at a time, which bounds the memory of a prediction."""

LARGEST_SCALED = 1e18
"""As the scaling of rows has it: beyond, sums of squares leave float32."""


@dataclass(frozen=True)
class Bundle:
    """A trained model with all that is needed to label rows in their original units.

    Parameters
    ----------
    dataset : xarray.Dataset
        Dimensions ``cluster`` and ``feature`` (a coordinate of names). ``prototypes`` float32 and,
        for the weighted form, ``log_epsilon``, in scaled units; ``center``, ``scale`` float64
        ``(feature)`` in original units; ``mask_value`` float32 ``(feature)`` in scaled units;
        where known ``cluster_means`` float64 ``(cluster, feature)`` in original units (nan in an
        empty cluster) and ``cluster_sizes`` int64 ``(cluster)`` in rows.
    settings : dict
        ``n_clusters``, ``steps``, ``step_size``, ``beta``, ``objective``, ``mask_rate`` and
        whatever else the run recorded.
    schema : dict
        The feature schema as JSON: names, types, categories.
    scaling : dict
        The scaling as JSON: ``kind``, ``center``, ``scale``.
    network : dict of str to Tensor
        Parameters beside the data set's: those of a network, and what goes with it.
    """

    dataset: xr.Dataset
    settings: dict[str, Any]
    schema: dict[str, Any]
    scaling: dict[str, Any]
    network: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        """Number of prototypes ``k``."""
        return int(self.dataset.sizes["cluster"])

    @property
    def n_features(self) -> int:
        """Number of encoded features ``d``."""
        return int(self.dataset.sizes["feature"])

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The member's parameters, as :meth:`.Equations.predict` takes them."""
        names = [name for name in PARAMETERS if name in self.dataset]
        held = {name: torch.from_numpy(self.dataset[name].values.copy()) for name in names}
        return held | self.network

    @property
    def model_settings(self) -> dict[str, Any]:
        """What the factory takes beside the member's own settings, which :attr:`settings` hold."""
        # The seed keys what training draws, of which prediction draws nothing.
        mask_value = self.dataset["mask_value"].values.tolist()
        return {"seed": 0, **self.settings, "mask_value": mask_value}

    def model(self) -> Equations:
        """The equations under this bundle's settings."""
        return build_model(self.model_settings, self.settings)

    def prototypes_in_units(self) -> np.ndarray:
        """Prototypes in original units, float64 ``(k,d)``; read cluster means beside them.

        A prototype is no mean: the recursion stops short of it, and training stretches it. One
        among latents is decoded.

        Raises
        ------
        ConfigError
            Prototypes are latents, and the model does not decode them.
        """
        scaled = self.dataset["prototypes"].values
        if "latent" in self.dataset["prototypes"].dims:
            model = self.model()
            if not hasattr(model, "decode"):
                raise ConfigError(
                    f"a {self.settings['kind']} model without a decoder has no prototypes in "
                    "original units; read cluster_means"
                )
            scaled = model.decode(self.parameters, torch.from_numpy(scaled.copy())).numpy()
        center, scale = self.dataset["center"].values, self.dataset["scale"].values
        return scaled.astype(np.float64) * scale + center

    def scale_rows(self, x: np.ndarray) -> np.ndarray:
        """Encoded rows ``(n,d)`` in original units as float32 in scaled units; nan stays."""
        scaled = np.asarray(x, dtype=np.float64) - self.dataset["center"].values
        scaled /= self.dataset["scale"].values
        if self.scaling["kind"] == "unit":
            norm = np.sqrt(np.nansum(np.square(scaled), axis=1, keepdims=True))
            scaled /= np.where(norm > 0, norm, 1.0)
        np.clip(scaled, -LARGEST_SCALED, LARGEST_SCALED, out=scaled)
        return scaled.astype(np.float32, order="C")

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Label rows given in original units.

        Parameters
        ----------
        x : ndarray (n,d)
            Encoded rows, the features in the order of ``dataset.feature``; nan where missing.

        Returns
        -------
        labels : ndarray (n,) int32
            0 … k-1, or -1 where every feature is missing.
        distances : ndarray (n,) float32
            Distance to the label's prototype over the features seen, in scaled units; nan where
            the label is -1.
        """
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != self.n_features:
            raise ConfigError(
                f"rows of shape {x.shape} do not fit the model, which has {self.n_features} "
                f"features: give an array (n, {self.n_features})"
            )
        labels = np.empty(len(x), dtype=np.int32)
        distances = np.empty(len(x), dtype=np.float32)
        model, parameters = self.model(), self.parameters
        for first in range(0, len(x), PREDICT_ROWS):
            rows = slice(first, first + PREDICT_ROWS)
            scaled = self.scale_rows(x[rows])
            labels[rows], distances[rows] = predict_scaled(
                model, parameters, float(self.settings["beta"]), scaled
            )
        return labels, distances


def predict_scaled(
    model: Equations, parameters: Mapping[str, torch.Tensor], beta: float, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Label scaled rows ``(n,d)`` float32 with nan where missing; see :meth:`Bundle.predict`."""
    rows, observed = to_tensors(x)
    labels, distances = model.predict(parameters, beta, rows, observed)
    if observed is None:
        return labels.to(torch.int32).numpy(), distances.numpy()
    nothing = ~observed.any(1)
    labels[nothing] = -1
    distances[nothing] = torch.nan
    return labels.to(torch.int32).numpy(), distances.numpy()


def bundle_settings(settings: Mapping[str, Any], member: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`clam_dist.models.factory.build_model` needs again, in one mapping.

    Parameters
    ----------
    settings, member
        As the factory takes them; the fill of hidden features has its own place in the bundle.
    """
    own = ("n_clusters", "steps", "objective", "mask_rate", "beta")
    shared = {name: value for name, value in settings.items() if name not in ("mask_value", "seed")}
    return shared | {name: member[name] for name in own}


def save_bundle(
    path: str | os.PathLike[str],
    *,
    parameters: Mapping[str, np.ndarray],
    mask_value: np.ndarray,
    settings: Mapping[str, Any],
    schema: Mapping[str, Any],
    scaling: Mapping[str, Any],
    names: Sequence[str],
    cluster_means: np.ndarray | None = None,
    cluster_sizes: np.ndarray | None = None,
) -> Bundle:
    """Write a bundle as a Zarr folder, whole or not at all, in place of an older one.

    Parameters
    ----------
    path : path
        Folder to make; its parent must exist.
    parameters : mapping of str to ndarray
        ``prototypes (k,d)``, in scaled units, or among latents ``(k,m)``; perhaps ``log_epsilon
        (k,)``; and whatever else the model has.
    mask_value : ndarray (d,)
        Scaled units.
    settings, schema, scaling
        JSON-able, see :class:`Bundle`.
    names : sequence of str
        Names of the ``d`` encoded features.
    cluster_means : ndarray (k,d), optional
        Original units.
    cluster_sizes : ndarray (k,), optional
        Rows.
    """
    width = len(names)
    variables: dict[str, Any] = {}
    network = {
        name: torch.from_numpy(np.ascontiguousarray(value))
        for name, value in parameters.items()
        if name not in PARAMETERS
    }
    for name in parameters.keys() - network.keys():
        value = np.asarray(parameters[name], dtype=np.float32)
        dims = PARAMETERS[name]
        units = "scaled"
        if network and name == "prototypes" and settings.get("latent"):
            dims, units = ("cluster", "latent"), "latent"
        variables[name] = (dims, value, {"units": units})
    value = np.broadcast_to(np.asarray(mask_value, dtype=np.float32), (width,))
    variables["mask_value"] = ("feature", value, {"units": "scaled"})
    for name in ("center", "scale"):
        line = np.asarray(scaling[name], dtype=np.float64)
        variables[name] = ("feature", line, {"units": "original"})
    if cluster_means is not None:
        means = np.asarray(cluster_means, dtype=np.float64)
        variables["cluster_means"] = (("cluster", "feature"), means, {"units": "original"})
    if cluster_sizes is not None:
        sizes = np.asarray(cluster_sizes, dtype=np.int64)
        variables["cluster_sizes"] = ("cluster", sizes, {"units": "rows"})
    dataset = xr.Dataset(
        variables,
        coords={
            "cluster": np.arange(len(parameters["prototypes"])),
            "feature": np.asarray(list(names), dtype=object),
        },
        attrs={
            "title": "clam_dist model",
            # Without a network the folder is what the first version wrote.
            "format_version": FORMAT_VERSION if network else 1,
            "settings": dict(settings),
            "schema": dict(schema),
            "scaling": {"kind": scaling["kind"]},
        },
    )
    replace_model(Path(path), dataset, network)
    return _bundle(dataset, network)


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle into memory; raises ConfigError where there is none, or a newer one."""
    path = Path(path)
    if (path / "model" / "zarr.json").is_file():  # the output folder of a run
        path = path / "model"
    if not (path / "zarr.json").is_file():
        raise ConfigError(
            f"no model at '{path}': give the model/ folder of a finished run's output"
        )
    with warnings.catch_warnings():
        # Zarr says of every file that is not its own that it is not.
        warnings.filterwarnings("ignore", message=f"Object at {NETWORK_FILE}")
        with xr.open_zarr(path, consolidated=False, chunks=None) as opened:
            dataset = opened.load()
    version = dataset.attrs.get("format_version")
    if not isinstance(version, int) or "prototypes" not in dataset:
        raise ConfigError(f"'{path}' is a Zarr folder, but not a model that clam_dist wrote")
    if version > FORMAT_VERSION:
        raise ConfigError(
            f"the model at '{path}' has format version {version}, this clam_dist reads up to "
            f"{FORMAT_VERSION}: install a newer clam_dist"
        )
    network = {}
    if (path / NETWORK_FILE).is_file():
        network = load_file(path / NETWORK_FILE)
    return _bundle(dataset, network)


def _bundle(dataset: xr.Dataset, network: dict[str, torch.Tensor]) -> Bundle:
    attributes = dataset.attrs
    scaling = {
        "kind": attributes["scaling"]["kind"],
        "center": dataset["center"].values.tolist(),
        "scale": dataset["scale"].values.tolist(),
    }
    settings, schema = dict(attributes["settings"]), dict(attributes["schema"])
    return Bundle(dataset, settings, schema, scaling, network)
