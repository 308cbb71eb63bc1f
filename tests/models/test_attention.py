from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.errors import ConfigError
from clam_dist.models.attention import (
    SIGMAS,
    Sigma,
    attend,
    gathered,
    imbalance,
    metric_factor,
    orthogonal_start,
    quadratic,
    sampled_start,
    score,
    updated,
)

SEEDS = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def lloyd(z: np.ndarray, centroids: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """One step of weighted k-means; a centroid without rows stays."""
    moved = centroids.copy()
    nearest = [
        min(range(len(centroids)), key=lambda j: sum((row - centroids[j]) ** 2)) for row in z
    ]
    for j in range(len(centroids)):
        rows = [i for i in range(len(z)) if nearest[i] == j]
        if rows:
            moved[j] = sum(weight[i] * z[i] for i in rows) / sum(weight[i] for i in rows)
    return moved


@given(SEEDS, st.integers(1, 5), st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_identity_metric_and_no_temperature_is_a_step_of_kmeans(seed: int, k: int, m: int) -> None:
    z, centroids, weight = normal(seed, 1, 30, m), normal(seed + 1, 1, k, m), normal(seed, 30).exp()
    factor = metric_factor(torch.zeros(1, m, m, dtype=torch.float64))
    delta, _ = attend(z, centroids, factor, 1e-9, "identity")
    moved = updated(gathered(delta, z, weight), centroids)
    wanted = lloyd(z[0].numpy(), centroids[0].numpy(), weight.numpy())
    np.testing.assert_allclose(moved[0].numpy(), wanted, rtol=1e-9, atol=1e-12)


def test_a_block_by_hand() -> None:
    # Scores of the row 1 are 0 and -1, of the row 0 -1 and 0; e = 1 / (1 + exp(-1 / tau)).
    z, centroids = torch.tensor([[[1.0], [0.0]]]).double(), torch.tensor([[[1.0], [0.0]]]).double()
    delta, found = attend(z, centroids, torch.ones(1, 1, 1).double(), 0.5, "identity")
    e = 1 / (1 + math.exp(-2))
    torch.testing.assert_close(found[0], torch.tensor([[0.0, -1.0], [-1.0, 0.0]]).double())
    torch.testing.assert_close(delta[0], torch.tensor([[e, 1 - e], [1 - e, e]]).double())
    moved = updated(gathered(delta, z, torch.tensor([3.0, 1.0])), centroids)[0, :, 0]
    wanted = [3 * e / (3 * e + 1 - e), 3 * (1 - e) / (3 * (1 - e) + e)]
    torch.testing.assert_close(moved, torch.tensor(wanted).double())


@given(SEEDS, st.integers(1, 6), st.sampled_from(SIGMAS))
@settings(deadline=None, max_examples=100)
def test_score_peaks_at_the_centroid(seed: int, m: int, sigma: Sigma) -> None:
    factor = metric_factor(normal(seed, 1, m, m))
    z, centroid = normal(seed + 1, 1, 40, m), normal(seed + 2, 1, 1, m)
    q = quadratic(z, centroid, factor)
    assert (q > 0).all()
    assert (score(q, sigma) < 0).all()
    peak = quadratic(centroid, centroid, factor)
    assert score(peak, sigma).abs().max() < 1e-9
    away = quadratic(centroid + 1e-2 * (z - centroid), centroid, factor)
    assert (score(away, sigma) > score(q, sigma)).all()  # it falls along every ray


@given(SEEDS, st.integers(1, 6))
@settings(deadline=None, max_examples=50)
def test_product_is_positive_definite_with_unit_determinant(seed: int, m: int) -> None:
    factor = metric_factor(normal(seed, 2, m, m))
    product = factor @ factor.mT
    assert (torch.linalg.eigvalsh(product) > 0).all()
    torch.testing.assert_close(torch.linalg.det(product), torch.ones(2).double())
    p = normal(seed + 1, 2, 7, m)
    wanted = torch.einsum("pbi,pij,pbj->pb", p, product, p)
    origin = torch.zeros(2, 1, m).double()
    torch.testing.assert_close(quadratic(p, origin, factor)[..., 0], wanted)


def test_any_metric_can_be_had() -> None:
    wanted = normal(0, 4, 4) @ normal(0, 4, 4).T + 0.1 * torch.eye(4)
    wanted = wanted / torch.linalg.det(wanted) ** 0.25
    factor = torch.linalg.cholesky(wanted)
    metric = factor.tril(-1) + torch.diag(factor.diagonal().log())
    found = metric_factor(metric[None])[0]
    torch.testing.assert_close(found @ found.T, wanted)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_scores_by_hand(sigma: Sigma) -> None:
    q = torch.tensor([0.0, 3.0]).double()
    wanted = {
        "identity": -3.0,
        "softplus": math.log(2) - math.log(1 + math.exp(3)),
        "log1p": -math.log(4),
    }[sigma]
    assert score(q, sigma).tolist() == pytest.approx([0.0, wanted], abs=1e-15)


def test_an_empty_centroid_goes_back_to_its_start() -> None:
    start = torch.tensor([[[5.0, 6.0], [7.0, 8.0]]])
    sums = torch.tensor([[[2.0, 4.0, 2.0], [0.0, 0.0, 0.0]]]).double().requires_grad_()
    found = updated(sums, start)
    assert found.tolist() == [[[1.0, 2.0], [7.0, 8.0]]]
    found.sum().backward()
    assert torch.isfinite(sums.grad).all()


def test_imbalance_is_zero_when_even_and_greatest_in_one_cluster() -> None:
    mass = torch.tensor([[2.0, 2.0, 2.0], [6.0, 0.0, 0.0], [3.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    mass = mass.double().requires_grad_()
    found = imbalance(mass)
    wanted = [0.0, math.log(3), math.log(1.5), math.log(3)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)
    found.sum().backward()
    assert torch.isfinite(mass.grad).all()


def test_orthogonal_start() -> None:
    assert orthogonal_start(2, 3, 2.0).tolist() == [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    with pytest.raises(ConfigError, match=r"4 clusters .* in 3 latent dimensions"):
        orthogonal_start(4, 3)


def test_sampled_start_takes_rows() -> None:
    latents = normal(0, 50, 2).numpy()
    found = sampled_start(latents, None, 5, 3)
    assert found.dtype == torch.float32
    assert all((latents.astype(np.float32) == row).all(1).any() for row in found.numpy())
    assert (sampled_start(latents, None, 5, 3) == found).all()
    kept = np.r_[np.zeros(25), np.ones(25)]
    weighted = sampled_start(latents, kept, 5, 3).numpy()
    assert all((latents[25:].astype(np.float32) == row).all(1).any() for row in weighted)
