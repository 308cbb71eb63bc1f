"""Plain ``.npy`` files written in blocks and read by position, never mapped.

Pages of a mapped file count as a process's own memory and get workers killed; positioned reads
into a buffer of our own do not.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from clam_dist.data.files import published
from clam_dist.errors import RunError

_BLOCK_BYTES = 4 * 2**20
_OPEN_FILES = 128
"""Files of one kind kept open at once: far below the usual limit of 1024 for a process."""


def write_npy(
    path: str, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]
) -> int:
    """Write an array given as consecutive blocks of rows; the file appears whole or not at all.

    Parameters
    ----------
    path : str
        Where the file goes.
    shape : tuple of int
        Of the whole array.
    dtype : numpy.dtype
    blocks : iterable of ndarray
        Together the array, cut along its first axis.

    Returns
    -------
    int
        Size of the file in bytes.

    Raises
    ------
    RunError
        The disk is full, or the folder cannot be written to.
    """
    dtype = np.dtype(dtype)
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with published(path) as temporary, open(temporary, "wb", buffering=0) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            write_all(file.fileno(), np.ascontiguousarray(block, dtype))
        size = file.tell()
    return size


def row_blocks(values: np.ndarray, order: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Blocks of rows of about 4 MiB, in the order ``order`` of rows if one is given."""
    step = max(1, _BLOCK_BYTES * len(values) // max(1, values.nbytes))
    for start in range(0, len(values), step):
        part = slice(start, start + step)
        yield values[part] if order is None else values[order[part]]


def write_all(descriptor: int, array: np.ndarray) -> None:
    """Write all bytes of a C-ordered array at the descriptor's position."""
    if array.size == 0:
        return
    rest = memoryview(array).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@dataclass(frozen=True)
class NpyLayout:
    """Where the rows of a ``.npy`` file lie."""

    path: str
    rows: int
    row_bytes: int
    start: int
    """Bytes before the first row."""

    def read_into(self, descriptor: int, first: int, out: np.ndarray) -> None:
        """Fill ``out`` (C order) with the rows from row ``first`` on.

        Raises
        ------
        RunError
            The file ends early or cannot be read.
        """
        if out.size == 0:
            return
        view = memoryview(out).cast("B")
        position = self.start + first * self.row_bytes
        try:
            while view:
                got = os.preadv(descriptor, [view], position)
                if got == 0:
                    raise _broken(self.path, f"ends before row {first + len(out)}")
                position += got
                view = view[got:]
        except OSError as error:
            raise _broken(self.path, error.strerror or str(error)) from error


def open_npy(path: str, width: int | None, dtype: np.dtype) -> tuple[int, NpyLayout]:
    """Open a ``.npy`` file for positioned reads, checking that it is what was written.

    Parameters
    ----------
    path : str
    width : int or None
        Values of each row; None for a file of one axis.
    dtype : numpy.dtype

    Returns
    -------
    descriptor : int
        To be closed by the caller.
    layout : NpyLayout

    Raises
    ------
    RunError
        The file is missing, cut off, or of another shape or type.
    """
    dtype = np.dtype(dtype)
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"version {version} of the format, not (1, 0)")
            shape, fortran, found = np.lib.format.read_array_header_1_0(file)
            start = file.tell()
        expected = (shape[0],) if width is None else (shape[0], width)
        if shape != expected or fortran or found != dtype:
            raise ValueError(f"holds {found}{shape}, not {dtype}{expected}")
        row_bytes = dtype.itemsize * (1 if width is None else width)
        size = os.path.getsize(path)
        if size != start + shape[0] * row_bytes:
            raise ValueError(f"is {size} bytes, not {start + shape[0] * row_bytes}")
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error
    except (ValueError, IndexError) as error:
        raise _broken(path, str(error)) from error
    return descriptor, NpyLayout(path, shape[0], row_bytes, start)


class OpenNpyFiles:
    """Descriptors of ``.npy`` files, the least recently used closed first."""

    def __init__(self, width: int | None, dtype: np.dtype) -> None:
        self._width, self._dtype = width, dtype
        self._open: OrderedDict[str, tuple[int, NpyLayout]] = OrderedDict()

    def get(self, path: str) -> tuple[int, NpyLayout]:
        if path in self._open:
            self._open.move_to_end(path)
        else:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1][0])
            self._open[path] = open_npy(path, self._width, self._dtype)
        return self._open[path]

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1][0])


def _broken(path: str, reason: str) -> RunError:
    return RunError(
        f"work file {path}: {reason}; it was changed or removed during the run: "
        "delete the work folder and run again"
    )
