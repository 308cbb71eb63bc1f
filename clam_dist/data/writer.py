"""Labels back to Parquet: beside the kept columns, in the source's order and row groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clam_dist.data.files import disk_errors, published
from clam_dist.errors import RunError

LABEL_FIELDS = (
    pa.field("cluster", pa.int32()),
    pa.field("distance", pa.float32()),
    pa.field("silhouette", pa.float32()),
)


def labels_schema(kept: pa.Schema, added: Sequence[pa.Field] = ()) -> pa.Schema:
    """Schema of a labels file: the kept columns, types and field metadata as they are, and labels.

    Metadata of the whole schema is not taken over: what pandas writes there tells of columns that
    are not here.

    Parameters
    ----------
    kept : pyarrow.Schema
        Of the kept columns; may be empty. None is called as a label column is.
    added : sequence of pyarrow.Field
        Further columns of labels, after the others.
    """
    return pa.schema([*kept, *LABEL_FIELDS, *added])


class LabelsWriter:
    """Write one labels file, or one part of it, in the row groups of its source.

    Rows are given in order, in batches of any size. A row group is written once it is full, so
    one row group's kept columns and labels are what is held. The file appears under its name when
    it is closed, whole; on an error, or without `close`, nothing is left.

    Parameters
    ----------
    path : str
        Where the file goes; its folder is made.
    kept : pyarrow.Schema
        Of the kept columns; may be empty.
    row_groups : sequence of int
        Rows of each row group, in order; 0 is allowed.
    added : sequence of pyarrow.Field
        Further columns of labels, each float32 or a fixed-size list of float32.

    Raises
    ------
    RunError
        From any method: the disk is full, or the folder cannot be written to.
    """

    def __init__(
        self,
        path: str,
        kept: pa.Schema,
        row_groups: Sequence[int],
        added: Sequence[pa.Field] = (),
    ) -> None:
        self.path = path
        self._kept = kept
        self._added = tuple(added)
        self._schema = labels_schema(kept, added)
        self._row_groups = tuple(row_groups)
        self._done = 0  # row groups written
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        with ExitStack() as stack:
            temporary = stack.enter_context(published(path))
            self._writer = stack.enter_context(_ParquetFile(path, temporary, self._schema))
            self._resources = stack.pop_all()

    def write(
        self,
        kept: pa.RecordBatch,
        cluster: np.ndarray,
        distance: np.ndarray,
        silhouette: np.ndarray | None = None,
        added: Sequence[np.ndarray] = (),
    ) -> None:
        """Add the next rows.

        Parameters
        ----------
        kept : pyarrow.RecordBatch
            Holds the kept columns, among others perhaps; n rows.
        cluster : ndarray of int, shape (n,)
            Negative where the row has no label: all its columns of labels are then null.
        distance : ndarray of float, shape (n,)
            In scaled units; NaN is null.
        silhouette : ndarray of float, shape (n,), optional
            NaN, or None for all, is null.
        added : sequence of ndarray of float, each (n,) or (n, length of the list)
            Values of the further columns, in order; NaN is null.
        """
        n = len(cluster)
        columns = [kept.column(name) for name in self._kept.names]
        if not len(distance) == n == (kept.num_rows if columns else n):
            raise ValueError(f"{kept.num_rows} rows, {n} labels and {len(distance)} distances")
        unlabelled = np.asarray(cluster) < 0
        if silhouette is None:
            silhouette = np.full(n, np.nan, np.float32)
        columns.append(pa.array(np.asarray(cluster, np.int32), mask=unlabelled))
        for values in (distance, silhouette):
            values = np.asarray(values, np.float32)
            columns.append(pa.array(values, mask=unlabelled | np.isnan(values)))
        for field, values in zip(self._added, added, strict=True):
            columns.append(_masked(np.asarray(values, np.float32), field.type, unlabelled))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        start = 0
        while start < n:
            self._write_full_groups()
            stop = min(n, start + self._room())
            self._held.append(batch.slice(start, stop - start))
            self._held_rows += stop - start
            start = stop
        self._write_full_groups()

    def close(self) -> int:
        """Publish the file under its name; returns its size in bytes.

        Raises
        ------
        ValueError
            Not all the rows of the row groups were given; nothing is left then.
        """
        self._write_full_groups()
        if self._done < len(self._row_groups):
            self.abort()
            raise ValueError(
                f"{self.path}: {self._held_rows} of {self._row_groups[self._done]} rows of row "
                f"group {self._done} of {len(self._row_groups)} were written before the end"
            )
        self._resources.close()
        return os.path.getsize(self.path)

    def abort(self) -> None:
        """Leave nothing of the file behind."""
        self._held = []
        self._resources.__exit__(_Abandoned, _Abandoned(), None)

    def __enter__(self) -> LabelsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _room(self) -> int:
        if self._done == len(self._row_groups):
            total = sum(self._row_groups)
            raise ValueError(f"{self.path}: more than the {total} rows of its row groups given")
        return self._row_groups[self._done] - self._held_rows

    def _write_full_groups(self) -> None:
        while self._done < len(self._row_groups) and self._room() == 0:
            table = pa.Table.from_batches(self._held, self._schema)
            self._held, self._held_rows = [], 0
            self._done += 1
            self._writer.write_row_group(table)


def _masked(values: np.ndarray, kind: pa.DataType, unlabelled: np.ndarray) -> pa.Array:
    """Values ``(n,)``, or lists ``(n, length)``, null where unlabelled and where NaN."""
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(values, kind, mask=unlabelled | np.isnan(values))
    flat = values.reshape(-1)
    items = pa.array(flat, kind.value_type, mask=np.isnan(flat))
    return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=pa.array(unlabelled))


def merge_parts(parts: Sequence[str], target: str) -> int:
    """Stream the parts of one labels file, in order, into that file; one row group in memory.

    Parameters
    ----------
    parts : sequence of str
        Files that `LabelsWriter` wrote, at least one, of one schema. They stay.
    target : str
        Where the file goes; its folder is made.

    Returns
    -------
    int
        Size of the file in bytes.

    Raises
    ------
    RunError
        A part is missing or broken, the disk is full, or the folder cannot be written to.
    """
    schema = _read_part(parts[0]).schema_arrow
    with published(target) as temporary, _ParquetFile(target, temporary, schema) as out:
        for path in parts:
            with _read_part(path) as part:
                for group in range(part.num_row_groups):
                    out.write_row_group(_read_group(part, path, group))
    return os.path.getsize(target)


def _read_part(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise _broken_part(path, error) from error


def _read_group(part: pq.ParquetFile, path: str, group: int) -> pa.Table:
    try:
        return part.read_row_group(group, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise _broken_part(path, error) from error


def _broken_part(path: str, error: Exception) -> RunError:
    return RunError(
        f"work file {path}: {error}; it was changed or removed during the run: "
        "delete the work folder and run again"
    )


class _Abandoned(Exception):
    """Unwinds the writer's resources as an error would, so that they leave nothing behind."""


class _ParquetFile:
    """A Parquet file written row group by row group, with disk errors that say what to do."""

    def __init__(self, path: str, temporary: str, schema: pa.Schema) -> None:
        self._path = path
        # Labels and what is not a float repeat themselves; trying a dictionary on floats only
        # costs time. Columns are named by their leaves' paths, so nested ones go without.
        repeating = [f.name for f in schema if not pa.types.is_floating(f.type)]
        with disk_errors(path):
            self._writer = pq.ParquetWriter(
                temporary, schema, compression="snappy", use_dictionary=repeating
            )

    def write_row_group(self, table: pa.Table) -> None:
        """Write a table, of any number of rows, as one row group."""
        with disk_errors(self._path):
            # each batch may bring a dictionary of its own; a row group can have only one
            self._writer.write_table(table.unify_dictionaries(), max(1, table.num_rows))

    def __enter__(self) -> _ParquetFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with disk_errors(self._path):
                self._writer.close()
            return
        # The file will be removed; what may fail now is less worth telling than the first error.
        with suppress(OSError):
            self._writer.close()
