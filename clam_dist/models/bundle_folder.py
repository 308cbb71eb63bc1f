"""A model's folder: what it may hold, and how one takes the place of another."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
import xarray as xr
from safetensors.torch import save_file

from clam_dist.errors import ConfigError

PARAMETERS = {"prototypes": ("cluster", "feature"), "log_epsilon": ("cluster",)}
"""Parameters that the data set holds, and along which axes."""
NETWORK_FILE = "network.safetensors"
FOLDER = {
    *("zarr.json", "latent", NETWORK_FILE, "cluster", "feature", "center", "scale", "mask_value"),
    *("cluster_means", "cluster_sizes", *PARAMETERS),
}
"""All that a model's folder may hold."""


def _refuse_others(path: Path) -> None:
    """A model may take the place of a model, never of anything else."""
    if not os.path.lexists(path):
        return
    if path.is_dir() and not path.is_symlink():
        held = set(os.listdir(path))
        if not held or (held <= FOLDER and _is_model(path)):
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


def replace_model(path: Path, dataset: xr.Dataset, network: dict[str, torch.Tensor]) -> None:
    """Write a model whole or not at all, in the place of an older one.

    It is written beside ``path``, then swapped: a reader sees the old one, none, or the new one.

    Raises
    ------
    ConfigError
        Something else than a model is there.
    """
    _refuse_others(path)
    fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
    stale = path.with_name(f".{path.name}.old-{os.getpid()}")
    for leftover in (fresh, stale):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        dataset.to_zarr(fresh, mode="w", zarr_format=3, consolidated=False)
        if network:
            save_file(network, fresh / NETWORK_FILE)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if path.exists():
        os.replace(path, stale)
    os.replace(fresh, path)
    shutil.rmtree(stale, ignore_errors=True)
