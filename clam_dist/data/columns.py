"""Which columns a source has: one list that all its files agree on, and those of hive folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa

from clam_dist.data.source import EMBEDDING, Column, kind_of, list_width
from clam_dist.errors import DataError

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HIVE_FOLDER = re.compile(r"([^=]+)=(.*)")
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def unify_columns(
    names: Sequence[str], schemas: Sequence[pa.Schema]
) -> tuple[tuple[Column, ...], pa.Schema]:
    """The columns of all files, in the first file's order, partition columns last.

    Numbers may differ in width between files and take the widest type; nothing else may differ.

    Parameters
    ----------
    names : sequence of str
        Relative names of the files, whose ``key=value`` folders are partition columns; a column
        of that name inside the files is taken instead.
    schemas : sequence of pyarrow.Schema
        Of each file.

    Raises
    ------
    DataError
        Two columns of one name; a column that a file lacks or has with another type.
    """
    first = schemas[0]
    unified = {field.name: _plain(field) for field in first}
    for name, schema in zip(names, schemas, strict=True):
        _refuse_duplicates(name, schema)
        if schema.equals(first):
            continue
        _refuse_other_names(names[0], first, name, schema)
        for field in schema:
            unified[field.name] = _widest(unified[field.name], _plain(field), name)
    columns = [
        Column(field.name, str(field.type), kind_of(field.type), list_width(field.type))
        for field in unified.values()
    ]
    partitions = [f for f in _partition_fields(names) if f.name not in unified]
    columns += [
        Column(field.name, str(field.type), kind_of(field.type), partition=True)
        for field in partitions
    ]
    return tuple(columns), pa.schema([*unified.values(), *partitions])


def partition_value(name: str, field: pa.Field) -> pa.Scalar:
    """Value of a partition column for every row of the file called ``name``."""
    text = _hive_values(name)[field.name]
    if text is None:
        return pa.scalar(None, field.type)
    return pa.scalar(int(text) if pa.types.is_integer(field.type) else text, field.type)


def _hive_values(name: str) -> dict[str, str | None]:
    """Keys and values of the ``key=value`` folders in a relative name."""
    matches = (_HIVE_FOLDER.fullmatch(part) for part in name.split("/")[:-1])
    pairs = ((unquote(match[1]), unquote(match[2])) for match in matches if match)
    return {key: None if value == HIVE_NULL else value for key, value in pairs}


def _partition_fields(names: Sequence[str]) -> list[pa.Field]:
    """int64 where every file's value is an integer or null, else string."""
    values = [_hive_values(name) for name in names]
    keys = list(values[0])
    for name, pairs in zip(names, values, strict=True):
        if list(pairs) != keys:
            raise DataError(
                f"file '{name}' is in partition folders {list(pairs)} but file '{names[0]}' in "
                f"{keys}; every file must be in folders of the same keys"
            )
    fields = []
    for key in keys:
        texts = [pairs[key] for pairs in values if pairs[key] is not None]
        integer = bool(texts) and all(
            _INTEGER.fullmatch(text) for text in texts if text is not None
        )
        fields.append(pa.field(key, pa.int64() if integer else pa.string()))
    return fields


def _plain(field: pa.Field) -> pa.Field:
    """The field without what only its own Parquet file means: id, and whether null may occur."""
    metadata = {k: v for k, v in (field.metadata or {}).items() if k != b"PARQUET:field_id"}
    return pa.field(field.name, field.type, metadata=metadata or None)


def _refuse_duplicates(name: str, schema: pa.Schema) -> None:
    for column, count in Counter(schema.names).items():
        if count > 1:
            raise DataError(
                f"file '{name}' has {count} columns named '{column}'. Write it with a different "
                "name for each column."
            )


def _refuse_other_names(first_name: str, first: pa.Schema, name: str, schema: pa.Schema) -> None:
    for has, has_name, lacks, lacks_name in (
        (first, first_name, schema, name),
        (schema, name, first, first_name),
    ):
        for column in has.names:
            if column not in lacks.names:
                raise DataError(
                    f"column '{column}' is missing from file '{lacks_name}' but is in file "
                    f"'{has_name}'. Write the files with the same columns, or name those that "
                    "belong together by a glob in source.uri."
                )


def _widest(known: pa.Field, other: pa.Field, name: str) -> pa.Field:
    """``known`` with the narrowest type that holds both, where both are the same kind of thing."""
    if known.type == other.type:
        return known
    try:
        merged = pa.unify_schemas(
            [pa.schema([known.remove_metadata()]), pa.schema([other.remove_metadata()])],
            promote_options="permissive",
        )
        data_type = merged.field(0).type
    except pa.ArrowException:
        data_type = None
    if data_type is None or not _same_kind(known.type, other.type):
        raise DataError(
            f"column '{known.name}' is {other.type} in file '{name}' but {known.type} in the files "
            "before it. Write the files with one type for the column."
        )
    return known.with_type(data_type)


def _same_kind(one: pa.DataType, two: pa.DataType) -> bool:
    """Whether values of both types can be one column: a column without any value fits all."""
    if pa.types.is_null(one) or pa.types.is_null(two):
        return True
    kind = kind_of(one)
    if kind == EMBEDDING:
        widths = {list_width(one), list_width(two)} - {None}
        return kind_of(two) == EMBEDDING and len(widths) <= 1
    return kind == kind_of(two)
