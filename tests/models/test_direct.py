from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.models.direct import direct_labels, direct_states, direct_step


def energy(x: torch.Tensor, prototypes: torch.Tensor, beta: float) -> torch.Tensor:
    """Equation 1: ``-1/β log Σ exp(-β ‖ρ - x‖²)``."""
    distance = torch.cdist(x, prototypes).square()
    return -torch.logsumexp(-beta * distance, 1) / beta


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    alpha=st.floats(0.01, 2.0),
    beta=st.floats(0.01, 5.0),
    masked=st.booleans(),
)
def test_energy_falls_by_at_least_the_step(
    seed: int, alpha: float, beta: float, masked: bool
) -> None:
    """``E(x) - E(x') >= α (2 - α) ‖m̄ ⊙ (w R - x)‖²`` for 0 < α <= 2."""
    generator = np.random.default_rng(seed)
    x = torch.from_numpy(generator.normal(size=(7, 4)) * 2)
    prototypes = torch.from_numpy(generator.normal(size=(5, 4)))
    moving = torch.from_numpy((generator.random((7, 4)) < 0.5).astype(float)) if masked else None
    after = direct_step(x, prototypes, beta, alpha, moving)
    fall = energy(x, prototypes, beta) - energy(after, prototypes, beta)
    bound = (2 - alpha) / alpha * (after - x).square().sum(1)
    assert (fall >= bound - 1e-9 * (1 + bound)).all()


def test_states_by_hand() -> None:
    """Two prototypes at ±1 and a row at 0: equal shares, so it stays; at β → ∞ it is drawn in."""
    prototypes = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    states = direct_states(torch.zeros(1, 1, dtype=torch.float64), prototypes, 3.0, 0.5, 2)
    assert [state.item() for state in states] == [0.0, 0.0, 0.0]
    row = torch.tensor([[0.5]], dtype=torch.float64)
    states = direct_states(row, prototypes, 1e3, 0.5, 2)
    np.testing.assert_allclose([state.item() for state in states], [0.5, 0.75, 0.875])
    assert direct_labels(states[-1], prototypes).tolist() == [1]


def test_hidden_features_start_at_the_value_and_seen_ones_stay() -> None:
    prototypes = torch.tensor([[2.0, 4.0]], dtype=torch.float64)
    row = torch.tensor([[1.0, 9.0]], dtype=torch.float64)
    hidden, value = torch.tensor([[False, True]]), torch.tensor([7.0, 8.0], dtype=torch.float64)
    clamped = direct_states(row, prototypes, 1.0, 0.5, 1, hidden=hidden, value=value)
    assert [state.tolist() for state in clamped] == [[[1.0, 8.0]], [[1.0, 6.0]]]
    free = direct_states(row, prototypes, 1.0, 0.5, 1, hidden=hidden, value=value, clamp=False)
    assert free[1].tolist() == [[1.5, 6.0]]


def test_log_epsilon_draws_towards_the_heavier_prototype() -> None:
    prototypes = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    weights = torch.log(torch.tensor([1.0, 3.0], dtype=torch.float64))
    row = torch.zeros(1, 1, dtype=torch.float64)
    assert direct_step(row, prototypes, 1.0, 1.0, None, weights).item() == 0.5  # 3/4 - 1/4
