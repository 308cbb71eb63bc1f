"""What a rank holds at its peak: starts, the population and its steps, and the choice, in bytes.

Letters as in :mod:`clam_dist.stages.sizes`. Every part is the size of arrays that the file named
beside it makes; see :mod:`clam_dist.stages.memory` for how the constants were measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from clam_dist.models.couplings import factors_are_cheaper
from clam_dist.models.pairs import pairs_are_cheaper
from clam_dist.models.settling import CHUNK_ROWS
from clam_dist.models.sums import block_rows
from clam_dist.stages.sizes import MIB, Crowd, Parts, Sizes, most
from clam_dist.stages.starts import kmeans_tries
from clam_dist.train.baselines import MEMORY_BYTES
from clam_dist.train.plan import FINAL_QUERIES, rung_queries
from clam_dist.train.reduction import owned_lanes, subtree_roots
from clam_dist.train.schedule import lanes_of
from clam_dist.train.shard_rows import BLOCK_BYTES

SEEDING_BYTES = 100 * MIB
"""scikit-learn and what it imports (pandas, scipy), loaded by the worker that draws starts: 93 to
107 MiB where torch is there already."""
RUNTIME_BYTES = 35 * MIB
"""What torch and gloo map in and set up at a rank's first step, and allocators do not return: a
rank without starts stands 38 MiB above what it stood at before, 3 of them buffers."""

HEAP_SLACK = 2.0
"""Resident bytes for each byte of tensors in a network's pass: convolutions' own scratch, and what
the heap keeps between arrays of many sizes (1.5 to 2.1 for dense, convolutional, residual and
transformer networks, DClAM and TDCM)."""


def scoring(sizes: Sizes, members: int, clusters: int, queries: int) -> Parts:
    """``evaluation/labelings.py``: labels of ``members`` and their distances to ``clusters``."""
    rows = min(sizes.sample_rows, 4 * queries)
    columns = min(members * clusters, max(1024, clusters))
    labels = members * sizes.sample_rows * 20 + columns // max(clusters, 1) * rows * 8
    block = 2 * 4 * 256 * rows
    return {"scoring of candidates": labels + block + rows * (4 * columns + 8 * sizes.shown)}


def starts(sizes: Sizes) -> Parts:
    """``stages/starts.py``: k-means runs on the sample, and their scores."""
    k = sizes.most_clusters
    sample = 4 * 4 * sizes.sample_rows * sizes.width + 12 * sizes.sample_rows * k
    tries = kmeans_tries(sizes.sample_rows * sizes.width * k, few=False)
    held = {"sample": sample, "scikit-learn": SEEDING_BYTES}
    return held | scoring(sizes, tries, k, FINAL_QUERIES)


def train(sizes: Sizes) -> Parts:
    """``train/``: the greater of the search's steps and those on all rows, and what both hold."""
    if not sizes.form.by_gradient:
        return baseline(sizes)
    search = _steps(sizes, sizes.search, lanes_of(sizes.search_batch_rows))
    every = _steps(sizes, sizes.finalists, lanes_of(sizes.batch_rows))
    every |= {"found by the search": 4 * sizes.numbers(sizes.finalists)}
    steps = [search, every]
    if sizes.form.networks:
        steps.append(_steps(sizes, [_pretrained(sizes)], lanes_of(sizes.batch_rows)))
    return most(steps) | _rank(sizes)


def baseline(sizes: Sizes) -> Parts:
    """``train/lloyd.py``: a block of rows of a pass in float32 and float64, and sums by cluster."""
    block = min(BLOCK_BYTES, sizes.shard_rows * 4 * sizes.width)
    members, k = sum(crowd.members for crowd in sizes.search), sizes.most_clusters
    return {
        "a block of rows": block * (9 if sizes.missing else 5),
        "sums by cluster": 8 * 3 * members * k * sizes.width * (1 + sizes.missing),
        "libraries at work": RUNTIME_BYTES,
        "scikit-learn": SEEDING_BYTES,
    }


def baseline_alone(sizes: Sizes) -> Parts:
    """``train/baselines.py``: what whoever fits a baseline holds beside a pass.

    Rows that fit in memory are read in blocks, joined, and copied by scikit-learn.
    """
    rows = 4 * sizes.n_rows * sizes.width
    held = 3 * rows if rows <= MEMORY_BYTES and not sizes.missing else 0
    return {"rows in memory": held, "sample": 12 * sizes.sample_rows * sizes.width}


def _pretrained(sizes: Sizes) -> Crowd:
    """The networks alone, one a restart."""
    return Crowd(sizes.form.networks, sizes.most_clusters, 1, 0)


def choice(sizes: Sizes) -> Parts:
    """``train/result.py``: labels of the sample under every candidate, on rank 0 scored."""
    k = sizes.most_clusters
    rungs = []
    # In the end each finalist stands as trained and as found, beside two k-means starts.
    several = 2 * len({crowd.n_clusters for crowd in sizes.finalists})
    for crowds, times, more in ((sizes.search, 1, 0), (sizes.finalists, 2, several)):
        members = times * sum(crowd.members for crowd in crowds) + more
        queries = FINAL_QUERIES if more else rung_queries(members)
        scored = scoring(sizes, members, k, queries)
        rungs.append(scored | {"population": 20 * sizes.numbers(crowds)})
    if sizes.form.networks:  # k-means in the latents of every network is a candidate too
        for rung in rungs:
            rung["starts in latents"] = 16 * sizes.numbers([_pretrained(sizes)])
    return most(rungs) | _rank(sizes)


def _rank(sizes: Sizes) -> Parts:
    """What a rank has whatever it does; one that drew starts still has scikit-learn."""
    sample = 4 * sizes.sample_rows * sizes.width
    networks = [_pretrained(sizes)] if sizes.form.networks else []
    return {
        "sample": sample * (4 if sizes.missing else 3),
        "pretrained networks": 4 * sizes.numbers(networks),
        "shard buffers": shard_buffers(sizes),
        "libraries at work": RUNTIME_BYTES,
        "scikit-learn": SEEDING_BYTES,
    }


def shard_buffers(sizes: Sizes) -> int:
    """``data/reader.py``: batches made in advance, and what is read ahead of every shard."""
    batch = sizes.owned_rows(sizes.batch_rows) * sizes.row_bytes
    slots = min(max(2, sizes.buffer_bytes // 2 // max(1, batch)), 4)
    # Every lane has its share of the shards.
    files = -(
        -sizes.shards * sizes.owned_rows(sizes.batch_rows) // min(sizes.batch_rows, sizes.n_rows)
    )
    ahead = min(256 << 10, sizes.shard_rows * sizes.row_bytes) * files
    return slots * batch + min(max(0, sizes.buffer_bytes - slots * batch), ahead)


def _steps(sizes: Sizes, crowds: Sequence[Crowd], lanes: int) -> Parts:
    """One population's memory at its largest moment: a step, its validation, or a checkpoint."""
    numbers = sizes.numbers(crowds)
    largest = max(sizes.numbers([crowd]) for crowd in crowds)
    # Validation cuts its rows into four lanes whatever the phase. A lane's sums are held group by
    # group and joined; subtrees of all ranks are gathered.
    owned = max(len(owned_lanes(n, rank, sizes.workers)) for n in (lanes, 4) for rank in (0, 1))
    parts = owned_lanes(max(lanes, 4), 1 % sizes.workers, sizes.workers)
    slots = len(subtree_roots(parts.start, parts.stop)) if sizes.workers > 1 else 0
    sums = 8 * numbers * (2 * max(1, owned) + slots * (sizes.workers + 1) + 1)
    written = 16 * numbers
    threads = sizes.threads if sizes.threads > 1 else 1
    if sizes.form.network:
        most_members = max(crowd.members for crowd in crowds)
        return {
            "population": 16 * numbers,
            "sums of gradients": max(sums, written) + 4 * largest * (owned + 1),
            "network passes": threads * int(HEAP_SLACK * sizes.form.pass_bytes),
            "latents": _latents(sizes, most_members),
        }
    kernels = max(workspace(sizes, crowd) for crowd in crowds) + 4 * 7 * largest
    copies = sizes.owned_rows(sizes.batch_rows) * 7 * sizes.width if sizes.missing else 0
    return {
        "population": 16 * numbers,
        "sums of gradients": max(sums, written) + 20 * largest,
        "kernel workspaces": threads * kernels + copies,
    }


def _latents(sizes: Sizes, members: int) -> int:
    """``models/tdcm_batch.py`` and ``settling.py``: latents of all members, and their gradients.

    Those of a rank's micro-batches while they wait for sums, or of a chunk of the sample, in
    float64 with powers and standardised ones.
    """
    if not sizes.form.exchanges:
        return 0
    waiting = 8 * sizes.owned_rows(sizes.batch_rows)
    chunk = 8 * 6 * min(CHUNK_ROWS, sizes.sample_rows)
    return members * sizes.form.latent * max(waiting, chunk)


def workspace(sizes: Sizes, crowd: Crowd) -> int:
    """Scratch that one thread's kernels keep for a group: :class:`clam_dist.models.workspace`."""
    if sizes.form.network:
        return int(HEAP_SLACK * sizes.form.pass_bytes)
    if not sizes.form.by_gradient:
        return 0
    lane = max(sizes.search_batch_rows, min(2048, sizes.batch_rows), min(1024, sizes.sample_rows))
    forms = [_unmasked] if crowd.hidden == 0 else [_masked, _rowwise][: 1 + sizes.missing]
    if not sizes.form.own_kernels:
        forms = [_moving] if crowd.hidden == 0 else [_grouped, _clamped][: 1 + sizes.missing]
    return max(4 * form(sizes, crowd, lane) for form in forms)


# Letters of the models: P members, k prototypes, d features, T steps. Numbers, not bytes.


def _unmasked(sizes: Sizes, crowd: Crowd, lane: int) -> int:
    """``models/unmasked.py`` and ``models/ambient.py``."""
    P, k, d, T = crowd.members, crowd.n_clusters, sizes.width, crowd.steps
    if factors_are_cheaper(k, d):
        rows = min(lane, block_rows(P * max(k, d), d))
        return rows * P * ((T + 3) * k + (T + 2) * d)
    lines = max(k, d // 16) if sizes.missing else k
    rows = min(lane, block_rows(P * lines, d))
    return rows * ((T + 8) * P * k + (P + 2) * d * sizes.missing)


def _masked(sizes: Sizes, crowd: Crowd, lane: int) -> int:
    """``models/masked.py``."""
    P, k, d, T, h = crowd.members, crowd.n_clusters, sizes.width, crowd.steps, crowd.hidden
    rows = min(lane, block_rows(P * k, d))
    carries = (T + 1) * h if factors_are_cheaper(k, h) else k
    return rows * ((T + 8) * P * k + P * (carries + h) + d + 2 * h)


def _rowwise(sizes: Sizes, crowd: Crowd, lane: int) -> int:
    """``models/rowwise.py``: rows that miss values, each with a coupling of its own."""
    P, k, d, T = crowd.members, crowd.n_clusters, sizes.width, crowd.steps
    each, wide = (T + 2) * d, 2 * max(k, d)
    if pairs_are_cheaper(P, k, d, T):
        each, wide = k * (k + 1) // 2 + 3 * k * k + d, max(k * k, d // 16)
    rows = min(lane, block_rows(P * wide, d))
    return rows * (P * ((T + 8) * k + each) + 5 * d)


def _moving(sizes: Sizes, crowd: Crowd, lane: int) -> int:
    """``models/moving.py``: the difference in the rows' space, and its images by a metric."""
    P, k, d, T = crowd.members, crowd.n_clusters, sizes.width, crowd.steps
    if not sizes.form.metric and factors_are_cheaper(k, d + 1):
        rows = min(lane, block_rows(P * k, d))
        return rows * P * ((T + 4) * k + (T + 4) * (d + 1))
    lines = max(k, d // (4 if sizes.form.metric else 16))
    rows = min(lane, block_rows(P * lines, d))
    return rows * (P * ((T + 8) * k + (4 if sizes.form.metric else 2) * d) + 3 * d)


def _grouped(sizes: Sizes, crowd: Crowd, lane: int) -> int:
    """``models/residual.py``, complete rows: as of :func:`_masked`, with images."""
    P, k, d = crowd.members, crowd.n_clusters, sizes.width
    rows = min(lane, block_rows(P * k, d))
    return _masked(sizes, crowd, lane) + rows * 2 * P * crowd.hidden


def _clamped(sizes: Sizes, crowd: Crowd, lane: int) -> int:
    """``models/residual.py``, rows that miss values."""
    P, k, d, T = crowd.members, crowd.n_clusters, sizes.width, crowd.steps
    rows = min(lane, block_rows(P * 2 * max(k, d), d))
    return rows * (P * ((T + 8) * k + (T + 4) * d) + 4 * d)
