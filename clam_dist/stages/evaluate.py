"""Stage 5: the sums and scores of the pass over all rows become figures with their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from clam_dist.evaluation.agreement import ari, nmi
from clam_dist.evaluation.estimate import silhouette_bands
from clam_dist.evaluation.scores import AssignSums, cluster_profile
from clam_dist.stages.assign import SUMS_FILE
from clam_dist.stages.context import Context, StageResult, strictly
from clam_dist.stages.scoring import SCORES_FILE, load_scores
from clam_dist.stages.sweep import cluster_curve
from clam_dist.stages.train import read_result


def read_sums(context: Context) -> AssignSums:
    """The sums over all labelled rows."""
    with np.load(context.work / "assign" / SUMS_FILE) as arrays:
        return AssignSums.from_arrays(arrays)


def run(context: Context) -> StageResult:
    """Score the labels; the manifest holds all figures that the reports show."""
    sums, assign = read_sums(context), context.data("assign")
    k = len(sums.count)
    n_labelled = int(sums.count.sum())
    silhouette: dict[str, Any] | None = None
    bands: dict[str, dict[str, Any]] = {}
    if assign["scores"]:
        scores = load_scores(context.work / "assign" / SCORES_FILE)
        references = None if assign["references"] == "all" else assign["references"]
        result = scores.result(n_labelled, context.config.seed, references, assign["metric"])
        # Without a word of it, it is of the rows themselves, in scaled units.
        silhouette = result.to_json() | ({"space": "latent"} if assign["own_space"] else {})
        bands = silhouette_bands(scores.labels, scores.silhouette, k)
    weight = float(sums.weight.sum())
    metrics: dict[str, Any] = {
        "n_rows": context.source.n_rows,
        "n_features": context.schema.width,
        "n_clusters": k,
        "n_used": sums.n_used,
        "cluster_sizes": sums.count.tolist(),
        "unlabelled_rows": sums.unlabelled,
        "silhouette": silhouette,
        "loss": context.data("train")["winner"]["loss"],
        "inertia": sums.inertia,
        "mean_distance": float(sums.distance.sum() / weight) if weight > 0 else None,
    }
    if assign["silhouette_recursed"] is not None:
        metrics["silhouette_recursed"] = assign["silhouette_recursed"]
    if context.config.source.label is not None:
        table = sums.contingency()
        known = int(table.sum()) > 0  # a column of nulls agrees with nothing
        metrics |= {"nmi": nmi(table) if known else None, "ari": ari(table) if known else None}
    train = context.data("train")
    chosen = ("n_clusters", "objective", "beta", "scale", "steps", "mask_rate", "learning_rate")
    metrics["selected"] = {name: train["winner"][name] for name in chosen} | {
        "start": train["winner"]["start"],
        "by": context.config.train.select,
    }
    if not isinstance(context.config.model.n_clusters, int):
        found = read_result(context)
        curve = cluster_curve(found["members"], found["baselines"], train["winner"])
        metrics["by_n_clusters"] = curve
    metrics["selected_by_loss"] = {name: train["by_loss"][name] for name in chosen}
    scaling = context.scaling
    profile = cluster_profile(sums, context.schema.names, scaling.center, scaling.scale, bands)
    return StageResult(strictly({"metrics": metrics, "clusters": profile, "bands": bands}))
