"""The sections of a config: their keys, the values each may hold, and the defaults.

The defaults are meant to do well on a table nobody has seen; ``auto`` is resolved by the stage that
needs the value, from rows, features, clusters and seed alone where it can change a result.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from clam_dist.config_values import (
    AUTO,
    Check,
    StorageOptions,
    byte_size,
    column_names,
    number,
    text,
)

Text = Annotated[str, text()]
OptionalText = Annotated[str | None, text(null=True)]
Names = Annotated[tuple[str, ...], column_names()]
OptionalNames = Annotated[tuple[str, ...] | None, column_names(null=True)]
Count = Annotated[int, number(whole=True, least=1)]
AutoCount = Annotated[int | Literal["auto"], number(whole=True, least=1, words=(AUTO,))]
Workers = Annotated[int | Literal["auto"], number(whole=True, least=1, most=4096, words=(AUTO,))]
Counts = Annotated[int | tuple[int, ...], number(whole=True, least=1, sweep=True)]
AutoClusters = Annotated[
    int | tuple[int, ...] | Literal["auto"],
    number(whole=True, least=2, words=(AUTO,), sweep=True),
]
AutoPositives = Annotated[
    float | tuple[float, ...] | Literal["auto"],
    number(least=1e-30, most=1e30, words=(AUTO,), sweep=True),
]
Fractions = Annotated[float | tuple[float, ...], number(above=0, below=1, sweep=True)]
AutoBytes = Annotated[int | Literal["auto"], byte_size()]


def folder(value: Any) -> str:
    """A local or shared folder as typed, without a ``file://`` scheme."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected the path of a folder, in quotes if it begins with {")
    path = str(value).removeprefix("file://")
    if re.match("[a-z][a-z0-9+.-]*://", path, re.IGNORECASE):
        raise ValueError(f"{path} is not a local or shared folder; only a source may be elsewhere")
    return path


def run_name(value: Any) -> str:
    """Text that can be part of a folder's name."""
    if not isinstance(value, str) or not re.fullmatch(r"[^\s/\\{}][^/\\{}\n]*", value):
        raise ValueError("expected text without / \\ { } to name the run, in quotes if a number")
    return value


class Section(BaseModel):
    """Base of the sections: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SourceConfig(Section):
    """Where rows come from and which columns are features."""

    uri: Text
    format: Literal["auto", "parquet", "zarr", "netcdf"] = "auto"
    features: OptionalNames = None
    exclude: Names = ()
    keep: Names = ()
    label: OptionalText = None
    weight: OptionalText = None
    storage_options: StorageOptions = Field(
        default_factory=StorageOptions, exclude=True, repr=False
    )

    def storage_options_plain(self) -> dict[str, Any]:
        """The file system's options with their real values; never write or log them."""
        return self.storage_options.plain()


class PrepareConfig(Section):
    """How columns become numbers, and how many rows a shard holds."""

    scaling: Literal["standard", "minmax", "robust", "unit", "none"] = "standard"
    missing: Literal["mask", "mean", "error"] = "mask"
    categories: Literal["onehot"] = "onehot"
    shard_rows: AutoCount = "auto"


class ModelConfig(Section):
    """The model; ``beta`` is in 1/length² of scaled features. Lists make a sweep.

    ``group_rows`` rows share the features hidden from them; 1 draws them for every row.
    """

    kind: Literal["clam", "dclam", "tdcm", "kmeans"] = "clam"
    n_clusters: AutoClusters
    beta: AutoPositives = "auto"
    steps: Counts = 10
    step_size: Annotated[float | None, number(least=1e-6, below=2, null=True)] = None
    mask_rate: Fractions = 0.15
    mask_value: Literal["mean", "min", "max"] = "mean"
    group_rows: Count = 64
    objective: Literal["auto", "masked", "unmasked"] = "auto"
    weighted: bool = False
    geometry: Literal["euclidean", "spherical"] = "euclidean"


class TrainConfig(Section):
    """How the model is trained; ``rows`` trains on a seeded sample of that many rows.

    ``precision`` is that of the two large products of a step; the rest is float32 and float64.
    """

    epochs: AutoCount = "auto"
    batch_rows: AutoCount = "auto"
    learning_rate: AutoPositives = "auto"
    restarts: Count = 4
    select: Literal["silhouette", "loss"] = "silhouette"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    rows: AutoCount = "auto"


class EvaluateConfig(Section):
    """How many rows the silhouette is sampled at, and against how many references a cluster."""

    silhouette_rows: Annotated[int, number(whole=True, least=2)] = 10000
    references: Annotated[
        int | Literal["auto", "all"], number(whole=True, least=2, words=(AUTO, "all"))
    ] = "auto"


class ClusterConfig(Section):
    """Who does the work; ``wait`` in seconds, ``memory_limit`` in bytes for each worker.

    ``collective_*`` say where ranks listen for one another; empty for the address that Dask uses.
    """

    kind: Literal["auto", "serial", "local", "address", "class"] = "auto"
    workers: Workers = "auto"
    memory_limit: AutoBytes = "auto"
    address: OptionalText = None
    cluster_class: OptionalText = None
    cluster_kwargs: dict[str, Any] = Field(default_factory=dict)
    wait: Annotated[float, number(above=0)] = 120.0
    max_restarts: Annotated[int, number(whole=True, least=0)] = 5
    collective_interface: OptionalText = None
    collective_host: OptionalText = None
    collective_port: Annotated[int, number(whole=True, least=0, most=65535)] = 0


class WorkConfig(Section):
    """The folder of shards, checkpoints and manifests; ``size_limit`` in bytes."""

    uri: Annotated[str, Check(folder)] = "auto"
    keep: bool = False
    size_limit: AutoBytes = "auto"


class OutputConfig(Section):
    """The folder of the results."""

    uri: Annotated[str, Check(folder)] = "runs/{name}"
