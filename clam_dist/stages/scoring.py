"""What silhouettes are measured against: references of each cluster, or all rows, from shards.

Rows are measured where prototypes live: as they are, normalised, or as latents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clam_dist.assign import Assignment, Labeller
from clam_dist.data.files import published
from clam_dist.data.sampling import generator, row_hash
from clam_dist.data.shards import ShardFile
from clam_dist.evaluation.distances import DistanceSums, distance_sums
from clam_dist.evaluation.estimate import QueryScores
from clam_dist.evaluation.linear import undefined_because
from clam_dist.evaluation.moments import filled
from clam_dist.evaluation.queries import score_by, score_sums
from clam_dist.evaluation.references import (
    ReferenceCollector,
    References,
    auto_references,
    reference_sizes,
)
from clam_dist.stages.context import Context

COLLECT_TASKS = 16
"""Runs of shards that references are collected from: few, for each brings its own candidates."""
BLOCK_ROWS = 65_536
RECURSED_ROWS = 10_000
"""Rows measured against one another after the recursion: a third of a second of pairs."""
SCORES_FILE = "scores.npz"

Block = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


def assignment_of(context: Context) -> Assignment:
    """The trained model, as the manifests know it."""
    train = context.data("train")
    return Assignment(
        path=str(context.work / train["model"]),
        settings=train["settings"],
        member=train["winner"],
        device=train["device"],
    )


def load_scores(path: Path) -> QueryScores:
    """The queries' scores as this stage saved them."""
    with np.load(path) as arrays:
        return QueryScores(**{name: arrays[name] for name in _SCORE_FIELDS})


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Save arrays as ``.npz`` without pickle."""
    np.savez(path, allow_pickle=False, **arrays)


_SCORE_FIELDS = ("rows", "labels", "weight", "silhouette", "replicates")


def save_scores(path: Path, scores: QueryScores) -> None:
    """Save scores as plain arrays."""
    save_arrays(path, {name: getattr(scores, name) for name in _SCORE_FIELDS})


@dataclass(frozen=True)
class Queries:
    """The rows to score, in order of global row."""

    rows: np.ndarray
    x: np.ndarray
    weight: np.ndarray | None


def read_queries(folder: str, weighted: bool) -> Queries:
    """The rows that the shards stage drew to be scored, from the folder where it left them."""
    rows = np.load(Path(folder, "query.rows.npy"))
    order = np.argsort(rows)
    weight = np.load(Path(folder, "query.w.npy"))[order] if weighted else None
    return Queries(rows[order], np.load(Path(folder, "query.x.npy"))[order], weight)


def find_references(context: Context) -> tuple[References, int | None]:
    """Rows of each cluster to measure against, and how many; None where all rows are.

    By cosines all rows are, by their clusters' moments.
    """
    asked = context.config.evaluate.references
    assignment = assignment_of(context)
    n_rows = sum(shard.rows for shard in context.shards)
    each = None if asked == "all" or assignment.model().metric_name == "cosine" else asked
    if each == "auto":
        each = auto_references(n_rows, assignment.n_clusters)
    shards = [shard for shard in context.shards if shard.rows]
    size = -(-len(shards) // COLLECT_TASKS)
    runs = [shards[first : first + size] for first in range(0, len(shards), size)]
    task = partial(
        collect_references,
        assignment=assignment,
        folder=str(context.shards_folder),
        weighted=context.config.source.weight is not None,
        # With all rows as references only the moments are wanted of this pass.
        per_cluster=2 if each is None else int(each),
        seed=context.config.seed,
        typical=_typical_distances(context),
    )
    collector: ReferenceCollector | None = None
    for part in context.executor.map(task, runs):
        if collector is None:
            collector = part
        else:
            collector.merge(part)
    assert collector is not None  # a source has rows, and train refuses one without values
    return collector.finish(), None if each is None else int(each)


def read_shard(shard: ShardFile, folder: str, weighted: bool) -> Iterator[Block]:
    """Yield ``(x, rows, weight)`` of a shard in blocks; a shard is small enough to read whole."""
    base = Path(folder)
    x = np.load(base / shard.path)
    rows = np.load(base / shard.sibling("rows"))
    weight = np.load(base / shard.sibling("w")) if weighted else None
    for first in range(0, len(x), BLOCK_ROWS):
        part = slice(first, first + BLOCK_ROWS)
        yield x[part], rows[part], None if weight is None else weight[part]


def collect_references(
    shards: Sequence[ShardFile],
    *,
    assignment: Assignment,
    folder: str,
    weighted: bool,
    per_cluster: int,
    seed: int,
    typical: np.ndarray,
) -> ReferenceCollector:
    """Label a run of shards; keep each cluster's exact moments and its references.

    ``typical`` ``(k,)`` float64 is the mean distance in each cluster: far rows are drawn surely.
    """
    labeller = Labeller(assignment)
    collector: ReferenceCollector | None = None
    for shard in shards:
        for x, rows, weight in read_shard(shard, folder, weighted):
            labels, distances, z = labeller.label_and_represent(x)
            sizes = reference_sizes(distances, labels, typical)
            if collector is None:
                collector = ReferenceCollector(assignment.n_clusters, z.shape[1], per_cluster)
            collector.update(z, labels, _hashes(seed, rows), rows, weight, sizes)
    assert collector is not None  # shards without rows are not asked for
    return collector


def _typical_distances(context: Context) -> np.ndarray:
    """Mean distance to the prototype in each cluster of the sample, ``(k,)``; 0 where empty."""
    assignment = assignment_of(context)
    labels, distances = Labeller(assignment).label(np.load(context.shards_folder / "sample.x.npy"))
    seen = labels >= 0
    totals = np.bincount(labels[seen], distances[seen], assignment.n_clusters)
    counts = np.bincount(labels[seen], minlength=assignment.n_clusters)
    return totals / np.maximum(counts, 1)


def _hashes(seed: int, rows: np.ndarray) -> np.ndarray:
    """Hashes of global rows: those of the whole range they span, picked."""
    first = int(rows.min())
    spanned = row_hash(seed, "reference", "", first, int(rows.max()) - first + 1)
    return spanned[rows - first]


def score_exactly(context: Context, folder: Path, queries: Queries, references: References) -> Path:
    """Measure every query against all rows, shard by shard, before the labels are written."""
    assignment = assignment_of(context)
    labeller = Labeller(assignment)
    labels, _, found = labeller.label_and_represent(queries.x)
    z = filled(found)
    save_arrays(folder / "query-rows.npz", {"z": z, "rows": queries.rows})
    shards = [shard for shard in context.shards if shard.rows]
    task = partial(
        measure_against_shard,
        assignment=assignment,
        folder=str(context.shards_folder),
        queries=str(folder / "query-rows.npz"),
        weighted=queries.weight is not None,
        seed=context.config.seed,
    )
    total: DistanceSums | None = None
    parts = context.executor.map(task, shards)
    for part in context.track("assign", parts, [shard.rows for shard in shards]):
        total = part if total is None else total.merge(part)
    assert total is not None  # as above
    scores = score_sums(z, labels, queries.rows, total, references, queries.weight)
    save_scores(folder / SCORES_FILE, scores)
    return folder / SCORES_FILE


def measure_against_shard(
    shard: ShardFile,
    *,
    assignment: Assignment,
    folder: str,
    queries: str,
    weighted: bool,
    seed: int,
) -> DistanceSums:
    """Sums of distances from every query to the rows of one shard, by cluster."""
    labeller = Labeller(assignment)
    with np.load(queries) as arrays:
        z, query_rows = arrays["z"], arrays["rows"]
    collector = ReferenceCollector(assignment.n_clusters, z.shape[1], None)
    for x, rows, weight in read_shard(shard, folder, weighted):
        labels, _, shown = labeller.label_and_represent(x)
        collector.update(shown, labels, _hashes(seed, rows), rows, weight)
    return distance_sums(z, query_rows, collector.finish())


def score_recursed(
    folder: str, *, assignment: Assignment, weighted: bool, n_rows: int, seed: int
) -> dict[str, Any] | None:
    """Silhouette of rows where the recursion has taken them; None of a model that cannot tell.

    It flatters: the recursion draws rows to the prototypes that label them. So it says how sharply
    the model parts the rows, not how well they part. A sample of the queries, at most
    :data:`RECURSED_ROWS`, is measured against itself: references would need a pass of their own.

    Parameters
    ----------
    folder
        Of the shards and of the queries, drawn uniformly of ``n_rows`` labelled rows.

    Returns
    -------
    dict or None
        As ``SilhouetteResult.to_json``, with ``references`` "queries" where they are not all rows.
        Also None where the sample has no two clusters.
    """
    labeller, queries = Labeller(assignment), read_queries(folder, weighted)
    picked = np.arange(len(queries.rows))
    if len(picked) > RECURSED_ROWS:
        draw = generator(seed, "recursed").permutation(len(picked))
        picked = np.sort(draw[:RECURSED_ROWS])
    z = labeller.recursed(queries.x[picked])
    if z is None:
        return None
    labels, _ = labeller.label(queries.x[picked])
    weight = None if queries.weight is None else queries.weight[picked]
    rows, k = queries.rows[picked], assignment.n_clusters
    share = min(np.count_nonzero(labels >= 0) / max(n_rows, 1), 1.0)
    references = References.of_sample(z, labels, rows, k, share, weight)
    if undefined_because(references.moments.count) is not None:
        return None
    scores = score_by(labeller.metric, z, labels, rows, references, weight)
    result = scores.result(n_rows, seed, "all", labeller.metric).to_json()
    return result | ({} if share == 1 else {"references": "queries"})


def write_silhouettes(path: Path, scores: QueryScores) -> None:
    """Save every query's score, by global row.

    Parameters
    ----------
    path
        A Parquet file of ``row``, ``cluster`` and ``silhouette``.
    """
    table = pa.table(
        {
            "row": pa.array(scores.rows, pa.int64()),
            "cluster": pa.array(scores.labels, pa.int32()),
            "silhouette": pa.array(scores.silhouette, pa.float32()),
        }
    )
    with published(str(path)) as temporary:
        pq.write_table(table, temporary)
