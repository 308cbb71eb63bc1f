"""Reading one shard on and on, through a window of rows read ahead."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from clam_dist.data.npy import OpenNpyFiles
from clam_dist.data.shards import ShardFile

ALIGNMENT = 64
"""Bytes. A product's last digits can depend on where in a cache line its rows begin (seen with MKL
and rows of 5 or 9 numbers), so micro-batches begin at the same place on any number of ranks."""
ALIGNED_ROWS = ALIGNMENT // 4
"""So many rows of any width fill whole cache lines."""


@dataclass(frozen=True)
class RowBuffer:
    """A buffer of rows and, if there are any, their weights."""

    x: np.ndarray  # float32 (n, d)
    w: np.ndarray | None  # float64 (n,)

    @classmethod
    def empty(cls, rows: int, width: int, weighted: bool) -> RowBuffer:
        """Rows that begin where a cache line does."""
        spare = ALIGNMENT // 4
        held = np.empty(rows * width + spare, np.float32)
        first = -(held.ctypes.data // 4) % spare
        x = held[first : first + rows * width].reshape(rows, width)
        return cls(x, np.empty(rows) if weighted else None)

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + (0 if self.w is None else self.w.nbytes)

    def part(self, start: int, stop: int) -> RowBuffer:
        return RowBuffer(self.x[start:stop], None if self.w is None else self.w[start:stop])


class ShardCursor:
    """Reads one shard on from its rotation, through a window of rows read ahead.

    Places count from the rotation: place ``p`` is row ``(rotation + p) mod n`` of the shard.
    """

    def __init__(
        self,
        file: ShardFile,
        folder: str,
        window: RowBuffer,
        x_files: OpenNpyFiles,
        w_files: OpenNpyFiles,
        first_rows: int,
    ) -> None:
        self._file, self._window = file, window
        self._x_path = os.path.join(folder, file.path)
        self._w_path = os.path.join(folder, file.sibling("w"))
        self._x_files, self._w_files = x_files, w_files
        self._first_rows = first_rows
        self.rewind(0)

    def rewind(self, rotation: int) -> None:
        self._rotation = rotation
        self._start = self._stop = 0  # places that the window holds
        self._next_rows = self._first_rows

    def copy(self, start: int, stop: int, out: RowBuffer, at: int) -> None:
        """Copy places ``[start, stop)`` to ``out`` from its row ``at`` on."""
        while start < stop:
            if not self._start <= start < self._stop:
                if len(self._window.x) == 0:
                    self._read(start, out.part(at, at + stop - start))
                    return
                self._refill(start, stop)
            end = min(stop, self._stop)
            a, b = start - self._start, end - self._start
            out.x[at : at + b - a] = self._window.x[a:b]
            if out.w is not None and self._window.w is not None:
                out.w[at : at + b - a] = self._window.w[a:b]
            at += b - a
            start = end

    def _refill(self, start: int, stop: int) -> None:
        rows = min(max(self._next_rows, stop - start), len(self._window.x))
        rows = min(rows, self._file.rows - start)
        self._next_rows = len(self._window.x)
        self._start = self._stop = start  # nothing is held if the read fails
        self._read(start, self._window.part(0, rows))
        self._stop = start + rows

    def _read(self, start: int, out: RowBuffer) -> None:
        """Read ``len(out.x)`` places from ``start``, in two pieces where they wrap round."""
        n = self._file.rows
        row = (self._rotation + start) % n
        head = min(len(out.x), n - row)
        for first, part in ((row, out.part(0, head)), (0, out.part(head, len(out.x)))):
            if len(part.x) == 0:
                continue
            at = self._file.offset + first
            self._x_files.read_into(self._x_path, at, part.x)
            if part.w is not None:
                self._w_files.read_into(self._w_path, at, part.w)
