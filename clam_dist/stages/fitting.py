"""Training on rows that are arrays: the pipeline's own trainer with nothing kept but the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.torch import load_file

from clam_dist.assign import Assignment, Labeller
from clam_dist.config import ModelConfig, TrainConfig
from clam_dist.data.arrays import Parts, write_rows
from clam_dist.data.shards import ShardFile
from clam_dist.data.statistics import Scaling, Statistics
from clam_dist.evaluation.scores import AssignSums
from clam_dist.executor import Event
from clam_dist.launch.serial import SerialExecutor
from clam_dist.stages.planning import TrainingRows, plan_training
from clam_dist.stages.shards import sample_rows
from clam_dist.train.loop import one_thread_each, train_rank
from clam_dist.train.result import MODEL_FILE

BLOCK_ROWS = 65_536
"""Rows labelled at a time."""


@dataclass(frozen=True)
class Fitted:
    """A trained model with what is known of its training.

    Parameters
    ----------
    parameters
        The winner's, by name, without a leading axis: ``prototypes`` ``(k, m)`` in the space that
        the model represents rows in, and what else it has.
    settings, winner
        What the factory takes to build the model, and the winner's row of the candidates' table.
    result
        All of the training's result: ``members``, ``history``, ``by_loss``, ``baselines`` …
    sums
        Over the rows by their clusters: sizes, means, inertia.
    statistics, scaling
        Of the features.
    device
        Where it was trained.
    """

    parameters: dict[str, np.ndarray]
    settings: dict[str, Any]
    winner: dict[str, Any]
    result: dict[str, Any]
    sums: AssignSums
    statistics: Statistics
    scaling: Scaling
    device: str


def fit_parts(
    parts: Parts,
    width: int,
    model: ModelConfig,
    train: TrainConfig,
    *,
    seed: int = 0,
    scaling: str = "standard",
    weighted: bool = False,
    threads: int | None = None,
    folder: str | None = None,
    warn: Callable[[str], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Fitted:
    """Scale, lay down in a temporary folder, train.

    Parameters
    ----------
    parts
        The rows, in parts that fit in memory, given anew at each call; ``width`` features each.
    model, train
        Settings, as in a run's config.
    scaling
        As ``prepare.scaling`` in a run's config.
    weighted
        Whether the parts have weights.
    threads
        Threads to compute with; all cores by default.
    folder
        Where the temporary folder is made; the system's place for such by default. It takes
        4 bytes a value.
    warn, on_event
        Take what the user should know, and the training's progress.
    """
    with TemporaryDirectory(prefix="clam_dist-", dir=folder) as place:
        rows = lay_down(parts, width, place, scaling=scaling, weighted=weighted, seed=seed)
        executor = SerialExecutor(threads)
        target = Path(place, "train")
        target.mkdir()
        plan = plan_training(
            rows,
            model,
            train,
            seed=seed,
            folder=target,
            executor=executor,
            digest="",
            warn=warn or _ignore,
        )
        result = executor.gang(train_rank, plan, on_event=on_event)[0]
        tensors = load_file(target / MODEL_FILE)
        assignment = Assignment(
            str(target / MODEL_FILE), plan.model_settings, result["winner"], plan.device
        )
        with one_thread_each(1):  # puts torch's own number of threads back afterwards
            sums = label_shards(assignment, place, rows.shards, weighted)
    return Fitted(
        parameters={name: value.numpy() for name, value in tensors.items()},
        settings=plan.model_settings,
        winner=result["winner"],
        result=result,
        sums=sums,
        statistics=rows.statistics,
        scaling=rows.scaling,
        device=plan.device,
    )


def lay_down(
    parts: Parts, width: int, folder: str, *, scaling: str, weighted: bool, seed: int
) -> TrainingRows:
    """Scale rows and write them to ``folder`` as training reads them.

    Parameters are those of :func:`fit_parts`.
    """
    written = write_rows(
        parts,
        folder,
        scaling=scaling,
        sample_rows=sample_rows(width),
        weighted=weighted,
        seed=seed,
    )
    return TrainingRows(
        folder=folder,
        shards=written.shards,
        sample_rows=written.sample_rows,
        weighted=weighted,
        has_missing=written.has_missing,
        statistics=written.statistics,
        scaling=written.scaling,
    )


def label_shards(
    assignment: Assignment, folder: str, shards: Sequence[ShardFile], weighted: bool
) -> AssignSums:
    """Sums over the rows of shards by the clusters that a model puts them in."""
    labeller = Labeller(assignment)
    sums: AssignSums | None = None
    for shard in shards:
        x = np.load(Path(folder, shard.path), mmap_mode="r")
        w = np.load(Path(folder, shard.sibling("w")), mmap_mode="r") if weighted else None
        for first in range(shard.offset, shard.offset + shard.rows, BLOCK_ROWS):
            part = slice(first, min(first + BLOCK_ROWS, shard.offset + shard.rows))
            block = np.array(x[part])
            labels, distances = labeller.label(block)
            weight = None if w is None else np.array(w[part])
            new = AssignSums.of(
                block, labels, assignment.n_clusters, distances=distances, weight=weight
            )
            sums = new if sums is None else sums.merge(new)
    assert sums is not None  # nothing is trained on no rows
    return sums


def _ignore(message: str) -> None:
    """Nobody asked for warnings."""
