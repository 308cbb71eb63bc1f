"""Every k-space objective equals autograd of the direct recursion, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clam_dist.models import couplings, pairs
from clam_dist.models.direct import direct_loss
from clam_dist.models.masked import masked_sums
from clam_dist.models.rowwise import rowwise_sums
from clam_dist.models.sums import Sums
from clam_dist.models.unmasked import unmasked_sums

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
    value: Tensor
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
    alpha = draw(st.sampled_from([1.0 / steps, 0.4, 1.3]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.3, 1.0, 3.0]))

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(generator.normal(size=shape))

    weight = torch.from_numpy(generator.choice([0.0, 0.5, 2.0], rows))
    group_rows, h = draw(st.integers(1, 5)), draw(st.integers(1, d))
    groups = -(-rows // group_rows)
    hidden = [np.sort(generator.permutation(d)[:h]) for _ in range(groups)]
    return Case(
        x=normal(rows, d) * spread,
        weight=weight if draw(st.booleans()) else None,
        prototypes=normal(members, k, d),
        beta=torch.from_numpy(generator.uniform(0.01, 2.0, members)),
        alpha=alpha,
        steps=steps,
        log_epsilon=normal(members, k) if draw(st.booleans()) else None,
        value=normal(d),
        observed=torch.from_numpy(generator.random((rows, d)) > draw(st.floats(0.0, 0.9))),
        hidden=torch.from_numpy(np.array(hidden, dtype=np.int64).reshape(groups, h)),
        group_rows=group_rows,
    )


def oracle(case: Case, x: Tensor, **keywords: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses ``(P,)`` and gradients of the direct recursion, one member at a time."""
    leaves = {"prototypes": case.prototypes.clone().requires_grad_()}
    if case.log_epsilon is not None:
        leaves["log_epsilon"] = case.log_epsilon.clone().requires_grad_()
    losses = torch.stack(
        [
            direct_loss(
                x,
                case.weight,
                leaves["prototypes"][p],
                case.beta[p],
                case.alpha,
                case.steps,
                log_epsilon=leaves["log_epsilon"][p] if case.log_epsilon is not None else None,
                **keywords,
            )
            for p in range(len(case.beta))
        ]
    )
    losses.sum().backward()
    return losses.detach(), {n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None}


def assert_equal(found: Sums, losses: Tensor, gradients: dict[str, Tensor]) -> None:
    assert found.loss.dtype == torch.float64
    torch.testing.assert_close(found.loss, losses, rtol=TOLERANCE, atol=TOLERANCE)
    assert found.gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        scale = 1.0 + float(gradient.abs().max())
        error = float((found.gradients[name] - gradient).abs().max())
        assert error <= TOLERANCE * scale, name


@pytest.fixture(params=["dense", "factored"], autouse=True)
def forced_coupling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both couplings must be exact, whichever the cost model would take; blocks must be many."""
    factored = request.param == "factored"
    monkeypatch.setattr(couplings, "factors_are_cheaper", lambda *_: factored)
    monkeypatch.setattr(pairs, "pairs_are_cheaper", lambda *_: not factored)
    for module in ("unmasked", "ambient", "masked", "rowwise"):
        monkeypatch.setattr(f"clam_dist.models.{module}.block_rows", lambda *_: 4)


MANY = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the fixture keeps no state
)


def entries(case: Case, scored: Tensor) -> float:
    rows = scored.sum(1).double()
    return float(rows.sum() if case.weight is None else rows @ case.weight)


@MANY
@given(case=cases())
def test_unmasked_equals_autograd(case: Case) -> None:
    found = unmasked_sums(*case.common, log_epsilon=case.log_epsilon)
    assert_equal(found, *oracle(case, case.x))
    assert found.entries.item() == pytest.approx(entries(case, torch.ones_like(case.observed)))


@MANY
@given(case=cases())
def test_unmasked_with_missing_values_equals_autograd(case: Case) -> None:
    """Missing entries start filled, move with the rest, and are not in the loss."""
    filled = torch.where(case.observed, case.x, case.value)
    found = unmasked_sums(
        filled, *case.common[1:], observed=case.observed, log_epsilon=case.log_epsilon
    )
    assert_equal(found, *oracle(case, filled, scored=case.observed))
    assert found.entries.item() == pytest.approx(entries(case, case.observed))


@MANY
@given(case=cases())
def test_masked_equals_autograd(case: Case) -> None:
    found = masked_sums(
        *case.common, case.hidden, case.group_rows, case.value, log_epsilon=case.log_epsilon
    )
    assert_equal(found, *oracle(case, case.x, hidden=case.mask, scored=case.mask, value=case.value))
    assert found.entries.item() == pytest.approx(entries(case, case.mask))


@MANY
@given(case=cases())
def test_masked_with_missing_values_equals_autograd(case: Case) -> None:
    """Hidden and missing features move, hidden and observed ones are scored."""
    moving, scored = case.mask | ~case.observed, case.mask & case.observed
    found = rowwise_sums(*case.common, moving, scored, case.value, log_epsilon=case.log_epsilon)
    assert_equal(found, *oracle(case, case.x, hidden=moving, scored=scored, value=case.value))
    assert found.entries.item() == pytest.approx(entries(case, scored))


def test_one_prototype_by_hand() -> None:
    """With k = 1 the state is A x + (1 - A) ρ: loss (1-A)² ‖x - ρ‖², gradient -2 (1-A)² (x - ρ)."""
    x = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    prototype = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)
    beta = torch.ones(1, dtype=torch.float64)
    found = unmasked_sums(x, None, prototype, beta, 0.5, 2)  # A = 1/4, x - ρ = (2, -1)
    assert found.loss.item() == pytest.approx(0.5625 * 5.0)
    assert found.gradients["prototypes"].flatten().tolist() == pytest.approx([-2.25, 1.125])
    # Feature 1 hidden from v = 0: x_T = (1 - A) 2 = 1.5, so the loss is (1 - 1.5)² = 0.25.
    hidden = torch.tensor([[1]])
    found = masked_sums(x, None, prototype, beta, 0.5, 2, hidden, 1, torch.zeros(2))
    assert found.loss.item() == pytest.approx(0.25)
    assert found.gradients["prototypes"].flatten().tolist() == pytest.approx([0.0, 0.75])
    assert found.entries.item() == 1.0


def test_weight_two_equals_the_row_twice() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    beta = torch.tensor([0.2, 1.0], dtype=torch.float64)
    weight = torch.tensor([2.0, 1.0, 1.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    twice = x[[0, 0, 1, 2, 3, 3, 4]]
    by_weight = unmasked_sums(x, weight, prototypes, beta, 0.2, 5)
    by_rows = unmasked_sums(twice, None, prototypes, beta, 0.2, 5)
    assert by_weight.entries.item() == by_rows.entries.item()
    torch.testing.assert_close(by_weight.loss, by_rows.loss)
    torch.testing.assert_close(by_weight.gradients, by_rows.gradients)


@pytest.mark.parametrize("beta", [1e-4, 1.0, 1e4])
def test_float32_is_close_and_never_nan(beta: float) -> None:
    """The authors' unshifted exponentials underflow past β‖ρ - x‖² of about 90; these must not."""
    generator = torch.Generator().manual_seed(2)
    x = 5.0 * torch.randn(300, 8, generator=generator)
    prototypes = torch.randn(1, 6, 8, generator=generator)
    hidden, betas = torch.tensor([[0, 3], [2, 7], [1, 5]]), torch.tensor([beta])
    for function, extra in (
        (unmasked_sums, ()),
        (masked_sums, (hidden, 100, torch.zeros(8))),
    ):
        single = function(x, None, prototypes, betas, 0.1, 10, *extra)
        double = function(x.double(), None, prototypes.double(), betas.double(), 0.1, 10, *extra)
        torch.testing.assert_close(single.loss, double.loss, rtol=1e-3, atol=0.0)
        gradient = single.gradients["prototypes"]
        assert gradient.dtype == torch.float32
        assert torch.isfinite(gradient).all()
