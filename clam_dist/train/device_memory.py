"""What a GPU's memory asks for: smaller blocks where it runs out, rows sent ahead of their use.

Letters: ``B`` rows of a batch, ``d`` features.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from operator import add
from typing import Any, TypeVar

import numpy as np
import torch

from clam_dist.models.rows import upload

Total = TypeVar("Total")
Batch = TypeVar("Batch")
Sent = TypeVar("Sent")
LaneRows = list[tuple[int, Any, Any]]
"""``(lane, x (B, d), weight (B,) | None)``: arrays of the host, or tensors on a device."""


class BlockSize:
    """Rows that fit on the device at once, as found so far in this process.

    Attributes
    ----------
    rows : int or None
        None as long as memory has never run out.
    """

    def __init__(self) -> None:
        self.rows: int | None = None
        self._lock = threading.Lock()

    def halve(self, rows: int) -> tuple[int, bool]:
        """After so many rows did not fit: how many to try, and whether nobody found that before."""
        with self._lock:
            first = self.rows is None
            self.rows = min(rows // 2, self.rows or rows)
            return self.rows, first


FITTING = BlockSize()
"""Of this process."""


def with_halving(
    compute: Callable[[slice], Total],
    rows: int,
    on_halved: Callable[[str], None],
    size: BlockSize = FITTING,
) -> Total:
    """Sum of ``compute(slice)`` over blocks of rows, as few as the device's memory allows.

    Where it runs out, the block is computed again in halves, and no block of this process is
    larger from then on. Sums over fewer rows round otherwise: results on a GPU that ran out agree
    with others to rounding, not to the bit.

    Parameters
    ----------
    compute
        Of a block; what it returns is added with ``+``, in the order of the rows. No rows at all
        are one block.
    rows
        B.
    on_halved
        Takes a message, the first time in this process that memory runs out.
    size
        What is known of the sizes that fit.

    Raises
    ------
    torch.OutOfMemoryError
        When a single row does not fit.
    """
    total: Total | None = None
    start = 0
    while start < rows or total is None:
        stop = min(rows, start + (size.rows or max(rows, 1)))
        try:
            part = compute(slice(start, stop))
        except torch.OutOfMemoryError:
            if stop - start <= 1:
                raise
            part = None
        if part is None:
            # Out of the handler: the error holds the frames of the computation, and so its tensors.
            fitting, first = size.halve(stop - start)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if first:
                on_halved(
                    f"the GPU's memory did not hold {stop - start} rows at once: going on with "
                    f"{fitting}; a smaller batch (train.batch_rows) or fewer candidates "
                    "(train.restarts) would spare the attempt"
                )
            continue
        total = part if total is None else add(total, part)
        start = stop
    return total


def prefetch(
    batches: Iterator[tuple[int, LaneRows]], device: torch.device
) -> Generator[tuple[int, LaneRows], None, None]:
    """The same batches, on a GPU each sent there while the one before is computed with.

    Parameters
    ----------
    batches
        ``(step, micro-batches)`` with NumPy arrays that hold until the next is asked for.
    device
        On the CPU the batches pass as they are. On a GPU the arrays become tensors there, of the
        same dtypes and shapes, copied through pinned memory on a stream of their own.

    Yields
    ------
    step : int
    rows : list of (lane, x, weight)
    """
    with closing(batches) as source:  # type: ignore[type-var]
        if device.type != "cuda":
            yield from source
        else:
            yield from _on_device(source, device)


def one_ahead(
    batches: Iterator[Batch], send: Callable[[Batch], Sent], receive: Callable[[Sent], Batch]
) -> Iterator[Batch]:
    """``receive(send(batch))`` of each batch in order; the next is sent before one is received."""
    sent: list[Sent] = []
    for batch in batches:
        sent.append(send(batch))
        if len(sent) == 2:
            yield receive(sent.pop(0))
    for last in sent:
        yield receive(last)


def _on_device(
    batches: Iterator[tuple[int, LaneRows]], device: torch.device
) -> Iterator[tuple[int, LaneRows]]:
    stream = torch.cuda.Stream(device)

    def copy(values: np.ndarray | None) -> torch.Tensor | None:
        return None if values is None else upload(torch.from_numpy(values), device)

    def send(batch: tuple[int, LaneRows]) -> tuple[int, LaneRows, Any]:
        with torch.cuda.stream(stream):
            rows = [(lane, copy(x), copy(weight)) for lane, x, weight in batch[1]]
            return batch[0], rows, stream.record_event()

    def receive(sent: tuple[int, LaneRows, Any]) -> tuple[int, LaneRows]:
        step, rows, arrived = sent
        present = torch.cuda.current_stream(device)
        present.wait_event(arrived)
        for _, *tensors in rows:
            for tensor in tensors:
                if tensor is not None:  # its memory is not used anew before this stream is done
                    tensor.record_stream(present)
        return step, rows

    return one_ahead(batches, send, receive)
