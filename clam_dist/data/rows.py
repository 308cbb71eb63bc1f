"""Rows as the model sees them: encoded, missing values treated, scaled. Shards and assign share it.

Legend: n rows of a batch, d encoded features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from clam_dist.data.domains import Domains
from clam_dist.data.features import FeatureSchema, encode_weights, read_encoded
from clam_dist.data.source import Fragment, Source, describe_row
from clam_dist.data.statistics import Scaling
from clam_dist.errors import DataError


@dataclass(frozen=True)
class ScaledRows:
    """Consecutive rows of one file."""

    batch: pa.RecordBatch
    """The features' columns and the further ones asked for, as read."""
    x: np.ndarray
    """float32 (n, d), C order, scaled; NaN where missing."""
    w: np.ndarray | None
    """float64 (n,), weights; None without a weight column."""
    usable: np.ndarray | None
    """bool (n,): rows of which any feature is seen; None if that is all of them."""
    file_row: int
    """Place of the first row in its file."""
    first_row: int
    """Global row of the first."""
    domain: np.ndarray | None = None
    """uint8 (n,), codes of the rows' domains; None without domains."""


def read_scaled(
    source: Source,
    fragment: Fragment,
    schema: FeatureSchema,
    scaling: Scaling,
    *,
    missing: str = "mask",
    fill: np.ndarray | None = None,
    weight_column: str | None = None,
    domains: Domains | None = None,
    columns: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[ScaledRows]:
    """Read a fragment in batches of bounded size.

    Parameters
    ----------
    source : Source
    fragment : Fragment
    schema : FeatureSchema
    scaling : Scaling
    missing : {"mask", "mean", "error"}
        What becomes of missing values: they stay NaN, become ``fill``, or are an error.
    fill : ndarray of float64, shape (d,), optional
        Each feature's mean in its own units, for ``missing="mean"``.
    weight_column : str, optional
    domains : Domains, optional
        Of the whole source, to code the rows' domains by.
    columns : sequence of str
        Further columns wanted in ``batch``.
    storage_options : mapping, optional
        Of the source's file system.

    Raises
    ------
    DataError
        The source is broken or has changed, holds an infinity, a bad weight, or, with
        ``missing="error"``, a missing value.
    """
    file_row, first_row = fragment.file_row, fragment.first_row
    locate = partial(describe_row, source)
    if weight_column is not None and weight_column not in columns:
        columns = (*columns, weight_column)
    if domains is not None:
        columns = (*columns, domains.column)
    for batch, values in read_encoded(source, fragment, schema, storage_options, columns=columns):
        x = scaling.apply(treat_missing(values, missing, fill, schema.names, locate, first_row))
        w = None
        if weight_column is not None:
            w = encode_weights(batch, weight_column, where=locate, first_row=first_row)
        domain = None if domains is None else domains.codes(batch.column(domains.column))
        yield ScaledRows(batch, x, w, rows_with_values(x), file_row, first_row, domain)
        file_row, first_row = file_row + len(x), first_row + len(x)


def treat_missing(
    values: np.ndarray,
    missing: str,
    fill: np.ndarray | None,
    names: Sequence[str],
    locate: Callable[[int], str],
    first_row: int,
) -> np.ndarray:
    """Do with encoded rows what ``prepare.missing`` asks.

    Parameters
    ----------
    values : ndarray of float64, shape (n, d)
        NaN where missing.
    missing : {"mask", "mean", "error"}
    fill : ndarray of float64, shape (d,), or None
        For ``"mean"``; a NaN leaves that feature missing.
    names : sequence of str, length d
        Of the encoded features.
    locate : callable
        From a global row to a text that names file, row group and row.
    first_row : int
        Global row of the first.

    Returns
    -------
    ndarray of float64, shape (n, d)
        ``values`` itself if nothing is to be done.

    Raises
    ------
    DataError
        A value is missing and ``missing`` is ``"error"``.
    """
    if missing == "mask":
        return values
    holes = np.isnan(values)
    if not holes.any():
        return values
    if missing == "mean":
        if fill is None:
            raise ValueError("missing='mean' needs fill, the features' means")
        return np.where(holes, fill, values)
    if missing != "error":
        raise ValueError(f"missing must be 'mask', 'mean' or 'error', got {missing!r}")
    row = int(np.argmax(holes.any(axis=1)))
    name = names[int(np.argmax(holes[row]))]
    raise DataError(
        f"{locate(first_row + row)}: '{name}' is missing and prepare.missing is error. Fill it, "
        "leave its column out with source.exclude, or set prepare.missing to mask or mean."
    )


def rows_with_values(x: np.ndarray) -> np.ndarray | None:
    """bool (n,): rows of which any feature is seen; None if that is all of them."""
    if not any_missing(x):
        return None
    usable = ~np.isnan(x).all(axis=1)
    return None if usable.all() else usable


def any_missing(x: np.ndarray) -> bool:
    """Whether a finite array holds NaN: its sum is NaN, which one pass without a mask tells."""
    return bool(np.isnan(np.sum(x, dtype=np.float64)))
