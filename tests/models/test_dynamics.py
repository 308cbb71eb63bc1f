from __future__ import annotations

import pytest
import torch

from clam_dist.models.couplings import DenseCoupling, FactoredCoupling, couple, factors_are_cheaper
from clam_dist.models.direct import direct_states
from clam_dist.models.dynamics import descend, remaining, resolve_step_size, settle
from clam_dist.models.sums import Prototypes
from clam_dist.models.workspace import Workspace


@pytest.mark.parametrize("form", [DenseCoupling, FactoredCoupling])
def test_states_are_mixtures_of_the_start_and_the_prototypes(form: type) -> None:
    """``x_t = (1-α)^t x_0 + C_t R`` at every step, and ``z_T = β (2 x_T R' - g)``."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    rows = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    beta, alpha, steps, space = torch.tensor([0.3, 1.1], dtype=torch.float64), 0.3, 5, Workspace()
    held = Prototypes(rows, beta)
    start = held.start(x, space).clone()
    factors = held.all_move()
    coupling = form(*factors)
    path = descend(start, coupling, alpha, steps, True, space)
    last = settle(start, coupling, alpha, steps, True, Workspace())
    for p in range(2):
        states = direct_states(x, rows[p], beta[p], alpha, steps)
        for t in range(steps):
            mixture = sum(
                alpha * remaining(alpha, t - s) * path.shares[s][p].T for s in range(t + 1)
            )
            mixed = remaining(alpha, t + 1) * x + mixture @ rows[p]
            torch.testing.assert_close(mixed, states[t + 1], rtol=0, atol=1e-13)
            torch.testing.assert_close(path.shares[t].sum(1), torch.ones_like(path.shares[t][:, 0]))
        logits = beta[p] * (2 * rows[p] @ states[-1].T - rows[p].square().sum(1)[:, None])
        torch.testing.assert_close(last[p], logits, rtol=0, atol=1e-12)


def test_step_size_is_one_over_the_depth() -> None:
    assert resolve_step_size(None, 8) == 0.125
    assert resolve_step_size(0.4, 8) == 0.4
    assert remaining(0.1, 10) == pytest.approx(0.9**10)
    assert remaining(1.0, 0) == 1.0


def test_the_cost_model_chooses_by_rank() -> None:
    assert not factors_are_cheaper(9, 2)  # few prototypes: calls cost more than arithmetic
    assert not factors_are_cheaper(100, 45)
    assert factors_are_cheaper(100, 44)
    assert factors_are_cheaper(512, 33)
    assert isinstance(couple(torch.ones(1, 9, 2), torch.ones(1, 9, 2)), DenseCoupling)
    wide = torch.ones(1, 512, 3)
    assert isinstance(couple(wide, wide), FactoredCoupling)


@pytest.mark.parametrize("form", [DenseCoupling, FactoredCoupling])
def test_a_step_back_is_the_transpose_of_the_step(form: type) -> None:
    """``logits`` adds ``K carry``, so ``pull`` adds ``α K' error``; softmax would hide a slip."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 1, 4, 3, generator=generator, dtype=torch.float64)
    space, zeros = Workspace(), torch.zeros(1, 4, 5, dtype=torch.float64)
    coupling = form(left, right)
    (carry,) = coupling.carries(1, zeros, space)
    basis = torch.eye(carry.shape[1], dtype=torch.float64)[None]
    nothing = torch.zeros(1, 4, len(basis[0]), dtype=torch.float64)
    whole = coupling.logits(nothing, 1.0, basis, torch.empty_like(nothing))
    error = torch.randn(1, 4, 5, generator=generator, dtype=torch.float64)
    adjoint = torch.randn(carry.shape, generator=generator, dtype=torch.float64)
    expected = 0.7 * adjoint + 0.3 * whole.mT @ error
    coupling.pull(error, error, zeros, torch.zeros_like(carry), adjoint, 0.3)
    torch.testing.assert_close(adjoint, expected)
