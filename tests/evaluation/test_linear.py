"""The silhouettes of linear passes against scikit-learn and against pairs written out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import silhouette_samples

from clam_dist.errors import DataError
from clam_dist.evaluation.linear import (
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
