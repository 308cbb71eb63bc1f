"""Labels and representations of rows, under models whose prototypes live in another space."""

# ruff: noqa: ARG002 - a model has arguments that a small one does not need

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from clam_dist.assign import Assignment, Labeller, Recursive, label_rows
from clam_dist.models import factory
from clam_dist.models.base import Equations, Parameters
from clam_dist.models.clam import ClAM

MEMBER = {"n_clusters": 3, "steps": 4, "objective": "masked", "mask_rate": 0.2, "beta": 0.7}
SETTINGS: dict[str, Any] = {"kind": "clam", "step_size": None, "mask_value": [0.0] * 5, "seed": 0}


class Flat(Equations):
    """Rows seen in two dimensions by a linear map; a step towards the nearest prototype."""

    own_space = True
    n_clusters = 3

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The image; nothing is known of rows whose last feature is missing."""
        seen = None if observed is None else observed[:, -1:].expand(-1, 2)
        return x @ parameters["map"], seen

    def predict(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The nearest prototype."""
        z = self.represent(parameters, x, observed)[0]
        far, labels = torch.cdist(z, parameters["prototypes"]).min(1)
        return labels, far

    def recursed(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """Halfway, at a beta of one half."""
        labels = self.predict(parameters, beta, x, observed)[0]
        return torch.lerp(x @ parameters["map"], parameters["prototypes"][labels], beta)


@pytest.fixture
def rows() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    x[3, 1], x[7], x[9, 4] = np.nan, np.nan, np.nan
    return x


@pytest.fixture
def flat(tmp_path, monkeypatch) -> Assignment:
    monkeypatch.setitem(factory.MODELS, "flat", factory.Kind(Flat, lambda *_: Flat(), ()))
    values = torch.Generator().manual_seed(0)
    parameters = {
        "map": torch.randn((5, 2), generator=values),
        "prototypes": torch.randn((3, 2), generator=values),
    }
    save_file(parameters, tmp_path / "model.safetensors")
    path = str(tmp_path / "model.safetensors")
    return Assignment(path, {"kind": "flat"}, {**MEMBER, "beta": 0.5})


def test_rows_are_their_own_representation_without_a_copy(rows, tmp_path):
    save_file({"prototypes": torch.eye(5)[:3]}, tmp_path / "model.safetensors")
    labeller = Labeller(Assignment(str(tmp_path / "model.safetensors"), SETTINGS, MEMBER))
    assert labeller.represent(rows) is rows
    assert labeller.metric == "euclidean"
    assert labeller.recursed(rows) is None
    assert not isinstance(labeller.model, Recursive)
    labels, distances = labeller.label(rows)
    assert labels[7] == -1
    assert np.isnan(distances[7])
    same = label_rows(labeller.model, {"prototypes": torch.eye(5)[:3]}, 0.7, rows)
    np.testing.assert_array_equal(labels, same[0])


def test_representations_are_those_of_the_model_and_0_where_it_knows_nothing(rows, flat):
    labeller = Labeller(flat)
    z = labeller.represent(rows)
    expected = np.nan_to_num(rows).astype(np.float64) @ labeller.parameters["map"]
    expected[[7, 9]] = 0.0
    assert z.dtype == np.float32
    np.testing.assert_allclose(z, expected, atol=1e-5)
    away = np.linalg.norm(expected[:, None] - labeller.parameters["prototypes"], axis=2)
    labels, distances = labeller.label(rows)
    known = np.setdiff1d(np.arange(40), [7, 9])
    np.testing.assert_array_equal(labels[known], away.argmin(1)[known])
    np.testing.assert_allclose(distances[known], away.min(1)[known], atol=1e-5)
    assert labels[7] == -1


def test_the_recursion_is_told_apart_where_the_model_can(rows, flat):
    labeller = Labeller(flat)
    labels, _ = labeller.label(rows[:3])
    found = labeller.recursed(rows[:3])
    assert isinstance(labeller.model, Recursive)
    assert found is not None
    z = rows[:3] @ labeller.parameters["map"]
    np.testing.assert_allclose(
        found, (z + labeller.parameters["prototypes"][labels]) / 2, atol=1e-6
    )


def test_values_are_a_function_of_model_parameters_beta_rows_and_what_is_seen(rows, flat):
    def seen(model: Any, parameters: Parameters, beta: float, x: Tensor, observed: Any) -> Tensor:
        assert isinstance(model, Flat)
        assert set(parameters) == {"map", "prototypes"}
        assert bool(torch.isfinite(x).all())
        return beta * observed.sum(1)

    found = Labeller(flat).values(seen, rows)
    np.testing.assert_array_equal(found, 0.5 * (~np.isnan(rows)).sum(1))


def test_directions_are_the_representation_on_the_sphere(rows, tmp_path):
    save_file({"prototypes": torch.eye(5)[:3]}, tmp_path / "model.safetensors")
    settings = SETTINGS | {"geometry": "spherical"}
    labeller = Labeller(Assignment(str(tmp_path / "model.safetensors"), settings, MEMBER))
    assert labeller.metric == "cosine"
    x = np.concatenate([rows, np.zeros((1, 5), np.float32)])
    values = np.nan_to_num(x)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_allclose(
        labeller.represent(x), values / np.where(lengths > 0, lengths, 1.0), atol=1e-6
    )
    labels, distances = labeller.label(x)
    assert labels[-1] == labels[7] == -1  # no direction, no value
    assert np.isnan(distances[[7, -1]]).all()


def test_the_face_of_a_model_is_enough_for_an_assignment() -> None:
    model = Assignment("", SETTINGS, MEMBER).model()
    assert isinstance(model, ClAM)
    assert model.n_clusters == 3
