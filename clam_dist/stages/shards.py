"""Stage 2: rows decoded once, scaled, shuffled and laid down as shards; samples drawn too."""

from __future__ import annotations

from functools import partial

import numpy as np

from clam_dist.data.domains import Domains
from clam_dist.data.files import check_disk, size_text
from clam_dist.data.samples import merge_samples
from clam_dist.data.sharding import write_shards
from clam_dist.data.shards import disk_needed, plan_shards
from clam_dist.errors import ConfigError, DataError
from clam_dist.stages.context import Context, StageResult

SAMPLE_ROWS, SAMPLE_BYTES = 16_384, 64 << 20
"""Bounds of the sample that seeds, searches and judges: enough rows for a silhouette known to
.003, few enough to hold in memory on every rank."""

QUERY_BYTES = 256 << 20
TRAIN_BYTES = 1 << 30


def sample_rows(width: int) -> int:
    """Rows of the sample for ``width`` features."""
    return max(256, min(SAMPLE_ROWS, SAMPLE_BYTES // (4 * width)))


def query_rows(asked: int, n_rows: int, width: int) -> int:
    """Silhouette queries: as many as asked for and there are, within 256 MiB of float32."""
    return min(asked, n_rows, max(256, QUERY_BYTES // (4 * width)))


def train_rows(asked: int, width: int) -> int:
    """Rows to train on where ``train.rows`` asks for fewer than there are.

    Raises
    ------
    ConfigError
        They would not fit in memory where they are gathered into one file.
    """
    needed = asked * width * 4
    if needed > TRAIN_BYTES:
        raise ConfigError(
            f"train.rows: {asked} rows of {width} features take {size_text(needed)}, and at most "
            f"{size_text(TRAIN_BYTES)} are gathered; ask for {TRAIN_BYTES // (4 * width)} rows or "
            "fewer, or leave it auto to train on all rows from the disk"
        )
    return asked


def domains_of(context: Context) -> Domains | None:
    """The domains that batches are made of; None where a column of them holds one value only."""
    found = context.data("profile")["domains"]
    return Domains.from_json(found) if found and len(found["values"]) > 1 else None


def run(context: Context) -> StageResult:
    """Write shards, sample and silhouette queries into the work folder."""
    config, source, schema = context.config, context.source, context.schema
    tasks = plan_shards(source, context.shard_rows(source.n_rows, schema.width))
    samples = {
        "sample": sample_rows(schema.width),
        "query": query_rows(config.evaluate.silhouette_rows, source.n_rows, schema.width),
    }
    if config.train.rows != "auto" and config.train.rows < source.n_rows:
        samples["train"] = train_rows(int(config.train.rows), schema.width)
        context.emit(
            "log",
            level="INFO",
            message=f"training on {samples['train']:,} of {source.n_rows:,} rows (train.rows); "
            "all are labelled",
        )
    weight = config.source.weight
    limit = None if config.work.size_limit == "auto" else int(config.work.size_limit)
    folder = context.shards_folder
    domains = domains_of(context)
    needed = disk_needed(tasks, schema.width, weight is not None, samples, domains is not None)
    check_disk(str(folder), needed, limit)
    folder.mkdir(parents=True, exist_ok=True)
    task = partial(
        write_shards,
        source=source,
        schema=schema,
        scaling=context.scaling,
        seed=config.seed,
        folder=str(folder),
        samples=samples,
        weight_column=weight,
        domains=domains,
        missing=config.prepare.missing,
        fill=np.where(context.statistics.count > 0, context.statistics.mean, np.nan),
        storage_options=context.storage_options,
    )
    parts = context.executor.map(task, tasks)
    results = list(context.track("shards", parts, [task.n_rows for task in tasks]))
    candidates = {name: [result.candidates[name] for result in results] for name in samples}
    # Of the samples, only that which is trained on in batches as all rows else are.
    by_domain = {} if domains is None else {"train": len(domains.values)}
    merged = merge_samples(str(folder), candidates, samples, by_domain)
    if weight is not None:
        _check_weights(np.load(folder / "sample.w.npy"), weight)
    skipped = sum(result.skipped_rows for result in results)
    if skipped:
        context.warn(
            f"{skipped} of {source.n_rows} rows have no value in any feature: they are not "
            "trained on, and their labels are null"
        )
    files = [folder / path for result in results for path, _ in result.files]
    files += [folder / path for sample in merged.values() for path, _ in sample.files]
    return StageResult(
        {
            "shards": [shard.to_json() for result in results for shard in result.shards],
            "samples": {name: sample.to_json() for name, sample in merged.items()},
            "skipped_rows": skipped,
            "bytes": sum(path.stat().st_size for path in files),
        },
        files,
    )


def _check_weights(weights: np.ndarray, column: str) -> None:
    if not float(weights.sum()) > 0:
        raise DataError(
            f"weight column '{column}' is 0 in all {len(weights)} sampled rows; use positive "
            "weights, or leave source.weight out"
        )
