"""Sums over chunks of rows from which centroids settle in a whole data set, pass by pass.

Every pass is a map over chunks to one of the two sums below, and a sum over chunks; so a driver can
run the passes anywhere and in any cut. Letters as in :mod:`clam_dist.models.attention`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import torch
from torch import Tensor

from clam_dist.errors import DataError
from clam_dist.models.attention import updated

LEAST_VARIANCE = 1e-8
"""Added to each variance of the latents, so that a constant dimension stays finite."""


@dataclass(frozen=True)
class LatentSums:
    """What the statistics of latents are made of.

    Parameters
    ----------
    weight : Tensor () float64
        ``Σ w`` over rows.
    moments : Tensor (P,2,m) float64
        ``Σ w z`` and ``Σ w z²``.
    """

    weight: Tensor
    moments: Tensor

    def __add__(self, other: LatentSums) -> LatentSums:
        """Sums over the rows of both."""
        return LatentSums(self.weight + other.weight, self.moments + other.moments)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the latents, both ``(P,m)`` float64."""
        return center_and_spread(self.weight, self.moments)


@dataclass(frozen=True)
class CentroidSums:
    """``Σ δ z`` and ``Σ δ``, weighted, side by side.

    Parameters
    ----------
    sums : Tensor (P,k,m+1) float64
    """

    sums: Tensor

    def __add__(self, other: CentroidSums) -> CentroidSums:
        """Sums over the rows of both."""
        return CentroidSums(self.sums + other.sums)


Part = TypeVar("Part", LatentSums, CentroidSums)


def merge(parts: Iterable[Part]) -> Part:
    """Sum of the chunks' sums, in their order.

    Raises
    ------
    DataError
        No chunks at all.
    """
    held = list(parts)
    if not held:
        raise DataError("centroids cannot adapt to 0 chunks of rows; give at least 1")
    return reduce(add, held)


def next_centroids(sums: CentroidSums, start: Tensor) -> Tensor:
    """Centroids ``(P,k,m)`` after a pass, those without rows back at ``start (P,k,m)``."""
    return updated(sums.sums, start)


def center_and_spread(weight: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation ``(P,m)`` of moments ``(P,2,m)``; 0 and nearly 0 where weight is 0."""
    mean, square = (moments / torch.where(weight > 0.0, weight, 1.0)).unbind(1)
    return mean, ((square - mean.square()).clamp_min(0.0) + LEAST_VARIANCE).sqrt()


def latent_moments(z: Tensor, weight: Tensor | None) -> Tensor:
    """``Σ w z`` and ``Σ w z²`` of latents ``(P,B,m)``, as ``(P,2,m)`` float64."""
    exact = z.to(torch.float64)
    powers = torch.stack([exact, exact.square()], 1)
    return (powers if weight is None else powers * weight.to(torch.float64).unsqueeze(-1)).sum(2)
