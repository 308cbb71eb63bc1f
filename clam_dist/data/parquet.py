"""Parquet: footers to a frozen source, row groups to record batches in bounded memory."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext

import pyarrow as pa
import pyarrow.parquet as pq

from clam_dist.data.address import (
    FoundFile,
    StorageOptions,
    find_files,
    open_input,
    read_range,
    stat_file,
)
from clam_dist.data.columns import partition_value, unify_columns
from clam_dist.data.source import Fragment, Source, SourceFile, serialize_schema
from clam_dist.errors import DataError

SUFFIXES = (".parquet", ".parq", ".pq")
MAGIC = b"PAR1"
FOOTER_GUESS = 64 << 10
"""Bytes read from a file's end at first; a longer footer takes a second read."""
FOOTER_THREADS = 16
READ_BYTES = 64 << 20
"""Bytes of encoded column chunks buffered while reading, over all columns, about."""

_BROKEN = (pa.ArrowException, OSError)


def open_parquet(uri: str, storage_options: StorageOptions = None) -> Source:
    """Freeze a file, a folder (also hive-partitioned) or a glob, reading footers alone.

    Parameters
    ----------
    uri : str
        Local path or any fsspec address; see ``address.find_files`` for what it takes.
    storage_options : mapping, optional
        For fsspec; not kept.

    Raises
    ------
    DataError
        Nothing there, no rows, a file that is not Parquet or is cut off, columns that files do
        not agree on, two columns of one name.
    """
    base, found = find_files(uri, storage_options, SUFFIXES)

    def footer(file: FoundFile) -> tuple[SourceFile, pa.Schema]:
        digest, metadata = _read_footer(file.name, file.address, file.size, storage_options)
        groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        entry = SourceFile(file.name, file.address, file.size, file.modified, digest, groups)
        return entry, metadata.schema.to_arrow_schema()

    with ThreadPoolExecutor(min(FOOTER_THREADS, len(found))) as pool:
        # in order, so that a message names the first of several bad files, always
        files, schemas = zip(*pool.map(footer, found), strict=True)
    columns, schema = unify_columns([file.name for file in files], list(schemas))
    source = Source(uri, base, "parquet", files, columns, serialize_schema(schema))
    if source.n_rows == 0:
        raise DataError(f"source.uri: '{uri}' has no rows ({len(files)} Parquet files, all empty)")
    return source


def check_unchanged(
    source: Source, file_index: int, storage_options: StorageOptions = None
) -> pq.FileMetaData:
    """Make sure that a file is what it was when the source was frozen.

    Returns
    -------
    pyarrow.parquet.FileMetaData
        The footer, to open the file with.

    Raises
    ------
    DataError
        Its size, modification time or footer is another, or it is gone.
    """
    file = source.files[file_index]
    _check_stamp(file, storage_options)
    digest, metadata = _read_footer(file.name, file.address, file.size, storage_options)
    if digest != file.footer:
        raise _changed(file, "its footer is another")
    return metadata


def read_batches(
    source: Source,
    fragment: Fragment,
    columns: Sequence[str],
    storage_options: StorageOptions = None,
    batch_rows: int = 65536,
) -> Iterator[pa.RecordBatch]:
    """Read some columns of a fragment's rows, in order, page by page.

    Memory is bounded by ``batch_rows`` and the read buffers, however long a row group is. The
    file is checked to be unchanged before the first batch and after the last.

    Yields
    ------
    pyarrow.RecordBatch
        ``columns`` in their order, with the source's types and field metadata; at most
        ``batch_rows`` rows. May span row groups.

    Raises
    ------
    DataError
        The file changed, or cannot be read: names file, row group and column.
    """
    file = source.files[fragment.file]
    metadata = check_unchanged(source, fragment.file, storage_options)
    wanted = pa.schema([source.arrow_schema.field(name) for name in columns])
    stored = [name for name in columns if not source.column(name).partition]
    groups = range(*fragment.row_groups)
    handle = open_input(file.address, storage_options)
    rows = 0
    with (
        nullcontext() if isinstance(handle, str) else closing(handle),
        _parquet_file(handle, metadata, len(stored)) as parquet,
    ):
        batches = parquet.iter_batches(batch_rows, groups, stored)
        while (batch := _next_batch(batches, parquet, file, groups, stored)) is not None:
            rows += batch.num_rows
            yield _as_wanted(batch, wanted, file)
    # Arrow's allocator keeps what a read took, with 256 columns 150 MiB that nothing else can use.
    del batches, batch
    pa.default_memory_pool().release_unused()
    if rows != fragment.n_rows:
        raise DataError(
            f"file '{file.name}', row groups {groups.start} to {groups.stop - 1}: "
            f"{rows} rows read but its footer says {fragment.n_rows}. Write the file again."
        )
    _check_stamp(file, storage_options)


def _parquet_file(handle: object, metadata: pq.FileMetaData, n_columns: int) -> pq.ParquetFile:
    # With a buffer size, Arrow streams each column chunk instead of reading it whole; chunks of
    # all columns are open at once, so they share one budget.
    buffer_size = min(1 << 20, max(64 << 10, READ_BYTES // max(1, n_columns)))
    return pq.ParquetFile(
        handle,
        metadata=metadata,
        buffer_size=buffer_size,
        pre_buffer=False,
        page_checksum_verification=True,
    )


def _next_batch(
    batches: Iterator[pa.RecordBatch],
    parquet: pq.ParquetFile,
    file: SourceFile,
    groups: range,
    columns: Sequence[str],
) -> pa.RecordBatch | None:
    """The next batch, or None after the last."""
    try:
        return next(batches, None)
    except _BROKEN as error:
        place, cause = _find_damage(parquet, groups, columns) or ("", error)
        raise DataError(
            f"file '{file.name}'{place} cannot be read: {_one_line(cause)}. The file is damaged: "
            "write it again, or leave it out of source.uri."
        ) from error


def _find_damage(
    parquet: pq.ParquetFile, groups: range, columns: Sequence[str]
) -> tuple[str, Exception] | None:
    """Read each column chunk alone to find the first that cannot be; None if all can."""
    for group in groups:
        for column in columns:
            try:
                for _ in parquet.iter_batches(row_groups=[group], columns=[column]):
                    pass
            except _BROKEN as error:
                return f", row group {group}, column '{column}'", error
    return None


def _as_wanted(batch: pa.RecordBatch, wanted: pa.Schema, file: SourceFile) -> pa.RecordBatch:
    """The batch with the source's columns and types, those of folder names filled in."""
    arrays = []
    for field in wanted:
        if batch.schema.get_field_index(field.name) < 0:
            value = partition_value(file.name, field)
            arrays.append(pa.repeat(value, batch.num_rows))
            continue
        array = batch.column(field.name)
        if array.type != field.type:
            array = _widen(array, field, file)
        arrays.append(array)
    if not arrays:
        return batch
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _widen(array: pa.Array, field: pa.Field, file: SourceFile) -> pa.Array:
    try:
        return array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"file '{file.name}': column '{field.name}' is {array.type} here but {field.type} "
            f"over all files, which does not hold its values: {_one_line(error)}. Write the "
            "files with one type for the column."
        ) from error


def _check_stamp(file: SourceFile, storage_options: StorageOptions) -> None:
    try:
        size, modified = stat_file(file.address, storage_options)
    except FileNotFoundError as error:
        raise _changed(file, "it is gone") from error
    if size != file.size:
        raise _changed(file, f"it had {file.size} bytes and now has {size}")
    if modified != file.modified:
        raise _changed(file, f"it was modified (stamp {file.modified}, now {modified})")


def _changed(file: SourceFile, what: str) -> DataError:
    return DataError(
        f"file '{file.name}' changed since the source was profiled: {what}. Leave the source "
        "alone while a run is under way; start over with --force to take it as it is now."
    )


def _read_footer(
    name: str, address: str, size: int, storage_options: StorageOptions
) -> tuple[str, pq.FileMetaData]:
    """Hash and content of a file's footer, from its last bytes."""
    # A file ends with: footer, its length as 4 bytes little-endian, and the magic bytes.
    if size == 0:
        raise DataError(f"file '{name}' is empty (0 bytes): not a Parquet file")
    tail = read_range(address, storage_options, max(0, size - FOOTER_GUESS), size)
    if len(tail) < 12 or tail[-4:] != MAGIC:
        raise DataError(_not_parquet(name, tail, read_range(address, storage_options, 0, 4)))
    length = struct.unpack("<I", tail[-8:-4])[0] + 8
    if length + len(MAGIC) > size:
        raise DataError(
            f"file '{name}' is cut off or damaged: its footer should have {length} bytes but the "
            f"file has {size}. Write the file again, or leave it out of source.uri."
        )
    if length > len(tail):
        tail = read_range(address, storage_options, size - length, size)
    footer = tail[-length:]
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + footer))
    except _BROKEN as error:
        raise DataError(
            f"file '{name}': its Parquet footer is damaged: {_one_line(error)}. Write the file "
            "again, or leave it out of source.uri."
        ) from error
    return hashlib.blake2b(footer, digest_size=16).hexdigest(), metadata


def _not_parquet(name: str, tail: bytes, head: bytes) -> str:
    if tail[-4:] == b"PARE" or head == b"PARE":
        return f"file '{name}' is encrypted Parquet, which cannot be read; write it unencrypted"
    if head == MAGIC:
        return (
            f"file '{name}' is cut off: it begins as Parquet but its end, the footer, is not "
            "there. Write the file again, or leave it out of source.uri."
        )
    return f"file '{name}' is not a Parquet file; leave it out of source.uri or convert it"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
