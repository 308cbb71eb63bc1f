"""Stage 3: starts, the sweep's plan, the gang of ranks, and the checkpoints' publication."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from clam_dist.data.shards import ShardFile, plan_shard_rows, virtual_shards
from clam_dist.executor import Event
from clam_dist.models.factory import MODELS
from clam_dist.stages.baselines import train_baseline
from clam_dist.stages.context import Context, StageResult
from clam_dist.stages.planning import TrainingRows, plan_training
from clam_dist.train.checkpoint import publish_checkpoint
from clam_dist.train.loop import train_rank
from clam_dist.train.plan import TrainPlan
from clam_dist.train.result import MODEL_FILE, RESULT_FILE
from clam_dist.train.state import PHASES


def run(context: Context) -> StageResult:
    """Train, from the last published checkpoint where there is one."""
    folder = context.work / "train"
    folder.mkdir(parents=True, exist_ok=True)
    rows = training_rows(context)
    plan = make_plan(context, folder, rows)
    read = dict.fromkeys(PHASES, 0)
    ranks = 1
    if MODELS[context.config.model.kind].by_gradient:
        results = _run_gang(context, plan, read)
        result, ranks = results[0], len(results)
    else:
        result = train_baseline(plan, rows, context.executor, context.on_event)
    winner = result["winner"]
    if winner["loss"] - winner["loss"] != 0:
        context.warn(
            "the loss of the chosen candidate is not finite: training diverged, and its start was "
            "kept; lower train.learning_rate, or leave it auto"
        )
    for message in result["warnings"]:
        context.warn(message)
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
            "warnings": result["warnings"],
            "by_loss": result["by_loss"],
            "passed_over": result["passed_over"],
            "reseeded": result["reseeded"],
            "settings": plan.model_settings,
            "batch_rows": plan.batch_rows,
            "epochs": plan.segments[-1].epochs,
            "restarts": context.config.train.restarts,
            "ranks": ranks,
            "bytes_read": read,
            "device": plan.device,
        },
        [folder / MODEL_FILE, folder / RESULT_FILE],
    )


def _run_gang(context: Context, plan: TrainPlan, read: dict[str, int]) -> list[dict[str, Any]]:
    """The ranks' results; ``read`` takes the bytes of each phase that they read."""

    def on_event(event: Event) -> None:
        if event["event"] == "read":
            for phase in read:
                read[phase] += int(event[phase])
            return
        if event["event"] == "checkpoint":
            publish_checkpoint(plan.folder, str(event["name"]), plan.digest)
        context.on_event(event)

    lanes = plan.lanes("train")
    workers = context.executor.workers
    if lanes < workers:
        context.emit(
            "log",
            level="INFO",
            message=f"training uses {lanes} of {workers} workers: a batch of "
            f"{plan.batch_rows} rows has {lanes} micro-batch(es)",
        )
    # Not the workers that are there now: some may join, up to the ranks that would have work.
    return context.executor.gang(train_rank, plan, world_size=lanes, on_event=on_event)


def read_result(context: Context) -> dict[str, Any]:
    """The whole of the training's result: members' table and history."""
    path = context.work / context.data("train")["result"]
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def training_rows(context: Context) -> TrainingRows:
    """The rows that the shards stage left."""
    sample = context.data("shards")["samples"]["sample"]
    shards = tuple(training_shards(context))
    return TrainingRows(
        folder=str(context.shards_folder),
        shards=shards,
        sample_rows=sample["rows"],
        weighted=context.config.source.weight is not None,
        has_missing=any(shard.has_missing for shard in shards) or sample["has_missing"],
        statistics=context.statistics,
        scaling=context.scaling,
    )


def make_plan(context: Context, folder: Path, rows: TrainingRows) -> TrainPlan:
    """The plan for these rows."""
    config = context.config
    plan = plan_training(
        rows,
        config.model,
        config.train,
        seed=config.seed,
        folder=folder,
        executor=context.executor,
        digest=context.digest("train"),
        warn=context.warn,
    )
    return replace(plan, buffer_bytes=context.budget.buffer_bytes) if context.budget else plan


def training_shards(context: Context) -> list[ShardFile]:
    """All shards with rows, or the file of rows that ``train.rows`` chose, cut into shards."""
    chosen = context.data("shards")["samples"].get("train")
    if chosen is None:
        return [shard for shard in context.shards if shard.rows]
    rows = plan_shard_rows(chosen["rows"], context.schema.width)
    return virtual_shards(
        chosen["path"], chosen["rows"], rows, chosen["has_missing"], chosen["domain_rows"]
    )
