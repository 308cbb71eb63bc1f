"""Noise, robust losses and learned metrics equal autograd of the direct recursion, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clam_dist.models import couplings
from clam_dist.models.clam import SMALL_GROUP, ClAM
from clam_dist.models.direct import direct_states
from clam_dist.models.masks import draw_masks
from clam_dist.models.noise import draw_noise

TOLERANCE = 1e-9
KEY, SEED, RATE, NOISE, THRESHOLD = (1, 2), 9, 0.4, 0.7, 0.6


@dataclass
class Case:
    """One random problem: ``x (B,d)``, ``prototypes (P,k,d)``, and all that goes with them."""

    model: ClAM
    x: Tensor
    weight: Tensor | None
    observed: Tensor | None
    beta: Tensor
    parameters: dict[str, Tensor]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, d = draw(st.integers(0, 14)), draw(st.integers(1, 5))
    k, members, steps = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    alpha = draw(st.sampled_from([1.0 / steps, 0.4, 1.3]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(generator.normal(size=shape))

    objective = draw(st.sampled_from(["masked", "unmasked", "noise"]))
    forms = ["none", "diagonal"] if objective == "masked" else ["none", "diagonal", "full"]
    metric = draw(st.sampled_from(forms))
    parameters = {"prototypes": normal(members, k, d)}
    if metric != "none":
        parameters["metric"] = 0.5 * normal(members, d, *([d] if metric == "full" else []))
    if draw(st.booleans()):
        parameters["log_epsilon"] = normal(members, k)
    model = ClAM(
        k,
        steps,
        alpha,
        objective,
        RATE,
        np.round(4.0 * generator.normal(size=d)) / 4.0,  # exact in float32
        draw(st.sampled_from([1, 3, SMALL_GROUP])),
        SEED,
        loss=draw(st.sampled_from(["squared", "huber", "manhattan"])),
        huber=THRESHOLD,
        noise=NOISE,
        metric=metric,
    )
    weight = torch.from_numpy(generator.choice([0.0, 0.5, 2.0], rows))
    observed = torch.from_numpy(generator.random((rows, d)) > draw(st.floats(0.0, 0.9)))
    return Case(
        model=model,
        x=normal(rows, d) * draw(st.sampled_from([0.3, 1.0, 3.0])),
        weight=weight if draw(st.booleans()) else None,
        observed=observed if draw(st.booleans()) else None,
        beta=torch.from_numpy(generator.uniform(0.01, 2.0, members)),
        parameters=parameters,
    )


def masks_of_rows(observed: Tensor, group_rows: int) -> Tensor:
    """Which entries are hidden: groups among complete rows first, then among the others."""
    hidden = torch.zeros_like(observed)
    whole = observed.all(1)
    parts = [p for p in (whole.nonzero()[:, 0], (~whole).nonzero()[:, 0]) if len(p)]
    groups = sum(-(-len(part) // group_rows) for part in parts)
    masks = iter(draw_masks(SEED, KEY, groups, observed.shape[1], RATE))
    for part in parts:
        for rows in part.split(group_rows):
            hidden[rows[:, None], torch.from_numpy(next(masks))] = True
    return hidden


def cost(error: Tensor, loss: str) -> Tensor:
    if loss == "squared":
        return error**2
    if loss == "manhattan":
        return error.abs()
    tail = 2 * THRESHOLD * error.abs() - THRESHOLD**2
    return torch.where(error.abs() <= THRESHOLD, error**2, tail)


def linear_map(metric: Tensor | None, width: int) -> Tensor:
    """``F (d,d)`` of one member, of determinant 1, by the definition."""
    if metric is None:
        return torch.eye(width, dtype=torch.float64)
    logarithms = metric if metric.dim() == 1 else metric.diagonal()
    scales = torch.diag(torch.exp(logarithms - logarithms.sum() / width))
    return scales if metric.dim() == 1 else scales + torch.tril(metric, -1)


def oracle(case: Case) -> tuple[Tensor, dict[str, Tensor], float]:
    """Losses, gradients and entries: rows and prototypes mapped, moved, and mapped back."""
    model, x = case.model, case.x
    width = x.shape[1]
    observed = torch.ones_like(x, dtype=torch.bool) if case.observed is None else case.observed
    value = model.mask_value.double()
    moving, scored = None, observed
    start = torch.where(observed, x, value)
    if model.objective == "masked":
        hidden = masks_of_rows(observed, model.group_rows)
        moving, scored = hidden | ~observed, hidden & observed
    elif model.objective == "noise":
        noise = torch.from_numpy(draw_noise(SEED, KEY, *x.shape)).double()
        start = torch.where(observed, x + NOISE * noise, value)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.parameters.items()}
    losses = []
    for p, beta in enumerate(case.beta):
        own = {name: leaf[p] for name, leaf in leaves.items()}
        factor = linear_map(own.get("metric"), width)
        mapped = direct_states(
            start @ factor,
            own["prototypes"] @ factor,
            beta,
            model.alpha,
            model.steps,
            hidden=moving,
            value=value @ factor,
            log_epsilon=own.get("log_epsilon"),
        )[-1]
        error = torch.where(scored, x - mapped @ torch.linalg.inv(factor), 0.0)
        rows = cost(error @ factor, model.loss).sum(1)
        losses.append(rows.sum() if case.weight is None else (case.weight * rows).sum())
    total = torch.stack(losses)
    total.sum().backward()
    counts = scored.sum(1).double()
    entries = float(counts.sum() if case.weight is None else counts @ case.weight)
    found = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return total.detach(), found, entries


@pytest.fixture(params=["dense", "factored"], autouse=True)
def forced_coupling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both couplings must be exact, whichever the cost model would take; blocks must be many."""
    factored = request.param == "factored"
    monkeypatch.setattr(couplings, "factors_are_cheaper", lambda *_: factored)
    for module in ("moving", "residual"):
        monkeypatch.setattr(f"clam_dist.models.{module}.block_rows", lambda *_: 4)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the fixture keeps no state
)
@given(case=cases())
def test_sums_equal_autograd(case: Case) -> None:
    losses, gradients, entries = oracle(case)
    x = case.x if case.observed is None else torch.where(case.observed, case.x, 1e6)
    found = case.model.gradient_sums(case.parameters, case.beta, x, case.weight, case.observed, KEY)
    assert found.loss.dtype == torch.float64
    torch.testing.assert_close(found.loss, losses, rtol=TOLERANCE, atol=TOLERANCE)
    assert found.entries.item() == pytest.approx(entries)
    assert found.gradients.keys() == case.parameters.keys()
    for name, gradient in gradients.items():
        scale = 1.0 + float(gradient.abs().max())
        error = float((found.gradients[name] - gradient).abs().max())
        assert error <= TOLERANCE * scale, name


def drawn(width: int = 6) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(90, width, generator=generator, dtype=torch.float64),
        "prototypes": torch.randn(2, 4, width, generator=generator, dtype=torch.float64),
        "beta": torch.tensor([0.2, 0.9], dtype=torch.float64),
    }


@pytest.mark.parametrize(
    ("objective", "option"),
    [
        *(("masked", option) for option in ("diagonal", "huber")),
        *(("unmasked", option) for option in ("diagonal", "full", "huber")),
    ],
)
def test_options_that_change_nothing_leave_plain_clam(objective: str, option: str) -> None:
    """A metric of zeros is the Euclidean one; below its threshold Huber's loss is the square."""
    data = drawn()
    plain = ClAM(4, 5, objective=objective, seed=SEED)  # type: ignore[arg-type]
    parameters = {"prototypes": data["prototypes"]}
    arguments = (data["beta"], data["x"], None, None, KEY)
    expected = plain.gradient_sums(parameters, *arguments)
    if option == "huber":
        model = ClAM(4, 5, objective=objective, seed=SEED, loss="huber", huber=1e3)  # type: ignore[arg-type]
    else:
        model = ClAM(4, 5, objective=objective, seed=SEED, metric=option)  # type: ignore[arg-type]
        shape = (2, 6) if option == "diagonal" else (2, 6, 6)
        parameters["metric"] = torch.zeros(shape, dtype=torch.float64)
    found = model.gradient_sums(parameters, *arguments)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        found.gradients["prototypes"], expected.gradients["prototypes"], rtol=1e-10, atol=1e-12
    )
    assert found.entries.item() == expected.entries.item()


def test_noise_by_hand() -> None:
    """With k = 1 and A = 1/4, x_T = A (x + σ n) + (1-A) ρ, so the loss is a plain square."""
    x = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    prototype = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)
    noise = torch.from_numpy(draw_noise(0, KEY, 1, 2)).double()
    model = ClAM(1, 2, 0.5, "noise", noise=0.5)
    found = model.gradient_sums(
        {"prototypes": prototype}, torch.ones(1, dtype=torch.float64), x, None, None, KEY
    )
    error = 0.75 * (x - prototype[0]) - 0.125 * noise
    assert found.loss.item() == pytest.approx(float(error.square().sum()))
    torch.testing.assert_close(found.gradients["prototypes"][0], -1.5 * error)


@pytest.mark.parametrize("beta", [1e-4, 1.0, 1e4])
def test_float32_is_close_and_never_nan(beta: float) -> None:
    generator = torch.Generator().manual_seed(2)
    x = 5.0 * torch.randn(300, 8, generator=generator)
    prototypes = torch.randn(1, 6, 8, generator=generator)
    metric = 0.3 * torch.randn(1, 8, 8, generator=generator)
    model = ClAM(6, 10, objective="noise", metric="full", loss="huber")
    parameters = {"prototypes": prototypes, "metric": metric}
    single = model.gradient_sums(parameters, torch.tensor([beta]), x, None, None, KEY)
    exact = {name: value.double() for name, value in parameters.items()}
    double = model.gradient_sums(exact, torch.tensor([beta]).double(), x.double(), None, None, KEY)
    torch.testing.assert_close(single.loss, double.loss, rtol=1e-3, atol=0.0)
    for gradient in single.gradients.values():
        assert gradient.dtype == torch.float32
        assert torch.isfinite(gradient).all()
