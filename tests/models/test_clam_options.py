"""ClAM's hooks and the settings that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clam_dist.errors import ConfigError
from clam_dist.models import energy
from clam_dist.models.clam import ClAM


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "both"}, r"model\.objective: 'both' is unknown; use masked or unmasked or"),
        ({"metric": "round"}, r"model\.metric: 'round' is unknown; use none or diagonal or full"),
        ({"loss": "cubed"}, r"model\.loss: 'cubed' is unknown"),
        ({"huber": -1.0}, r"model\.huber: -1\.0 is not above 0"),
        ({"noise": 0.0}, r"model\.noise: 0\.0 is no standard deviation above 0; use about 0\.3"),
        ({"noise": float("nan")}, r"model\.noise: nan is no standard deviation"),
        (
            {"geometry": "spherical", "objective": "noise"},
            r"model\.objective: noise is not available with model\.geometry: spherical; use masked",
        ),
        (
            {"geometry": "spherical", "loss": "huber"},
            r"model\.loss: huber is not available with model\.geometry: spherical; use squared",
        ),
        (
            {"geometry": "spherical", "metric": "diagonal"},
            r"model\.metric: diagonal is not available with model\.geometry: spherical; use none",
        ),
    ],
)
def test_messages(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClAM(3, 5, **settings)


def test_rows_represent_themselves() -> None:
    x, observed = torch.ones(2, 3), torch.tensor([[True, True, False], [True, True, True]])
    model = ClAM(2, 5)
    rows, seen = model.represent({"prototypes": torch.ones(1, 2, 3)}, x, observed)
    assert rows is x
    assert seen is observed
    assert (model.reseeds, model.own_space, model.metric_name) == (True, False, "euclidean")
    assert model.derived == frozenset()


def test_directions_on_the_sphere() -> None:
    """A missing value is 0 before normalising; a row of zeros has no direction."""
    x = torch.tensor([[3.0, 4.0, 99.0], [0.0, 0.0, 0.0]])
    observed = torch.tensor([[True, True, False], [True, True, True]])
    model = ClAM(2, 5, geometry="spherical")
    rows, seen = model.represent({"prototypes": torch.ones(1, 2, 3)}, x, observed)
    torch.testing.assert_close(rows, torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0]]))
    assert seen is observed
    assert (model.reseeds, model.own_space, model.metric_name) == (True, False, "cosine")


def test_images_are_no_place_for_prototypes() -> None:
    """Prototypes are in the rows' own units, so none may be put on a row's image."""
    model = ClAM(2, 5, metric="diagonal")
    assert (model.reseeds, model.own_space) == (False, True)
    assert (model.rate("metric"), model.rate("prototypes"), model.rate("log_epsilon")) == (3, 1, 1)


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
@pytest.mark.parametrize("name", ["energies", "entropies", "memberships"])
def test_readings_are_those_of_the_rows(geometry: str, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, rho = torch.randn(20, 3, generator=generator), torch.randn(1, 4, 3, generator=generator)
    epsilon = torch.randn(1, 4, generator=generator)
    model = ClAM(4, 5, geometry=geometry)  # type: ignore[arg-type]
    settled = {"settled": False} if name == "memberships" else {}
    found = getattr(model, name)(
        {"prototypes": rho, "log_epsilon": epsilon}, 0.7, x, None, **settled
    )
    expected = getattr(energy, name)(x, rho[0], 0.7, epsilon[0], spherical=geometry == "spherical")
    assert torch.equal(found, expected)


def test_equal_weights_are_plain_clam() -> None:
    """A common factor of all weights changes no gradient, label or membership."""
    generator = torch.Generator().manual_seed(0)
    x, rho = torch.randn(50, 3, generator=generator), torch.randn(2, 4, 3, generator=generator)
    weighted = {"prototypes": rho, "log_epsilon": torch.full((2, 4), 0.8)}
    beta = torch.tensor([0.3, 1.0])
    for objective in ("masked", "unmasked", "noise"):
        model = ClAM(4, 5, objective=objective)  # type: ignore[arg-type]
        plain = model.gradient_sums({"prototypes": rho}, beta, x, None, None, (0,))
        found = model.gradient_sums(weighted, beta, x, None, None, (0,))
        torch.testing.assert_close(found.loss, plain.loss)
        torch.testing.assert_close(
            found.gradients["prototypes"], plain.gradients["prototypes"], rtol=1e-4, atol=1e-4
        )
        own = {name: value[0] for name, value in weighted.items()}
        bare = {"prototypes": rho[0]}
        assert torch.equal(
            model.predict(own, 0.3, x, None)[0], model.predict(bare, 0.3, x, None)[0]
        )
        for settled in (False, True):
            torch.testing.assert_close(
                model.memberships(own, 0.3, x, None, settled=settled),
                model.memberships(bare, 0.3, x, None, settled=settled),
            )


def test_cold_labels_are_those_of_k_means() -> None:
    generator = torch.Generator().manual_seed(0)
    x, rho = torch.randn(300, 3, generator=generator), torch.randn(4, 3, generator=generator)
    labels = ClAM(4, 10).predict({"prototypes": rho}, 1e5, x, None)[0]
    nearest, second = torch.cdist(x, rho).topk(2, largest=False)[0].T
    clear = second - nearest > 1e-2
    assert torch.equal(labels[clear], torch.cdist(x, rho).argmin(1)[clear])
    assert clear.float().mean() > 0.9
