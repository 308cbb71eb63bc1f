from __future__ import annotations

import numpy as np
import pytest

from clam_dist.errors import ConfigError
from clam_dist.models.seeding import count_distinct, fill_missing, starts

KINDS = ("kmeans", "kmeans++", "normal", "rows")


@pytest.fixture
def blobs() -> np.ndarray:
    """Three tight groups of 30 rows at (0, 0), (10, 0) and (0, 10)."""
    generator = np.random.default_rng(0)
    centers = np.repeat([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], 30, axis=0)
    return (centers + 0.1 * generator.normal(size=(90, 2))).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_shape_dtype_and_reproducibility(blobs: np.ndarray, kind: str) -> None:
    found, n_distinct = starts(blobs, None, 3, 4, kind, 7)
    assert found.shape == (4, 3, 2)
    assert found.dtype == np.float32
    assert n_distinct == 3
    assert (starts(blobs, None, 3, 4, kind, 7)[0] == found).all()
    assert (starts(blobs, None, 3, 2, kind, 7)[0] == found[:2]).all()  # a set has its own key
    assert not (found[0] == found[1]).all() or kind == "kmeans"
    assert not (starts(blobs, None, 3, 4, kind, 8)[0] == found).all() or kind == "kmeans"


def test_kmeans_finds_the_groups_means(blobs: np.ndarray) -> None:
    means = blobs.reshape(3, 30, 2).mean(1)
    found = starts(blobs, None, 3, 1, "kmeans", 0)[0][0]
    distance = np.linalg.norm(found[:, None] - means[None], axis=-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    assert distance.min(1).max() < 1e-5


@pytest.mark.parametrize("kind", ["kmeans++", "rows"])
def test_rows_are_taken_as_they_are(blobs: np.ndarray, kind: str) -> None:
    found = starts(blobs, None, 5, 3, kind, 1)[0]
    for prototypes in found:
        assert len({tuple(row) for row in prototypes}) == 5
        assert all((blobs == row).all(1).any() for row in prototypes)


def test_normal_is_the_papers_draw() -> None:
    found = starts(np.zeros((1, 400), np.float32), None, 50, 2, "normal", 3)[0]
    assert found.mean() == pytest.approx(0.1, abs=0.003)
    assert found.std() == pytest.approx(0.1, abs=0.003)


@pytest.mark.parametrize("kind", ["kmeans", "kmeans++", "rows"])
def test_rows_of_weight_zero_are_never_drawn(blobs: np.ndarray, kind: str) -> None:
    weight = np.r_[np.zeros(30), np.ones(60)]
    found = starts(blobs, weight, 2, 5, kind, 0)[0]
    assert (np.linalg.norm(found, axis=-1) > 5).all()


@pytest.mark.parametrize("kind", ["kmeans", "kmeans++", "rows"])
def test_fewer_distinct_rows_than_prototypes(kind: str) -> None:
    x = np.repeat(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), 5, axis=0)
    found, n_distinct = starts(x, None, 5, 2, kind, 0)
    assert n_distinct == 2
    assert len(np.unique(found[0], axis=0)) == 5
    nearest = np.abs(found[0][:, None] - x[[0, 5]][None]).max(-1).min(1)
    assert nearest.max() < 0.01


def test_missing_entries_take_the_columns_mean() -> None:
    x = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]], np.float32)
    assert fill_missing(x).tolist() == [[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]
    assert np.isfinite(starts(x, None, 2, 1, "kmeans", 0)[0]).all()


def test_count_distinct_stops_early_and_counts_late_rows() -> None:
    x = np.zeros((1000, 1), np.float32)
    assert count_distinct(x, 3) == 1
    x[-2:] = [[1.0], [2.0]]
    assert count_distinct(x, 5) == 3
    assert count_distinct(x, 2) == 2


def test_messages() -> None:
    with pytest.raises(ConfigError, match="'spectral' is not known; choose one of kmeans"):
        starts(np.zeros((3, 1), np.float32), None, 1, 1, "spectral", 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot start 4 prototypes from 0 sampled rows"):
        starts(np.zeros((0, 1), np.float32), None, 4, 1, "rows", 0)
