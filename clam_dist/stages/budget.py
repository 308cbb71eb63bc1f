"""Before any work: what a worker will need at its peak, what it may use, and whether that fits."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from clam_dist.config import ClusterConfig
from clam_dist.data.features import FeatureSchema
from clam_dist.data.files import size_text
from clam_dist.data.source import Source
from clam_dist.errors import ConfigError
from clam_dist.executor import Executor
from clam_dist.launch import machine
from clam_dist.launch.choose import choose_kind, plan_memory_limit
from clam_dist.stages import memory
from clam_dist.stages.context import BYTES_A_VALUE, Context
from clam_dist.stages.sizes import MIB, Crowd, Parts, Sizes
from clam_dist.stages.sizing import sizes_of
from clam_dist.stages.training_memory import SEEDING_BYTES

MOST_OF_LIMIT = 0.95
"""Of its limit, what a worker may need: at this share Dask ends it."""
AIM = 0.85
"""Of its limit, what buffers are chosen for: the projection is known to about a tenth."""
BUFFER_BYTES = (64 << 20, 32 << 20, 16 << 20, 8 << 20, 1 << 20)
"""Buffers that read shards, from the one that is best: they change how often the disk is asked,
and no result. Two batches are always held, however large."""
FOREIGN = ("address", "class")
"""Kinds of cluster whose workers have limits of their own."""
REMEDIES = {
    "population": "fewer clusters (model.n_clusters), restarts (train.restarts) or values of beta",
    "sums of gradients": "fewer clusters (model.n_clusters) or restarts, or a smaller batch "
    "(train.batch_rows)",
    "kernel workspaces": "fewer clusters (model.n_clusters) or steps (model.steps)",
    "network passes": "a smaller network (model.network)",
    "latents": "a smaller batch (train.batch_rows), fewer restarts (train.restarts) or a smaller "
    "model.latent",
    "scoring of candidates": "fewer restarts (train.restarts) or values of beta",
    "shard buffers": "a smaller batch (train.batch_rows)",
    "references": "fewer references (evaluate.references) or clusters (model.n_clusters)",
    "distances": "fewer queries (evaluate.silhouette_rows) or clusters (model.n_clusters)",
    "a row group to write": "row groups of fewer rows in the source, or fewer columns in "
    "source.keep",
    "reading of column chunks": "fewer columns, or one list column in place of many",
    "a shard": "fewer rows a shard (prepare.shard_rows)",
    "candidates of samples": "fewer rows to train on (train.rows)",
}
"""What the user can change, by the part that takes most."""

NETWORK_REMEDIES = dict.fromkeys(
    ("population", "sums of gradients", "pretrained networks"),
    "a smaller network (model.network), or fewer restarts (train.restarts)",
)
"""In their place, where each candidate has a network of its own."""


@dataclass(frozen=True)
class Budget:
    """A run's memory as projected.

    Parameters
    ----------
    base
        Bytes that a worker stands at before any work.
    stages
        Parts above the base in each stage, in bytes.
    limit
        Bytes that a worker may use.
    buffer_bytes
        Chosen bound of the buffers that read shards in training.
    name
        Of the process: ``worker``, or ``driver`` where one process does everything.
    profiled
        Whether it is known what the profile found: categories, and whether cells are missing.
    foreign
        Whether the limit is what workers were started with elsewhere, which no key of the config
        changes.
    """

    base: int
    stages: dict[str, Parts]
    limit: int
    buffer_bytes: int
    name: str
    profiled: bool
    foreign: bool = False

    @property
    def stage(self) -> str:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: sum(self.stages[stage].values()))

    @property
    def peak(self) -> int:
        """Bytes at the peak of that stage."""
        return self.base + sum(self.stages[self.stage].values())

    def text(self) -> str:
        """One line for whoever watches."""
        a_worker = "" if self.name == "driver" else " a worker"
        return (
            f"projected peak: {size_text(self.peak)}{a_worker} of {size_text(self.limit)}, in "
            f"{self.stage} ({size_text(self.base)} before any work)"
        )

    def largest(self) -> tuple[str, int]:
        """The largest part of the stage that needs most."""
        parts = self.stages[self.stage]
        name = max(parts, key=lambda part: parts[part])
        return name, parts[name]

    def to_json(self) -> dict[str, Any]:
        """For ``run.json``."""
        return {"projected_rss_bytes": self.peak, "stage": self.stage, **asdict(self)}


def announce(context: Context, source: Source, schema: FeatureSchema) -> None:
    """Before the profile: project, choose the buffers, and say so.

    Categories count as one feature each and no cell as missing: what is refused now could not have
    fitted anyway.

    Raises
    ------
    ConfigError
        A worker needs more than it may use, even with the smallest buffers.
    """
    _take(
        context,
        sizes_of(context.config, context.executor.workers, source, schema, missing=False),
        profiled=False,
    )


def settle(context: Context) -> None:
    """Before the first stage after the profile: the same with what that found."""
    if context.budget is None or not context.budget.profiled:
        missing = context.data("profile")["missing_values"] > 0
        sizes = sizes_of(
            context.config,
            context.executor.workers,
            context.source,
            context.schema,
            missing=missing,
        )
        _take(context, sizes, profiled=True)


def announce_labels(
    context: Context, source: Source, schema: FeatureSchema, n_clusters: int, steps: int
) -> None:
    """The same for labelling alone, by a model that is there."""
    crowd = (Crowd(1, n_clusters, steps, 0),)
    sizes = sizes_of(context.config, context.executor.workers, source, schema, missing=True)
    sizes = replace(sizes, search=crowd, finalists=crowd, references=None)
    _take(context, sizes, profiled=True, labels_alone=True)


def _take(context: Context, sizes: Sizes, *, profiled: bool, labels_alone: bool = False) -> None:
    before = context.budget
    if before is None:
        decoded = sizes.n_rows * sizes.width * BYTES_A_VALUE
        cluster, executor = context.config.cluster, context.executor
        kind = choose_kind(cluster, decoded)
        found = list(executor.map(_stand, range(executor.workers)))
        usable = min(usable for _, usable in found)
        before = Budget(
            base=max(held for held, _ in found),
            stages={},
            limit=limit_of(cluster, kind, executor, usable),
            buffer_bytes=0,
            name="driver" if kind == "serial" else "worker",
            profiled=False,
            foreign=kind in FOREIGN,
        )
        asked = cluster.memory_limit
        if before.foreign and asked not in ("auto", before.limit):
            context.warn(
                f"cluster.memory_limit: {size_text(int(asked))} has no effect on workers that are "
                f"started elsewhere; the least that one of them may use is "
                f"{size_text(before.limit)}: start them with --memory-limit, or leave the key out"
            )
    for buffer_bytes in BUFFER_BYTES:
        fitted = replace(sizes, buffer_bytes=buffer_bytes)
        if labels_alone:
            stages = {"assign": memory.labels(fitted, trained=False)}
        else:
            stages = memory.stages(fitted, alone=before.name == "driver")
        budget = replace(before, stages=stages, buffer_bytes=buffer_bytes, profiled=profiled)
        if budget.peak <= AIM * budget.limit:
            break
    if budget.peak > MOST_OF_LIMIT * budget.limit:
        raise ConfigError(refusal(budget, sizes))
    if context.budget is None or context.budget.peak != budget.peak:
        context.emit("note", message=budget.text())
    context.budget = budget


def refusal(budget: Budget, sizes: Sizes) -> str:
    """What does not fit, with both numbers, and what to do about it."""
    part, size = budget.largest()
    k, members = sizes.most_clusters, sum(crowd.members for crowd in sizes.search)
    network = f", networks of {sizes.form.network} numbers" if sizes.form.network else ""
    remedies = REMEDIES | (NETWORK_REMEDIES if network else {})
    enough = math.ceil(budget.peak / MOST_OF_LIMIT / MIB)
    remedy = f"; or ask for {remedies[part]}" if part in remedies else ""
    who = "this process" if budget.name == "driver" else "each worker"
    raised = f"Set cluster.memory_limit to {enough}MiB or more"
    if budget.foreign:
        raised = f"Start the workers with a memory limit of {enough}MiB or more"
    return (
        f"cluster.memory_limit: {who} would need {size_text(budget.peak)} and may use "
        f"{size_text(budget.limit)}: {size_text(size)} for the {part} in {budget.stage} ({members} "
        f"candidates, up to {k} clusters, {sizes.width} features{network}), "
        f"{size_text(budget.base)} before any work. {raised} (with fewer cluster.workers if memory "
        f"is short){remedy}"
    )


def limit_of(cluster: ClusterConfig, kind: str, executor: Executor, usable: int) -> int:
    """Bytes that a worker may use: as asked, as its cluster says, or what its machine has.

    What is asked for does not count where workers are started elsewhere: Dask ends each at its own
    limit, and of several limits the least counts.

    Parameters
    ----------
    kind
        Of the executor, as :func:`~clam_dist.launch.choose.choose_kind` gives it.
    usable
        Bytes that the worker could take of its machine, what it has included.
    """
    if kind in FOREIGN:
        told: int | None = getattr(executor, "memory_limit", None)
        return told or usable
    if cluster.memory_limit != "auto":
        return int(cluster.memory_limit)
    if kind == "local":
        free = machine.usable_memory()
        return plan_memory_limit("auto", workers=executor.workers, memory_bytes=free)
    return usable


def _stand(number: int) -> tuple[int, int]:
    """On a worker: bytes that it holds now, all stages imported, and bytes that it could hold."""
    del number
    held = psutil.Process().memory_info().rss
    if "sklearn.cluster" in sys.modules:  # counted where it is used
        held -= SEEDING_BYTES
    return held, held + machine.usable_memory()
