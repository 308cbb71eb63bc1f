"""What a run reads, frozen once: files, row groups and columns as small JSON-able values.

Row order is files by relative name, then row groups in order; a *global row* is a row's int64
position in that order. Nothing here opens a file.
"""

from __future__ import annotations

import base64
import bisect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa

NUMERIC = "numeric"
BOOLEAN = "boolean"
CATEGORY = "category"
EMBEDDING = "embedding"
OTHER = "other"


@dataclass(frozen=True)
class SourceFile:
    """One file of a source as it stood when the source was opened."""

    name: str
    """Path relative to the source's base, with ``/``; includes hive folders."""
    address: str
    """Full local path or fsspec address."""
    size: int
    """Bytes."""
    modified: str
    """Modification time in nanoseconds, or an object store's etag."""
    footer: str
    """Hash of the footer's bytes, hex."""
    row_groups: tuple[int, ...]
    """Rows of each row group, in order."""

    @property
    def n_rows(self) -> int:
        """Rows of the file."""
        return sum(self.row_groups)


@dataclass(frozen=True)
class Column:
    """One column, as it is in every file of the source."""

    name: str
    type: str
    """Arrow type, the widest over all files."""
    kind: str
    """``numeric``, ``boolean``, ``category``, ``embedding`` or ``other``."""
    width: int | None = None
    """Length of each row's list for a fixed-size list; None where the files' schema has none."""
    partition: bool = False
    """True for a column whose values are in hive folder names."""


@dataclass(frozen=True)
class Source:
    """A frozen list of files which agree on their columns."""

    uri: str
    """As the user gave it."""
    base: str
    """Longest part of the address without a wildcard, which the files' names are relative to."""
    format: str
    files: tuple[SourceFile, ...]
    columns: tuple[Column, ...]
    schema: str
    """Arrow schema (types and field metadata) of ``columns``, serialised, base64."""

    @property
    def n_rows(self) -> int:
        """Rows of the whole source."""
        return sum(file.n_rows for file in self.files)

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """Global row of each file's first row, and one more: the number of rows."""
        rows = [0]
        for file in self.files:
            rows.append(rows[-1] + file.n_rows)
        return tuple(rows)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Arrow types and field metadata of all columns, partition columns last."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    def column(self, name: str) -> Column:
        """The column called ``name``; KeyError where there is none."""
        return self._columns_by_name[name]

    @cached_property
    def _columns_by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values; ``from_json`` gives an equal source back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Source:
        """The source that ``to_json`` described."""
        files = (
            SourceFile(**{**file, "row_groups": tuple(file["row_groups"])})
            for file in value["files"]
        )
        columns = (Column(**column) for column in value["columns"])
        return cls(**{**value, "files": tuple(files), "columns": tuple(columns)})


@dataclass(frozen=True)
class Fragment:
    """Consecutive whole row groups of one file: the unit of work over a source."""

    index: int
    """Place in the plan."""
    file: int
    """Index into ``Source.files``."""
    row_groups: tuple[int, int]
    """First row group and the one after the last."""
    first_row: int
    """Global row of its first row."""
    file_row: int
    """Its first row counted from the start of the file."""
    n_rows: int


def plan_fragments(source: Source, max_rows: int) -> list[Fragment]:
    """Cut every file into fragments of at most ``max_rows`` rows, never splitting a row group.

    A row group longer than ``max_rows`` is a fragment alone. A file without rows is one fragment
    of no rows, so that every file is somebody's work. Depends on the footers and ``max_rows``
    alone.
    """
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}")
    fragments: list[Fragment] = []
    for file_index, file in enumerate(source.files):
        file_row = 0
        for start, stop in _group_runs(file.row_groups, max_rows):
            n_rows = sum(file.row_groups[start:stop])
            first_row = source.first_rows[file_index] + file_row
            fragments.append(
                Fragment(len(fragments), file_index, (start, stop), first_row, file_row, n_rows)
            )
            file_row += n_rows
    return fragments


def _group_runs(row_groups: tuple[int, ...], max_rows: int) -> list[tuple[int, int]]:
    """Greedy runs ``(start, stop)`` of row groups, each of at most ``max_rows`` rows if it can."""
    runs: list[tuple[int, int]] = []
    start = rows = 0
    for index, group_rows in enumerate(row_groups):
        if index > start and rows + group_rows > max_rows:
            runs.append((start, index))
            start, rows = index, 0
        rows += group_rows
    return [*runs, (start, len(row_groups))]


def describe_row(source: Source, row: int) -> str:
    """Where a global row is, for a message: its file, row group and row inside that group.

    Rows and row groups count from 0.
    """
    index = bisect.bisect_right(source.first_rows, row) - 1
    file = source.files[index]
    offset = row - source.first_rows[index]
    for group, group_rows in enumerate(file.row_groups):
        if offset < group_rows:
            return f"file '{file.name}', row group {group}, row {offset}"
        offset -= group_rows
    raise IndexError(f"row {row} of a source of {source.n_rows} rows")


def serialize_schema(schema: pa.Schema) -> str:
    """An Arrow schema as base64 text, for ``Source.schema``."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def kind_of(data_type: pa.DataType) -> str:
    """What a column of this Arrow type can be as a feature.

    Lists of floats, and fixed-size lists of any number, are embeddings. A variable list of
    integers is not: it is far more often a list of tags or tokens, of any length.
    """
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if _is_number(data_type):
        return NUMERIC
    if pa.types.is_boolean(data_type):
        return BOOLEAN
    if pa.types.is_dictionary(data_type):
        value = cast(pa.DictionaryType, data_type).value_type
        named = pa.types.is_string(value) or pa.types.is_large_string(value)
        return CATEGORY if named or pa.types.is_integer(value) else OTHER
    if pa.types.is_fixed_size_list(data_type):
        return EMBEDDING if _is_number(data_type.value_type) else OTHER
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return EMBEDDING if pa.types.is_floating(data_type.value_type) else OTHER
    return OTHER


def list_width(data_type: pa.DataType) -> int | None:
    """Length of a fixed-size list type; None for every other type."""
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    return data_type.list_size if pa.types.is_fixed_size_list(data_type) else None


def _is_number(data_type: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type)
    )
