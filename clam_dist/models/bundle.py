"""The bundle: a trained model as one labelled data set, which loads without its source.

An ``xarray.Dataset`` in a Zarr folder, with everything else as JSON attributes; no pickle.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from clam_dist.errors import ConfigError
from clam_dist.models.clam import ClAM
from clam_dist.models.rows import to_tensors

FORMAT_VERSION = 1
"""Raised when a reader of this version could no longer read what is written."""

PREDICT_ROWS = 16384
"""Rows scaled and labelled at a time, which bounds the memory of a prediction."""

LARGEST_SCALED = 1e18
"""As the scaling of rows has it: beyond, sums of squares leave float32."""

_PARAMETERS = {"prototypes": ("cluster", "feature"), "log_epsilon": ("cluster",)}
_FOLDER = {
    *("zarr.json", "cluster", "feature", "center", "scale", "mask_value"),
    *("cluster_means", "cluster_sizes", *_PARAMETERS),
}
"""All that a model's folder may hold."""


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
    """

    dataset: xr.Dataset
    settings: dict[str, Any]
    schema: dict[str, Any]
    scaling: dict[str, Any]

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
        """The member's parameters, as :meth:`ClAM.predict` takes them."""
        names = [name for name in _PARAMETERS if name in self.dataset]
        return {name: torch.from_numpy(self.dataset[name].values.copy()) for name in names}

    def model(self) -> ClAM:
        """The equations under this bundle's settings."""
        return ClAM(
            self.n_clusters,
            int(self.settings["steps"]),
            self.settings["step_size"],
            self.settings["objective"],
            float(self.settings["mask_rate"]),
            self.dataset["mask_value"].values,
            geometry=self.settings.get("geometry", "euclidean"),
        )

    def prototypes_in_units(self) -> np.ndarray:
        """Prototypes in original units, float64 ``(k,d)``; read cluster means beside them.

        A prototype is no mean: the recursion stops short of it, and training stretches it.
        """
        center, scale = self.dataset["center"].values, self.dataset["scale"].values
        return self.dataset["prototypes"].values.astype(np.float64) * scale + center

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
    model: ClAM, parameters: Mapping[str, torch.Tensor], beta: float, x: np.ndarray
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
        ``prototypes (k,d)`` and perhaps ``log_epsilon (k,)``, scaled units.
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
    variables: dict[str, Any] = {
        name: (_PARAMETERS[name], np.asarray(value, dtype=np.float32), {"units": "scaled"})
        for name, value in parameters.items()
    }
    width = len(names)
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
            "format_version": FORMAT_VERSION,
            "settings": dict(settings),
            "schema": dict(schema),
            "scaling": {"kind": scaling["kind"]},
        },
    )
    _replace(Path(path), dataset)
    return _bundle(dataset)


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle into memory; raises ConfigError where there is none, or a newer one."""
    path = Path(path)
    if (path / "model" / "zarr.json").is_file():  # the output folder of a run
        path = path / "model"
    if not (path / "zarr.json").is_file():
        raise ConfigError(
            f"no model at '{path}': give the model/ folder of a finished run's output"
        )
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
    return _bundle(dataset)


def _bundle(dataset: xr.Dataset) -> Bundle:
    attributes = dataset.attrs
    scaling = {
        "kind": attributes["scaling"]["kind"],
        "center": dataset["center"].values.tolist(),
        "scale": dataset["scale"].values.tolist(),
    }
    return Bundle(dataset, dict(attributes["settings"]), dict(attributes["schema"]), scaling)


def _refuse_others(path: Path) -> None:
    """A model may take the place of a model, never of anything else."""
    if not os.path.lexists(path):
        return
    if path.is_dir() and not path.is_symlink():
        held = set(os.listdir(path))
        if not held or (held <= _FOLDER and _is_model(path)):
            return
    raise ConfigError(
        f"'{path}' is there and is not a saved model: nothing was written; give the name of a new "
        "folder"
    )


def _is_model(path: Path) -> bool:
    try:
        described = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
        return "format_version" in described["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _replace(path: Path, dataset: xr.Dataset) -> None:
    """Write beside ``path``, then swap; a reader sees the old one, none, or the new one whole."""
    _refuse_others(path)
    fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
    stale = path.with_name(f".{path.name}.old-{os.getpid()}")
    for leftover in (fresh, stale):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        dataset.to_zarr(fresh, mode="w", zarr_format=3, consolidated=False)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if path.exists():
        os.replace(path, stale)
    os.replace(fresh, path)
    shutil.rmtree(stale, ignore_errors=True)
