"""Moments against sums written out row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.evaluation.moments import ClusterMoments, grouped_sums, squared_distances


def rows(n: int, d: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.integers(0, k, n), rng.uniform(0.1, 3.0, n)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_grouped_sums_equal_a_loop(n: int, d: int, k: int, seed: int) -> None:
    x, labels, weight = rows(n, d, k, seed)
    expected = np.zeros((k, d))
    for row, label, w in zip(x, labels, weight, strict=True):
        expected[label] += w * row
    np.testing.assert_allclose(grouped_sums(x, labels, k, weight), expected, atol=1e-12)
    np.testing.assert_allclose(
        grouped_sums(x, labels, k), grouped_sums(x, labels, k, np.ones(n)), atol=0
    )


def test_moments_of_three_rows_by_hand() -> None:
    x = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 0.0]])
    moments = ClusterMoments.of(x, np.array([0, 0, 2]), 3)
    assert moments.count.tolist() == [2, 0, 1]
    assert moments.weight.tolist() == [2.0, 0.0, 1.0]
    assert moments.sums.tolist() == [[4.0, 2.0], [0.0, 0.0], [5.0, 0.0]]
    assert moments.squares.tolist() == [1 + 4 + 9, 0.0, 25.0]
    assert moments.means.tolist() == [[2.0, 1.0], [0.0, 0.0], [5.0, 0.0]]
    assert moments.variances.tolist() == [2.0, 0.0, 0.0]


def test_rows_without_label_or_weight_are_left_out() -> None:
    x = np.array([[1.0], [2.0], [4.0]])
    moments = ClusterMoments.of(x, np.array([0, -1, 0]), 1, np.array([1.0, 1.0, 0.0]))
    assert moments.count.tolist() == [1]
    assert moments.sums.tolist() == [[1.0]]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 99))
def test_merged_parts_equal_the_whole(n: int, cut: int, seed: int) -> None:
    x, labels, weight = rows(n, 3, 4, seed)
    whole = ClusterMoments.of(x, labels, 4, weight)
    first = ClusterMoments.of(x[:cut], labels[:cut], 4, weight[:cut])
    merged = first.merge(ClusterMoments.of(x[cut:], labels[cut:], 4, weight[cut:]))
    for name, array in whole.to_arrays().items():
        np.testing.assert_allclose(merged.to_arrays()[name], array, atol=1e-12)


def test_mean_squares_equal_all_pairs() -> None:
    x, labels, weight = rows(50, 3, 3, 1)
    moments = ClusterMoments.of(x, labels, 4, weight)
    found = moments.mean_squares(x[:10])
    pairs = ((x[:10, None] - x) ** 2).sum(axis=2)
    for c in range(3):
        mine = labels == c
        np.testing.assert_allclose(
            found[:, c], np.average(pairs[:, mine], axis=1, weights=weight[mine])
        )
    assert np.isinf(found[:, 3]).all()


def test_moments_survive_a_file(tmp_path) -> None:
    moments = ClusterMoments.of(*rows(20, 2, 3, 0)[:2], 3)
    np.savez(tmp_path / "m.npz", **moments.to_arrays())
    with np.load(tmp_path / "m.npz", allow_pickle=False) as arrays:
        again = ClusterMoments.from_arrays(arrays)
    for name, array in moments.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)


def test_squared_distances_are_never_negative() -> None:
    x = np.full((5, 3), 1e8) + np.random.default_rng(0).normal(size=(5, 3))
    assert (squared_distances(x, x) >= 0).all()
    assert squared_distances(np.array([[3.0, 4.0]]), np.zeros((1, 2))) == pytest.approx(25.0)
