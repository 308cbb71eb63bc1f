"""The transferable deep clustering model: an encoder, and centroids that find themselves.

*Transferable Deep Clustering Model* (TDCM), equations 1 to 5. Centroids are no parameters: they
settle in the latents at hand by a few attention blocks, so that a trained model places them in a
new domain without training. Each block sums over all rows of the global batch, and so do the
statistics that standardise the latents: these sums are exchanged between micro-batches, forward
and back.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence

import torch
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.attention import SIGMAS, Sigma, orthogonal_start, sampled_start
from clam_dist.models.base import Parameters
from clam_dist.models.settling import NETWORK, Settling
from clam_dist.models.sums import Sums
from clam_dist.models.tdcm_batch import MicroBatch, Network

RATES = {"encoder": 1.0, "decoder": 1.0, "metric": 1.0}
"""Factors on the learning rate of each kind of parameter."""


class TDCM(Settling):
    """Equations and settings of TDCM; parameters are given with every call.

    Parameters are ``metric (P,m,m)`` (see :func:`.metric_factor`) and the network's. Derived are
    ``prototypes (P,k,m)``, the centroids after the last block; ``center`` and ``spread (P,m)``, the
    latents' mean and deviation; and ``start (P,k,m)``, where centroids start, which nothing
    changes. Prototypes live among standardised latents.

    Parameters
    ----------
    network : Network
    latent : int
        Dimensions ``m`` of the latents.
    n_clusters : int
        ``k``.
    blocks : int
        ``L``.
    tau : float
        Temperature of the assignments, in the score's unit. (The members' inverse temperature
        ``beta`` is that of other models' dynamics, and has no part in this one.)
    sigma : {'identity', 'softplus', 'log1p'}
    balance : float
        Weight ``λ`` of the sizes' imbalance, see :func:`.imbalance`.
    reconstruction : float
        Weight of the squared error a decoded entry.
    standardise : bool
        Clusters are sought among standardised latents. Without it and without reconstruction the
        loss would fall to nothing by shrinking the latents.
    alphas : sequence of float, optional
        Weight of each block in the loss; equal and of sum 1 by default.
    mask_value : Tensor (d,) or float
        What a missing entry is filled with.
    radius : float, optional
        Of the orthogonal start; ``√m`` where None, as far out as standardised latents are. On
        digits rotated by 0, 15 and 30 degrees, adapted to 45, NMI .58 against .52 with a radius of
        1 (three seeds, ± .01).
    rates : mapping, optional
        Factors on the learning rates of ``encoder``, ``decoder`` and ``metric``.
    """

    derived = frozenset({"prototypes", "center", "spread", "start"})
    by_cluster = ("prototypes", "start")
    reseeds = False
    own_space = True
    exchanges = True

    def __init__(
        self,
        network: Network,
        latent: int,
        n_clusters: int,
        blocks: int = 3,
        tau: float = 1.0,
        sigma: Sigma = "identity",
        balance: float = 1.0,
        reconstruction: float = 1.0,
        standardise: bool = True,
        alphas: Sequence[float] | None = None,
        mask_value: Tensor | float = 0.0,
        radius: float | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        if sigma not in SIGMAS:
            raise ConfigError(f"sigma {sigma!r} is not known; choose one of {', '.join(SIGMAS)}")
        if blocks < 1 or not tau > 0.0:
            raise ConfigError(f"blocks is {blocks} and tau {tau}; set both above 0")
        if not standardise and not reconstruction > 0.0:
            raise ConfigError(
                "latents that are neither standardised nor decoded would shrink to nothing; set "
                f"standardise, or reconstruction above {reconstruction}"
            )
        if alphas is not None and len(alphas) != blocks:
            raise ConfigError(f"{len(alphas)} alphas for {blocks} blocks; give one for each")
        self.network, self.latent, self.n_clusters = network, latent, n_clusters
        self.blocks, self.tau, self.sigma = blocks, tau, sigma
        self.balance, self.reconstruction = balance, reconstruction
        self.standardise = standardise
        self.alphas = tuple(alphas) if alphas is not None else (1.0 / blocks,) * blocks
        self.mask_value = mask_value
        self.radius = math.sqrt(latent) if radius is None else radius
        self.rates = {**RATES, **(rates or {})}

    def rate(self, name: str) -> float:
        """Factor on the learning rate of a parameter."""
        return self.rates.get(name.partition(".")[0], 1.0)

    def begin(
        self,
        network: Parameters,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        seed: int,
    ) -> tuple[dict[str, Tensor], float]:
        """One member's own parameters, given its encoder and a bounded sample of rows.

        Where there are more clusters than latent dimensions, centroids start at latents of the
        sample, see :func:`.sampled_start`.

        Returns
        -------
        parameters : dict of str to Tensor
            Without the axis over members.
        inertia : float
            Weighted mean squared distance of the standardised latents to their labels' centroids.
        """
        alone = {name: value.unsqueeze(0) for name, value in network.items()}
        alone = {name: value for name, value in alone.items() if name.startswith(NETWORK)}
        _check_trainable(alone)
        start = None
        if self.n_clusters > self.latent:
            sums = self.latent_sums(alone, x, weight, observed)
            center, spread = self.standards(sums)
            z = (self.encode(network, x, observed) - center) / spread
            weights = None if weight is None else weight.cpu().numpy()
            start = sampled_start(z.cpu().numpy(), weights, self.n_clusters, seed)[None].to(x)
        found = self.starting(alone, start)
        found |= self.derive(found, x, weight, observed)
        squares = self.predict(found, 1.0, x, observed)[1].to(torch.float64).square()
        shares = torch.ones_like(squares) if weight is None else weight.to(torch.float64)
        inertia = float((shares * squares).sum() / shares.sum())
        return {name: value[0] for name, value in found.items() if name not in alone}, inertia

    def starting(
        self, network: Mapping[str, Tensor], start: Tensor | None = None
    ) -> dict[str, Tensor]:
        """All parameters at the start: the network's, and this model's own.

        Parameters
        ----------
        network : mapping of str to Tensor (P,...)
        start : Tensor (P,k,m), optional
            Where centroids start, see :func:`.sampled_start`; orthogonal by default.
        """
        _check_trainable(network)
        like = next(iter(network.values()))
        zeros = like.new_zeros((len(like), self.latent))
        if start is None:
            found = orthogonal_start(self.n_clusters, self.latent, self.radius).to(like)
            start = found.expand(len(like), -1, -1).clone()
        return {
            **network,
            "metric": torch.diag_embed(zeros),
            "start": start,
            "prototypes": start.clone(),
            "center": zeros,
            "spread": torch.ones_like(zeros),
        }

    def gradient_exchange(
        self,
        parameters: Parameters,
        beta: Tensor,  # noqa: ARG002
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],  # noqa: ARG002
    ) -> Generator[Tensor, Tensor, Sums]:
        """See :meth:`.Equations.gradient_exchange`; ``entries`` are the rows' weights.

        The loss is a mean over rows: ``Σ_l α_l (Σ_i -δ_ij ℓ_ij + λ · imbalance)`` of the blocks'
        assignments and scores, plus the mean squared error of the observed entries.
        """
        micro = MicroBatch(self, parameters, x, weight, observed)
        micro.standardise((yield micro.encode()))
        for number in range(self.blocks):
            micro.settle((yield micro.attend(number)), number)
        micro.reconstruct()
        for number in reversed(range(self.blocks)):
            micro.block_back((yield micro.block_adjoint(number)), number)
        micro.encoder_back((yield micro.moments_adjoint()))
        return micro.sums()


def _check_trainable(network: Mapping[str, Tensor]) -> None:
    if not network:
        raise ConfigError(
            "model.network: encoder and decoder have 0 parameters and TDCM trains them; give a "
            "network with 1 parameter or more"
        )
