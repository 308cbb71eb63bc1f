from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.clam import ClAM
from clam_dist.models.direct import direct_labels, direct_states, direct_step
from clam_dist.models.energy import energies, memberships
from clam_dist.models.metric import BLOCK_ROWS, initial_metric, map_rows, unit_factor


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), width=st.integers(1, 6), full=st.booleans())
def test_the_determinant_is_one_whatever_the_parameter(seed: int, width: int, full: bool) -> None:
    metric = normal(seed, 2, width, *([width] if full else []))
    factor = unit_factor(metric)
    matrices = factor if full else torch.diag_embed(factor)
    torch.testing.assert_close(torch.linalg.det(matrices), torch.ones(2).double())
    shift = 0.7 * (torch.eye(width).double() if full else 1.0)
    torch.testing.assert_close(unit_factor(metric + shift), factor)


def test_factors_by_hand() -> None:
    """Logarithms 2 and 0 have the mean 1: scales e and 1/e. The upper half is ignored."""
    scales = unit_factor(torch.tensor([[2.0, 0.0]]))
    assert scales[0].tolist() == pytest.approx([np.e, 1 / np.e])
    factor = unit_factor(torch.tensor([[[2.0, 9.0], [3.0, 0.0]]]))
    assert factor[0].flatten().tolist() == pytest.approx([np.e, 0.0, 3.0, 1 / np.e])


@pytest.mark.parametrize(("form", "shape"), [("diagonal", (3, 4)), ("full", (3, 4, 4))])
def test_the_first_metric_is_the_euclidean_one(form: str, shape: tuple[int, ...]) -> None:
    metric = initial_metric(form, 3, 4)  # type: ignore[arg-type]
    assert metric.shape == shape
    assert metric.dtype == torch.float32
    rows = torch.arange(8.0).view(2, 4)
    assert torch.equal(map_rows(rows, unit_factor(metric)[1]), rows)


def test_a_rows_image_does_not_depend_on_its_company() -> None:
    x, factor = normal(0, BLOCK_ROWS + 30, 5).float(), normal(1, 5, 5).float()
    whole = map_rows(x, factor)
    torch.testing.assert_close(whole, x @ factor)
    for part in (slice(7, 8), slice(20, BLOCK_ROWS + 25)):
        assert torch.equal(map_rows(x[part], factor), whole[part])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31), beta=st.floats(0.01, 3.0), alpha=st.floats(0.01, 2.0),
    full=st.booleans(),
)  # fmt: skip
def test_a_step_lowers_the_energy_in_the_metric(
    seed: int, beta: float, alpha: float, full: bool
) -> None:
    """With a scale for each feature also where some are clamped; a full map moves them all."""
    x, rho = 2.0 * normal(seed, 20, 4), normal(seed + 1, 5, 4)
    factor = unit_factor(0.5 * normal(seed + 2, 1, 4, *([4] if full else [])))[0]
    moving = torch.ones_like(x) if full else (normal(seed + 3, 20, 4) > 0).double()
    y, images = map_rows(x, factor), map_rows(rho, factor)
    after = direct_step(y, images, beta, alpha, moving)
    pull = moving * (memberships(y, images, beta) @ images - y)
    fall = energies(y, images, beta) - energies(after, images, beta)
    assert (fall >= alpha * (2 - alpha) * pull.square().sum(1) - 1e-9).all()


@pytest.mark.parametrize("form", ["diagonal", "full"])
@pytest.mark.parametrize("missing", [False, True])
def test_predict_is_the_recursion_of_the_images(form: str, missing: bool) -> None:
    """In a full metric all features of an incomplete row move, else only the missing ones."""
    x, rho, value = normal(0, 300, 4), normal(1, 5, 4), torch.tensor([0.5, -1.0, 0.0, 0.25])
    metric = 0.5 * normal(2, 1, 4, *([4] if form == "full" else []))
    observed = normal(3, 300, 4) > -0.5
    model = ClAM(5, 6, objective="unmasked", mask_value=value.numpy(), metric=form)  # type: ignore[arg-type]
    parameters = {"prototypes": rho[None], "metric": metric}
    seen = observed if missing else None
    labels, distances = model.predict(
        parameters, 0.8, torch.where(observed, x, 9.0) if missing else x, seen
    )
    factor = unit_factor(metric)[0]
    matrix = torch.diag(factor) if form == "diagonal" else factor
    value = value.double()
    start = torch.where(observed, x, value) if missing else x
    hidden = ~observed if missing and form == "diagonal" else None
    keywords = {"hidden": hidden, "value": value @ matrix}
    images = rho @ matrix
    state = direct_states(start @ matrix, images, 0.8, 1 / 6, 6, **keywords)[-1]
    if hidden is not None:  # a complete row has nothing to clamp
        free = direct_states(start @ matrix, images, 0.8, 1 / 6, 6)[-1]
        state = torch.where(observed.all(1, keepdim=True), free, state)
    np.testing.assert_array_equal(labels, direct_labels(state, images))
    away = (x - rho[labels]) * (observed if missing else 1.0)
    torch.testing.assert_close(distances, (away @ matrix).norm(dim=1))
    rows, known = model.represent(parameters, x, seen)
    torch.testing.assert_close(rows[observed.all(1)], (x @ matrix)[observed.all(1)])
    assert known is (seen if form == "diagonal" else None)


@pytest.mark.parametrize("form", ["diagonal", "full"])
def test_a_complete_rows_bits_do_not_depend_on_incomplete_company(form: str) -> None:
    x, observed = normal(0, 100, 4).float(), normal(3, 100, 4) > -0.5
    metric = 0.5 * normal(2, 1, 4, *([4] if form == "full" else [])).float()
    parameters = {"prototypes": normal(1, 1, 5, 4).float(), "metric": metric}
    model = ClAM(5, 6, objective="unmasked", metric=form)  # type: ignore[arg-type]
    whole = observed.all(1)
    mixed = model.predict(parameters, 0.8, x, observed)
    alone = model.predict(parameters, 0.8, x[whole], None)
    assert torch.equal(mixed[0][whole], alone[0])
    assert torch.equal(mixed[1][whole], alone[1])


def test_a_metric_learns_which_feature_tells_rows_apart() -> None:
    """Two groups apart in the first feature, pure noise in the second: its scale falls behind."""
    x = normal(0, 400, 2).float()
    x[:, 0] = 0.3 * x[:, 0] + torch.tensor([-1.5, 1.5]).repeat(200)
    model = ClAM(2, 8, objective="unmasked", metric="diagonal")
    parameters = {
        "prototypes": torch.tensor([[[-0.5, -0.3], [0.5, 0.3]]]),
        "metric": initial_metric("diagonal", 1, 2),
    }
    losses = []
    for step in range(100):
        sums = model.gradient_sums(parameters, torch.tensor([0.4]), x, None, None, (step,))
        for name, gradient in sums.gradients.items():
            parameters[name] -= 0.3 * (gradient / sums.entries).float()
        losses.append(float(sums.loss / sums.entries))
    assert losses[-1] < losses[0]
    scales = unit_factor(parameters["metric"])[0]
    assert scales[0] > 1.2 * scales[1]
    labels = model.predict(parameters, 0.4, x, None)[0]
    assert (labels.view(-1, 2) == labels[:2]).all()


def test_a_full_metric_cannot_hide_features() -> None:
    with pytest.raises(ConfigError, match=r"model\.metric: full .* model\.objective: masked"):
        ClAM(3, 5, metric="full")
