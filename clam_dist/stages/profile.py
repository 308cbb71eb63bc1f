"""Stage 1: freeze the source, read every feature once, and fix how values are scaled."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from clam_dist.data.domains import can_be_domain
from clam_dist.data.features import FeatureSchema
from clam_dist.data.parquet import open_parquet
from clam_dist.data.profile import FragmentProfile, merge_profiles, profile_fragment
from clam_dist.data.selection import resolve_widths, select_features
from clam_dist.data.source import BOOLEAN, NUMERIC, Fragment, Source, plan_fragments
from clam_dist.data.statistics import fit_scaling
from clam_dist.errors import ConfigError, DataError
from clam_dist.stages import budget
from clam_dist.stages.clusters import cluster_choices
from clam_dist.stages.context import Context, StageResult
from clam_dist.stages.planning import choose_device

FRAGMENT_ROWS = 131_072


def fragments_of(source: Source) -> list[Fragment]:
    """The pieces of a source that are mapped over: about 64, of 131 072 rows or more."""
    return plan_fragments(source, max(FRAGMENT_ROWS, -(-source.n_rows // 64)))


def run(context: Context) -> StageResult:
    """Profile the source; the manifest holds all that later stages need to know of it."""
    config = context.config
    source = open_parquet(config.source.uri, context.storage_options)
    schema = select_features(
        source,
        features=config.source.features,
        exclude=config.source.exclude,
        keep=config.source.keep,
        label=config.source.label,
        weight=config.source.weight,
        domain=config.source.domain,
    )
    _check_output(context)
    _check_label(source, config.source.label)
    _check_weight(source, config.source.weight)
    _check_domain(source, config.source.domain)
    schema = resolve_widths(source, schema, context.storage_options)
    if schema.skipped:
        listed = "; ".join(f"'{column}' is {why}" for column, why in schema.skipped)
        context.emit("log", level="INFO", message=f"not used as features: {listed}")
    _check_clusters(config.model.n_clusters, source.n_rows)
    context.size = (source.n_rows, max(schema.width, 1))
    choose_device(config.train.device, context.executor.device)  # told before any work
    budget.announce(context, source, schema)

    fragments = fragments_of(source)
    task = partial(
        _profile,
        source=source,
        schema=schema,
        storage_options=context.storage_options,
        weight_column=config.source.weight,
        domain_column=config.source.domain,
    )
    parts = context.executor.map(task, fragments)
    rows = [fragment.n_rows for fragment in fragments]
    profile = merge_profiles(schema, context.track("profile", parts, rows))
    for warning in profile.warnings():
        context.warn(warning)
    if not config.source.keep:
        context.warn(
            "source.keep names no column: rows of labels/ join the source by position only"
        )
    scaling = fit_scaling(profile.statistics, config.prepare.scaling, profile.schema.names)
    return StageResult(
        {
            "source": source.to_json(),
            "schema": profile.schema.to_json(),
            "statistics": profile.statistics.to_json(),
            "scaling": scaling.to_json(),
            "warnings": profile.warnings(),
            "n_rows": source.n_rows,
            "n_features": profile.schema.width,
            "decoded_bytes": profile.bytes,
            "missing_values": int(np.sum(profile.statistics.missing)),
            "domains": None if profile.domains is None else profile.domains.to_json(),
        }
    )


def _profile(
    fragment: Fragment,
    *,
    source: Source,
    schema: FeatureSchema,
    storage_options: dict,
    weight_column: str | None,
    domain_column: str | None,
) -> FragmentProfile:
    return profile_fragment(source, schema, fragment, storage_options, weight_column, domain_column)


def _check_output(context: Context) -> None:
    uri = context.config.source.uri.removeprefix("file://")
    if os.path.isdir(uri) and Path(os.path.abspath(uri)) in context.output.parents:
        raise ConfigError(
            f"output.uri: {context.output} lies in the source folder {uri}, so the next run would "
            "read its own results; name a folder outside, or a source like "
            f"'{os.path.join(uri, '*.parquet')}'"
        )


def _check_label(source: Source, label: str | None) -> None:
    if label is not None and pa.types.is_nested(source.arrow_schema.field(label).type):
        raise ConfigError(
            f"source.label: column '{label}' is of type {source.column(label).type}; labels are "
            "text or numbers"
        )


def _check_weight(source: Source, weight: str | None) -> None:
    if weight is not None and source.column(weight).kind not in (NUMERIC, BOOLEAN):
        raise ConfigError(
            f"source.weight: column '{weight}' is of type {source.column(weight).type}; weights "
            "are numbers"
        )


def _check_domain(source: Source, domain: str | None) -> None:
    if domain is not None and not can_be_domain(source.arrow_schema.field(domain).type):
        raise ConfigError(
            f"source.domain: column '{domain}' is of type {source.column(domain).type}; domains "
            "are text, categories, whole numbers or booleans"
        )


def _check_clusters(n_clusters: int | tuple[int, ...] | str, n_rows: int) -> None:
    most = max(cluster_choices(n_clusters, n_rows))
    if most > n_rows:
        raise DataError(
            f"model.n_clusters: {most} clusters were asked for and the source has {n_rows} rows; "
            f"ask for {n_rows} or fewer"
        )
