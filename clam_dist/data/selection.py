"""Which columns are features: what the config names, else every column that can be one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from clam_dist.data.features import Feature, FeatureSchema, list_lengths
from clam_dist.data.parquet import StorageOptions, read_batches
from clam_dist.data.source import (
    CATEGORY,
    EMBEDDING,
    OTHER,
    Column,
    Source,
    plan_fragments,
)
from clam_dist.errors import ConfigError, DataError

RESERVED = ("cluster", "distance", "silhouette")
"""Columns that a run writes beside the kept ones."""
PANDAS_INDEX = "__index_level_"
"""How a column that was a pandas index begins."""
REMEDIES = {
    CATEGORY: "it holds no category; use one that does",
    OTHER: "features are numbers, booleans, Arrow dictionaries or lists of floats; write it as one",
}


def select_features(
    source: Source,
    *,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    keep: Sequence[str] = (),
    label: str | None = None,
    weight: str | None = None,
    domain: str | None = None,
) -> FeatureSchema:
    """Choose the features of a source.

    Parameters
    ----------
    features : sequence of str, optional
        Columns to use, in this order. None: every numeric, boolean, category or embedding column
        that is not excluded, kept, label, weight or domain, in the source's order; the columns of
        hive folders, which say where a row is stored, and a stored pandas index are left out too.
    exclude, keep, label, weight, domain
        As in the config's ``source`` section.

    Returns
    -------
    FeatureSchema
        Widths of categories and of lists of variable length are 0 until profiled; ``skipped``
        holds columns that were left out though nothing named them, and why.

    Raises
    ------
    ConfigError
        A name that is no column (the nearest is named), a kept column of a reserved name, a
        column asked to be two things at once, a named feature that cannot be one.
    DataError
        Nothing is left to be a feature.
    """
    _check_names(
        source,
        {
            "features": features or (),
            "exclude": exclude,
            "keep": keep,
            "label": [label] if label else (),
            "weight": [weight] if weight else (),
            "domain": [domain] if domain else (),
        },
    )
    if features is not None:
        if not features:
            raise ConfigError("source.features: the list is empty; name a column, or use null")
        return FeatureSchema(tuple(_named(source.column(name)) for name in features))
    taken = {
        **dict.fromkeys(keep, "kept"),
        **dict.fromkeys(exclude, "excluded"),
        **dict.fromkeys(filter(None, [label]), "the label"),
        **dict.fromkeys(filter(None, [weight]), "the weight"),
        **dict.fromkeys(filter(None, [domain]), "the domain"),
    }
    left = [column for column in source.columns if column.name not in taken]
    reasons = {column.name: _why_not(column) for column in left}
    skipped = tuple((name, why) for name, why in reasons.items() if why)
    usable = tuple(_feature(column) for column in left if not reasons[column.name])
    if not usable:
        known = {**taken, **dict(skipped)}
        listed = "; ".join(f"'{column.name}' is {known[column.name]}" for column in source.columns)
        raise DataError(
            f"source.uri: no column of '{source.uri}' can be a feature: {listed}. Write numbers, "
            "booleans, Arrow dictionaries or lists of floats, or change source.features, exclude "
            "or keep."
        )
    return FeatureSchema(usable, skipped)


def resolve_widths(
    source: Source, schema: FeatureSchema, storage_options: StorageOptions = None
) -> FeatureSchema:
    """Set the width of embeddings stored as lists of variable length from their first row.

    Reads one small batch, and nothing where there is no such embedding.

    Raises
    ------
    DataError
        Only nulls or empty lists in the first rows.
    """
    unknown = [f.column for f in schema.features if f.kind == EMBEDDING and f.width == 0]
    if not unknown:
        return schema
    fragment = next(part for part in plan_fragments(source, 1) if part.n_rows)
    batch = next(read_batches(source, fragment, unknown, storage_options, batch_rows=64))
    widths = {}
    for column in unknown:
        lengths = list_lengths(batch.column(column).drop_null())
        if not len(lengths) or not lengths[0]:
            raise DataError(
                f"file '{source.files[fragment.file].name}': embedding column '{column}' has no "
                f"numbers in its first {batch.num_rows} rows. Every row must have a list of the "
                f"same length; correct the rows, or add '{column}' to source.exclude."
            )
        widths[column] = int(lengths[0])
    features = (replace(f, width=widths.get(f.column, f.width)) for f in schema.features)
    return replace(schema, features=tuple(features))


def _feature(column: Column) -> Feature:
    width = {CATEGORY: 0, EMBEDDING: column.width or 0}.get(column.kind, 1)
    return Feature(column.name, column.kind, column.type, width)


def _named(column: Column) -> Feature:
    if column.kind == OTHER:
        raise ConfigError(
            f"source.features: column '{column.name}' is {column.type}, which cannot be a "
            f"feature; {REMEDIES[OTHER]}, or leave it out"
        )
    return _feature(column)


def _why_not(column: Column) -> str | None:
    """Why a column that nothing names is not a feature; None where it is."""
    if column.partition:
        return "the value of a folder name (name it in source.features to use it)"
    if column.name.startswith(PANDAS_INDEX):
        return "a stored pandas index (name it in source.features to use it)"
    if column.kind == OTHER:
        return f"of type {column.type}"
    if column.kind == EMBEDDING and column.width == 0:
        return "a list of length 0"
    return None


def _check_names(source: Source, given: Mapping[str, Iterable[str]]) -> None:
    """All the config's names are columns, and no column is asked to be two things."""
    names = [column.name for column in source.columns]
    problems = []
    for key, columns in given.items():
        listed = list(columns)
        problems += _unknown(key, [name for name in listed if name not in names], names)
        problems += [
            f"source.{key}: '{name}' is listed twice"
            for name in sorted(set(listed))
            if listed.count(name) > 1
        ]
    problems += [
        f"source.keep: a kept column may not be called '{name}', as one that the run writes is; "
        "rename it in the source"
        for name in given["keep"]
        if name in RESERVED
    ]
    for key in ("exclude", "label", "weight", "domain"):
        problems += [
            f"source.features: '{name}' is also named in source.{key}; remove it from one"
            for name in given["features"]
            if name in given[key]
        ]
    problems += [
        f"source.domain: '{name}' is also source.weight; name another column in one"
        for name in given["domain"]
        if name in given["weight"]
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _unknown(key: str, absent: list[str], names: list[str]) -> list[str]:
    """A line for each name that is like a column's, and one for all the others together."""
    nearest = {name: get_close_matches(name, names, n=1) for name in absent}
    problems = [
        f"source.{key}: no column '{name}'; did you mean '{found[0]}'?"
        for name, found in nearest.items()
        if found
    ]
    strange = [f"'{name}'" for name, found in nearest.items() if not found]
    if strange:
        listed = ", ".join(names)
        problems.append(f"source.{key}: no column {', '.join(strange)}; the columns are {listed}")
    return problems
