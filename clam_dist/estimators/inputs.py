"""Whatever holds rows, as blocks of plain arrays; and results in the form the rows came in.

pandas, Arrow, torch, xarray and Dask objects are recognised by where their types come from, and
used by their methods, so that none of these packages is imported here. Letters: ``n`` rows, ``d``
features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.utils import check_array

from clam_dist.data.arrays import Part
from clam_dist.data.features import as_float64

Function = Callable[[np.ndarray], np.ndarray]
"""Of a block ``(n, d)`` in original units, to ``(n,)`` or ``(n, m)``."""


def _as_they_are(values: Any) -> Any:
    return values


@dataclass(frozen=True)
class Rows:
    """Rows as an estimator takes them.

    Parameters
    ----------
    values
        An array ``(n, d)``, or a Dask array with one block for each part of the rows.
    names
        Of the features, None where the container has none.
    plain
        Whether ``values`` is what the caller gave, and has not been looked at.
    lazy
        Whether ``values`` is a Dask array.
    wrap_rows, wrap_cells
        Put results of one value a row, and of one a cell, into the form of the container.
    """

    values: Any
    names: tuple[str, ...] | None = None
    plain: bool = False
    lazy: bool = False
    wrap_rows: Callable[[Any], Any] = _as_they_are
    wrap_cells: Callable[[Any], Any] = _as_they_are

    @property
    def width(self) -> int:
        """Features ``d``."""
        return int(self.values.shape[1])

    def parts(self) -> Iterator[np.ndarray]:
        """The rows in order; of a Dask array one computed block at a time, none kept."""
        if not self.lazy:
            yield self.values
            return
        for number in range(self.values.numblocks[0]):
            yield checked(self.values.blocks[number].compute())

    def with_weights(self, weight: Any = None) -> Callable[[], Iterable[Part]]:
        """:meth:`parts` with their rows' weights, anew at each call.

        Raises
        ------
        ValueError
            The weights do not fit the rows, or are not finite and positive or zero.
        """
        if weight is None:
            return lambda: ((part, None) for part in self.parts())
        if _comes_from(weight, "dask"):
            column = weight.to_dask_array() if hasattr(weight, "to_dask_array") else weight
            if not self.lazy or column.numblocks[0] != self.values.numblocks[0]:
                raise ValueError(
                    f"sample_weight is a Dask collection of {column.numblocks[0]} partitions: the "
                    "rows must be one too, with the same partitions"
                )
            return lambda: self._beside(column)
        whole = check_weight(weight)
        if not self.lazy:
            _check_length(len(whole), len(self.values))
            if not whole.any():
                raise ValueError("sample_weight is zero for every row; give positive weights")
            return lambda: iter([(self.values, whole)])
        return lambda: self._cut(whole)

    def _beside(self, column: Any) -> Iterator[Part]:
        for number, part in enumerate(self.parts()):
            weight = check_weight(column.blocks[number].compute())
            _check_length(len(weight), len(part))
            yield part, weight

    def _cut(self, whole: np.ndarray) -> Iterator[Part]:
        first = 0
        for part in self.parts():
            last = first + len(part)
            _check_length(min(len(whole), last) - first, len(part))
            yield part, whole[first:last]
            first = last
        _check_length(len(whole), first)

    def map_rows(self, function: Function, dtype: Any) -> Any:
        """``function`` of every row, one value each, as an array or a Dask array."""
        if not self.lazy:
            return function(self.values)
        meta = np.empty(0, dtype=dtype)
        return self.values.map_blocks(_OfBlock(function), dtype=dtype, drop_axis=1, meta=meta)

    def map_cells(self, function: Function, width: int, dtype: Any) -> Any:
        """``function`` of every row, ``width`` values each, as an array or a Dask array."""
        if not self.lazy:
            return function(self.values)
        chunks, meta = (self.values.chunks[0], (width,)), np.empty((0, width), dtype=dtype)
        return self.values.map_blocks(_OfBlock(function), dtype=dtype, chunks=chunks, meta=meta)


@dataclass(frozen=True)
class _OfBlock:
    """A function as Dask calls it on a block, wherever that is."""

    function: Function

    def __call__(self, block: np.ndarray) -> np.ndarray:
        return self.function(checked(block))


def gather(parts: Iterable[Part], most: int) -> Part | None:
    """All rows as one part, or None as soon as they are more than ``most``."""
    xs: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    rows = 0
    for x, weight in parts:
        rows += len(x)
        if rows > most:
            return None
        xs.append(x)
        if weight is not None:
            weights.append(weight)
    return (xs[0] if len(xs) == 1 else np.concatenate(xs)), (
        np.concatenate(weights) if weights else None
    )


def checked(block: Any) -> np.ndarray:
    """A part of the rows as numbers, NaN where missing; ValueError where that is not so."""
    found: np.ndarray = check_array(
        block, dtype="numeric", ensure_all_finite="allow-nan", ensure_min_samples=0, input_name="X"
    )
    return found


def wrong_column(x: Any) -> str | None:
    """What to say of the first column of a pandas frame that is not numbers; None without one."""
    if not (hasattr(x, "iloc") and hasattr(x, "columns")):
        return None
    for place, name in enumerate(x.columns):
        column = x.iloc[:, place]
        kind = getattr(column.dtype, "kind", "O")
        if kind in "biuf":
            continue
        try:
            if kind not in "mM":
                np.asarray(column, dtype=np.float64)
                continue
        except (TypeError, ValueError):
            pass
        return (
            f"column {name!r} is of type {column.dtype}, not numbers: encode it or leave it out "
            "(a run of clam-dist encodes categories itself)"
        )
    return None


def check_weight(weight: Any) -> np.ndarray:
    """Weights as float64 ``(n,)``; ValueError unless they are finite and not negative."""
    values = np.asarray(weight, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"sample_weight must have one value a row, not shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"sample_weight is {values[row]} at row {row}; weights are finite and not negative"
        )
    return values


def _check_length(found: int, rows: int) -> None:
    if found != rows:
        raise ValueError(f"sample_weight has {found} values for {rows} rows")


def open_rows(x: Any) -> Rows:
    """Recognise what holds the rows.

    Raises
    ------
    ValueError
        A column of a table is not numbers; the dimensions of xarray objects do not fit.
    """
    if _comes_from(x, "dask"):
        return _open_dask(x)
    if _comes_from(x, "xarray"):
        return _open_dataset(x) if hasattr(x, "data_vars") else _open_data_array(x)
    if _comes_from(x, "torch"):
        return Rows(_from_torch(x))
    if isinstance(x, (pa.Table, pa.RecordBatch)):
        return _open_arrow(x)
    if isinstance(x, np.ma.MaskedArray):
        return Rows(_from_masked(x), plain=True)
    if hasattr(x, "iloc") and hasattr(x, "columns"):
        again = type(x)
        return Rows(x, plain=True, wrap_cells=lambda c: again(c, index=x.index, columns=x.columns))
    return Rows(x, plain=True)


def _comes_from(value: Any, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def _open_dask(x: Any) -> Rows:
    names = None
    if hasattr(x, "to_dask_array"):
        names = tuple(x.columns) if hasattr(x, "columns") else None
        x = x.astype("float64").to_dask_array()
    _check_axes(x)
    return Rows(x.rechunk({1: -1}), names, lazy=True)


def _check_axes(x: Any) -> None:
    if x.ndim != 2:
        raise ValueError(f"Expected 2D array, got {x.ndim}D array instead: give rows by features")


def _from_masked(x: np.ma.MaskedArray) -> np.ndarray:
    """A masked array's values as floats, nan where masked."""
    kind = x.dtype if np.issubdtype(x.dtype, np.floating) else np.float64
    values: np.ndarray = np.array(np.ma.getdata(x), dtype=kind)
    values[np.ma.getmaskarray(x)] = np.nan
    return values


def _from_torch(x: Any) -> np.ndarray:
    x = x.detach().cpu()
    if x.is_floating_point() and x.element_size() < 4:
        x = x.float()  # NumPy has no bfloat16
    found: np.ndarray = x.numpy()
    return found


def _open_arrow(table: pa.Table | pa.RecordBatch) -> Rows:
    names = tuple(table.schema.names)
    columns = []
    for name, kind in zip(names, table.schema.types, strict=True):
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (number or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)):
            raise ValueError(
                f"column '{name}' is of type {kind}, not numbers: encode it or leave it out "
                "(a run of clam-dist encodes categories itself)"
            )
    for column in table.columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        columns.append(as_float64(whole))
    values = np.stack(columns, axis=1) if columns else np.empty((table.num_rows, 0))
    return Rows(
        values, names, wrap_cells=lambda cells: pa.Table.from_arrays(list(cells.T), list(names))
    )


def _open_data_array(x: Any) -> Rows:
    if x.ndim != 2:
        raise ValueError(
            f"the DataArray has the dimensions {x.dims}: give two, rows by features, or a Dataset "
            "with a variable for each feature"
        )
    along = x.dims[1]
    labels = x.coords[along].values if along in x.coords else np.empty(0)
    named = len(labels) > 0 and all(isinstance(label, str) for label in labels)
    data, lazy = _data(x.data)

    def of_rows(found: Any) -> Any:
        return _like(x.isel({along: 0}, drop=True), found)

    return Rows(
        data,
        tuple(map(str, labels)) if named else None,
        lazy=lazy,
        wrap_rows=of_rows,
        wrap_cells=lambda cells: x.copy(data=cells),
    )


def _open_dataset(dataset: Any) -> Rows:
    names = tuple(map(str, dataset.data_vars))
    if not names:
        raise ValueError("the Dataset has no variables: give one for each feature")
    first = dataset[names[0]]
    for name in names:
        if set(dataset[name].dims) != set(first.dims):
            raise ValueError(
                f"variable '{name}' has the dimensions {dataset[name].dims} and '{names[0]}' has "
                f"{first.dims}: features of the same cells have the same dimensions"
            )
    stacked = dataset.to_dataarray("clam_dist_feature")
    data = stacked.transpose(*first.dims, "clam_dist_feature").data
    if _comes_from(data, "dask"):
        data = data.rechunk({data.ndim - 1: -1})
    values, lazy = _data(data.reshape(-1, len(names)))

    def of_cells(cells: Any) -> Any:
        grid = cells.reshape(*first.shape, len(names))
        return dataset.assign(
            {
                name: dataset[name].transpose(*first.dims).copy(data=grid[..., number])
                for number, name in enumerate(names)
            }
        )

    return Rows(
        values,
        names,
        lazy=lazy,
        wrap_rows=lambda found: _like(first, found.reshape(first.shape)),
        wrap_cells=of_cells,
    )


def _data(values: Any) -> tuple[Any, bool]:
    if _comes_from(values, "dask"):
        return values.rechunk({1: -1}), True
    return values, False


def _like(template: Any, found: Any) -> Any:
    """A DataArray of clusters with the template's dimensions and coordinates."""
    labels = template.copy(data=found).rename("cluster")
    labels.attrs = {}
    return labels
