"""Slopes of the correction against least squares written out."""

from __future__ import annotations

import numpy as np
import pytest

from clam_dist.evaluation.control import fit_slopes
from clam_dist.evaluation.moments import ClusterMoments


def slopes(x: np.ndarray, labels: np.ndarray, certain: np.ndarray, k: int) -> np.ndarray:
    starts = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=k))])
    return fit_slopes(x, np.ones(len(x)), certain, starts, ClusterMoments.of(x, labels, k))


def test_slope_is_least_squares_of_distances_on_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clam_dist.evaluation.control.SLAB", 7)
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [40, 30])
    x = rng.normal(size=(70, 3)) + labels[:, None]
    found = slopes(x, labels, np.zeros(70, bool), 3)
    away = np.linalg.norm(x[:, None] - x, axis=2)  # every reference is a probe
    for c in range(2):
        d = away[:, labels == c]
        exact = (d**2).mean(axis=1, keepdims=True)
        root, half = (d / np.sqrt(exact)).mean(0), (d**2 / exact / 2).mean(0)
        assert found[c] == pytest.approx(np.polyfit(half, root, 1)[0], rel=1e-6)
    assert found[2] == 1.0


def test_tight_clusters_take_the_whole_correction_and_heavy_tails_little() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 400)
    x = rng.normal(size=(800, 40))
    x[400:] = rng.standard_t(1.5, (400, 40)) + 3
    round_one, heavy = slopes(x, labels, np.zeros(800, bool), 2)
    assert round_one > 0.9
    assert heavy < 0.5


def test_nothing_drawn_needs_no_slope() -> None:
    x = np.random.default_rng(0).normal(size=(10, 2))
    assert slopes(x, np.zeros(10, int), np.ones(10, bool), 2).tolist() == [1.0, 1.0]


def test_equal_rows_need_no_slope() -> None:
    assert slopes(np.zeros((6, 2)), np.zeros(6, int), np.zeros(6, bool), 1).tolist() == [1.0]
