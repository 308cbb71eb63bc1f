"""The sections of a config: their keys, the values each may hold, and the defaults.

The defaults are meant to do well on a table nobody has seen; ``auto`` is resolved by the stage that
needs the value, from rows, features, clusters and seed alone where it can change a result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from clam_dist.config_values import (
    AUTO,
    Check,
    StorageOptions,
    byte_size,
    column_names,
    number,
    shown,
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
AutoPositive = Annotated[float | Literal["auto"], number(above=0, words=(AUTO,))]
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


MODEL_KINDS = ["clam", "dclam", "tdcm", "kmeans", "minibatch_kmeans", "spherical_kmeans"]
"""Each has its builder in :mod:`clam_dist.models.factory`."""


def one_of(choices: list[str]) -> Callable[[Any], str]:
    """A check for one of several words, looked up when a value comes."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            near = get_close_matches(value, choices, 1) if isinstance(value, str) else []
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"expected one of {', '.join(choices)}; got {shown(value)}{hint}")
        return value

    return check


def shape_of_image(value: Any) -> tuple[int, ...] | None:
    """``[channels, height, width]``, or null."""
    if value is None:
        return None
    sizes = value if isinstance(value, (list, tuple)) else ()
    if len(sizes) != 3 or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ValueError(f"expected [channels, height, width] or null; got {shown(value)}")
    return tuple(sizes)


def described_network(value: Any) -> dict[str, Any]:
    """A network's description; its kind alone where the rest is left to its defaults."""
    described = {"kind": value} if isinstance(value, str) else value
    if not isinstance(described, dict) or not isinstance(described.get("kind", ""), str):
        raise ValueError(f"expected a kind of network, or keys and values; got {shown(value)}")
    return {"kind": "dense"} | described


def run_name(value: Any) -> str:
    """Text that can be part of a folder's name."""
    if not isinstance(value, str) or not re.fullmatch(r"[^\s/\\{}][^/\\{}\n]*", value):
        raise ValueError("expected text without / \\ { } to name the run, in quotes if a number")
    return value


class Section(BaseModel):
    """Base of the sections: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SourceConfig(Section):
    """Where rows come from and which columns are features.

    ``domain`` names a column of text, categories, whole numbers or booleans, of at most 64 values,
    null being one. Each batch of training then holds rows of one domain, domains taking turns in
    proportion to their rows, so that centroids and statistics that settle in a batch (TDCM's) do
    so in one domain at a time. Samples mix the domains: those of the search and of validation, and
    that of the model's own centroids, which label the run's rows; ``clam-dist assign --adapt``
    settles centroids in the one domain it is given.
    """

    uri: Text
    format: Literal["auto", "parquet", "zarr", "netcdf"] = "auto"
    features: OptionalNames = None
    exclude: Names = ()
    keep: Names = ()
    label: OptionalText = None
    weight: OptionalText = None
    domain: OptionalText = None
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

    ``group_rows`` rows share the features hidden from them; 1 draws them for every row. ``huber``
    and ``noise`` are in scaled units. From ``image_shape`` on: rows as images ``[channels, height,
    width]``, and what DClAM and TDCM alone have, an autoencoder and TDCM's attention blocks.
    """

    kind: Annotated[str, Check(one_of(MODEL_KINDS))] = "clam"
    n_clusters: AutoClusters
    beta: AutoPositives = "auto"
    steps: Counts = 10
    step_size: Annotated[float | None, number(least=1e-6, below=2, null=True)] = None
    mask_rate: Fractions = 0.15
    mask_value: Literal["mean", "min", "max"] = "mean"
    group_rows: Count = 64
    objective: Literal["auto", "masked", "unmasked", "noise"] = "auto"
    noise: Annotated[float, number(above=0)] = 0.3
    loss: Literal["squared", "huber", "manhattan"] = "squared"
    huber: Annotated[float, number(above=0)] = 1.0
    metric: Literal["none", "diagonal", "full"] = "none"
    weighted: bool = False
    geometry: Literal["euclidean", "spherical"] = "euclidean"
    image_shape: Annotated[tuple[int, ...] | None, Check(shape_of_image)] = None
    network: Annotated[dict[str, Any], Check(described_network)] = Field(
        default_factory=lambda: {"kind": "dense"}
    )
    latent: AutoCount = "auto"
    pretrain_epochs: Annotated[
        int | Literal["auto"], number(whole=True, least=0, words=(AUTO,))
    ] = "auto"
    blocks: Count = 3
    score: Literal["identity", "softplus", "log1p"] = "identity"
    temperature: Annotated[float, number(above=0)] = 1.0
    balance: Annotated[float, number(least=0)] = 1.0
    reconstruction: Annotated[float, number(least=0)] = 10.0


class TrainConfig(Section):
    """How the model is trained; ``rows`` trains on a seeded sample of that many rows.

    ``encoder_rate`` and ``decoder_rate`` are the networks' first step lengths.

    ``precision`` is that of the two large products of a step; the rest is float32 and float64.
    """

    epochs: AutoCount = "auto"
    batch_rows: AutoCount = "auto"
    learning_rate: AutoPositives = "auto"
    encoder_rate: AutoPositive = "auto"
    decoder_rate: AutoPositive = "auto"
    restarts: Count = 4
    select: Literal["silhouette", "loss"] = "silhouette"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    rows: AutoCount = "auto"


Extra = Literal["entropy", "energy", "memberships", "latent", "reconstruction"]


def extra_columns(value: Any) -> tuple[str, ...]:
    """Names of columns that labels can have on request."""
    names = [value] if isinstance(value, str) else list(value or ())
    for name in names:
        if name not in get_args(Extra):
            raise ValueError(f"expected any of {', '.join(get_args(Extra))}; got {shown(name)}")
    return tuple(dict.fromkeys(names))


class EvaluateConfig(Section):
    """How many rows the silhouette is sampled at, and against how many references a cluster.

    ``columns`` are what ``labels/`` holds of every row beside its cluster.
    """

    silhouette_rows: Annotated[int, number(whole=True, least=2)] = 10000
    references: Annotated[
        int | Literal["auto", "all"], number(whole=True, least=2, words=(AUTO, "all"))
    ] = "auto"
    columns: Annotated[tuple[Extra, ...], Check(extra_columns)] = ()


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
