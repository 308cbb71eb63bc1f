"""Columns to numbers: the feature schema, and the encoding of record batches to float64 rows.

Legend: n rows of a batch, d encoded dimensions (the schema's width), w dimensions of one feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clam_dist.data.parquet import StorageOptions, read_batches
from clam_dist.data.source import (
    CATEGORY,
    EMBEDDING,
    Fragment,
    Source,
    describe_row,
)
from clam_dist.errors import DataError

Where = str | Callable[[int], str]
"""Text naming a file (and row group), or a function from a row to text naming that row."""

BATCH_ROWS = 65536
BATCH_BYTES = 16 << 20
"""A batch of encoded rows is at most this many rows and, unless one row is larger, bytes."""


@dataclass(frozen=True)
class Feature:
    """One column used for clustering, and the encoded dimensions which it becomes."""

    column: str
    kind: str
    """``numeric``, ``boolean``, ``category`` or ``embedding``."""
    type: str
    """Arrow type of the column."""
    width: int
    """Encoded dimensions; 0 for categories, or lists of variable length, not yet looked at."""
    categories: tuple[str, ...] = ()
    """Values of a category column as text, one encoded dimension each, in this order."""

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each encoded dimension: ``age``, ``colour=red``, ``vector[0]``."""
        if self.kind == CATEGORY:
            return tuple(f"{self.column}={category}" for category in self.categories)
        if self.kind == EMBEDDING:
            return tuple(f"{self.column}[{index}]" for index in range(self.width))
        return (self.column,)


@dataclass(frozen=True)
class FeatureSchema:
    """The features in order; their encoded dimensions, side by side, are the columns of x."""

    features: tuple[Feature, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """Columns that are not features though nobody excluded them, and why."""

    @property
    def width(self) -> int:
        """Encoded dimensions d."""
        return sum(feature.width for feature in self.features)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each of the d encoded dimensions."""
        return tuple(name for feature in self.features for name in feature.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        return tuple(feature.column for feature in self.features)

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values; ``from_json`` gives an equal schema back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FeatureSchema:
        """The schema that ``to_json`` described."""
        features = (
            Feature(**{**feature, "categories": tuple(feature["categories"])})
            for feature in value["features"]
        )
        skipped = ((column, why) for column, why in value["skipped"])
        return cls(tuple(features), tuple(skipped))


def read_encoded(
    source: Source,
    fragment: Fragment,
    schema: FeatureSchema,
    storage_options: StorageOptions = None,
    *,
    columns: Sequence[str] = (),
    batch_rows: int | None = None,
) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Read a fragment's rows in order as record batches and encoded features.

    Parameters
    ----------
    columns : sequence of str
        Columns to have in the record batches beside the features' own.
    batch_rows : int, optional
        Rows of a batch at most; by default from the schema's width, so that an encoded batch
        takes at most 16 MiB.

    Yields
    ------
    batch : pyarrow.RecordBatch
        The features' columns and ``columns``.
    x : ndarray of float64, shape (n, d)
        As of ``encode``.

    Raises
    ------
    DataError
        As of ``read_batches`` and ``encode``, naming file, row group and row.
    """
    wanted = list(dict.fromkeys([*schema.columns, *columns]))
    rows = batch_rows or rows_per_batch(schema.width)
    where = partial(describe_row, source)
    first_row = fragment.first_row
    for batch in read_batches(source, fragment, wanted, storage_options, rows):
        yield batch, encode(batch, schema, where=where, first_row=first_row)
        first_row += batch.num_rows


def rows_per_batch(width: int) -> int:
    """Rows of a batch of ``width`` float64 dimensions: 16 MiB, from 1 to 65536 rows."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES // (8 * max(1, width))))


def encode(
    batch: pa.RecordBatch, schema: FeatureSchema, *, where: Where, first_row: int
) -> np.ndarray:
    """Encode a batch's feature columns as float64.

    Numbers are themselves, booleans 0 and 1, categories one dimension each that is 1 where the
    row has that category, embeddings their entries. A missing value is NaN: null, NaN, null in a
    list, a category that the schema does not hold.

    Parameters
    ----------
    where : str or callable
        What messages call the place: text naming the file (and row group), or a function from a
        row's number to text which names the row too.
    first_row : int
        Number of the batch's first row there, from 0.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Features side by side. In Fortran order where no feature is an embedding (each column is
        then one memory copy), else in C order. May share memory with the batch: do not write.

    Raises
    ------
    DataError
        An infinite value; an embedding that is null or of another length.
    """
    if len(schema.features) == 1 and schema.features[0].kind == EMBEDDING:
        feature = schema.features[0]
        return _embedding(batch.column(feature.column), feature, where, first_row)
    in_columns = all(feature.kind != EMBEDDING for feature in schema.features)
    x = np.empty((batch.num_rows, schema.width), order="F" if in_columns else "C")
    start = 0
    for feature in schema.features:
        stop = start + feature.width
        values = batch.column(feature.column)
        # x[:, start:stop] has shape (n, w)
        if feature.kind == CATEGORY:
            x[:, start:stop] = _one_hot(values, feature)
        elif feature.kind == EMBEDDING:
            x[:, start:stop] = _embedding(values, feature, where, first_row)
        else:
            x[:, start] = _numbers(values, feature, where, first_row)
        start = stop
    return x


def encode_weights(
    batch: pa.RecordBatch, column: str, *, where: Where, first_row: int
) -> np.ndarray:
    """A batch's row weights.

    Returns
    -------
    ndarray of float64, shape (n,)

    Raises
    ------
    DataError
        A weight that is null, NaN, infinite or negative.
    """
    values = as_float64(batch.column(column))
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{_place(where, first_row + row)}: weight column '{column}' is {values[row]}; "
            "weights must be finite and not negative. Correct the value or drop the row."
        )
    return values


def as_float64(values: pa.Array) -> np.ndarray:
    """An Arrow array of numbers or booleans as float64 (n,), NaN where null."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    elif pa.types.is_decimal(values.type) or pa.types.is_null(values.type):
        values = pc.cast(values, pa.float64())
    return values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)


def category_text(dictionary: pa.Array) -> list[str | None]:
    """A dictionary's values as text, None where it holds a null."""
    return [None if value is None else str(value) for value in dictionary.to_pylist()]


def _numbers(values: pa.Array, feature: Feature, where: Where, first_row: int) -> np.ndarray:
    numbers = as_float64(values)
    if not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        _refuse_infinite(numbers[:, None], feature, where, first_row)
    return numbers


def _one_hot(values: pa.DictionaryArray, feature: Feature) -> np.ndarray:
    """float64 (n, w): one 1 in each row, or NaN throughout."""
    known = {category: index for index, category in enumerate(feature.categories)}
    # The table of all one-hot rows, and a row of NaN last for whatever is missing or unknown.
    table = np.vstack([np.eye(feature.width), np.full((1, feature.width), np.nan)])
    missing = feature.width
    text = category_text(values.dictionary)
    codes = [missing if value is None else known.get(value, missing) for value in text]
    codes.append(missing)
    indices = pc.fill_null(values.indices.cast(pa.int64()), len(codes) - 1).to_numpy()
    return table[np.asarray(codes)[indices]]


def _embedding(values: pa.Array, feature: Feature, where: Where, first_row: int) -> np.ndarray:
    """float64 (n, w) from lists, by a view of their buffer wherever it is float64 already."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        _refuse_embedding(feature, "is null", where, first_row + row)
    lengths = list_lengths(values)
    wrong = lengths != feature.width
    if wrong.any():
        row = int(np.argmax(wrong))
        _refuse_embedding(feature, f"has {lengths[row]} numbers", where, first_row + row)
    # flatten() takes the rows of a slice only; (n * w,) -> (n, w)
    x = as_float64(values.flatten()).reshape(len(values), feature.width)
    _refuse_infinite(x, feature, where, first_row)
    return x


def list_lengths(values: pa.Array) -> np.ndarray:
    """Length of each row's list, shape (n,); no row may be null."""
    if pa.types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size)
    return np.diff(values.offsets.to_numpy())


def _refuse_embedding(feature: Feature, what: str, where: Where, row: int) -> None:
    raise DataError(
        f"{_place(where, row)}: embedding column '{feature.column}' {what}, but every row must "
        f"have a list of {feature.width} numbers. Correct or drop the row, or add "
        f"'{feature.column}' to source.exclude."
    )


def _refuse_infinite(x: np.ndarray, feature: Feature, where: Where, first_row: int) -> None:
    infinite = np.isinf(x)
    if infinite.any():
        row = int(np.argmax(infinite.any(axis=1)))
        value = x[row][infinite[row]][0]
        raise DataError(
            f"{_place(where, first_row + row)}: column '{feature.column}' is {value}. Replace "
            "infinite values by null to have them treated as missing, or add "
            f"'{feature.column}' to source.exclude."
        )


def _place(where: Where, row: int) -> str:
    return f"{where}, row {row}" if isinstance(where, str) else where(row)
