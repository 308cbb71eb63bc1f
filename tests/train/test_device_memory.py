"""Blocks that halve where memory runs out, and batches sent ahead, without a GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.models.sums import Sums
from clam_dist.train.device_memory import BlockSize, one_ahead, prefetch, with_halving


class Device:
    """Holds so many rows; sums the numbers of the rows that it is given."""

    def __init__(self, holds):
        self.holds, self.blocks = holds, []

    def compute(self, rows):
        if rows.stop - rows.start > self.holds:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.blocks.append((rows.start, rows.stop))
        return sum(range(rows.start, rows.stop))


@given(st.integers(0, 300), st.integers(1, 400))
def test_every_row_once_and_one_message(rows, holds):
    said, size, device = [], BlockSize(), Device(holds)
    assert with_halving(device.compute, rows, said.append, size) == sum(range(rows))
    assert [row for first, last in device.blocks for row in range(first, last)] == list(range(rows))
    assert len(said) == (rows > holds)
    # What is known now is taken at once, and told no more.
    device.blocks.clear()
    again = with_halving(device.compute, rows, said.append, size)
    assert again == sum(range(rows))
    assert len(said) == (rows > holds)
    widest = max(last - first for first, last in device.blocks)
    assert widest <= holds
    assert widest >= min(rows, (holds + 1) // 2), "never less than half of what fits"


def test_the_message_has_both_numbers():
    said = []
    with_halving(Device(30).compute, 100, said.append, BlockSize())
    assert len(said) == 1
    assert "did not hold 100 rows at once: going on with 50" in said[0]
    assert "train.batch_rows" in said[0]


def test_a_row_that_does_not_fit_is_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        with_halving(Device(0).compute, 8, lambda _: None, BlockSize())


def test_another_error_is_not_taken_for_want_of_memory():
    def compute(rows):
        raise RuntimeError(f"a bad value in {rows}")

    with pytest.raises(RuntimeError, match="a bad value"):
        with_halving(compute, 8, lambda _: None, BlockSize())


def test_no_rows_are_one_block():
    device = Device(4)
    assert with_halving(device.compute, 0, lambda _: None, BlockSize()) == 0
    assert device.blocks == [(0, 0)]


def test_what_the_failed_block_held_is_free_before_the_next_is_tried():
    """An error that is being handled holds its frames, and they the tensors that filled memory."""
    import gc
    import weakref

    held, seen = [], []
    gc.disable()
    try:

        def compute(rows):
            seen.extend(reference() is None for reference in held)
            block = torch.zeros(rows.stop - rows.start)
            held.append(weakref.ref(block))
            if len(block) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return len(block)

        assert with_halving(compute, 8, lambda _: None, BlockSize()) == 8
    finally:
        gc.enable()
    assert seen
    assert all(seen)


def test_sums_are_those_of_all_rows():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def compute(rows):
        if rows.stop - rows.start > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        part = x[rows]
        return Sums(part.square().sum()[None], torch.tensor(float(len(part))), {"w": part.sum(0)})

    sums = with_halving(compute, len(x), lambda _: None, BlockSize())
    assert float(sums.entries) == 50
    assert torch.allclose(sums.loss, x.square().sum()[None])
    assert torch.allclose(sums.gradients["w"], x.sum(0))


def batches(count, log):
    """As the reader gives them: one array, filled anew for each step."""
    x = np.empty((4, 2), np.float32)
    try:
        for step in range(count):
            x[:] = step
            log.append(f"read {step}")
            yield step, [(0, x, None), (1, x[:0], None)]
    finally:
        log.append("closed")


def test_on_the_cpu_batches_pass_as_they_are():
    log = []
    for step, rows in prefetch(batches(3, log), torch.device("cpu")):
        assert log[-1] == f"read {step}", "arrays hold only until the next is asked for"
        assert isinstance(rows[0][1], np.ndarray)
        assert rows[0][1][0, 0] == step
    assert log == ["read 0", "read 1", "read 2", "closed"]


def test_a_reader_is_closed_with_the_batches_taken_from_it():
    log = []
    taken = prefetch(batches(3, log), torch.device("cpu"))
    next(taken)
    taken.close()
    assert log == ["read 0", "closed"]


def test_an_error_of_the_reader_comes_through():
    def broken():
        yield 0, []
        raise OSError("gone")

    taken = prefetch(broken(), torch.device("cpu"))
    assert next(taken) == (0, [])
    with pytest.raises(OSError, match="gone"):
        next(taken)


def test_one_is_sent_ahead_and_order_is_kept():
    log = []

    def send(batch):
        log.append(f"send {batch[0]}")
        return batch[0], batch[1][0][1].copy()

    def receive(sent):
        assert (sent[1] == sent[0]).all(), "sent before the array was filled anew"
        return sent

    for step, _ in one_ahead(batches(3, []), send, receive):
        log.append(f"use {step}")
    assert log == ["send 0", "send 1", "use 0", "send 2", "use 1", "use 2"]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_ahead_of_few(count):
    taken = one_ahead(iter(range(count)), lambda batch: -batch, lambda sent: -sent)
    assert list(taken) == list(range(count))


def test_an_error_of_the_reader_comes_after_what_it_gave():
    def broken():
        yield 1
        yield 2
        raise OSError("gone")

    taken = one_ahead(broken(), lambda batch: batch, lambda sent: sent)
    assert next(taken) == 1
    with pytest.raises(OSError, match="gone"):
        next(taken)
