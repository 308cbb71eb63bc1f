from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.models.clam import ClAM
from clam_dist.models.direct import direct_spherical_states, direct_states
from clam_dist.models.inference import BLOCK_ROWS, infer
from clam_dist.models.memberships import settled_memberships, settled_spherical_memberships
from clam_dist.models.spherical_inference import infer_spherical


def draw(seed: int, rows: int, d: int, k: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(k, d, generator=generator, dtype=torch.float64)
    observed = torch.rand(rows, d, generator=generator) > 0.3
    value = torch.randn(d, generator=generator, dtype=torch.float64)
    weights = torch.randn(k, generator=generator, dtype=torch.float64)
    return x, prototypes, observed, value, weights


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    d=st.integers(1, 5),
    k=st.integers(1, 40),
    steps=st.integers(1, 6),
    missing=st.booleans(),
    clamp=st.booleans(),
    weighted=st.booleans(),
    beta=st.sampled_from([0.01, 0.7, 5.0]),
)
def test_they_are_the_direct_recursions(
    seed: int, d: int, k: int, steps: int, missing: bool, clamp: bool, weighted: bool, beta: float
) -> None:
    x, prototypes, observed, value, weights = draw(seed, 20, d, k)
    seen, epsilon = observed if missing else None, weights if weighted else None
    found = settled_memberships(x, seen, prototypes, beta, 1 / steps, steps, value, clamp, epsilon)
    keywords = {"value": value, "log_epsilon": epsilon}
    hidden = ~observed if missing else None
    final = direct_states(
        x, prototypes, beta, 1 / steps, steps, hidden=hidden, clamp=clamp, **keywords
    )[-1]
    free = direct_states(x, prototypes, beta, 1 / steps, steps, **keywords)[-1]
    whole = observed.all(1, keepdim=True) if missing else torch.ones(20, 1, dtype=torch.bool)
    final = torch.where(whole, free, final)  # a complete row has nothing to clamp
    expected = torch.softmax(-beta * torch.cdist(final, prototypes).square(), 1)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), missing=st.booleans(), weighted=st.booleans())
def test_they_are_the_direct_recursions_on_the_sphere(
    seed: int, missing: bool, weighted: bool
) -> None:
    x, prototypes, observed, _, weights = draw(seed, 20, 4, 3)
    observed[:, 0] = True
    seen, epsilon = observed if missing else None, weights if weighted else None
    found = settled_spherical_memberships(x, seen, prototypes, 2.5, 0.25, 4, epsilon)
    start = torch.where(observed, x, 0.0) if missing else x
    final = direct_spherical_states(start, prototypes, 2.5, 0.25, 4, log_epsilon=epsilon)[-1]
    cosines = torch.cosine_similarity(final[:, None], prototypes[None], dim=2)
    torch.testing.assert_close(found, torch.softmax(2.5 * cosines, 1), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("beta", [1e-9, 1e-4, 0.3, 30.0, 1e5])
@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_greatest_is_the_label(beta: float, clamp: bool, missing: bool, weighted: bool) -> None:
    """Also where shares are equal but for rounding (hot), and where all but one are 0 (cold)."""
    x, prototypes, observed, value, weights = draw(5, BLOCK_ROWS + 400, 6, 9)
    observed[::2] = True
    arguments = (
        x.float(), observed if missing else None, prototypes.float(), beta, 0.1, 10,
        value, clamp, weights.float() if weighted else None,
    )  # fmt: skip
    labels = infer(*arguments)[0].numpy()
    found = settled_memberships(*arguments).numpy()
    np.testing.assert_array_equal(found.argmax(1), labels)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("beta", [1e-7, 3.0, 1e5])
def test_the_greatest_is_the_label_on_the_sphere(beta: float) -> None:
    x, prototypes, _, _, weights = draw(6, 3000, 6, 9)
    x[7] = 0.0
    arguments = (x.float(), None, prototypes.float(), beta, 0.1, 10, weights.float())
    labels = infer_spherical(*arguments)[0]
    found = settled_spherical_memberships(*arguments)
    assert labels[7] == -1
    assert torch.isnan(found[7]).all()
    kept = labels >= 0
    np.testing.assert_array_equal(found[kept].numpy().argmax(1), labels[kept].numpy())


def test_a_tie_that_rounding_makes_goes_to_the_label() -> None:
    """At β = 1e-9 both shares are 0.5 to the last digit; the row is nearer to the second."""
    x, prototypes = torch.tensor([[0.2]]), torch.tensor([[-1.0], [1.0]])
    arguments = (x, None, prototypes, 1e-9, 0.5, 2, torch.zeros(1), True)
    assert infer(*arguments)[0].item() == 1
    found = settled_memberships(*arguments)
    assert found[0, 1] > found[0, 0] == 0.5
    assert float(found[0, 1]) == pytest.approx(0.5, abs=1e-7)


@pytest.mark.parametrize(
    ("geometry", "metric"),
    [
        ("euclidean", "none"),
        ("euclidean", "diagonal"),
        ("euclidean", "full"),
        ("spherical", "none"),
    ],
)
@pytest.mark.parametrize("missing", [False, True])
def test_predict_agrees_for_every_model(geometry: str, metric: str, missing: bool) -> None:
    x, prototypes, observed, value, weights = draw(7, 500, 4, 5)
    generator = torch.Generator().manual_seed(1)
    parameters = {"prototypes": prototypes.float()[None], "log_epsilon": weights.float()[None]}
    if metric != "none":
        shape = (1, 4) if metric == "diagonal" else (1, 4, 4)
        parameters["metric"] = torch.randn(shape, generator=generator)
    model = ClAM(
        5, 6, objective="unmasked", mask_value=value.numpy(), geometry=geometry, metric=metric
    )  # type: ignore[arg-type]  # fmt: skip
    seen = observed if missing else None
    if missing and geometry == "spherical":
        observed[:, 0] = True
    labels = model.predict(parameters, 0.8, x.float(), seen)[0]
    found = model.memberships(parameters, 0.8, x.float(), seen)
    np.testing.assert_array_equal(found.numpy().argmax(1), labels.numpy())
    own = model.memberships(parameters, 0.8, x.float(), seen, settled=False)
    assert own.shape == found.shape
    assert float((own - found).abs().max()) > 0.01


def test_a_rows_digits_do_not_depend_on_its_company() -> None:
    x, prototypes, observed, value, _ = draw(3, BLOCK_ROWS + 77, 9, 7)
    x, prototypes = x.float(), prototypes.float()
    observed[::3] = True
    for seen in (None, observed):

        def run(part: slice, seen: torch.Tensor | None = seen) -> torch.Tensor:
            own = None if seen is None else seen[part]
            return settled_memberships(x[part], own, prototypes, 0.2, 0.1, 10, value, True)

        whole = run(slice(None))
        for part in (slice(4, 5), slice(30, BLOCK_ROWS + 60)):
            assert torch.equal(run(part), whole[part])
