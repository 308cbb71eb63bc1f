"""Completion against the recursion in x-space, one step at a time, in float64."""

from __future__ import annotations

import pytest
import torch

from clam_dist.models import completion
from clam_dist.models.completion import complete
from clam_dist.models.direct import direct_states


def case(seed: int, rows: int = 40, d: int = 6, k: int = 4) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(k, d, generator=generator, dtype=torch.float64)
    observed = torch.rand(rows, d, generator=generator) > 0.3
    observed[0], observed[1] = False, True
    observed[:, 2] = True  # a column without any missing value
    value = torch.randn(d, generator=generator, dtype=torch.float64)
    epsilon = torch.randn(k, generator=generator, dtype=torch.float64)
    return x, prototypes, observed, value, epsilon


@pytest.mark.parametrize("objective", ["masked", "unmasked"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block", [2048, 7])
def test_equals_the_direct_recursion(
    objective: str, weighted: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "BLOCK_ROWS", block)
    for seed, (beta, alpha, steps) in enumerate([(0.3, 0.1, 10), (2.0, 0.5, 3), (0.7, 1.0, 1)]):
        x, prototypes, observed, value, epsilon = case(seed)
        weights = epsilon if weighted else None
        final = direct_states(
            x,
            prototypes,
            beta,
            alpha,
            steps,
            hidden=~observed,
            value=value,
            log_epsilon=weights,
        )[-1]
        if objective == "unmasked":
            logits = -beta * (prototypes[None] - final[:, None]).square().sum(-1)
            shares = torch.softmax(logits if weights is None else logits + weights, -1)
            final = shares @ prototypes
        expected = torch.where(observed, x, final)
        garbage = torch.where(observed, x, 7e5)  # what a missing entry holds does not matter
        found = complete(
            garbage,
            observed,
            prototypes,
            beta,
            alpha,
            steps,
            value,
            objective=objective,
            log_epsilon=weights,
        )
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(found[observed], x[observed])


def test_nothing_missing_is_nothing_changed() -> None:
    x, prototypes, _, value, _ = case(0)
    seen = torch.ones_like(x, dtype=torch.bool)
    found = complete(x, seen, prototypes, 1.0, 0.1, 10, value, objective="masked")
    assert torch.equal(found, x)


def test_float32_is_near_float64() -> None:
    x, prototypes, observed, value, _ = case(3)
    arguments = (x, observed, prototypes, 1.0, 0.1, 10, value)
    single = [a.float() if isinstance(a, torch.Tensor) and a.dtype == torch.float64 else a
              for a in arguments]  # fmt: skip
    found = complete(*single, objective="masked")  # type: ignore[arg-type]
    expected = complete(*arguments, objective="masked")
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
