"""Where a sweep starts: the first starts, the unit of beta, and k-means as what to beat."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from clam_dist.stages.starts import (
    _best_try,
    _nearest,
    _scores,
    compute_starts,
)


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    x = centres[generator.integers(0, 3, 600)] + generator.normal(size=(600, 2)) * 0.5
    return x.astype(np.float32), centres.astype(np.float32)


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
    labels = np.stack([_nearest(x, prototypes)[0] for prototypes in tries])

    def best(inertias):
        return _best_try(_scores(x, None, labels, inertias, 3, seed=0, metric="euclidean"), 0)

    assert best([1.0, 1.01, 1.02]) == 2
    assert best([1.0, 1.01, 2.0]) == 1  # too far from the least
    assert best([1.0, 2.0, 2.0]) == 0  # no other is near


@pytest.mark.parametrize("weighted", [False, True])
def test_the_baseline_is_k_means_as_scikit_learn_scores_it(tmp_path, rows, weighted):
    x = np.concatenate([rows[0], np.float32([[40.0, 40.0]])])
    np.save(tmp_path / "sample.x.npy", x)
    weight = np.ones(len(x))
    weight[-1] = 3.0
    np.save(tmp_path / "sample.w.npy", weight)
    start = compute_starts(
        4, shards_folder=str(tmp_path), folder=str(tmp_path), weighted=weighted, restarts=3, seed=1
    )
    fitted = KMeans(4, n_init=20, random_state=0).fit(x)
    baseline = start.baseline
    share = 3 / (len(x) + 2) if weighted else 1 / len(x)  # the outlier alone
    assert baseline.smallest_share == pytest.approx(share)
    assert baseline.inertia * len(x) == pytest.approx(fitted.inertia_, rel=0.02)
    if not weighted:
        exact = silhouette_score(x, fitted.labels_)
        assert baseline.silhouette == pytest.approx(exact, abs=2 * baseline.standard_error)
        assert 0 < baseline.standard_error < 0.05
    assert np.load(start.path).shape == (3, 4, 2)
