"""Filling of missing values through the estimator, in original units."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from clam_dist import ClAM

Make = Callable[..., ClAM]


@pytest.mark.parametrize("objective", ["masked", "unmasked"])
@pytest.mark.parametrize("scaling", ["standard", "minmax", "none"])
def test_it_beats_the_mean_and_leaves_the_rest(
    quick: Make, iris: np.ndarray, objective: str, scaling: str
) -> None:
    hidden = np.random.default_rng(1).random(iris.shape) < 0.1
    hidden[hidden.all(axis=1)] = False
    rows = np.where(hidden, np.nan, iris)
    given = rows.copy()
    beta = 20.0 if scaling == "minmax" else 2.0
    model = quick(8, objective=objective, scaling=scaling, beta=beta, epochs=40).fit(rows)
    found = model.complete(rows)
    np.testing.assert_array_equal(rows, given)
    assert (found[~hidden].tobytes()) == iris[~hidden].tobytes()
    assert np.isfinite(found).all()
    assert (found >= np.nanmin(rows, axis=0)).all()
    assert (found <= np.nanmax(rows, axis=0)).all()
    spread = iris.std(axis=0)
    error = np.sqrt(np.mean((((found - iris) / spread)[hidden]) ** 2))
    mean = np.sqrt(np.mean((((np.nanmean(rows, axis=0) - iris) / spread)[hidden]) ** 2))
    assert error < 0.8 * mean


def test_by_hand(quick: Make) -> None:
    """Two tight groups: what is missing is what its group has."""
    x = np.repeat([[0.0, 10.0, 5.0], [4.0, 30.0, 5.0]], 20, axis=0)
    x[:, :2] += np.random.default_rng(0).normal(0, 0.01, (40, 2))
    model = quick(2, objective="unmasked", beta=5.0).fit(x)
    found = model.complete([[0.0, np.nan, 5.0], [np.nan, 30.0, np.nan], [np.nan] * 3])
    np.testing.assert_allclose(found[:2], [[0, 10, 5], [4, 30, 5]], atol=0.2)
    assert found[1, 2] == 5.0  # a constant comes back exactly
    np.testing.assert_allclose(found[2], x.mean(axis=0))  # nothing to go by


def test_a_feature_never_seen_stays_missing(quick: Make) -> None:
    x = np.random.default_rng(0).normal(size=(30, 3))
    x[:, 1] = np.nan
    found = quick(2).fit(x).complete(x)
    assert np.isnan(found[:, 1]).all()
    np.testing.assert_array_equal(found[:, [0, 2]], x[:, [0, 2]])


def test_rows_as_directions_come_back_at_their_length(quick: Make) -> None:
    generator = np.random.default_rng(0)
    directions = np.repeat([[1.0, 0.0, 0.1], [0.0, 1.0, 0.1]], 30, axis=0)
    x = directions * generator.uniform(1, 100, (60, 1))
    rows = x.copy()
    rows[::4, 2] = np.nan
    model = quick(2, scaling="unit", beta=20.0, objective="unmasked").fit(rows)
    found = model.complete(rows)
    np.testing.assert_allclose(found[::4, 2], x[::4, 2], rtol=0.2)


def test_whole_numbers_are_given_back(quick: Make, iris: np.ndarray) -> None:
    x = (iris * 10).astype(np.int32)
    found = quick().fit(x).complete(x)
    np.testing.assert_array_equal(found, x)
    assert found.dtype == x.dtype
    assert not np.shares_memory(found, x)
