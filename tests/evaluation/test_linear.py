"""The silhouettes of linear passes against scikit-learn and against pairs written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_samples

from clam_dist.errors import DataError
from clam_dist.evaluation.linear import (
    cosine_silhouette,
    directions,
    silhouettes,
    simplified_silhouette,
    squared_silhouette,
    undefined_because,
)
from clam_dist.evaluation.moments import ClusterMoments


def blobs(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    labels[0] = 4  # a cluster of one row
    return rng.normal(size=(n, 3)) + labels[:, None], labels


def test_squared_silhouette_is_scikit_learns() -> None:
    x, labels = blobs()
    expected = silhouette_samples(x, labels, metric="sqeuclidean")
    np.testing.assert_allclose(squared_silhouette(x, labels), expected, atol=1e-12)


def test_squared_silhouette_of_some_rows_from_the_moments_of_all() -> None:
    x, labels = blobs()
    moments = ClusterMoments.of(x, labels, 5)
    expected = squared_silhouette(x, labels)[7:19]
    np.testing.assert_allclose(squared_silhouette(x[7:19], labels[7:19], moments), expected)


def test_weight_two_equals_the_row_twice() -> None:
    x, labels = blobs(40)
    weight = np.where(np.arange(40) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(40), weight.astype(int))
    found = squared_silhouette(x, labels, weight=weight)
    expected = silhouette_samples(x[twice], labels[twice], metric="sqeuclidean")
    np.testing.assert_allclose(found[twice], expected, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(3, 60),
    k=st.integers(2, 5),
    length=st.floats(1e-3, 1e3),
)
def test_cosine_silhouette_is_scikit_learns(seed: int, n: int, k: int, length: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * rng.uniform(0.1, length + 0.1, n)[:, None]
    labels = rng.integers(0, k, n)
    labels[:3] = [0, 1, 0]
    assume(len(np.unique(labels)) < n)
    expected = silhouette_samples(x, labels, metric="cosine")
    np.testing.assert_allclose(cosine_silhouette(x, labels), expected, atol=1e-9)


def test_cosine_silhouette_by_hand() -> None:
    # Rows along x, along y and against x, of any length; alone scores 0.
    x = np.array([[2.0, 0.0], [5.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 7.0]])
    found = cosine_silhouette(x, np.array([0, 0, 1, 2, 1]))
    np.testing.assert_allclose(found, [1.0, 1.0, 1.0, 0.0, 1.0])
    found = cosine_silhouette(x, np.array([0, 1, 0, 1, 1]))
    # the first: a = 1, b = (0 + 2 + 1) / 3; the second: a = (2 + 1) / 2, b = (0 + 1) / 2
    np.testing.assert_allclose(found[:2], [0.0, (0.5 - 1.5) / 1.5])


def test_cosine_silhouette_of_some_rows_from_the_moments_of_all() -> None:
    x, labels = blobs()
    moments = ClusterMoments.of(directions(x), labels, 5)
    expected = cosine_silhouette(x, labels)
    found = cosine_silhouette(3 * x[7:19], labels[7:19], moments)
    np.testing.assert_allclose(found, expected[7:19])
    assert expected[0] == 0.0  # the cluster of one row
    np.testing.assert_allclose(expected, silhouette_samples(x, labels, metric="cosine"), atol=1e-12)


def test_directions_have_length_one_and_nothing_has_none() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0], [np.nan, -2.0]])
    np.testing.assert_allclose(directions(x), [[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]])


def test_simplified_silhouette_by_hand() -> None:
    x = np.array([[0.0], [1.0], [9.0]])
    means = np.array([[0.5], [9.0], [np.nan]])
    # a = .5, .5, 0 and b = 9, 8, 8.5
    expected = [8.5 / 9, 7.5 / 8, 1.0]
    np.testing.assert_allclose(simplified_silhouette(x, np.array([0, 0, 1]), means), expected)


def test_silhouettes_where_nothing_separates() -> None:
    a, b = np.array([0.0, 2.0, 1.0]), np.array([0.0, 1.0, 3.0])
    alone = np.array([False, False, True])
    assert silhouettes(a, b, alone).tolist() == [0.0, -0.5, 0.0]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        ([0, 12, 0], "all 12 rows are in 1 cluster"),
        ([1, 1, 1], "3 clusters of one row each"),
        ([0, 0], "no row has a cluster"),
    ],
)
def test_what_has_no_silhouette_says_so(count: list[int], words: str) -> None:
    assert words in str(undefined_because(np.array(count)))


def test_what_has_a_silhouette_gives_no_reason() -> None:
    assert undefined_because(np.array([2, 1, 0])) is None


def test_one_cluster_is_an_error() -> None:
    with pytest.raises(DataError, match="1 cluster"):
        squared_silhouette(np.zeros((3, 1)), np.zeros(3, int))
    with pytest.raises(DataError, match="1 is in use"):
        simplified_silhouette(np.zeros((3, 1)), np.zeros(3, int), np.zeros((1, 1)))
