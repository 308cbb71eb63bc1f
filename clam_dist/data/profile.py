"""One streaming pass over a source: each fragment's profile, and their merger.

Statistics of one-hot categories are not streamed (which categories there are is known only at the
end) but follow exactly from how often each category comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from clam_dist.data.domains import Domains
from clam_dist.data.features import (
    Feature,
    FeatureSchema,
    category_text,
    encode_weights,
    read_encoded,
)
from clam_dist.data.keys import KeyTrace, trace
from clam_dist.data.parquet import StorageOptions
from clam_dist.data.source import CATEGORY, NUMERIC, Fragment, Source, describe_row
from clam_dist.data.statistics import Statistics
from clam_dist.errors import DataError

MOST_CATEGORIES = 256
"""Distinct values of a category column, each an encoded dimension; more is an error."""


@dataclass(frozen=True)
class FragmentProfile:
    """What one fragment's pass found; small, whatever the fragment's size."""

    statistics: Statistics
    """Of all encoded dimensions but the categories'."""
    categories: dict[str, Counter[str]]
    """For each category column, rows of each of its values."""
    weights: dict[str, dict[str, float]]
    """The same with the rows' weights summed."""
    keys: dict[str, KeyTrace]
    """For each integer feature, whether it looks like a key."""
    bytes: int
    """Decoded size of the features' columns."""
    domains: Domains | None = None
    """The domains and their rows; None without a column of them, or without rows."""


@dataclass(frozen=True)
class Profile:
    """What the pass over the whole source found."""

    schema: FeatureSchema
    """With every category known."""
    statistics: Statistics
    """Of all d encoded dimensions."""
    keys: tuple[str, ...]
    """Integer columns that only rise or never repeat."""
    bytes: int
    """Decoded size of the features' columns."""
    domains: Domains | None = None
    """The domains and their rows, where a column of them is named."""

    def warnings(self) -> list[str]:
        """What a person should know before the features are used, a sentence or two each."""
        names = np.array(self.schema.names)
        statistics = self.statistics
        warnings = [
            f"Column '{column}' looks like a key (its values only rise or never repeat) and is "
            "used as a feature. Add it to source.keep to have it in the output instead, or to "
            "source.exclude."
            for column in self.keys
        ]
        empty = statistics.count == 0
        if statistics.constant.any():
            warnings.append(f"Constant, so of no effect: {_list(names[statistics.constant])}.")
        if empty.any():
            warnings.append(f"Missing in every row, so of no effect: {_list(names[empty])}.")
        return warnings + ([] if self.domains is None else self.domains.warnings())

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values; ``from_json`` gives an equal profile back."""
        return {
            "schema": self.schema.to_json(),
            "statistics": self.statistics.to_json(),
            "keys": list(self.keys),
            "bytes": self.bytes,
            "domains": None if self.domains is None else self.domains.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Profile:
        """The profile that ``to_json`` described."""
        return cls(
            FeatureSchema.from_json(value["schema"]),
            Statistics.from_json(value["statistics"]),
            tuple(value["keys"]),
            value["bytes"],
            None if value["domains"] is None else Domains.from_json(value["domains"]),
        )


def profile_fragment(
    source: Source,
    schema: FeatureSchema,
    fragment: Fragment,
    storage_options: StorageOptions = None,
    weight_column: str | None = None,
    domain_column: str | None = None,
) -> FragmentProfile:
    """Read a fragment once, in bounded memory.

    Parameters
    ----------
    schema : FeatureSchema
        As selected, with the widths of embeddings resolved.
    weight_column : str, optional
        Weights of the rows: they enter means and variances, and rows of weight 0 are left out of
        all statistics.
    domain_column : str, optional
        Names each row's domain.

    Raises
    ------
    DataError
        As of ``read_encoded``; a column of categories or domains with too many distinct values.
    """
    plain = replace(schema, features=tuple(f for f in schema.features if f.kind != CATEGORY))
    categories: dict[str, Counter[str]] = {
        f.column: Counter() for f in schema.features if f.kind == CATEGORY
    }
    keys = {f.column: KeyTrace.empty() for f in plain.features if _is_integer(f)}
    held: dict[str, dict[str, float]] = {column: {} for column in categories}
    statistics, decoded = Statistics.empty(plain.width), 0
    locate, first_row = partial(describe_row, source), fragment.first_row
    columns = [*categories, *filter(None, (weight_column, domain_column))]
    domains: Domains | None = None
    for batch, x in read_encoded(source, fragment, plain, storage_options, columns=columns):
        weight = None
        if weight_column is not None:
            weight = encode_weights(batch, weight_column, where=locate, first_row=first_row)
        first_row += batch.num_rows
        statistics = statistics.merge(Statistics.of(x, weight))
        for column, counts in categories.items():
            found, totals = _count_categories(batch.column(column), weight)
            counts.update(found)
            held[column] = _added(held[column], totals)
            _refuse_many(column, counts)
        for column in keys:
            keys[column] = trace(keys[column], batch.column(column))
        if domain_column is not None:
            found_here = Domains.of(domain_column, batch.column(domain_column))
            domains = _merge_domains(domains, found_here)
        decoded += batch.nbytes
    return FragmentProfile(statistics, categories, held, keys, decoded, domains)


def merge_profiles(schema: FeatureSchema, parts: Iterable[FragmentProfile]) -> Profile:
    """Merge the profiles of all fragments, in the fragments' order.

    Raises
    ------
    DataError
        A category column with too many distinct values; features without any dimension, since
        they are categories which are missing in every row.
    """
    merged = _merge_parts(parts)
    features, columns, start = [], [], 0
    for feature in schema.features:
        if feature.kind == CATEGORY:
            counts = merged.categories[feature.column]
            feature = replace(feature, width=len(counts), categories=tuple(sorted(counts)))
            held = merged.weights[feature.column]
            columns.append(_one_hot_statistics(counts, held, feature, merged.statistics.rows))
        else:
            columns.append(merged.statistics.take(slice(start, start + feature.width)))
            start += feature.width
        features.append(feature)
    resolved = replace(schema, features=tuple(features))
    if resolved.width == 0:
        raise DataError(
            f"no usable feature: {_list(resolved.columns)} are categories, missing in every row. "
            "Name other columns in source.features."
        )
    keys = tuple(column for column, known in merged.keys.items() if known.is_key)
    return Profile(resolved, Statistics.beside(columns), keys, merged.bytes, merged.domains)


def _merge_parts(parts: Iterable[FragmentProfile]) -> FragmentProfile:
    merged: FragmentProfile | None = None
    for part in parts:
        merged = part if merged is None else _merge_two(merged, part)
    if merged is None:
        raise ValueError("no fragment profiles to merge")
    return merged


def _merge_two(one: FragmentProfile, two: FragmentProfile) -> FragmentProfile:
    categories = {name: counts + two.categories[name] for name, counts in one.categories.items()}
    for column, counts in categories.items():
        _refuse_many(column, counts)
    return FragmentProfile(
        statistics=one.statistics.merge(two.statistics),
        categories=categories,
        weights={name: _added(totals, two.weights[name]) for name, totals in one.weights.items()},
        keys={name: known.merge(two.keys[name]) for name, known in one.keys.items()},
        bytes=one.bytes + two.bytes,
        domains=_merge_domains(one.domains, two.domains),
    )


def _merge_domains(one: Domains | None, two: Domains | None) -> Domains | None:
    return one.merge(two) if one is not None and two is not None else one or two


def _added(one: Mapping[str, float], two: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + two.get(name, 0.0) for name in {**one, **two}}


def _one_hot_statistics(
    counts: Mapping[str, int], held: Mapping[str, float], feature: Feature, rows: int
) -> Statistics:
    """Statistics of a category's one-hot dimensions (w,) from each category's rows and weight."""
    count = np.array([counts[category] for category in feature.categories], dtype=np.int64)
    ones = np.array([held[category] for category in feature.categories], dtype=np.float64)
    seen, total = int(count.sum()), float(ones.sum())
    divisor = total if total > 0 else 1.0
    return Statistics(
        rows=rows,
        count=np.full(feature.width, seen, dtype=np.int64),
        weight=np.full(feature.width, total),
        mean=ones / divisor,
        m2=ones * (total - ones) / divisor,
        minimum=(count == seen).astype(np.float64),
        maximum=np.ones(feature.width),
    )


def _count_categories(
    values: pa.DictionaryArray, weight: np.ndarray | None
) -> tuple[Counter[str], dict[str, float]]:
    """Rows of each category in a batch, and their weights summed; nulls are no category."""
    if weight is not None and not weight.all():
        kept = weight > 0
        values, weight = values.filter(pa.array(kept)), weight[kept]
    codes = values.indices.to_numpy(zero_copy_only=False)
    if values.null_count:
        known = values.is_valid().to_numpy(zero_copy_only=False)
        codes = codes[known].astype(np.int64)
        weight = None if weight is None else weight[known]
    rows = np.bincount(codes, minlength=len(values.dictionary))
    sums = rows if weight is None else np.bincount(codes, weight, len(values.dictionary))
    used = np.flatnonzero(rows)
    # Only those that occur: a pandas categorical may carry a dictionary of all it ever had.
    text = category_text(values.dictionary.take(pa.array(used)))
    counts: Counter[str] = Counter()
    held: dict[str, float] = {}
    for category, count, total in zip(text, rows[used].tolist(), sums[used].tolist(), strict=True):
        if category is not None:
            counts[category] += count
            held[category] = held.get(category, 0.0) + float(total)
    return counts, held


def _refuse_many(column: str, counts: Mapping[str, int]) -> None:
    if len(counts) > MOST_CATEGORIES:
        raise DataError(
            f"category column '{column}' has more than {MOST_CATEGORIES} distinct values "
            f"(at least {len(counts)}). Add '{column}' to source.exclude or source.keep."
        )


def _is_integer(feature: Feature) -> bool:
    return feature.kind == NUMERIC and feature.type.startswith(("int", "uint"))


def _list(names: Iterable[str], most: int = 10) -> str:
    listed = [f"'{name}'" for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
