"""The training stage's own pure parts: the first start, the unit of beta."""

import numpy as np
import pytest

from clam_dist.stages.train import _best_try, _nearest, inertia_a_row


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    x = centres[generator.integers(0, 3, 600)] + generator.normal(size=(600, 2)) * 0.5
    return x.astype(np.float32), centres.astype(np.float32)


def test_inertia_is_the_mean_squared_distance_to_the_nearest(rows):
    x, centres = rows
    expected = np.mean([min(((row - c) ** 2).sum() for c in centres) for row in x])
    assert inertia_a_row(x, None, centres) == pytest.approx(expected, rel=1e-4)
    weight = np.where(np.arange(len(x)) < 10, 1.0, 0.0)
    few = np.mean([min(((row - c) ** 2).sum() for c in centres) for row in x[:10]])
    assert inertia_a_row(x, weight, centres) == pytest.approx(few, rel=1e-4)


def test_nearest_by_hand():
    labels, squared = _nearest(
        np.array([[1.0, 0.0], [5.0, 1.0]]), np.array([[0.0, 0.0], [5.0, 0.0]])
    )
    assert labels.tolist() == [0, 1]
    assert squared.tolist() == [1.0, 1.0]


def test_the_second_start_is_the_best_by_silhouette_among_near_equals(rows):
    x, centres = rows
    off = centres + np.float32([3.0, 3.0])  # a worse partition
    worse = centres + np.float32([2.0, -3.0])
    tries = np.stack([off, worse, centres])
    assert _best_try(x, None, tries, [1.0, 1.01, 1.02], seed=0) == 2
    assert _best_try(x, None, tries, [1.0, 1.01, 2.0], seed=0) == 1  # too far from the least
    assert _best_try(x, None, tries, [1.0, 2.0, 2.0], seed=0) == 0  # no other is near
