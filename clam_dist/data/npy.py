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
_OPEN_FILES = 256
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
    rest = array.data.cast("B")
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
        view = out.data.cast("B")
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


def npy_layout(path: str, width: int | None, dtype: np.dtype) -> NpyLayout:
    """Read a file's header, checking that the file is what was written.

    Parameters
    ----------
    path : str
    width : int or None
        Values of each row; None for a file of one axis.
    dtype : numpy.dtype

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
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _broken(path, str(error)) from error
    expected = (*shape[:1],) if width is None else (*shape[:1], width)
    if shape != expected or not shape or fortran or found != dtype:
        raise _broken(path, f"holds {found}{shape}, not {dtype}{expected}")
    row_bytes = dtype.itemsize * (1 if width is None else width)
    if size != start + shape[0] * row_bytes:
        raise _broken(path, f"has {size} bytes, not {start + shape[0] * row_bytes}")
    return NpyLayout(path, shape[0], row_bytes, start)


class OpenNpyFiles:
    """Descriptors of ``.npy`` files of one kind, the least recently used closed first.

    Parameters
    ----------
    width : int or None
        Values of each row; None for files of one axis.
    dtype : numpy.dtype
    """

    def __init__(self, width: int | None, dtype: np.dtype) -> None:
        self._width, self._dtype = width, dtype
        self._layouts: dict[str, NpyLayout] = {}
        self._open: OrderedDict[str, int] = OrderedDict()
        self.bytes_read = 0
        """Of all rows read so far."""

    def read_into(self, path: str, first: int, out: np.ndarray) -> None:
        """Fill ``out`` with the rows of the file ``path`` from row ``first`` on.

        Raises
        ------
        RunError
            The file is missing, cut off, of another shape or type, or cannot be read.
        """
        if path not in self._layouts:
            self._layouts[path] = npy_layout(path, self._width, self._dtype)
        self._layouts[path].read_into(self._descriptor(path), first, out)
        self.bytes_read += out.nbytes

    def close(self) -> None:
        """Close all files; reading opens them anew."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
        else:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            try:
                self._open[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise _broken(path, error.strerror or str(error)) from error
        return self._open[path]


def _broken(path: str, reason: str) -> RunError:
    return RunError(
        f"work file {path}: {reason}; it was changed or removed during the run: "
        "delete the work folder and run again"
    )
