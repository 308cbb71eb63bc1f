"""Deliver each step's micro-batches from shards on disk, within a fixed number of bytes.

Legend: B rows of a micro-batch, d features.

A thread fills the batches of the coming steps while the caller computes with the present one.
Files are read by position into buffers that are made once and reused.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from clam_dist.data.batches import BatchPlan
from clam_dist.data.cursor import ALIGNED_ROWS, RowBuffer, ShardCursor
from clam_dist.data.domains import shards_by_domain
from clam_dist.data.npy import OpenNpyFiles
from clam_dist.data.shards import ShardFile

_WINDOW_BYTES = 256 * 1024
"""Read-ahead of one shard at most: enough to make the system call's cost vanish."""
_MOST_SLOTS = 4
"""Batches made in advance at most, the one in use included."""

Batches = list[tuple[int, np.ndarray, np.ndarray | None]]


class ShardReader:
    """Read the micro-batches of the owned lanes, step by step.

    Parameters
    ----------
    folder : str
        Holds the shards.
    files : sequence of ShardFile
        Every shard, other ranks' included, in order: its place decides its lane. Where they have
        ``domain_rows``, each step's rows are of one domain.
    width : int
        d.
    lanes : int
        Micro-batches of a global batch, V.
    owned : sequence of int
        The lanes to deliver.
    batch_rows : int
        Rows of a global batch, about; see `BatchPlan`.
    seed : int
        The run's seed.
    weighted : bool
        Deliver the rows' weights too.
    buffer_bytes : int
        Bound on all buffers together. They need at least two batches of the owned lanes; if that
        is more, two batches is what they take.

    Attributes
    ----------
    steps : int
        Steps of an epoch.
    allocated_bytes : int
        What the buffers take.
    """

    def __init__(
        self,
        folder: str,
        files: Sequence[ShardFile],
        *,
        width: int,
        lanes: int,
        owned: Sequence[int],
        batch_rows: int,
        seed: int,
        weighted: bool = False,
        buffer_bytes: int = 64 * 2**20,
    ) -> None:
        files, domains = shards_by_domain(files, lanes)
        self._plan = BatchPlan([f.rows for f in files], lanes, batch_rows, seed, domains)
        self._lanes = [(lane, self._plan.shards_of(lane)) for lane in sorted(owned)]
        shards = [self._plan.shards_of(lane) for lane in sorted(owned)]
        self._shards = np.concatenate([np.empty(0, np.int64), *shards])
        self.steps = self._plan.steps

        row_bytes = 4 * width + 8 * weighted
        rows = self._plan.most_rows(self._shards) + ALIGNED_ROWS * len(self._lanes)
        slots = buffer_bytes // 2 // max(1, rows * row_bytes)
        slots = min(max(2, slots), _MOST_SLOTS)
        spare = buffer_bytes - slots * rows * row_bytes
        window_rows = _window_rows(self._plan, self._shards, spare, row_bytes)
        self._slots = [RowBuffer.empty(rows, width, weighted) for _ in range(slots)]
        self._windows = RowBuffer.empty(window_rows * len(self._shards), width, weighted)
        self.allocated_bytes = sum(b.nbytes for b in [*self._slots, self._windows])

        self._x_files = OpenNpyFiles(width, np.dtype(np.float32))
        self._w_files = OpenNpyFiles(None, np.dtype(np.float64))
        self._cursors = [
            ShardCursor(
                files[s],
                folder,
                self._windows.part(i * window_rows, (i + 1) * window_rows),
                self._x_files,
                self._w_files,
                # Shards first read ahead by different amounts, so that later they do not all
                # turn to the disk at the same step.
                first_rows=(i + 1) * window_rows // max(1, len(self._shards)),
            )
            for i, s in enumerate(self._shards)
        ]
        self._busy = threading.Lock()

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[tuple[int, Batches]]:
        """Yield ``(step, micro-batches)`` from ``start_step`` to the end of the epoch.

        Parameters
        ----------
        epoch : int
            Decides, with the seed, where each shard is read from.
        start_step : int
            The first step wanted; what is yielded does not depend on it.

        Yields
        ------
        step : int
        batches : list of (lane, x, w)
            The owned lanes, rising. ``x`` is float32 of shape (B, d), C order, NaN where missing;
            ``w`` float64 of shape (B,), or None without weights. A lane without rows at this
            step gives B = 0. The arrays are reused: they hold until the next is asked for.

        Raises
        ------
        RunError
            A shard is missing, cut off or cannot be read.
        RuntimeError
            Another epoch of this reader is still being read.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("an epoch of this reader is still being read; close it first")
        free: queue.SimpleQueue[RowBuffer] = queue.SimpleQueue()
        ready: queue.SimpleQueue[tuple[RowBuffer, Batches] | BaseException] = queue.SimpleQueue()
        stop = threading.Event()
        for slot in self._slots:
            free.put(slot)
        thread = threading.Thread(
            target=self._produce,
            args=(epoch, start_step, free, ready, stop),
            name="clam_dist-reader",
            daemon=True,
        )
        thread.start()
        try:
            for step in range(start_step, self.steps):
                made = ready.get()
                if isinstance(made, BaseException):
                    raise made
                slot, batches = made
                yield step, batches
                free.put(slot)
        finally:
            stop.set()
            free.put(self._slots[0])  # wakes a thread that waits; it sees `stop` and ends
            thread.join()
            self._busy.release()

    @property
    def bytes_read(self) -> int:
        """Bytes of rows and weights read from files so far."""
        return self._x_files.bytes_read + self._w_files.bytes_read

    def close(self) -> None:
        """Close the files; the reader may be used again and opens them anew."""
        self._x_files.close()
        self._w_files.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _produce(
        self,
        epoch: int,
        start_step: int,
        free: queue.SimpleQueue[RowBuffer],
        ready: queue.SimpleQueue[tuple[RowBuffer, Batches] | BaseException],
        stop: threading.Event,
    ) -> None:
        try:
            rotations = self._plan.rotations(epoch)
            for cursor, shard in zip(self._cursors, self._shards, strict=True):
                cursor.rewind(int(rotations[shard]))
            for step in range(start_step, self.steps):
                slot = free.get()
                if stop.is_set():
                    return
                ready.put((slot, self._fill(step, slot)))
        except BaseException as error:  # raised again in the caller's thread
            ready.put(error)

    def _fill(self, step: int, slot: RowBuffer) -> Batches:
        starts = self._plan.bounds(step, self._shards)
        stops = self._plan.bounds(step + 1, self._shards)
        batches: Batches = []
        shard, filled = 0, 0
        for lane, shards in self._lanes:
            first, lane_end = filled, shard + len(shards)
            giving = shard + np.flatnonzero(stops[shard:lane_end] > starts[shard:lane_end])
            cuts = zip(giving.tolist(), starts[giving].tolist(), stops[giving].tolist())
            for i, start, stop in cuts:
                self._cursors[i].copy(start, stop, slot, filled)
                filled += stop - start
            shard = lane_end
            part = slot.part(first, filled)
            batches.append((lane, part.x, part.w))
            filled = -(-filled // ALIGNED_ROWS) * ALIGNED_ROWS
        return batches


def _window_rows(plan: BatchPlan, shards: np.ndarray, spare: int, row_bytes: int) -> int:
    """Rows of each shard's read-ahead that fit in ``spare`` bytes; 0 if it would not pay."""
    if len(shards) == 0:
        return 0
    rows = min(
        spare // (len(shards) * row_bytes),
        _WINDOW_BYTES // row_bytes,
        int(plan.rows[shards].max()),
    )
    return rows if rows >= 2 * plan.rows_a_step(shards).mean() else 0
