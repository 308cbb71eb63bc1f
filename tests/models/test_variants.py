"""What a model is told beside the paper's settings: geometry, group size, precision, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models import products
from clam_dist.models.clam import SMALL_GROUP, ClAM
from clam_dist.models.direct import direct_loss, direct_spherical_loss
from clam_dist.models.factory import build_model
from clam_dist.models.masks import draw_masks
from clam_dist.models.products import add_product, lower

ROWS, WIDTH, RATE, SEED, KEY = 37, 5, 0.4, 9, (1, 2)
VALUE = [0.5, -1.0, 0.0, 2.0, 0.25]  # exact in float32


@pytest.fixture
def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "x": normal(ROWS, WIDTH),
        "prototypes": normal(2, 3, WIDTH),
        "log_epsilon": normal(2, 3),
        "beta": torch.tensor([0.3, 0.8], dtype=torch.float64),
        "weight": torch.rand(ROWS, generator=generator, dtype=torch.float64),
        "observed": torch.rand(ROWS, WIDTH, generator=generator) > 0.15,
    }


def model(objective: str, geometry: str, group_rows: int, **more: Any) -> ClAM:
    return ClAM(
        3, 4, objective=objective, mask_rate=RATE, mask_value=VALUE, group_rows=group_rows,
        seed=SEED, geometry=geometry, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def masks_of_rows(observed: Tensor, group_rows: int) -> Tensor:
    """Which entries are hidden: groups among complete rows first, then among the others."""
    whole = observed.all(1)
    parts = [p for p in (whole.nonzero()[:, 0], (~whole).nonzero()[:, 0]) if len(p)]
    groups = sum(-(-len(part) // group_rows) for part in parts)
    masks = iter(draw_masks(SEED, KEY, groups, WIDTH, RATE))
    hidden = torch.zeros_like(observed)
    for part in parts:
        for rows in part.split(group_rows):
            hidden[rows[:, None], torch.from_numpy(next(masks))] = True
    return hidden


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
@pytest.mark.parametrize("objective", ["masked", "unmasked"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("group_rows", [1, 3, SMALL_GROUP, 64])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_variant_equals_the_direct_recursion(
    data: dict[str, Tensor],
    geometry: str,
    objective: str,
    missing: bool,
    group_rows: int,
    weighted: bool,
) -> None:
    """With a group of one row this is Algorithm 1 as printed: one mask a row."""
    observed = data["observed"] if missing else torch.ones_like(data["observed"])
    value = torch.tensor(VALUE, dtype=torch.float64)
    hidden = masks_of_rows(observed, group_rows)
    scored = observed if objective == "unmasked" else hidden & observed
    leaves = {name: data[name].requires_grad_() for name in ("prototypes", "log_epsilon")}
    weight = data["weight"] if weighted else None
    losses = []
    for p in range(2):
        common = (weight, leaves["prototypes"][p], data["beta"][p], 0.25, 4)
        log_epsilon = leaves["log_epsilon"][p]
        if geometry == "spherical":
            shown = observed if objective == "unmasked" else observed & ~hidden
            losses.append(
                direct_spherical_loss(
                    data["x"], *common, shown=shown, scored=scored, log_epsilon=log_epsilon
                )
            )
        else:
            moving = None if objective == "unmasked" else hidden | ~observed
            x = torch.where(observed, data["x"], value)
            losses.append(
                direct_loss(
                    x, *common, hidden=moving, scored=scored, value=value, log_epsilon=log_epsilon
                )
            )
    torch.stack(losses).sum().backward()
    x = torch.where(observed, data["x"], 1e6)  # must not matter
    found = model(objective, geometry, group_rows).gradient_sums(
        {name: leaf.detach() for name, leaf in leaves.items()},
        data["beta"],
        x,
        weight,
        observed if missing else None,
        KEY,
    )
    expected = torch.stack(losses).detach()
    torch.testing.assert_close(found.loss, expected, rtol=1e-9, atol=1e-9)
    for name, leaf in leaves.items():
        torch.testing.assert_close(found.gradients[name], leaf.grad, rtol=1e-9, atol=1e-9)
    rows = scored.sum(1).double()
    if geometry == "spherical" and objective == "masked":
        rows *= (observed & ~hidden).any(1)
    entries = float(rows.sum() if weight is None else rows @ weight)
    assert found.entries.item() == pytest.approx(entries)


def test_predict_on_the_sphere(data: dict[str, Tensor]) -> None:
    x = data["x"].float()
    x[3] = 0.0
    prototypes = data["prototypes"][:1].float()
    spherical = model("masked", "spherical", 64)
    labels, distances = spherical.predict({"prototypes": prototypes}, 3.0, x, None)
    scaled = torch.linspace(0.1, 9.0, ROWS)[:, None] * x
    again = spherical.predict({"prototypes": 7.0 * prototypes}, 3.0, scaled, None)
    assert labels[3] == -1
    assert torch.isnan(distances[3])
    assert labels.tolist() == again[0].tolist()
    cosines = torch.cosine_similarity(x, prototypes[0, labels])
    kept = labels >= 0
    torch.testing.assert_close(distances[kept], 1.0 - cosines[kept], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
@pytest.mark.parametrize("objective", ["masked", "unmasked"])
def test_the_factory_passes_settings_on(
    data: dict[str, Tensor], geometry: str, objective: str
) -> None:
    settings = {
        "kind": "clam", "step_size": None, "mask_value": np.array(VALUE), "seed": SEED,
        "geometry": geometry, "group_rows": 3, "precision": "bfloat16",
    }  # fmt: skip
    member = {"n_clusters": 3, "steps": 4, "objective": objective, "mask_rate": RATE}
    arguments = ({"prototypes": data["prototypes"].float()}, data["beta"].float(),
                 data["x"].float(), None, None, KEY)  # fmt: skip
    built = build_model(settings, member).gradient_sums(*arguments)
    own = model(objective, geometry, 3, precision="bfloat16").gradient_sums(*arguments)
    assert torch.equal(built.gradients["prototypes"], own.gradients["prototypes"])
    plain = build_model({key: settings[key] for key in list(settings)[:4]}, member)
    assert (plain.geometry, plain.group_rows, plain.precision) == ("euclidean", 64, "float32")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"geometry": "flat"}, r"model\.geometry: 'flat' is unknown; use euclidean or spherical"),
        ({"group_rows": 0}, r"model\.group_rows: 0 is too few; use 1 or more"),
        ({"precision": "half"}, r"model\.precision: 'half' is unknown; use float32, tf32, bfloat"),
    ],
)
def test_messages(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClAM(3, 5, **settings)


WORST = {"float32": 2e-6, "bfloat16": 5e-3}
"""Bounds of ``‖gradient - exact‖ / ‖exact‖`` on standardised rows."""


def relative_error(precision: str, objective: str, geometry: str, group_rows: int) -> float:
    """Of the gradient in float32 against that in float64, on 2000 standardised rows."""
    generator = torch.Generator().manual_seed(1)
    centers = 2.0 * torch.randn(6, 40, generator=generator)
    x = centers[torch.arange(2000) % 6] + torch.randn(2000, 40, generator=generator)
    x = (x - x.mean(0)) / x.std(0)
    prototypes = x[:12].view(2, 6, 40).contiguous()
    beta = torch.tensor([0.02, 0.2]) if geometry == "euclidean" else torch.tensor([2.0, 8.0])

    def gradient(dtype: torch.dtype, precision: str) -> Tensor:
        clam = ClAM(
            6, 8, objective=objective, geometry=geometry, precision=precision,
            group_rows=group_rows,
        )  # type: ignore[arg-type]  # fmt: skip
        parameters = {"prototypes": prototypes.to(dtype)}
        sums = clam.gradient_sums(parameters, beta.to(dtype), x.to(dtype), None, None, KEY)
        return sums.gradients["prototypes"].double()

    exact = gradient(torch.float64, "float32")
    return float((gradient(torch.float32, precision) - exact).norm() / exact.norm())


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "tf32"])
@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
@pytest.mark.parametrize(
    ("objective", "group_rows"), [("masked", 64), ("masked", 1), ("unmasked", 64)]
)
def test_error_of_lower_precision(
    precision: str, geometry: str, objective: str, group_rows: int
) -> None:
    error = relative_error(precision, objective, geometry, group_rows)
    if precision == "tf32":
        assert error <= WORST["float32"]
        pytest.skip("TF32 exists on CUDA devices alone: on this CPU it is float32, as asserted")
    assert error <= WORST[precision]
    assert precision == "float32" or error > WORST["float32"]  # it does something


def test_products_in_bfloat16_keep_their_sums_in_float32() -> None:
    """256 + 1 is not a bfloat16, but a sum of 257 ones has to be right."""
    ones = lower(torch.ones(1, 257), "bfloat16")
    out = torch.empty(1, 1)
    add_product(torch.zeros(1, 1), ones, ones.T, "bfloat16", out)
    assert out.item() == 257.0
    assert lower(torch.tensor([1.0 + 2**-9]), "bfloat16").item() == 1.0
    assert lower(torch.tensor([1.0 + 2**-9]), "tf32").item() > 1.0


@pytest.fixture
def matmul_setting() -> Iterator[Any]:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    yield matmul
    matmul.fp32_precision = before


@pytest.mark.parametrize("outside", ["none", "ieee", "tf32"])
def test_tensor_float_is_on_while_it_lasts(matmul_setting: Any, outside: str) -> None:
    matmul_setting.fp32_precision = outside
    with products._tensor_float():
        assert matmul_setting.fp32_precision == "tf32"
    assert matmul_setting.fp32_precision == outside
    with pytest.raises(KeyError), products._tensor_float():
        raise KeyError
    assert matmul_setting.fp32_precision == outside
