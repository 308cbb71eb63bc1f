"""Where the models become k-means, and where their energies fall, against NumPy in float64.

Beside what :mod:`test_energy`, :mod:`test_direct`, :mod:`test_metric`, :mod:`test_dclam` and
:mod:`test_attention` show of single parts, whole models here give the labels of k-means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clam_dist.models.attention import metric_factor
from clam_dist.models.clam import ClAM
from clam_dist.models.dclam import DClAM
from clam_dist.models.direct import direct_spherical_states
from clam_dist.models.metric import initial_metric
from clam_dist.models.nearest import Nearest
from clam_dist.models.tdcm import TDCM

ROWS, WIDTH, K = 300, 3, 4
COLD = 1e5
seeds = st.integers(0, 2**31)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def squared_distances(x: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    return np.array([[((row - rho) ** 2).sum() for rho in prototypes] for row in x])


def cosines(x: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    return np.array(
        [[row @ rho / np.linalg.norm(row) / np.linalg.norm(rho) for rho in prototypes] for row in x]
    )


def agree_with_kmeans(labels: Tensor, cost: np.ndarray, margin: float) -> None:
    """The label is that of least cost wherever rounding cannot decide."""
    least, second = np.sort(cost, axis=1)[:, :2].T
    clear = second - least > margin
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(labels.numpy()[clear], cost.argmin(1)[clear])


@pytest.mark.parametrize("options", [
    {},
    {"objective": "unmasked"},
    {"metric": "diagonal"},
    {"metric": "full", "objective": "unmasked"},
])  # fmt: skip
@pytest.mark.parametrize("equal_weights", [False, True])
def test_cold_clam_labels_as_k_means(options: dict[str, Any], equal_weights: bool) -> None:
    x, rho = drawn(0, ROWS, WIDTH), drawn(1, K, WIDTH)
    parameters = {"prototypes": torch.from_numpy(rho).float()}
    if "metric" in options:
        parameters["metric"] = initial_metric(options["metric"], 1, WIDTH)[0]
    if equal_weights:
        parameters["log_epsilon"] = torch.full((K,), 0.7)
    model = ClAM(K, 10, **options)
    labels = model.predict(parameters, COLD, torch.from_numpy(x).float(), None)[0]
    agree_with_kmeans(labels, squared_distances(x, rho), 1e-2)
    found = Nearest(K).predict(parameters, COLD, torch.from_numpy(x).float(), None)[0]
    agree_with_kmeans(found, squared_distances(x, rho), 1e-2)


@pytest.mark.parametrize("equal_weights", [False, True])
def test_cold_clam_on_the_sphere_labels_as_spherical_k_means(equal_weights: bool) -> None:
    x, rho = drawn(2, ROWS, WIDTH), drawn(3, K, WIDTH)
    parameters = {"prototypes": torch.from_numpy(rho).float()}
    if equal_weights:
        parameters["log_epsilon"] = torch.full((K,), 0.7)
    model = ClAM(K, 10, geometry="spherical")
    labels = model.predict(parameters, COLD, torch.from_numpy(x).float(), None)[0]
    agree_with_kmeans(labels, -cosines(x, rho), 1e-2)


@pytest.mark.parametrize("weighted", [False, True])
def test_cold_unmasked_loss_is_a_share_of_the_inertia(weighted: bool) -> None:
    """Each row goes straight to its prototype: ‖x - x_T‖² is (1 - (1 - α)^T)² ‖x - ρ‖²."""
    x, rho = drawn(4, ROWS, WIDTH), drawn(5, K, WIDTH)
    weight = np.exp(drawn(6, ROWS)) if weighted else np.ones(ROWS)
    cost = squared_distances(x, rho)
    moved = 1.0 - (1.0 - 1.0 / 7.0) ** 7
    inertia = sum(weight[i] * cost[i].min() for i in range(ROWS))
    slope = np.zeros_like(rho)  # of the inertia, by the prototypes
    for i in range(ROWS):
        nearest = cost[i].argmin()
        slope[nearest] += 2.0 * weight[i] * (rho[nearest] - x[i])
    found = ClAM(K, 7, objective="unmasked").gradient_sums(
        {"prototypes": torch.from_numpy(rho)[None]},
        torch.tensor([1e9], dtype=torch.float64),
        torch.from_numpy(x),
        torch.from_numpy(weight) if weighted else None,
        None,
        (0,),
    )
    np.testing.assert_allclose(found.loss.numpy(), [moved**2 * inertia], rtol=1e-9)
    np.testing.assert_allclose(
        found.gradients["prototypes"][0].numpy(), moved**2 * slope, rtol=1e-8, atol=1e-8
    )


def test_cold_dclam_labels_as_k_means_on_latents() -> None:
    model = DClAM(K, 10, width=WIDTH, latent=2, network={"kind": "dense", "hidden": [5]}, seed=1)
    own = {name: value.double() for name, value in model.initial_parameters(0).items()}
    x = torch.from_numpy(drawn(7, ROWS, WIDTH))
    latents = model.represent(own, x, None)[0].numpy()
    rho = latents[:K].copy() + 0.1 * drawn(8, K, 2)
    labels = model.predict({**own, "prototypes": torch.from_numpy(rho)}, 1e7, x, None)[0]
    agree_with_kmeans(labels, squared_distances(latents, rho), 1e-4)


class Itself:
    """The identity in place of networks."""

    def encode(self, parameters: Any, x: Tensor) -> Tensor:
        del parameters
        return x

    def decode(self, parameters: Any, z: Tensor) -> Tensor:
        del parameters
        return z


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_tdcm_without_metric_or_temperature_is_lloyds_algorithm(
    blocks: int, weighted: bool
) -> None:
    """``W = I``, σ the identity, τ near 0: as many steps as blocks, and the labels after them."""
    x, start = drawn(9, ROWS, WIDTH), drawn(10, K, WIDTH)
    weight = np.exp(drawn(11, ROWS)) if weighted else np.ones(ROWS)
    model = TDCM(Itself(), WIDTH, K, blocks=blocks, tau=1e-9, sigma="identity", standardise=False)
    metric = torch.zeros(1, WIDTH, WIDTH, dtype=torch.float64)
    np.testing.assert_array_equal(metric_factor(metric)[0].numpy(), np.eye(WIDTH))
    parameters = {"start": torch.from_numpy(start)[None], "metric": metric}
    parameters["encoder.nothing"] = torch.zeros(1, 1, dtype=torch.float64)
    rows = torch.from_numpy(x)
    found = model.derive(parameters, rows, torch.from_numpy(weight) if weighted else None, None)
    centroids = start.copy()
    for _ in range(blocks):
        labels = squared_distances(x, centroids).argmin(1)
        for j in range(K):
            own = [i for i in range(ROWS) if labels[i] == j]
            if own:
                centroids[j] = sum(weight[i] * x[i] for i in own) / sum(weight[i] for i in own)
    np.testing.assert_allclose(found["prototypes"][0].numpy(), centroids, rtol=1e-9, atol=1e-12)
    one = {name: value[0] for name, value in {**parameters, **found}.items()}
    labels = model.predict(one, 1.0, rows, None)[0]
    agree_with_kmeans(labels, squared_distances(x, centroids), 1e-6)


@settings(max_examples=100, deadline=None)
@given(
    seed=seeds,
    beta=st.floats(0.01, 50.0),
    alpha=st.floats(0.01, 5.0),
    weighted=st.booleans(),
)
def test_a_step_on_the_sphere_lowers_the_energy_by_its_bound(
    seed: int, beta: float, alpha: float, weighted: bool
) -> None:
    """E(x) - E(x') >= (1 + ‖x + α w R‖) / (2 α) ‖x' - x‖², for any step length.

    ``-E`` is convex with the gradient ``g = w R``, so the energy falls by at least ``<g, x' - x>``;
    and as ``x' = (x + α g) / n`` with ``n`` the length, ``α g`` is ``n x' - x``, whose product with
    ``x' - x`` is ``(n + 1) (1 - <x, x'>)``, where ``‖x' - x‖²`` is ``2 (1 - <x, x'>)``.
    """
    draws = np.random.default_rng(seed)
    x, rho = draws.normal(size=(20, 4)), draws.normal(size=(5, 4))
    log_epsilon = draws.normal(size=5) if weighted else np.zeros(5)
    x, rho = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, rho))

    def energy(rows: np.ndarray) -> np.ndarray:
        return -np.log(np.exp(beta * (rows @ rho.T - 1.0) + log_epsilon).sum(1)) / beta

    shares = np.exp(beta * (x @ rho.T - 1.0) + log_epsilon)
    length = np.linalg.norm(x + alpha * (shares / shares.sum(1, keepdims=True)) @ rho, axis=1)
    states = direct_spherical_states(
        torch.from_numpy(x),
        torch.from_numpy(rho),
        beta,
        alpha,
        2,
        log_epsilon=torch.from_numpy(log_epsilon) if weighted else None,
    )
    first, second, third = (state.numpy() for state in states)
    bound = (1.0 + length) / (2.0 * alpha) * ((second - first) ** 2).sum(1)
    assert (energy(first) - energy(second) >= bound - 1e-9).all()
    assert (energy(second) - energy(third) >= -1e-9).all()
