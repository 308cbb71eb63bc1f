from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.errors import ConfigError
from clam_dist.models.robust import Penalty


@pytest.mark.parametrize(
    ("loss", "costs", "halves"),
    [
        ("squared", [0.25, 9.0], [0.5, -3.0]),
        ("huber", [0.25, 8.0], [0.5, -2.0]),  # 2·2·3 - 2² = 8
        ("manhattan", [0.5, 3.0], [0.5, -0.5]),
    ],
)
def test_costs_and_half_derivatives_by_hand(
    loss: str, costs: list[float], halves: list[float]
) -> None:
    """Two problems of one entry and two rows, the second of weight 3."""
    error = torch.tensor([[[0.5, -3.0]], [[-3.0, 0.5]]])
    weight = torch.tensor([1.0, 3.0])
    found = Penalty(loss, 2.0)(error, weight)  # type: ignore[arg-type]
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([costs[0] + 3 * costs[1], costs[1] + 3 * costs[0]])
    expected = torch.tensor([[[halves[0], 3 * halves[1]]], [[halves[1], 3 * halves[0]]]])
    torch.testing.assert_close(error, expected)


@settings(max_examples=50, deadline=None)
@given(
    error=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    threshold=st.floats(1e-3, 1e3),
)
def test_huber_lies_between_its_line_and_the_square(error: list[float], threshold: float) -> None:
    values = torch.tensor(error, dtype=torch.float64).view(-1, 1, 1)
    found = Penalty("huber", threshold)(values.clone(), None)
    square, line = values.flatten() ** 2, 2 * threshold * values.flatten().abs()
    slack = 1e-9 * (1.0 + square)
    assert (found <= torch.minimum(square, line) + slack).all()
    assert (found >= line - threshold**2 - slack).all()


@pytest.mark.parametrize(
    ("loss", "threshold", "message"),
    [
        ("absolute", 1.0, r"model\.loss: 'absolute' is unknown; use squared, huber, manhattan"),
        ("huber", 0.0, r"model\.huber: 0\.0 is not above 0"),
        ("huber", float("nan"), r"model\.huber: nan is not above 0"),
    ],
)
def test_messages(loss: str, threshold: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Penalty(loss, threshold)  # type: ignore[arg-type]
