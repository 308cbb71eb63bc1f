from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clam_dist.models.direct import direct_step
from clam_dist.models.energy import BLOCK_ROWS, energies, entropies, entropy, memberships

seeds = st.integers(0, 2**31)


def draw(seed: int, rows: int = 30, d: int = 4, k: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    observed = torch.rand(rows, d, generator=generator) > 0.3
    return {"x": 2.0 * normal(rows, d), "rho": normal(k, d), "eps": normal(k), "seen": observed}


def logits_of(
    data: dict[str, Tensor], beta: float, weighted: bool, missing: bool, spherical: bool
) -> np.ndarray:
    """By the definitions, in NumPy: ``(B,k)``."""
    x, rho = data["x"].numpy(), data["rho"].numpy()
    seen = data["seen"].numpy() if missing else np.ones_like(x)
    if spherical:
        x = x * seen
        x, rho = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, rho))
        logits = beta * x @ rho.T
    else:
        logits = -beta * (seen[:, None] * (rho[None] - x[:, None]) ** 2).sum(2)
    return logits + data["eps"].numpy() if weighted else logits


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds, beta=st.floats(0.01, 3.0), weighted=st.booleans(), missing=st.booleans(),
    spherical=st.booleans(),
)  # fmt: skip
def test_everything_equals_its_definition(
    seed: int, beta: float, weighted: bool, missing: bool, spherical: bool
) -> None:
    data = draw(seed)
    data["seen"][:, 0] = True  # on the sphere a row needs something to show
    logits = logits_of(data, beta, weighted, missing, spherical)
    sums = np.exp(logits).sum(1, keepdims=True)
    shares = np.exp(logits) / sums
    keywords = {
        "log_epsilon": data["eps"] if weighted else None,
        "observed": data["seen"] if missing else None,
    }
    x = torch.where(data["seen"], data["x"], 1e6) if missing else data["x"]
    arguments = (x, data["rho"], beta)
    found = memberships(*arguments, **keywords, spherical=spherical)
    np.testing.assert_allclose(found, shares, rtol=1e-9, atol=1e-12)
    found = energies(*arguments, **keywords, spherical=spherical)
    np.testing.assert_allclose(found, -np.log(sums[:, 0]) / beta, rtol=1e-9, atol=1e-9)
    found = entropies(*arguments, **keywords, spherical=spherical)
    np.testing.assert_allclose(found, -(shares * np.log(shares)).sum(1), rtol=1e-8, atol=1e-12)
    assert (found >= 0).all()
    assert (found <= math.log(5) + 1e-12).all()


@settings(max_examples=100, deadline=None)
@given(
    seed=seeds, beta=st.floats(0.01, 3.0), alpha=st.floats(0.01, 2.0), masked=st.booleans(),
    weighted=st.booleans(),
)  # fmt: skip
def test_a_step_lowers_the_energy_by_its_bound(
    seed: int, beta: float, alpha: float, masked: bool, weighted: bool
) -> None:
    """E(x) - E(x') >= α (2-α) ‖m ⊙ (w R - x)‖², also where some features are clamped."""
    data = draw(seed)
    x, rho, eps = data["x"], data["rho"], data["eps"] if weighted else None
    moving = data["seen"].double() if masked else torch.ones_like(x)
    after = direct_step(x, rho, beta, alpha, moving, eps)
    pull = moving * (memberships(x, rho, beta, eps) @ rho - x)
    fall = energies(x, rho, beta, eps) - energies(after, rho, beta, eps)
    assert (fall >= alpha * (2 - alpha) * pull.square().sum(1) - 1e-9).all()


def test_energies_by_hand() -> None:
    """Two prototypes at distance 1 and 2: -log(e^-1 + e^-4); weighed 2 and 0, 1 - log 2."""
    x, rho = torch.zeros(1, 1), torch.tensor([[1.0], [2.0]])
    found = energies(x, rho, 1.0)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(-math.log(math.exp(-1) + math.exp(-4)))
    weights = torch.tensor([math.log(2.0), -100.0])
    assert energies(x, rho, 1.0, weights).item() == pytest.approx(1.0 - math.log(2.0))


def test_entropy_by_hand() -> None:
    shares = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert entropy(shares).tolist() == pytest.approx([0.0, math.log(2.0)])


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_cold_rows_belong_to_the_nearest_and_hot_ones_to_all(seed: int) -> None:
    data = draw(seed)
    distances = torch.cdist(data["x"], data["rho"]).square()
    nearest, second = distances.topk(2, largest=False)[0].T
    clear = second - nearest > 1e-3
    cold = memberships(data["x"], data["rho"], 1e5)[clear]
    expected = torch.nn.functional.one_hot(distances.argmin(1), 5).double()[clear]
    torch.testing.assert_close(cold, expected, rtol=0, atol=1e-9)
    assert (entropies(data["x"], data["rho"], 1e5)[clear] < 1e-9).all()
    hot = memberships(data["x"], data["rho"], 1e-9)
    torch.testing.assert_close(hot, torch.full_like(hot, 0.2), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        entropies(data["x"], data["rho"], 1e-9), torch.full((30,), math.log(5)).double()
    )


def test_a_rows_digits_do_not_depend_on_its_company() -> None:
    data = {name: value.float() for name, value in draw(0, BLOCK_ROWS + 50, 9, 7).items()}
    x, rho, seen = data["x"], data["rho"], data["seen"] > 0
    for function in (energies, entropies, memberships):
        whole = function(x, rho, 0.3, None, seen)
        for part in (slice(5, 6), slice(40, BLOCK_ROWS + 45)):
            assert torch.equal(function(x[part], rho, 0.3, None, seen[part]), whole[part])


def test_far_from_the_origin_and_cold() -> None:
    """Neither cancellation nor underflow: the authors' exponentials are 0 here."""
    x = torch.tensor([[1e4, 1e4], [1e4 + 1, 1e4]])
    rho = torch.tensor([[1e4, 1e4], [1e4 + 8, 1e4]])
    assert energies(x, rho, 50.0).tolist() == pytest.approx([0.0, 1.0])
    assert entropies(x, rho, 50.0).tolist() == [0.0, 0.0]


def test_rows_of_zeros_have_nothing_on_the_sphere() -> None:
    x, rho = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.eye(2)
    for function in (energies, entropies, memberships):
        found = function(x, rho, 2.0, spherical=True)
        assert torch.isnan(found[0]).all()
        assert torch.isfinite(found[1]).all()
