"""Row hashes against a loop over Python integers; samples against a full sort."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.data.sampling import generator, row_hash, smallest, threshold

TOP = 2**64 - 1


def splitmix64(start: int, place: int) -> int:
    """Output ``place`` (from 0) of SplitMix64 seeded with ``start``, as published."""
    z = (start + (place + 1) * 0x9E3779B97F4A7C15) & TOP
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & TOP
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & TOP
    return z ^ (z >> 31)


def test_oracle_is_splitmix64() -> None:
    # the first outputs for seed 0, as every implementation prints them
    assert splitmix64(0, 0) == 0xE220A8397B1DCDAF
    assert splitmix64(0, 1) == 0x6E789E6AA1B965F4
    assert splitmix64(0, 2) == 0x06C45D188009454F


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, TOP), first=st.integers(0, 2**40), n=st.integers(0, 20))
def test_row_hash_is_splitmix64_from_the_name(seed: int, first: int, n: int) -> None:
    start = xxhash.xxh3_64_intdigest(b"sample\0year=2020/a.parquet", seed=seed)
    expected = [splitmix64(start, first + i) for i in range(n)]
    hashes = row_hash(seed, "sample", "year=2020/a.parquet", first, n)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == expected


def test_row_hash_does_not_depend_on_chunks_but_on_everything_else() -> None:
    whole = row_hash(3, "sample", "a", 0, 1000)
    parts = [row_hash(3, "sample", "a", first, 100) for first in range(0, 1000, 100)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    others = [
        row_hash(4, "sample", "a", 0, 1000),
        row_hash(3, "queries", "a", 0, 1000),
        row_hash(3, "sample", "b", 0, 1000),
    ]
    for other in others:
        assert len(np.intersect1d(whole, other)) == 0


def test_row_hash_is_uniform() -> None:
    hashes = row_hash(0, "sample", "a", 0, 100_000)
    counts, _ = np.histogram(hashes.astype(float), bins=100, range=(0, 2.0**64))
    # each count is binomial with mean 1000 and deviation 31.5
    assert np.abs(counts - 1000).max() < 5 * 31.5
    assert len(np.unique(hashes)) == 100_000


@pytest.mark.parametrize(("m", "n"), [(1, 10), (100, 1000), (1000, 1000), (1000, 10), (64, 10**9)])
def test_threshold_share(m: int, n: int) -> None:
    share = (int(threshold(m, n)) + 1) / 2**64
    assert share == pytest.approx(min(1.0, (m + 6 * m**0.5 + 16) / n), rel=1e-12)


def test_threshold_finds_enough_and_not_many_more() -> None:
    for seed in range(50):
        found = np.sum(row_hash(seed, "sample", "a", 0, 20_000) <= threshold(100, 20_000))
        assert 100 <= found <= 100 + 16 + 12 * 10


def test_all_rows_are_candidates_of_a_sample_as_large_as_the_source() -> None:
    assert threshold(10, 10) == np.uint64(TOP)
    assert np.uint64(TOP) <= threshold(10, 10)


@settings(max_examples=100, deadline=None)
@given(
    hashes=st.lists(st.integers(0, 5) | st.integers(0, TOP), max_size=40),
    m=st.integers(0, 45),
    order=st.randoms(use_true_random=False),
)
def test_smallest_is_a_full_sort_cut(hashes: list[int], m: int, order: Random) -> None:
    rows = list(range(100, 100 + len(hashes)))
    order.shuffle(rows)
    pairs = sorted(zip(hashes, rows, strict=True))[:m]
    chosen = smallest(np.array(hashes, np.uint64), np.array(rows, np.int64), m)
    assert [(hashes[i], rows[i]) for i in chosen] == pairs


def test_generators_of_each_key_are_their_own() -> None:
    draws = [
        generator(0, "a", 1).random(),
        generator(0, "a", 2).random(),
        generator(0, "b", 1).random(),
        generator(1, "a", 1).random(),
        generator(0, "a").random(),
        generator(0, "a", 1, 0).random(),
    ]
    assert len(set(draws)) == len(draws)
    assert generator(0, "a", 1).random() == draws[0]
