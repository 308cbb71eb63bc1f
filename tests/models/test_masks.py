from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.models.masks import draw_masks, hidden_count


@pytest.mark.parametrize(
    ("width", "rate", "count"),
    [(7, 0.15, 1), (14, 0.15, 2), (784, 0.15, 118), (3, 0.01, 1), (1, 0.3, 1), (4, 1.0, 4)],
)
def test_exactly_max_one_and_the_rounded_share(width: int, rate: float, count: int) -> None:
    assert hidden_count(width, rate) == count
    assert draw_masks(0, (1,), 3, width, rate).shape == (3, count)


@settings(max_examples=50, deadline=None)
@given(
    width=st.integers(1, 40),
    groups=st.integers(0, 6),
    low=st.floats(0.0, 1.0),
    high=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**63),
)
def test_distinct_sorted_columns_nested_across_rates(
    width: int, groups: int, low: float, high: float, seed: int
) -> None:
    low, high = sorted((low, high))
    few, many = (draw_masks(seed, (3, 1), groups, width, rate) for rate in (low, high))
    assert few.dtype == np.int64
    assert (np.diff(many, axis=1) > 0).all()
    assert ((many >= 0) & (many < width)).all()
    for small, large in zip(few, many):
        assert set(small) <= set(large)


def test_keyed_by_seed_and_key_alone() -> None:
    first = draw_masks(5, (1, 2), 4, 30, 0.2)
    assert (draw_masks(5, (1, 2), 4, 30, 0.2) == first).all()
    assert not (draw_masks(5, (2, 1), 4, 30, 0.2) == first).all()
    assert not (draw_masks(6, (1, 2), 4, 30, 0.2) == first).all()


def test_every_feature_is_hidden_equally_often() -> None:
    """Three of ten features in 20 000 groups: each 6 000 times, within five standard errors."""
    counts = np.bincount(draw_masks(0, (0,), 20_000, 10, 0.3).ravel(), minlength=10)
    assert abs(counts - 6000).max() < 5 * np.sqrt(20_000 * 0.3 * 0.7)
