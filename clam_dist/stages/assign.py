"""Stage 4: references from the shards, then every source fragment labelled and written."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clam_dist.assign import Recursive
from clam_dist.data.writer import merge_parts
from clam_dist.evaluation.estimate import QueryScores
from clam_dist.evaluation.linear import undefined_because
from clam_dist.evaluation.scores import AssignSums
from clam_dist.stages.columns import check_columns
from clam_dist.stages.context import Context, StageResult
from clam_dist.stages.labels import LabelPlan, LabelTask, label_fragment
from clam_dist.stages.profile import fragments_of
from clam_dist.stages.scoring import (
    SCORES_FILE,
    assignment_of,
    find_references,
    load_scores,
    read_queries,
    save_arrays,
    save_scores,
    score_exactly,
    score_recursed,
    write_silhouettes,
)

SUMS_FILE = "sums.npz"


def run(context: Context) -> StageResult:
    """Write ``labels/``; the only stage that does."""
    config = context.config
    assignment = assignment_of(context)
    check_columns(assignment.model(), config.evaluate.columns, config.model.kind)
    folder = context.work / "assign"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    labels = context.output / "labels"
    shutil.rmtree(labels, ignore_errors=True)
    weighted = config.source.weight is not None
    queries = read_queries(str(context.shards_folder), weighted)
    np.save(folder / "queries.npy", queries.rows)
    references, each = find_references(context)
    metric = assignment.model().metric_name
    reason = undefined_because(references.moments.count)
    scored: Path | None = None
    if reason is not None:
        context.warn(f"{reason}; the silhouette is left out")
    elif each is None and metric == "euclidean":
        scored = score_exactly(context, folder, queries, references)
    else:
        save_arrays(folder / "references.npz", references.to_arrays())
    plan = LabelPlan(
        source=context.source,
        schema=context.schema,
        scaling=context.scaling,
        assignment=assignment,
        missing=config.prepare.missing,
        fill=np.where(context.statistics.count > 0, context.statistics.mean, np.nan),
        weight=config.source.weight,
        label=config.source.label,
        keep=tuple(config.source.keep),
        queries=str(folder / "queries.npy"),
        references=None if reason or scored else str(folder / "references.npz"),
        scored=None if scored is None else str(scored),
        storage_options=context.storage_options,
        columns_added=config.evaluate.columns,
    )
    sums, scores = label_files(context, plan, labels, folder / "parts")
    save_arrays(folder / SUMS_FILE, sums.to_arrays())
    if scored is None and scores:
        save_scores(folder / SCORES_FILE, QueryScores.join(scores))
    files = [folder / SUMS_FILE, *sorted(path for path in labels.rglob("*") if path.is_file())]
    if (folder / SCORES_FILE).exists():
        files.append(folder / SCORES_FILE)
        if config.evaluate.references == "all":
            found = load_scores(folder / SCORES_FILE)
            write_silhouettes(context.output / "evaluation" / "silhouette.parquet", found)
    recursed: dict[str, Any] | None = None
    if isinstance(assignment.model(), Recursive):
        task = partial(
            score_recursed,
            assignment=assignment,
            weighted=weighted,
            n_rows=int(sums.count.sum()),
            seed=config.seed,
        )
        (recursed,) = context.executor.map(task, [str(context.shards_folder)])
    lost = sums.unlabelled - context.data("shards")["skipped_rows"]
    if lost > 0:
        context.warn(
            f"{lost} of {context.source.n_rows} rows have no cluster, for they have no direction: "
            "in scaled units they are 0 in every feature; their labels are null"
        )
    return StageResult(
        {
            "references": "all" if each is None else each,
            "metric": metric,
            "own_space": assignment.model().own_space,
            "silhouette_recursed": recursed,
            "silhouette_undefined": reason,
            "unlabelled": sums.unlabelled,
            "scores": (folder / SCORES_FILE).exists(),
        },
        files,
    )


def label_files(
    context: Context, plan: LabelPlan, labels: Path, parts: Path
) -> tuple[AssignSums, list[QueryScores]]:
    """Label all fragments; files of several are written in parts and then streamed together."""
    source, fragments = plan.source, fragments_of(plan.source)
    pieces = np.bincount([f.file for f in fragments], minlength=len(source.files))
    tasks = []
    for fragment in fragments:
        whole = labels / source.files[fragment.file].name
        part = parts / f"{fragment.file:06d}-{fragment.index:08d}.parquet"
        tasks.append(LabelTask(fragment, str(whole if pieces[fragment.file] == 1 else part)))
    sums = AssignSums.zeros(plan.assignment.n_clusters, plan.schema.width)
    scores: list[QueryScores] = []
    written: dict[int, list[str]] = {}
    results = context.executor.map(partial(label_fragment, plan=plan), tasks)
    rows = [fragment.n_rows for fragment in fragments]
    for task, result in zip(tasks, context.track("assign", results, rows), strict=True):
        sums = sums.merge(result.sums)
        if result.scores is not None:
            scores.append(result.scores)
        file = task.fragment.file
        if pieces[file] > 1:
            written.setdefault(file, []).append(result.path)
    jobs = [(paths, str(labels / source.files[file].name)) for file, paths in written.items()]
    for paths, _ in context.executor.map(merge_job, jobs):
        for path in paths:
            Path(path).unlink()
    return sums, scores


def merge_job(job: tuple[list[str], str]) -> tuple[list[str], int]:
    """Stream the parts of one file together; returns the parts and the file's bytes."""
    paths, target = job
    return paths, merge_parts(paths, target)
