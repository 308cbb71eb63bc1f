"""Sums over lanes do not depend on how many ranks share them."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.train.reduction import combine, owned_lanes, subtree_roots, tree_sum


class ThreadRank:
    """A rank that is a thread; the collective is a list that all of them see."""

    def __init__(self, rank, world_size, board, barrier):
        self.rank, self.world_size = rank, world_size
        self._board, self._barrier = board, barrier

    def all_gather(self, tensor):
        self._board[self.rank] = tensor
        self._barrier.wait()
        gathered = torch.stack(list(self._board))
        self._barrier.wait()
        return gathered


def combined(vectors, world_size):
    """Every rank's result of adding ``vectors``, one a lane."""
    lanes = len(vectors)
    board, barrier = [None] * world_size, threading.Barrier(world_size)
    results = [None] * world_size

    def run(rank):
        mine = {lane: vectors[lane] for lane in owned_lanes(lanes, rank, world_size)}
        collective = ThreadRank(rank, world_size, board, barrier)
        results[rank] = combine(mine, lanes, len(vectors[0]), collective)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


@pytest.mark.parametrize(
    ("start", "stop", "roots"),
    [
        (0, 8, [(0, 8)]),
        (0, 3, [(0, 2), (2, 3)]),
        (2, 5, [(2, 4), (4, 5)]),
        (5, 8, [(5, 6), (6, 8)]),
        (1, 7, [(1, 2), (2, 4), (4, 6), (6, 7)]),
        (4, 4, []),
    ],
)
def test_subtree_roots_by_hand(start, stop, roots):
    assert subtree_roots(start, stop) == roots


@given(st.integers(0, 6), st.integers(1, 70))
def test_each_lane_has_one_owner_and_roots_are_aligned(exponent, world_size):
    lanes = 2**exponent
    owned = [lane for rank in range(world_size) for lane in owned_lanes(lanes, rank, world_size)]
    assert owned == list(range(lanes))
    for rank in range(world_size):
        part = owned_lanes(lanes, rank, world_size)
        roots = subtree_roots(part.start, part.stop)
        assert [lane for start, stop in roots for lane in range(start, stop)] == list(part)
        for start, stop in roots:
            size = stop - start
            assert size & (size - 1) == 0
            assert start % size == 0


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 3, 5, 7, 20]), st.integers(0, 99))
def test_any_world_size_gives_the_same_bits(lanes, world_size, seed):
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-9, 9, (lanes, 5), generator=generator)
    vectors = torch.randn(lanes, 5, generator=generator, dtype=torch.float64) * scale
    alone = combined(list(vectors), 1)[0]
    for result in combined(list(vectors), world_size):
        assert torch.equal(result, alone)
    torch.testing.assert_close(alone, vectors.sum(0), rtol=1e-9, atol=1e-6)


def test_tree_sum_adds_halves_first():
    values = [1e16, 1.0, -1e16, 1.0]
    leaves = {(i, i + 1): torch.tensor([v], dtype=torch.float64) for i, v in enumerate(values)}
    # (1e16 + 1) + (-1e16 + 1): each half loses its 1; a running sum would keep the last.
    assert tree_sum(leaves, (0, 4)).item() == (1e16 + 1.0) + (-1e16 + 1.0)
    assert sum(values) != tree_sum(leaves, (0, 4)).item()
