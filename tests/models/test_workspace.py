from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from clam_dist.models.workspace import Workspace


def test_buffers_are_reused_grow_and_do_not_overlap() -> None:
    space, like = Workspace(), torch.zeros(1)
    first = space.take("a", (2, 3), like)
    assert first.shape == (2, 3)
    assert first.is_contiguous()
    assert space.take("a", (6,), like).data_ptr() == first.data_ptr()
    assert space.take("b", (6,), like).data_ptr() != first.data_ptr()
    assert space.take("a", (6,), like.double()).dtype == torch.float64
    assert space.take("a", (100,), like).numel() == 100


def test_each_thread_has_its_own() -> None:
    space, meeting = Workspace(), Barrier(2)

    def pointer(_: int) -> int:
        buffer = space.take("a", (10,), torch.zeros(1))
        meeting.wait(10)
        return buffer.data_ptr()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(pointer, range(2)))) == 2
