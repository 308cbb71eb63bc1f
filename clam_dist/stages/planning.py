"""From scaled rows on a disk and settings to the plan of a training: what both faces share.

The stage of a run and the estimators give the same :class:`TrainingRows` and get the same plan;
every automatic setting is resolved here, from rows, features, clusters and seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clam_dist.config import ModelConfig, TrainConfig
from clam_dist.data.shards import ShardFile
from clam_dist.data.statistics import Scaling, Statistics
from clam_dist.errors import ConfigError, DataError
from clam_dist.evaluation.labelings import score_labelings
from clam_dist.executor import Executor
from clam_dist.models.factory import MODELS, build_model
from clam_dist.stages.clusters import cluster_choices
from clam_dist.stages.settings import (
    check_image_shape,
    geometry_of,
    model_settings,
    network_settings,
    pretrain_epochs,
    sweep,
)
from clam_dist.stages.starts import Starts, compute_starts
from clam_dist.train.plan import (
    TrainPlan,
    plan_segments,
    resolve_batch_rows,
    search_batch_rows,
)
from clam_dist.train.selection import START_MARGIN, promising

MANY_CLUSTERS = 4
"""More numbers of clusters than this get fewer k-means runs each."""


@dataclass(frozen=True)
class TrainingRows:
    """Scaled rows as shards and a sample, and what is known of them.

    Parameters
    ----------
    folder
        Holds the shards, ``sample.x.npy`` and, where ``weighted``, ``sample.w.npy``.
    shards
        At least one row in each.
    sample_rows
        Rows of the sample, at most as many as the shards hold.
    weighted, has_missing
        Whether rows have weights, and whether any cell is missing (nan).
    statistics, scaling
        Of the features in original units, and how they were scaled.
    """

    folder: str
    shards: tuple[ShardFile, ...]
    sample_rows: int
    weighted: bool
    has_missing: bool
    statistics: Statistics
    scaling: Scaling

    @property
    def n_rows(self) -> int:
        """Rows to train on."""
        return sum(shard.rows for shard in self.shards)

    @property
    def width(self) -> int:
        """Features ``d``."""
        return len(self.statistics.mean)


def plan_training(
    rows: TrainingRows,
    model: ModelConfig,
    train: TrainConfig,
    *,
    seed: int,
    folder: Path,
    executor: Executor,
    digest: str,
    warn: Callable[[str], None],
) -> TrainPlan:
    """Resolve every automatic setting and draw the starts.

    Parameters
    ----------
    folder
        Where starts, checkpoints and the result go; it exists.
    executor
        Computes the starts of several numbers of clusters side by side.
    digest
        Names what the checkpoints of this training depend on.
    warn
        Takes what the user should act on.

    Raises
    ------
    ConfigError
        CUDA was asked for and is not there.
    DataError
        The rows have fewer distinct values than clusters were asked for.
    """
    check_image_shape(model, rows.width)
    clusters = cluster_choices(model.n_clusters, rows.sample_rows)
    found = _starts(rows, clusters, train, seed, folder, executor, geometry_of(model))
    begun = dict(zip(clusters, found, strict=True))
    sampled = rows.sample_rows < rows.n_rows
    _check_distinct(begun, sampled=sampled, chosen=model.n_clusters != "auto", warn=warn)
    scores = {k: (s.baseline.silhouette, s.baseline.standard_error) for k, s in begun.items()}
    tried = promising(scores, START_MARGIN)
    members = sweep(model, train, {k: begun[k].inertia for k in tried})
    kind = MODELS[model.kind]
    batch_rows = resolve_batch_rows(_or_none(train.batch_rows), rows.n_rows, least=kind.batch_rows)
    settings = model_settings(model, train, rows.statistics, rows.scaling, seed)
    settings |= network_settings(model, train, rows.width, clusters)
    return TrainPlan(
        shards_folder=rows.folder,
        shards=rows.shards,
        folder=str(folder),
        sample_rows=rows.sample_rows,
        width=rows.width,
        weighted=rows.weighted,
        has_missing=rows.has_missing,
        seed=seed,
        batch_rows=batch_rows,
        search_batch_rows=search_batch_rows(rows.sample_rows),
        members=tuple(members),
        segments=plan_segments(
            members,
            n_rows=rows.n_rows,
            sample_rows=rows.sample_rows,
            batch_rows=batch_rows,
            epochs=_or_none(train.epochs),
            steps=kind.steps,
            pretrain_epochs=pretrain_epochs(model, rows.n_rows, batch_rows),
        ),
        model_settings=settings,
        build_model=build_model,
        score=score_labelings,
        select=train.select,
        starts={k: begun[k].path for k in tried},
        baselines={k: start.baseline for k, start in begun.items()},
        device=choose_device(train.device, executor.device),
        digest=digest,
        fixed_beta=model.beta != "auto" or MODELS[model.kind].betas is not None,
    )


def choose_device(device: str, there: str) -> str:
    """``auto`` is CUDA where every worker has a GPU.

    Parameters
    ----------
    device
        As asked for.
    there
        ``cuda`` where whoever computes has GPUs, else ``cpu``.

    Raises
    ------
    ConfigError
        CUDA was asked for and is not there.
    """
    if device == "cuda" and there != "cuda":
        raise ConfigError(
            "train.device: cuda was asked for and torch finds no CUDA device on every worker; use "
            "auto or cpu, or install a CUDA build of torch on machines with a GPU"
        )
    return there if device == "auto" else device


def _or_none(value: Any) -> int | None:
    return None if value == "auto" else int(value)


def _starts(
    rows: TrainingRows,
    clusters: Sequence[int],
    train: TrainConfig,
    seed: int,
    folder: Path,
    executor: Executor,
    geometry: str,
) -> list[Starts]:
    task = partial(
        compute_starts,
        shards_folder=rows.folder,
        folder=str(folder),
        weighted=rows.weighted,
        restarts=train.restarts,
        seed=seed,
        few=len(clusters) > MANY_CLUSTERS,
        geometry=geometry,
    )
    return list(executor.map(task, clusters))


def _check_distinct(
    starts: Mapping[int, Starts], *, sampled: bool, chosen: bool, warn: Callable[[str], None]
) -> None:
    for k, start in starts.items():
        if start.n_distinct >= k:
            continue
        if start.n_distinct == 1 and not sampled:
            raise DataError(
                "source.uri: all rows are alike in every feature, so there is nothing to cluster; "
                "choose other columns with source.features"
            )
        what = f"{k} clusters were asked for and the rows have {start.n_distinct} distinct values"
        if not sampled and chosen:
            raise DataError(f"model.n_clusters: {what}; ask for {start.n_distinct} or fewer")
        if chosen:
            warn(f"{what} in a sample; prototypes that no row chooses are placed anew")
