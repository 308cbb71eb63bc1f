"""What a worker holds at its peak, stage by stage: pure sums of array sizes, in bytes.

Letters as in :mod:`clam_dist.stages.sizes`. Every part is the size of arrays that the file named
beside it makes; nothing is fitted to whole runs. What no array accounts for are a few constants,
each measured by itself as a rise of ``VmHWM`` after ``/proc/self/clear_refs`` was written (x86-64
Linux, Python 3.11, torch 2.13 CPU, pyarrow 26, scikit-learn 1.9). ``tests/bench/memory.py
--stages`` prints projection and measurement of each stage side by side.
"""

from __future__ import annotations

from clam_dist.data.parquet import READ_BYTES
from clam_dist.evaluation.distances import SLAB
from clam_dist.evaluation.queries import CHUNK_VALUES
from clam_dist.evaluation.references import JACKKNIFE_GROUPS
from clam_dist.models.inference import BLOCK_ROWS as INFERENCE_ROWS
from clam_dist.stages.scoring import BLOCK_ROWS, COLLECT_TASKS
from clam_dist.stages.sizes import MIB, Parts, Sizes, most
from clam_dist.stages.training_memory import (
    HEAP_SLACK,
    RUNTIME_BYTES,
    SEEDING_BYTES,
    baseline_alone,
    choice,
    starts,
    train,
    workspace,
)

ARROW_SLACK = 1.4
"""Resident bytes for each byte that Arrow's allocator has handed out, while many columns are read
(148 MiB for 108 with 256 columns, 34 for 28 with 14)."""
PAGE_ROWS, PAGE_BYTES = 20_000, MIB
"""Parquet pages hold at most so much, as Arrow and parquet-mr write them."""


def stages(sizes: Sizes, *, alone: bool = False) -> dict[str, Parts]:
    """Parts of a worker's peak above its base, by stage; the stage's peak is their sum.

    A stage of several steps (train: starts, search, all rows, choice) has the parts of the step
    that holds most.

    Parameters
    ----------
    alone
        One process does everything, so that it also holds what the driver does.
    """
    driver = driver_parts(sizes) if alone else {}
    steps = [starts(sizes), train(sizes)]
    if sizes.form.by_gradient:
        steps.append(choice(sizes))
    elif alone:
        steps[1] |= baseline_alone(sizes)
    return {
        "profile": profile(sizes),
        "shards": shards(sizes),
        "train": most(steps),
        "assign": most([references(sizes), labels(sizes), exact_scores(sizes)]) | driver,
    }


def driver_parts(sizes: Sizes) -> Parts:
    """``stages/assign.py`` on the driver: the queries, and references merged task by task."""
    each = 2 if sizes.references is None else sizes.references
    merged = 5 * _kept_references(sizes, each) * (sizes.shown_bytes + 56)
    sums = 16 * sizes.query_rows * sizes.most_clusters if sizes.references is None else 0
    queries = 8 * sizes.query_rows * sizes.width
    return {"queries": queries, "references merged": merged + 3 * sums}


# -- reading -------------------------------------------------------------------------------------


def decode(sizes: Sizes) -> Parts:
    """A batch on its way from column chunks: ``data/parquet.py`` and ``data/features.py``."""
    row = sizes.stored_bytes + sizes.kept_bytes
    buffer = min(MIB, max(64 << 10, READ_BYTES // max(1, sizes.columns)))
    # One buffer of a column's encoded bytes, a page of it as stored and one decoded.
    each = row / max(1, sizes.columns)
    chunk = int(sizes.group_rows * each)
    page = min(PAGE_BYTES, int(PAGE_ROWS * each), chunk)
    # Lists bring their levels, and their values are gathered in buffers that double: five times
    # what a batch of them takes (measured for 384 numbers and 2730 to 10 922 rows).
    batch = 2 * row + 3 * sizes.nested_bytes
    held = sizes.columns * (min(buffer, chunk) + 2 * page) + batch * sizes.batch
    return {"reading of column chunks": int(ARROW_SLACK * held)}


def profile(sizes: Sizes) -> Parts:
    """``data/profile.py``: a batch in float64 with its deviations, or what is seen of it."""
    copies = 25 if sizes.missing else 16
    return decode(sizes) | {"decoded rows": copies * sizes.batch * sizes.width}


def _scaled(sizes: Sizes) -> Parts:
    """``data/rows.py``: the values, scaled in float64 and float32, and the batch before."""
    each = 24 * sizes.width + (9 * sizes.width if sizes.missing else 0) + sizes.stored_bytes
    return decode(sizes) | {"decoded rows": each * sizes.batch}


def shards(sizes: Sizes) -> Parts:
    """``data/sharding.py``: one shard, the order of its rows, and the samples' candidates."""
    shard = sizes.shard_rows * (sizes.row_bytes + 16) + (8 * MIB)
    task = min(1.0, max(sizes.shard_rows, sizes.group_rows) / sizes.n_rows)
    sampled = sizes.sample_rows + sizes.query_rows + sizes.gathered_rows
    candidates = int(sampled * task) * (sizes.row_bytes + 16)
    return _scaled(sizes) | {"a shard": shard, "candidates of samples": candidates}


# -- labels and scores ---------------------------------------------------------------------------


def _inference(sizes: Sizes) -> int:
    """``models/inference.py``: a padded block of rows and lines of it."""
    if sizes.form.network:
        return int(HEAP_SLACK * sizes.form.label_bytes)
    lines = 6 * sizes.most_clusters + (4 * sizes.width if sizes.missing else 0)
    return 4 * INFERENCE_ROWS * (2 * sizes.width + lines)


def _later(sizes: Sizes, trained: bool = True) -> Parts:
    """What a worker still holds that was a rank, and the model it labels with."""
    kernels = max(workspace(sizes, crowd) for crowd in sizes.finalists)
    left = RUNTIME_BYTES + (kernels + SEEDING_BYTES if trained else 0)
    form = sizes.form
    held = 4 * (form.metric + form.network + form.derived)
    model = 4 * 6 * sizes.most_clusters * sizes.shown + held + _inference(sizes)
    return {"what training left": left, "model": model}


def references(sizes: Sizes) -> Parts:
    """``collect_references``: a shard, its moments, and the rows kept of each cluster."""
    rows = min(BLOCK_ROWS, sizes.shard_rows)
    shard = sizes.shard_rows * (sizes.row_bytes + 8 + 24)
    moments = rows * (sizes.shown * (26 if sizes.missing else 9) + 80) + _representation(
        sizes, rows
    )
    each = 2 if sizes.references is None else sizes.references
    held = _kept_references(sizes, each)
    # Unsorted up to twice what is kept, and a block of which at first all rows may be kept;
    # sorting joins the parts, then takes those kept. Two results wait for the driver.
    unsorted = min(2 * held + rows, _task_rows(sizes))
    kept = (2 * unsorted + 3 * held) * (sizes.shown_bytes + 56)
    found = {"a shard": shard + moments, "references": kept}
    return _later(sizes) | found


def _representation(sizes: Sizes, rows: int) -> int:
    """Rows where prototypes live: images by a metric, or latents beside labels in float64."""
    if sizes.form.latent:
        return rows * (12 * sizes.shown + 24)
    return rows * 8 * sizes.width if sizes.form.metric else 0


def _kept_references(sizes: Sizes, each: int) -> int:
    """Rows that one task of :func:`collect_references` keeps."""
    return min((each + 1) * sizes.most_clusters, _task_rows(sizes))


def _task_rows(sizes: Sizes) -> int:
    """Rows that one task of :func:`collect_references` reads."""
    return min(-(-sizes.shards // COLLECT_TASKS) * sizes.shard_rows, sizes.n_rows)


def labels(sizes: Sizes, *, trained: bool = True) -> Parts:
    """``stages/labels.py``: a batch labelled, summed and scored, and a row group written.

    Parameters
    ----------
    trained
        The worker was a rank before.
    """
    k, d, b = sizes.most_clusters, sizes.width, sizes.batch
    sums = b * (25 * d + 120) + 9 * 8 * k * d
    parts = _later(sizes, trained) | _scaled(sizes)
    # Batches of the group, and its columns as they are encoded one by one.
    added = 4 * sizes.form.columns
    group = min(sizes.group_rows, sizes.n_rows) * (sizes.kept_bytes + 12 + added)
    # Columns on request, as tensors and arrays; reconstructions are told from rows in the end.
    parts["labels"] = b * (16 + _representation(sizes, 1) + 2 * added)
    parts["labels"] += b * 16 * d * sizes.form.reconstructs
    parts |= {"a row group to write": int(1.6 * group)}
    steps = [parts | {"sums over a batch": sums}]
    if sizes.references is not None:
        rows = min(sizes.references * k, sizes.n_rows)
        queries = min(b, -(-2 * sizes.query_rows * b // sizes.n_rows))
        parts["references"] = steps[0]["references"] = int(1.5 * rows * (4 * sizes.shown + 32))
        distances = _distances(sizes, queries, min(sizes.references, SLAB))
        steps.append(parts | {"distances": distances})
    return most(steps)


def exact_scores(sizes: Sizes) -> Parts:
    """``measure_against_shard``: all queries against the rows of one shard."""
    if sizes.references is not None:
        return {}
    k, q = sizes.most_clusters, sizes.query_rows
    shard = sizes.shard_rows * (3 * (sizes.shown_bytes + 56) + 9 * sizes.shown + sizes.row_bytes)
    if not sizes.form.latent and not sizes.form.metric:
        shard -= sizes.shard_rows * sizes.row_bytes  # rows are measured as they are
    waiting = 3 * 16 * q * k
    found = {"a shard": shard, "distances": _distances(sizes, q, sizes.shard_rows, q) + waiting}
    return _later(sizes) | found


def _distances(sizes: Sizes, queries: int, rows: int, at_once: int | None = None) -> int:
    """``evaluation/distances.py``: both sides extended, and sums by cluster and group."""
    k, g = sizes.most_clusters, 1 if sizes.references is None else JACKKNIFE_GROUPS + 1
    some = min(queries, at_once or max(CHUNK_VALUES // (k * g), 64))
    sides = 8 * 4 * (some + min(rows, SLAB)) * (sizes.shown + 2) + 8 * g * min(rows, SLAB)
    return sides + 8 * some * k * (4 * g + 10) + 8 * queries * (g + 8)
