"""Centroids that find themselves: the attention blocks of the transferable deep clustering model.

*Transferable Deep Clustering Model* (TDCM), equations 1 to 5. A block assigns latents to centroids
softly, then moves each centroid to the mean of what it was assigned. Latents are ``z (P,B,m)``,
centroids ``c (P,k,m)``, assignments ``δ (P,B,k)``, for ``P`` members.

The score is ``ℓ(z, c) = -σ(q(z - c))`` with ``q(p) = (W_Q p)·(W_K p) = p' M p``. Symmetric
``W_Q``, ``W_K`` alone do not make ``M = W_Q' W_K`` positive definite, which the proof that the
score peaks at ``z = c`` takes for granted, and only their product enters the model. So ``M`` is the
parameter, as ``M = F F'`` with a triangular ``F`` of unit determinant.

The printed normaliser of the update, one over all assignments, would not give a mean; each
centroid's own sum does, and makes k-means the special case that theorem 4.2 states.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.seeding import starts

Sigma = Literal["identity", "softplus", "log1p"]
SIGMAS: tuple[Sigma, ...] = get_args(Sigma)
"""On ``q ≥ 0`` the paper's ReLU and LeakyReLU are the identity."""

LEAST_SHARE = 1e-30
"""Below this a share of the rows counts as this in a logarithm, whose slope stays finite."""


def metric_factor(metric: Tensor) -> Tensor:
    """``F (P,m,m)``, lower triangular with unit determinant, from any parameter ``(P,m,m)``.

    The strict lower part is taken as it is; the diagonal holds logarithms, centred. Zeros give the
    identity. The determinant rather than the trace is fixed because of where the loss then pulls:
    on given assignments with scatter ``S`` it is ``tr(M S)``, least at a multiple of the inverse of
    ``S`` (the Mahalanobis metric) under a fixed determinant, but under a fixed trace at a matrix of
    rank one that sees only the direction of least scatter.
    """
    logarithms = metric.diagonal(dim1=-2, dim2=-1)
    scales = (logarithms - logarithms.mean(-1, keepdim=True)).exp()
    return metric.tril(-1) + torch.diag_embed(scales)


def quadratic(z: Tensor, centroids: Tensor, factor: Tensor) -> Tensor:
    """``q(z - c) ≥ 0`` as ``(P,B,k)``, from latents ``(P,B,m)`` and centroids ``(P,k,m)``."""
    left, right = z @ factor, centroids @ factor
    squares = left.square().sum(-1, keepdim=True) + right.square().sum(-1).unsqueeze(-2)
    return (squares - 2.0 * left @ right.mT).clamp_min(0.0)  # digits may cancel below zero


def score(q: Tensor, sigma: Sigma) -> Tensor:
    """``ℓ = -σ(q)``, at most 0, and 0 at ``q = 0``: softplus is shifted down by ``log 2``."""
    if sigma == "softplus":
        return math.log(2.0) - torch.nn.functional.softplus(q)
    return -torch.log1p(q) if sigma == "log1p" else -q


def attend(
    z: Tensor, centroids: Tensor, factor: Tensor, tau: float, sigma: Sigma
) -> tuple[Tensor, Tensor]:
    """Assignments ``δ = softmax_j(ℓ/τ)`` and scores ``ℓ``, both ``(P,B,k)`` (equation 2).

    The temperature divides once, in the softmax; the paper prints it in the score too.
    """
    found = score(quadratic(z, centroids, factor), sigma)
    return torch.softmax(found / tau, -1), found


def gathered(delta: Tensor, z: Tensor, weight: Tensor | None) -> Tensor:
    """``Σ δ z`` and ``Σ δ`` over the rows, side by side: ``(P,k,m+1)`` float64.

    Parameters
    ----------
    delta : Tensor (P,B,k)
    z : Tensor (P,B,m)
    weight : Tensor (B,), optional
    """
    weighted = delta if weight is None else delta * weight.unsqueeze(-1)
    first = (weighted.mT @ z).to(torch.float64)
    mass = weighted.sum(1, dtype=torch.float64).unsqueeze(-1)
    return torch.cat([first, mass], -1)


def updated(sums: Tensor, start: Tensor) -> Tensor:
    """Centroids ``Σ δ z / Σ δ`` of sums ``(P,k,m+1)``, in ``start``'s dtype (equation 1).

    A centroid that nothing was assigned to goes back to its start ``(P,k,m)``.
    """
    mass = sums[..., -1:]
    empty = mass <= 0.0
    means = sums[..., :-1] / torch.where(empty, 1.0, mass)
    return torch.where(empty, start, means.to(start.dtype))


def imbalance(mass: Tensor) -> Tensor:
    """``log k - H`` of the normalised sizes ``(P,k)``, as ``(P,)``: 0 where all are equal.

    The entropy ``H`` is to be *greatest*: equation 5 as printed, minimised, would gather all rows
    in one cluster, which is what the paper says that it prevents.
    """
    total = mass.sum(-1, keepdim=True)
    shares = mass / torch.where(total > 0.0, total, 1.0)
    return math.log(mass.shape[-1]) + (shares * shares.clamp_min(LEAST_SHARE).log()).sum(-1)


def orthogonal_start(k: int, m: int, radius: float = 1.0) -> Tensor:
    """The paper's start, ``(k,m)`` float32: rows of the identity, times a radius.

    Raises
    ------
    ConfigError
        More centroids than dimensions cannot be orthogonal.
    """
    if k > m:
        raise ConfigError(
            f"{k} clusters cannot start as orthogonal centroids in {m} latent dimensions; set a "
            f"latent size of at least {k}, or draw the starts from latents"
        )
    return radius * torch.eye(k, m)


def sampled_start(latents: np.ndarray, weight: np.ndarray | None, k: int, seed: int) -> Tensor:
    """Starts by k-means++ ``(k,m)`` float32 from a bounded sample of standardised latents.

    For more clusters than latent dimensions.

    Parameters
    ----------
    latents : ndarray (n,m)
    weight : ndarray (n,), optional
    k : int
    seed : int
    """
    found, _ = starts(np.asarray(latents, np.float32), weight, k, 1, "kmeans++", seed)
    return torch.from_numpy(found[0])
