"""An estimator's model as the bundle that a run writes."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from clam_dist import __version__
from clam_dist.data.features import Feature, FeatureSchema
from clam_dist.data.source import NUMERIC
from clam_dist.estimators.trained import Trained
from clam_dist.evaluation.scores import AssignSums
from clam_dist.models.bundle import bundle_settings, save_bundle


def save_trained(
    path: str | os.PathLike[str], trained: Trained, sums: AssignSums, names: Sequence[str] | None
) -> None:
    """Write a bundle; features without names become ``x0, x1, …``."""
    width = len(trained.statistics.mean)
    columns = [f"x{number}" for number in range(width)] if names is None else list(names)
    schema = FeatureSchema(tuple(Feature(name, NUMERIC, "double", 1) for name in columns))
    known = bundle_settings(trained.settings, trained.member)
    mean = np.where(trained.statistics.count > 0, trained.statistics.mean, np.nan)
    save_bundle(
        path,
        parameters=trained.parameters,
        mask_value=np.asarray(trained.settings["mask_value"], dtype=np.float32),
        settings=known
        | {
            "missing": "mask",
            "fill": [None if value != value else float(value) for value in mean],
            "version": __version__,
        },
        schema=schema.to_json(),
        scaling=trained.scaling.to_json(),
        names=columns,
        cluster_means=trained.scaling.invert(sums.means),
        cluster_sizes=np.rint(sums.weight).astype(np.int64),
    )
