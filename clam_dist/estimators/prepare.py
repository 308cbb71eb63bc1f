"""What an estimator trains on: a small set of rows merged, a large one as it streams."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from sklearn.exceptions import ConvergenceWarning

from clam_dist.config import ModelConfig
from clam_dist.data.arrays import Parts, merge_equal_rows
from clam_dist.estimators.inputs import gather
from clam_dist.stages.clusters import cluster_choices
from clam_dist.stages.shards import sample_rows


@dataclass(frozen=True)
class TrainingSet:
    """Rows to train on, and the numbers of clusters that they can have.

    Parameters
    ----------
    parts, weighted
        As :func:`~clam_dist.stages.fitting.fit_parts` takes them.
    model
        Asks for no more clusters than there are distinct rows.
    """

    parts: Parts
    weighted: bool
    model: ModelConfig


def training_set(parts: Parts, width: int, weighted: bool, model: ModelConfig) -> TrainingSet:
    """Gather rows where they are few, and merge those that are equal.

    Up to the size of the sample that training draws (16 384 rows; fewer from 1024 features on) the
    result is the same however the rows are written: in any order, twice or with weight 2, with or
    without rows of weight 0. More rows are taken as they come.

    Raises
    ------
    ValueError
        There are fewer rows than clusters, or none with a value and a positive weight.
    """
    whole = gather(parts(), sample_rows(width))
    if whole is None:
        return TrainingSet(parts, weighted, model)
    rows = len(whole[0])
    x, weight = merge_equal_rows(*whole)
    if len(x) == 0:
        what = "the weight is zero or every feature is missing" if weighted else "nothing is seen"
        raise ValueError(f"in every one of {rows} rows {what}: there is nothing to cluster")
    held = [(x, weight)]
    return TrainingSet(lambda: iter(held), weight is not None, _feasible(model, rows, len(x)))


def _feasible(model: ModelConfig, rows: int, distinct: int) -> ModelConfig:
    choices = [k for k in cluster_choices(model.n_clusters, distinct) if k <= distinct]
    asked = cluster_choices(model.n_clusters, rows)
    if model.n_clusters != "auto" and max(asked) > rows:
        raise ValueError(f"n_samples={rows} should be >= n_clusters={max(asked)}.")
    if model.n_clusters != "auto" and len(choices) < len(asked):
        warnings.warn(
            f"{distinct} distinct rows were found and n_clusters={max(asked)} asked for; "
            f"n_clusters_ is at most {distinct}",
            ConvergenceWarning,
            stacklevel=4,
        )
    possible = choices or [distinct]
    fixed = possible[0] if len(possible) == 1 else tuple(possible)
    return model.model_copy(update={"n_clusters": fixed})
