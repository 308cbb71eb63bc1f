"""The sizes that a run's memory depends on, from its config and its source's footers alone."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from clam_dist.config import Config
from clam_dist.data.features import FeatureSchema
from clam_dist.data.shards import plan_shard_rows
from clam_dist.data.source import EMBEDDING, Source
from clam_dist.evaluation.references import auto_references
from clam_dist.launch import machine
from clam_dist.models.factory import MODELS
from clam_dist.models.masks import hidden_count
from clam_dist.stages.clusters import cluster_choices
from clam_dist.stages.forms import PASS_ROWS, form_of
from clam_dist.stages.settings import sweep
from clam_dist.stages.shards import query_rows, sample_rows
from clam_dist.stages.sizes import Crowd, Sizes
from clam_dist.train.members import Member, group_members
from clam_dist.train.plan import plan_segments, resolve_batch_rows, search_batch_rows
from clam_dist.train.schedule import FINALISTS

TEXT_BYTES = 40
"""Of a text or nested value in a kept column, which no footer that is read tells."""


def sizes_of(
    config: Config, workers: int, source: Source, schema: FeatureSchema, *, missing: bool
) -> Sizes:
    """What a worker's memory depends on, before anything is read.

    Parameters
    ----------
    schema
        Of the features; a category of which nothing is known yet counts as one.
    missing
        Whether cells are missing.
    """
    width, n_rows = max(schema.width, len(schema.features)), source.n_rows
    shard_rows, train_rows = config.prepare.shard_rows, config.train.rows
    gathered = 0 if train_rows == "auto" else min(int(train_rows), n_rows)
    sampled = min(sample_rows(width), n_rows)
    clusters = cluster_choices(config.model.n_clusters, sampled)
    asked_rows = None if config.train.batch_rows == "auto" else int(config.train.batch_rows)
    least = MODELS[config.model.kind].batch_rows
    batch_rows = resolve_batch_rows(asked_rows, gathered or n_rows, least)
    search_rows = search_batch_rows(sampled)
    members = sweep(config.model, config.train, dict.fromkeys(clusters, 1.0))
    course = plan_segments(
        members, n_rows=n_rows, sample_rows=sampled, batch_rows=batch_rows, epochs=1
    )
    finalists = _finalists(members) if len(course) > 1 else members
    in_group = min(search_rows, batch_rows)
    kept = [*config.source.keep, *([config.source.label] if config.source.label else [])]
    stored = {
        field.name: stored_bytes(field.type, width)
        for field in source.arrow_schema
        if field.name in {*schema.columns, *kept}
    }
    nested = [c for c in schema.columns if source.column(c).kind == EMBEDDING]
    return Sizes(
        n_rows=n_rows,
        width=width,
        columns=len(schema.columns) + len(kept) + (config.source.weight is not None),
        stored_bytes=sum(stored[column] for column in schema.columns),
        nested_bytes=sum(stored[column] for column in nested),
        kept_bytes=sum(stored[column] for column in kept),
        group_rows=max(max(file.row_groups, default=0) for file in source.files),
        shard_rows=plan_shard_rows(n_rows, width) if shard_rows == "auto" else int(shard_rows),
        sample_rows=sampled,
        query_rows=query_rows(config.evaluate.silhouette_rows, n_rows, width),
        gathered_rows=gathered,
        missing=missing,
        weighted=config.source.weight is not None,
        weighted_model=config.model.weighted,
        references=_references(config, n_rows, max(clusters)),
        search=_crowds(members, in_group, width),
        finalists=_crowds(finalists, in_group, width),
        batch_rows=batch_rows,
        search_batch_rows=search_rows,
        workers=workers,
        threads=max(1, machine.usable_cores() // workers),
        buffer_bytes=64 << 20,
        form=form_of(config, members, width, clusters, min(batch_rows, PASS_ROWS), missing),
    )


def _references(config: Config, n_rows: int, n_clusters: int) -> int | None:
    """References of a cluster, None where all rows are."""
    asked = config.evaluate.references
    if asked == "auto":
        return auto_references(n_rows, n_clusters)
    return None if asked == "all" else int(asked)


def stored_bytes(kind: pa.DataType, width: int) -> int:
    """Bytes a row of a column as Arrow holds it; lists of unknown length have ``width`` numbers."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return 4
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size * stored_bytes(kind.value_type, 1)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 + width * stored_bytes(kind.value_type, 1)
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return TEXT_BYTES


def _finalists(members: Sequence[Member]) -> list[Member]:
    """Of each number of clusters as many as go on, in groups that are least favourable."""
    kept: list[Member] = []
    for k in sorted({member.n_clusters for member in members}):
        those = [member for member in members if member.n_clusters == k]
        kept += sorted(those, key=lambda member: (member.objective, -member.steps))[:FINALISTS]
    return kept


def _crowds(members: Sequence[Member], rows: int, width: int) -> tuple[Crowd, ...]:
    crowds = []
    for group in group_members(members, rows):
        first = group[0]
        hidden = hidden_count(width, first.mask_rate) if first.objective == "masked" else 0
        crowds.append(Crowd(len(group), first.n_clusters, first.steps, hidden))
    return tuple(crowds)
