"""The transferable deep clustering model: an encoder, and centroids that find themselves.

*Transferable Deep Clustering Model* (TDCM), equations 1 to 5. Centroids are no parameters: they
settle in the latents at hand by a few attention blocks, so that a trained model places them in a
new domain without training. Each block sums over all rows of the global batch, and so do the
statistics that standardise the latents: these sums are exchanged between micro-batches, forward
and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.adaptation import (
    CentroidSums,
    LatentSums,
    latent_moments,
    merge,
    next_centroids,
)
from clam_dist.models.attention import (
    SIGMAS,
    Sigma,
    attend,
    gathered,
    metric_factor,
    orthogonal_start,
    quadratic,
    sampled_start,
)
from clam_dist.models.base import Equations, Parameters
from clam_dist.models.inference import first_greatest
from clam_dist.models.sums import Sums, blocks
from clam_dist.models.tdcm_batch import MicroBatch, Network

BLOCK_ROWS = 256
"""Rows of every product outside training; shorter blocks are padded to that many."""

NETWORK = ("encoder.", "decoder.")
"""How the names of a network's parameters begin."""

RATES = {"encoder": 1.0, "decoder": 1.0, "metric": 1.0}

Chunk = tuple[Tensor, "Tensor | None", "Tensor | None"]
"""Rows ``(B,d)``, weights ``(B,)``, what is observed ``(B,d)``."""


class TDCM(Equations):
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
        Of the orthogonal start; ``√m`` where None, as far out as standardised latents are.
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
        start = None
        if self.n_clusters > self.latent:
            sums = self.latent_sums(alone, x, weight, observed)
            center, spread = self._standards(sums)
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

    def fill(self, x: Tensor, observed: Tensor | None) -> Tensor:
        """Rows with ``mask_value`` where nothing is observed."""
        if observed is None:
            return x
        value = torch.as_tensor(self.mask_value, dtype=x.dtype, device=x.device)
        return torch.where(observed, x, value)

    def gradient_exchange(
        self,
        parameters: Parameters,
        beta: Tensor,  # noqa: ARG002
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],  # noqa: ARG002
    ) -> Generator[Tensor, Tensor, Sums]:
        """See :class:`~clam_dist.models.base.Equations`; ``entries`` are the rows' weights.

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

    def encode(self, parameters: Parameters, x: Tensor, observed: Tensor | None) -> Tensor:
        """Latents ``(B,m)`` under one member's parameters; a row's do not depend on the others."""
        rows = self.fill(x, observed)
        z = x.new_empty((len(x), self.latent))
        with torch.no_grad():
            for part in blocks(len(x), BLOCK_ROWS):
                padded = rows.new_zeros((BLOCK_ROWS, rows.shape[1]))
                padded[: part.stop - part.start] = rows[part]
                z[part] = self.network.encode(parameters, padded)[: part.stop - part.start]
        return z

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardised latents ``(B,m)``, all of them known."""
        single = _single(parameters)
        return (self.encode(single, x, observed) - single["center"]) / single["spread"], None

    def predict(
        self,
        parameters: Parameters,
        beta: float,  # noqa: ARG002
        x: Tensor,
        observed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Labels: the largest assignment after the last block, which is the least ``q(z - c)``.

        Distances are Euclidean, between the standardised latent and the label's centroid.
        """
        single = _single(parameters)
        z, prototypes = self.represent(single, x, observed)[0], single["prototypes"]
        factor = metric_factor(single["metric"])
        labels = torch.empty(len(x), dtype=torch.int64, device=x.device)
        for part in blocks(len(x), BLOCK_ROWS):
            padded = z.new_zeros((BLOCK_ROWS, self.latent))
            padded[: part.stop - part.start] = z[part]
            nearest = first_greatest(-quadratic(padded, prototypes, factor).T.contiguous())
            labels[part] = nearest[: part.stop - part.start]
        return labels, torch.linalg.vector_norm(z - prototypes[labels], dim=1)

    def latent_sums(
        self, parameters: Parameters, x: Tensor, weight: Tensor | None, observed: Tensor | None
    ) -> LatentSums:
        """A chunk's part of the first pass over a data set, which finds center and spread."""
        z = self._members_latents(parameters, x, observed)
        total = len(x) if weight is None else weight.sum(dtype=torch.float64)
        return LatentSums(
            torch.as_tensor(total, dtype=torch.float64, device=x.device), latent_moments(z, weight)
        )

    def adapt_sums(
        self,
        parameters: Parameters,
        statistics: LatentSums,
        centroids: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
    ) -> CentroidSums:
        """A chunk's part of one block over a data set, in float64.

        Parameters
        ----------
        parameters : mapping of str to Tensor (P,...)
        statistics : LatentSums
            Of the whole data set.
        centroids : Tensor (P,k,m) float64
            Before this block.
        x, weight, observed
            As in :meth:`gradient_exchange`.
        """
        z = self._members_latents(parameters, x, observed).to(torch.float64)
        center, spread = self._standards(statistics)
        z = (z - center.unsqueeze(1)) / spread.unsqueeze(1)
        factor = metric_factor(parameters["metric"].to(torch.float64))
        sums = z.new_zeros((*centroids.shape[:2], self.latent + 1))
        for part in blocks(len(x), BLOCK_ROWS):
            delta, _ = attend(z[:, part], centroids, factor, self.tau, self.sigma)
            sums += gathered(delta, z[:, part], None if weight is None else weight[part])
        return CentroidSums(sums)

    def adapt(
        self, parameters: Parameters, chunks: Callable[[], Iterable[Chunk]]
    ) -> dict[str, Tensor]:
        """The derived parameters of all members in a data set, without training.

        Parameters
        ----------
        parameters : mapping of str to Tensor (P,...)
        chunks : callable
            Gives the data set's chunks anew for each of the ``1 + L`` passes.

        Returns
        -------
        dict of str to Tensor
            ``prototypes``, ``center``, ``spread`` and the unchanged ``start``. How the rows are
            cut into chunks makes no difference but for the last digits of float64 sums.
        """
        statistics = merge(self.latent_sums(parameters, *chunk) for chunk in chunks())
        start = parameters["start"].to(torch.float64)
        centroids = start
        for _ in range(self.blocks):
            sums = [
                self.adapt_sums(parameters, statistics, centroids, *chunk) for chunk in chunks()
            ]
            centroids = next_centroids(merge(sums), start)
        return self.adapted(parameters, statistics, centroids, parameters["start"])

    def adapted(
        self, parameters: Parameters, statistics: LatentSums, centroids: Tensor, like: Tensor
    ) -> dict[str, Tensor]:
        """What the passes of :meth:`adapt` come to, in the dtype and on the device of ``like``."""
        center, spread = self._standards(statistics)
        found = {"prototypes": centroids, "center": center, "spread": spread}
        return {name: value.to(like) for name, value in found.items()} | {
            "start": parameters["start"]
        }

    def derive(
        self, parameters: Parameters, x: Tensor, weight: Tensor | None, observed: Tensor | None
    ) -> dict[str, Tensor]:
        """:meth:`adapt` to the given rows."""
        return self.adapt(parameters, lambda: [(x, weight, observed)])

    def _standards(self, statistics: LatentSums) -> tuple[Tensor, Tensor]:
        """What latents are standardised by, ``(P,m)`` float64 each."""
        center, spread = statistics.statistics()
        if self.standardise:
            return center, spread
        return torch.zeros_like(center), torch.ones_like(spread)

    def _members_latents(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        network = {n: value for n, value in parameters.items() if n.startswith(NETWORK)}
        members = range(len(next(iter(network.values()))))
        own = [{name: value[i] for name, value in network.items()} for i in members]
        return torch.stack([self.encode(one, x, observed) for one in own])


def _single(parameters: Parameters) -> dict[str, Tensor]:
    """One member's parameters without the leading axis."""
    leading = parameters["metric"].ndim == 3
    return {name: value[0] if leading else value for name, value in parameters.items()}
