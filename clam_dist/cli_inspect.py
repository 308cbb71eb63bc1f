"""What ``clam-dist inspect`` finds in a source and how it prints it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clam_dist.config import SourceConfig
from clam_dist.data.features import Feature
from clam_dist.data.files import size_text
from clam_dist.data.parquet import open_parquet
from clam_dist.data.profile import Profile, merge_profiles, profile_fragment
from clam_dist.data.selection import resolve_widths, select_features
from clam_dist.data.source import CATEGORY, Source, plan_fragments
from clam_dist.data.statistics import Statistics
from clam_dist.errors import DataError

FRAGMENT_ROWS = 131_072


@dataclass(frozen=True)
class Inspection:
    """A source and the profile of its features."""

    source: Source
    profile: Profile

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the source's size, one entry a feature, columns left out, warnings."""
        return {
            "uri": self.source.uri,
            "rows": self.source.n_rows,
            "files": len(self.source.files),
            "row_groups": sum(len(file.row_groups) for file in self.source.files),
            "bytes": sum(file.size for file in self.source.files),
            "decoded_bytes": self.profile.bytes,
            "features": summaries(self.profile),
            "skipped": dict(self.profile.schema.skipped),
            "warnings": self.profile.warnings(),
        }


def inspect_source(config: SourceConfig) -> Inspection:
    """Read every feature of a source once, in bounded memory.

    Raises
    ------
    ConfigError, DataError
        As a run's first stage would.
    """
    options = config.storage_options_plain()
    source = open_parquet(config.uri, options)
    if source.n_rows == 0:
        raise DataError(f"source.uri: '{config.uri}' has no rows; there is nothing to inspect")
    schema = select_features(
        source,
        features=config.features,
        exclude=config.exclude,
        keep=config.keep,
        label=config.label,
        weight=config.weight,
        domain=config.domain,
    )
    schema = resolve_widths(source, schema, options)
    parts = (
        profile_fragment(source, schema, fragment, options)
        for fragment in plan_fragments(source, FRAGMENT_ROWS)
    )
    return Inspection(source, merge_profiles(schema, parts))


def _missing(feature: Feature, part: Statistics) -> int:
    if feature.width == 0:  # a category column without any category has nothing to count by
        return part.rows
    # A category's dimensions are missing together: they are one value.
    return int(part.missing.max() if feature.kind == CATEGORY else part.missing.sum())


def summaries(profile: Profile) -> list[dict[str, Any]]:
    """One JSON-able entry for each feature column.

    ``missing`` counts values (of a list column those in its lists); ``mean`` and ``deviation``
    (population) are those of a column of one dimension, ``minimum`` and ``maximum`` of all its
    dimensions; None where no value was seen.
    """
    entries, start = [], 0
    for feature in profile.schema.features:
        part = profile.statistics.take(slice(start, start + feature.width))
        start += feature.width
        seen = part.count > 0
        single = feature.width == 1 and bool(seen.all())
        entries.append(
            {
                "column": feature.column,
                "kind": feature.kind,
                "type": feature.type,
                "dimensions": feature.width,
                "missing": _missing(feature, part),
                "mean": float(part.mean[0]) if single else None,
                "deviation": float(np.sqrt(part.variance[0])) if single else None,
                "minimum": float(part.minimum[seen].min()) if seen.any() else None,
                "maximum": float(part.maximum[seen].max()) if seen.any() else None,
            }
        )
    return entries


def inspection_text(inspection: Inspection, width: int | None, styled: bool) -> str:
    """Size, a table of the features, the columns left out and what to look at.

    Parameters
    ----------
    inspection : Inspection
    width : int or None
        Characters a line; None for the terminal's.
    styled : bool
        Whether a terminal reads it.
    """
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=styled)
    found = inspection.to_json()
    console.print(
        f"{found['uri']}: {found['rows']:,} rows in {found['files']:,} file(s) and "
        f"{found['row_groups']:,} row group(s), {size_text(found['bytes'])}",
        highlight=False,
        markup=False,
    )
    table = Table("feature", "type", box=None, pad_edge=False)
    for heading in ("dimensions", "missing", "mean", "deviation", "minimum", "maximum"):
        table.add_column(heading, justify="right")
    for entry in found["features"]:
        numbers = [entry[key] for key in ("mean", "deviation", "minimum", "maximum")]
        table.add_row(
            escape(entry["column"]),
            escape(_short_type(entry)),
            f"{entry['dimensions']:,}",
            f"{entry['missing']:,}",
            *("" if number is None else f"{number:.4g}" for number in numbers),
        )
    console.print(table)
    for column, why in found["skipped"].items():
        console.print(f"not a feature: {column} is {why}", highlight=False, markup=False)
    for warning in found["warnings"]:
        console.print(f"warning: {warning}", highlight=False, markup=False)
    return written.getvalue()


def _short_type(entry: dict[str, Any]) -> str:
    return "category" if entry["kind"] == CATEGORY else str(entry["type"])
