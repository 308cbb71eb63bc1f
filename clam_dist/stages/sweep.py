"""The sweep as a labelled array: every setting's score, over named dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from clam_dist.data.files import published

DIMENSIONS = (
    "n_clusters",
    "steps",
    "objective",
    "mask_rate",
    "scale",
    "learning_rate",
    "restart",
)
VALUES: dict[str, str] = {
    "silhouette": "sampled Euclidean silhouette of the scaled rows",
    "standard_error": "standard error of the silhouette",
    "loss": "validation loss an entry, scaled units squared",
    "beta": "inverse temperature, one over scaled units squared",
    "smallest_share": "share of the weight in the smallest cluster",
}
COUNTS = {"n_used": "clusters that some row chose", "member": "number of the member"}
STATES = ("", "dropped", "search", "trained")
"""What a member came to; k-means' own starts are in ``kmeans_silhouette``."""


def sweep_dataset(
    members: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, Any]],
    *,
    by_beta: bool,
) -> xr.Dataset:
    """Put the candidates' table in order.

    Parameters
    ----------
    members
        Rows of the table: settings, scores and ``state``. A member that is there as the search
        left it and as training did stands with the greater silhouette.
    baselines
        k-means for each number of clusters.
    by_beta
        The dimension is ``beta`` (given by the user) rather than ``scale`` (``beta`` times the
        k-means inertia a row, equal for all numbers of clusters).

    Returns
    -------
    Dataset
        Float variables of :data:`VALUES`, nan where there is no such combination (an unmasked
        member has mask rate 0); ``full``, ``n_used``, ``member`` (-1) and ``state`` (a number, see
        its ``flag_meanings``); over ``n_clusters`` the ``kmeans_silhouette`` and its error.
    """
    along = tuple("beta" if name == "scale" and by_beta else name for name in DIMENSIONS)
    rows = [member for member in members if member["state"] in STATES]
    digits = {"beta": 12, "scale": 12}  # products and quotients of the same settings
    keys = [tuple(_key(row[name], digits.get(name)) for name in along) for row in rows]
    axes = [sorted({key[axis] for key in keys}) for axis in range(len(along))]
    # Numbers of clusters that k-means alone ruled out have their place too.
    axes[0] = sorted({*axes[0], *map(int, baselines)})
    shape = tuple(len(axis) for axis in axes)
    names = [name for name in (*VALUES, "scale") if name not in along]
    floats = {name: np.full(shape, np.nan) for name in names}
    counts = {name: np.full(shape, -1, dtype=np.int32) for name in COUNTS}
    full = np.zeros(shape, dtype=bool)
    state = np.zeros(shape, dtype=np.int8)
    order = sorted(range(len(rows)), key=lambda i: _merit(rows[i]))  # the best is written last
    for i in order:
        row = rows[i]
        place = tuple(axis.index(value) for axis, value in zip(axes, keys[i], strict=True))
        for name, values in floats.items():
            values[place] = np.nan if row[name] is None else row[name]
        counts["n_used"][place], counts["member"][place] = row["n_used"], row["index"]
        full[place], state[place] = row["full"], STATES.index(row["state"])
    meanings = {**VALUES, **COUNTS, "scale": "beta times the k-means inertia a row"}
    variables: dict[str, Any] = {
        name: (along, values, {"long_name": meanings[name]})
        for name, values in {**floats, **counts}.items()
    }
    flags = {
        "flag_values": list(range(len(STATES))),
        "flag_meanings": "none dropped search trained",
    }
    variables["full"] = (along, full, {"long_name": "all clusters in use and none tiny"})
    variables["state"] = (along, state, flags)
    for name in ("silhouette", "standard_error", "inertia", "smallest_share"):
        known = [baselines.get(str(k), {}).get(name) for k in axes[0]]
        values = np.array([np.nan if value is None else value for value in known])
        variables[f"kmeans_{name}"] = (("n_clusters",), values, {"long_name": f"k-means' {name}"})
    coordinates = {name: np.array(axis) for name, axis in zip(along, axes, strict=True)}
    starts = {row["restart"]: row["start"] for row in rows}
    coordinates["start"] = ("restart", [starts[restart] for restart in axes[-1]])  # type: ignore[assignment]
    return xr.Dataset(variables, coordinates)


def save_sweep(path: Path, sweep: xr.Dataset) -> None:
    """Write NetCDF (version 3, classic); the file appears whole or not at all."""
    with published(str(path)) as temporary:
        sweep.to_netcdf(temporary, engine="scipy", format="NETCDF3_64BIT")


def cluster_curve(
    members: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, Any]],
    chosen: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """For each number of clusters its best candidate on the sample, and k-means.

    Parameters
    ----------
    chosen
        The winner's row: the number of clusters it has is marked ``chosen``.
    """
    best: dict[int, Mapping[str, Any]] = {}
    for member in members:
        k = member["n_clusters"]
        if k not in best or _merit(member) > _merit(best[k]):
            best[k] = member
    best[chosen["n_clusters"]] = chosen
    for k in {int(k) for k in baselines} - best.keys():  # far behind before there were members
        nothing = dict.fromkeys(("n_used", "objective", "beta", "loss"))
        best[k] = {**nothing, **baselines[str(k)], "n_clusters": k, "state": "k-means"}
    shown = ("n_clusters", "silhouette", "standard_error", "n_used", "objective", "beta", "loss")
    return [
        {name: best[k][name] for name in shown}
        | {
            "kmeans_silhouette": baselines.get(str(k), {}).get("silhouette"),
            "state": best[k]["state"],
            "chosen": k == chosen["n_clusters"],
        }
        for k in sorted(best)
    ]


def _merit(member: Mapping[str, Any]) -> tuple[bool, float]:
    value = member["silhouette"]
    return member["full"], value if value is not None and value == value else -2.0


def _key(value: Any, digits: int | None) -> Any:
    return value if digits is None else float(f"{value:.{digits}g}")
