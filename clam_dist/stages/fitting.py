"""Training on rows that are arrays: the pipeline's own trainer with nothing kept but the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.torch import load_file

from clam_dist.config import ModelConfig, TrainConfig
from clam_dist.data.arrays import Parts, write_rows
from clam_dist.data.statistics import Scaling, Statistics
from clam_dist.executor import Event
from clam_dist.launch.serial import SerialExecutor
from clam_dist.stages.planning import TrainingRows, plan_training
from clam_dist.stages.shards import sample_rows
from clam_dist.train.loop import train_rank
from clam_dist.train.result import MODEL_FILE


@dataclass(frozen=True)
class Fitted:
    """A trained model with what is known of its training.

    Parameters
    ----------
    parameters
        The winner's, by name, without a leading axis: ``prototypes`` ``(k, d)`` in scaled units.
    settings, winner
        What the factory takes to build the model, and the winner's row of the candidates' table.
    result
        All of the training's result: ``members``, ``history``, ``by_loss``, ``baselines`` …
    statistics, scaling
        Of the features.
    device
        Where it was trained.
    """

    parameters: dict[str, np.ndarray]
    settings: dict[str, Any]
    winner: dict[str, Any]
    result: dict[str, Any]
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
    warn: Callable[[str], None] = lambda message: None,
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
        written = write_rows(
            parts,
            place,
            scaling=scaling,
            sample_rows=sample_rows(width),
            weighted=weighted,
            seed=seed,
        )
        rows = TrainingRows(
            folder=place,
            shards=written.shards,
            sample_rows=written.sample_rows,
            weighted=weighted,
            has_missing=written.has_missing,
            statistics=written.statistics,
            scaling=written.scaling,
        )
        executor = SerialExecutor(threads)
        target = Path(place, "train")
        target.mkdir()
        plan = plan_training(
            rows, model, train, seed=seed, folder=target, executor=executor, digest="", warn=warn
        )
        result = executor.gang(train_rank, plan, on_event=on_event)[0]
        tensors = load_file(target / MODEL_FILE)
    return Fitted(
        parameters={name: value.numpy() for name, value in tensors.items()},
        settings=plan.model_settings,
        winner=result["winner"],
        result=result,
        statistics=written.statistics,
        scaling=written.scaling,
        device=plan.device,
    )
