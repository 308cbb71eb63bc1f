"""Every spherical objective equals autograd of the direct recursion, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clam_dist.models import couplings
from clam_dist.models.direct import direct_spherical_loss, direct_spherical_states
from clam_dist.models.spherical import (
    spherical_masked_sums,
    spherical_rowwise_sums,
    spherical_unmasked_sums,
)
from clam_dist.models.sums import Sums

TOLERANCE = 1e-9


@dataclass
class Case:
    """One random problem: ``x (B,d)``, ``prototypes (P,k,d)``, and all that goes with them."""

    x: Tensor
    weight: Tensor | None
    prototypes: Tensor
    beta: Tensor
    alpha: float
    steps: int
    log_epsilon: Tensor | None
    observed: Tensor
    hidden: Tensor
    group_rows: int

    @property
    def common(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor, float, int]:
        return self.x, self.weight, self.prototypes, self.beta, self.alpha, self.steps

    @property
    def mask(self) -> Tensor:
        """The groups' masks by row, ``(B,d)`` bool."""
        masks = torch.zeros(len(self.hidden), self.x.shape[1], dtype=torch.bool)
        masks.scatter_(1, self.hidden, True)
        return masks.repeat_interleave(self.group_rows, 0)[: len(self.x)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, d = draw(st.integers(0, 12)), draw(st.integers(1, 5))
    k, members = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    steps = draw(st.integers(1, 6))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(generator.normal(size=shape))

    x = normal(rows, d) * draw(st.sampled_from([0.3, 1.0, 30.0]))
    x[torch.from_numpy(generator.random(rows) < 0.2)] = 0.0
    weight = torch.from_numpy(generator.choice([0.0, 0.5, 2.0], rows))
    group_rows, h = draw(st.integers(1, 5)), draw(st.integers(1, d))
    groups = -(-rows // group_rows)
    hidden = [np.sort(generator.permutation(d)[:h]) for _ in range(groups)]
    return Case(
        x=x,
        weight=weight if draw(st.booleans()) else None,
        prototypes=normal(members, k, d) * draw(st.sampled_from([0.1, 1.0, 9.0])),
        beta=torch.from_numpy(generator.uniform(0.01, 5.0, members)),
        # Near α = 1 a state opposite to its prototype may vanish, and what is left is rounding.
        alpha=draw(st.sampled_from([1.0 / (steps + 1), 0.25, 0.5])),
        steps=steps,
        log_epsilon=normal(members, k) if draw(st.booleans()) else None,
        observed=torch.from_numpy(generator.random((rows, d)) > draw(st.floats(0.0, 0.9))),
        hidden=torch.from_numpy(np.array(hidden, dtype=np.int64).reshape(groups, h)),
        group_rows=group_rows,
    )


def assert_equals_autograd(found: Sums, case: Case, shown: Tensor, scored: Tensor) -> None:
    """Losses, gradients and entries are those of the direct recursion."""
    leaves = {"prototypes": case.prototypes.clone().requires_grad_()}
    if case.log_epsilon is not None:
        leaves["log_epsilon"] = case.log_epsilon.clone().requires_grad_()
    losses = torch.stack(
        [
            direct_spherical_loss(
                case.x,
                case.weight,
                leaves["prototypes"][p],
                case.beta[p],
                case.alpha,
                case.steps,
                shown=shown,
                scored=scored,
                log_epsilon=leaves["log_epsilon"][p] if case.log_epsilon is not None else None,
            )
            for p in range(len(case.beta))
        ]
    )
    losses.sum().backward()
    assert found.loss.dtype == torch.float64
    torch.testing.assert_close(found.loss, losses.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    assert found.gradients.keys() == leaves.keys()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        # Short prototypes have long gradients, and cancellation is relative to these.
        scale = 1.0 + float(leaf.grad.abs().max()) + float(1.0 / case.prototypes.norm(dim=2).min())
        error = float((found.gradients[name] - leaf.grad).abs().max())
        assert error <= TOLERANCE * scale, name
    alive = (torch.where(shown, case.x, 0.0) != 0).any(1)
    rows = (scored.sum(1) * alive).double()
    entries = float(rows.sum() if case.weight is None else rows @ case.weight)
    assert found.entries.item() == pytest.approx(entries)


@pytest.fixture(params=["dense", "factored"], autouse=True)
def forced_coupling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both couplings must be exact, whichever the cost model would take; blocks must be many."""
    monkeypatch.setattr(couplings, "factors_are_cheaper", lambda *_: request.param == "factored")
    monkeypatch.setattr("clam_dist.models.spherical.block_rows", lambda *_: 4)


MANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the fixture keeps no state
)


@MANY
@given(case=cases())
def test_unmasked(case: Case) -> None:
    found = spherical_unmasked_sums(*case.common, log_epsilon=case.log_epsilon)
    whole = torch.ones_like(case.observed)
    assert_equals_autograd(found, case, whole, whole)


@MANY
@given(case=cases())
def test_unmasked_with_missing_values(case: Case) -> None:
    found = spherical_unmasked_sums(
        *case.common, observed=case.observed, log_epsilon=case.log_epsilon
    )
    assert_equals_autograd(found, case, case.observed, case.observed)


@MANY
@given(case=cases())
def test_masked(case: Case) -> None:
    found = spherical_masked_sums(
        *case.common, case.hidden, case.group_rows, log_epsilon=case.log_epsilon
    )
    assert_equals_autograd(found, case, ~case.mask, case.mask)


@MANY
@given(case=cases())
def test_masked_with_missing_values(case: Case) -> None:
    shown, scored = ~case.mask & case.observed, case.mask & case.observed
    found = spherical_rowwise_sums(*case.common, shown, scored, log_epsilon=case.log_epsilon)
    assert_equals_autograd(found, case, shown, scored)


def test_one_prototype_by_hand() -> None:
    """k = 1, T = 1, α = 1: ``x_1`` halves the angle between row and prototype."""
    x = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    prototype = torch.tensor([[[0.0, 5.0]]], dtype=torch.float64)
    beta = torch.ones(1, dtype=torch.float64)
    found = spherical_unmasked_sums(x, None, prototype, beta, 1.0, 1)
    assert found.loss.item() == pytest.approx(2 - 2 * 0.5**0.5)  # an angle of 45 degrees
    # The loss is 2 - 2 cos(φ/2) with φ the angle, so dloss/dφ = sin(φ/2), and moving the
    # prototype by δ towards the row turns φ by -δ/5.
    assert found.gradients["prototypes"].flatten().tolist() == pytest.approx([-(0.5**0.5) / 5, 0.0])


def test_rows_and_prototypes_of_zeros_are_left_alone() -> None:
    x = torch.zeros(3, 2)
    x[0] = torch.tensor([1.0, 2.0])
    prototypes = torch.tensor([[[1.0, 0.5], [0.0, 0.0]]])
    beta = torch.ones(1)
    hidden = torch.tensor([[0], [1], [1]])
    for found, alone in (
        (
            spherical_unmasked_sums(x, None, prototypes, beta, 0.5, 2),
            spherical_unmasked_sums(x[:1], None, prototypes, beta, 0.5, 2),
        ),
        (
            spherical_masked_sums(x, None, prototypes, beta, 0.5, 2, hidden, 1),
            spherical_masked_sums(x[:1], None, prototypes, beta, 0.5, 2, hidden[:1], 1),
        ),
    ):
        assert torch.isfinite(found.loss).all()
        assert found.loss.item() == pytest.approx(alone.loss.item())
        assert found.entries.item() == alone.entries.item() > 0
        gradient = found.gradients["prototypes"]
        torch.testing.assert_close(gradient, alone.gradients["prototypes"])
        assert gradient[0, 1].tolist() == [0.0, 0.0]
        assert gradient[0, 0].abs().max() > 0


def test_a_row_whose_only_feature_is_hidden_has_no_loss() -> None:
    x = torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    beta, prototypes = torch.ones(1), torch.tensor([[[1.0, 0.2]]])
    found = spherical_masked_sums(x, None, prototypes, beta, 0.5, 2, torch.tensor([[1]]), 2)
    alone = spherical_masked_sums(x[1:], None, prototypes, beta, 0.5, 2, torch.tensor([[1]]), 1)
    assert found.entries.item() == alone.entries.item() == 1.0
    assert found.loss.item() == pytest.approx(alone.loss.item())


def test_a_state_that_vanishes_stays_finite() -> None:
    """``x = -ρ`` and ``α = 1``: ``x̃`` is 0, which has no direction."""
    x, prototypes = torch.tensor([[-1.0, 0.0]]), torch.tensor([[[1.0, 0.0]]])
    found = spherical_unmasked_sums(x, None, prototypes, torch.ones(1), 1.0, 3)
    assert torch.isfinite(found.loss).all()
    assert torch.isfinite(found.gradients["prototypes"]).all()


@pytest.mark.parametrize("beta", [1e-4, 1.0, 1e4])
def test_float32_is_close_and_never_nan(beta: float) -> None:
    generator = torch.Generator().manual_seed(2)
    x = 5.0 * torch.randn(300, 8, generator=generator)
    prototypes = torch.randn(1, 6, 8, generator=generator)
    hidden, betas = torch.tensor([[0, 3], [2, 7], [1, 5]]), torch.tensor([beta])
    for function, extra in ((spherical_unmasked_sums, ()), (spherical_masked_sums, (hidden, 100))):
        single = function(x, None, prototypes, betas, 0.1, 10, *extra)
        double = function(x.double(), None, prototypes.double(), betas.double(), 0.1, 10, *extra)
        torch.testing.assert_close(single.loss, double.loss, rtol=1e-3, atol=0.0)
        assert single.gradients["prototypes"].dtype == torch.float32
        assert torch.isfinite(single.gradients["prototypes"]).all()


def test_states_have_length_one_and_zeros_stay() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    prototypes = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    states = direct_spherical_states(x, prototypes, 1.0, 1.0, 1)
    assert states[0].tolist() == [pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    assert states[1][0].tolist() == pytest.approx([0.6 / 3.6**0.5, 1.8 / 3.6**0.5])
