"""Stage 3: starts, the sweep's plan, the gang of ranks, and the checkpoints' publication."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clam_dist.data.shards import ShardFile, plan_shard_rows, virtual_shards
from clam_dist.errors import ConfigError, DataError
from clam_dist.evaluation.labelings import score_labelings
from clam_dist.executor import Event
from clam_dist.models.factory import build_model
from clam_dist.models.seeding import fill_missing, starts
from clam_dist.stages.context import Context, StageResult
from clam_dist.train.checkpoint import publish_checkpoint
from clam_dist.train.loop import train_rank
from clam_dist.train.members import STARTS, plan_members
from clam_dist.train.plan import (
    FINAL_QUERIES,
    TrainPlan,
    plan_segments,
    resolve_batch_rows,
    search_batch_rows,
)
from clam_dist.train.result import MODEL_FILE, RESULT_FILE

KMEANS_TRIES, KMEANS_WORK = 10, 2e8
"""k-means runs on the sample, and the multiply-adds a pass from which on they are but four. The
least inertia gives beta its unit."""
NEAR_BEST = 1.05
"""Runs of at most this multiple of the least inertia can be the second start: local optima of
k-means differ more in silhouette than in inertia (.122 to .126 on a million rows of vowels)."""
SMALLEST_INERTIA = 1e-6
"""Floor of the inertia a row that sets beta's unit: of rows that are all alike it is 0."""


@dataclass(frozen=True)
class Starts:
    """Starting prototypes for one number of clusters."""

    path: str
    inertia: float
    n_distinct: int


def run(context: Context) -> StageResult:
    """Train, from the last published checkpoint where there is one."""
    folder = context.work / "train"
    folder.mkdir(parents=True, exist_ok=True)
    plan = make_plan(context, folder)
    digest = plan.digest

    def on_event(event: Event) -> None:
        if event["event"] == "checkpoint":
            publish_checkpoint(folder, str(event["name"]), digest)
        context.on_event(event)

    lanes = plan.lanes("train")
    ranks = min(context.executor.workers, lanes)
    if ranks < context.executor.workers:
        context.emit(
            "log",
            level="INFO",
            message=f"training uses {ranks} of {context.executor.workers} workers: a batch of "
            f"{plan.batch_rows} rows has {lanes} micro-batch(es)",
        )
    results = context.executor.gang(train_rank, plan, world_size=ranks, on_event=on_event)
    result = results[0]
    winner = result["winner"]
    if winner["loss"] - winner["loss"] != 0:
        context.warn(
            "the loss of the chosen candidate is not finite: training diverged, and its start was "
            "kept; lower train.learning_rate, or leave it auto"
        )
    if winner["n_used"] < winner["n_clusters"]:
        context.warn(
            f"{winner['n_used']} of {winner['n_clusters']} clusters are in use: no member of the "
            "sweep used more; ask for fewer clusters, or for more restarts"
        )
    return StageResult(
        {
            "model": str((folder / MODEL_FILE).relative_to(context.work)),
            "result": str((folder / RESULT_FILE).relative_to(context.work)),
            "winner": winner,
            "by_loss": result["by_loss"],
            "passed_over": result["passed_over"],
            "reseeded": result["reseeded"],
            "settings": plan.model_settings,
            "batch_rows": plan.batch_rows,
            "epochs": plan.segments[-1].epochs,
            "restarts": context.config.train.restarts,
            "ranks": ranks,
            "device": plan.device,
        },
        [folder / MODEL_FILE, folder / RESULT_FILE],
    )


def read_result(context: Context) -> dict[str, Any]:
    """The whole of the training's result: members' table and history."""
    path = context.work / context.data("train")["result"]
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def make_plan(context: Context, folder: Path) -> TrainPlan:
    """Resolve every automatic setting from rows, features, clusters and seed alone."""
    config, model, train = context.config, context.config.model, context.config.train
    shards = training_shards(context)
    sample = context.data("shards")["samples"]["sample"]
    n_rows = sum(shard.rows for shard in shards)
    clusters = as_list(model.n_clusters)
    begun = dict(zip(clusters, _starts(context, folder, clusters), strict=True))
    _check_distinct(context, begun, sampled=sample["rows"] < n_rows)
    objectives = ["masked", "unmasked"] if model.objective == "auto" else [model.objective]
    members = plan_members(
        n_clusters=clusters,
        steps=as_list(model.steps),
        objectives=objectives,
        mask_rates=as_list(model.mask_rate),
        betas=None if model.beta == "auto" else as_list(model.beta),
        learning_rates=None if train.learning_rate == "auto" else as_list(train.learning_rate),
        restarts=train.restarts,
        inertia={k: start.inertia for k, start in begun.items()},
    )
    batch_rows = resolve_batch_rows(_or_none(train.batch_rows), n_rows)
    return TrainPlan(
        shards_folder=str(context.shards_folder),
        shards=tuple(shards),
        folder=str(folder),
        sample_rows=sample["rows"],
        width=context.schema.width,
        weighted=config.source.weight is not None,
        has_missing=any(shard.has_missing for shard in shards) or sample["has_missing"],
        seed=config.seed,
        batch_rows=batch_rows,
        search_batch_rows=search_batch_rows(sample["rows"]),
        members=tuple(members),
        segments=plan_segments(
            members,
            n_rows=n_rows,
            sample_rows=sample["rows"],
            batch_rows=batch_rows,
            epochs=_or_none(train.epochs),
        ),
        model_settings=model_settings(context),
        build_model=build_model,
        score=score_labelings,
        select=train.select,
        starts={k: start.path for k, start in begun.items()},
        device=choose_device(train.device),
        digest=context.digest("train"),
    )


def training_shards(context: Context) -> list[ShardFile]:
    """All shards with rows, or the file of rows that ``train.rows`` chose, cut into shards."""
    chosen = context.data("shards")["samples"].get("train")
    if chosen is None:
        return [shard for shard in context.shards if shard.rows]
    rows = plan_shard_rows(chosen["rows"], context.schema.width)
    return virtual_shards(chosen["path"], chosen["rows"], rows, chosen["has_missing"])


def model_settings(context: Context) -> dict[str, Any]:
    """The model's settings as JSON, with the hidden features' fill in scaled units."""
    model, statistics = context.config.model, context.statistics
    columns = {"mean": statistics.mean, "min": statistics.minimum, "max": statistics.maximum}
    value = np.where(statistics.count > 0, columns[model.mask_value], context.scaling.center)
    scaled = context.scaling.apply(value[None])[0]
    return {
        "kind": model.kind,
        "step_size": model.step_size,
        "mask_value": [float(number) for number in scaled],
        "seed": context.config.seed,
    }


def choose_device(device: str) -> str:
    """``auto`` is CUDA where torch finds it.

    Raises
    ------
    ConfigError
        CUDA was asked for and is not there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "train.device: cuda was asked for and torch finds no CUDA device here; use auto or "
            "cpu, or install a CUDA build of torch on a machine with a GPU"
        )
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def as_list(value: Any) -> list[Any]:
    """A setting's values: a list makes a sweep, one value is a list of one."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _or_none(value: Any) -> int | None:
    return None if value == "auto" else int(value)


def _starts(context: Context, folder: Path, clusters: Sequence[int]) -> list[Starts]:
    task = partial(
        compute_starts,
        shards_folder=str(context.shards_folder),
        folder=str(folder),
        weighted=context.config.source.weight is not None,
        restarts=context.config.train.restarts,
        seed=context.config.seed,
    )
    return list(context.executor.map(task, clusters))


def compute_starts(
    n_clusters: int, *, shards_folder: str, folder: str, weighted: bool, restarts: int, seed: int
) -> Starts:
    """Starting prototypes ``(restarts, k, d)`` from the sample, written as ``.npy``."""
    x = np.load(Path(shards_folder) / "sample.x.npy")
    weight = np.load(Path(shards_folder) / "sample.w.npy") if weighted else None
    count = KMEANS_TRIES if x.size * n_clusters <= KMEANS_WORK else 4
    tries, n_distinct = starts(x, weight, n_clusters, count, "kmeans", seed)
    inertias = [inertia_a_row(x, weight, prototypes) for prototypes in tries]
    first = [int(np.argmin(inertias)), _best_try(x, weight, tries, inertias, seed)]
    drawn = []
    for restart in range(restarts):
        kind = STARTS[restart % len(STARTS)]
        if restart < len(first):
            drawn.append(tries[first[restart]])
        else:
            # A seed of its own for each restart: those of one kind must differ.
            drawn.append(starts(x, weight, n_clusters, restart + 1, kind, seed)[0][restart])
    path = Path(folder) / f"starts-{n_clusters}.npy"
    np.save(path, np.stack(drawn))
    return Starts(str(path), max(min(inertias), SMALLEST_INERTIA), n_distinct)


def _best_try(
    x: np.ndarray,
    weight: np.ndarray | None,
    tries: np.ndarray,
    inertias: Sequence[float],
    seed: int,
) -> int:
    """The k-means run of greatest silhouette among those of nearly the least inertia.

    If that is the run of least inertia, the next best: two starts that are one are a waste.
    """
    least = int(np.argmin(inertias))
    most = NEAR_BEST * inertias[least]
    near = [i for i, inertia in enumerate(inertias) if inertia <= most and i != least]
    if not near:
        return least
    rows = fill_missing(x)
    labels = np.stack([_nearest(rows, tries[i])[0] for i in near])
    clusters = [tries.shape[1]] * len(near)
    scores = score_labelings(rows, labels, clusters, weight, seed, FINAL_QUERIES)
    return near[int(np.argmax(np.nan_to_num(scores, nan=-2.0)))]


def inertia_a_row(x: np.ndarray, weight: np.ndarray | None, prototypes: np.ndarray) -> float:
    """Weighted mean squared distance of rows ``(m, d)`` to the nearest of ``(k, d)`` prototypes.

    In scaled units squared; missing values count as the column's mean.
    """
    squared = _nearest(fill_missing(x), prototypes)[1]
    return float(np.average(squared, weights=weight))


def _nearest(rows: np.ndarray, prototypes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Label of the nearest prototype and squared distance to it, ``(m,)`` each."""
    norms = np.einsum("ij,ij->i", prototypes, prototypes)
    products = norms[None] - 2 * rows @ prototypes.T
    labels = products.argmin(axis=1)
    squared = products[np.arange(len(rows)), labels] + np.einsum("ij,ij->i", rows, rows)
    return labels, np.maximum(squared, 0)


def _check_distinct(context: Context, starts: Mapping[int, Starts], *, sampled: bool) -> None:
    for k, start in starts.items():
        if start.n_distinct >= k:
            continue
        if start.n_distinct == 1 and not sampled:
            raise DataError(
                "source.uri: all rows are alike in every feature, so there is nothing to cluster; "
                "choose other columns with source.features"
            )
        what = f"{k} clusters were asked for and the rows have {start.n_distinct} distinct values"
        if not sampled:
            raise DataError(f"model.n_clusters: {what}; ask for {start.n_distinct} or fewer")
        context.warn(f"{what} in a sample; prototypes that no row chooses are placed anew")
