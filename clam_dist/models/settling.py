"""What a trained TDCM does with rows: latents, labels, and centroids that settle in them.

*Transferable Deep Clustering Model*, equations 1 and 2, in passes over rows that can be cut in any
way. Letters as in :mod:`clam_dist.models.attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from clam_dist.models.adaptation import (
    CentroidSums,
    LatentSums,
    latent_moments,
    merge,
    next_centroids,
)
from clam_dist.models.attention import Sigma, attend, gathered, metric_factor, quadratic
from clam_dist.models.base import Equations, Parameters
from clam_dist.models.inference import first_greatest
from clam_dist.models.latents import padded_blocks
from clam_dist.models.sums import blocks
from clam_dist.models.tdcm_batch import Network

BLOCK_ROWS = 256
"""Rows of every product outside training; shorter blocks are padded to that many."""

CHUNK_ROWS = 4096
"""Rows whose latents of all members are held at once."""

NETWORK = ("encoder.", "decoder.")
"""How the names of a network's parameters begin."""

Chunk = tuple[Tensor, "Tensor | None", "Tensor | None"]
"""Rows ``(B,d)``, weights ``(B,)``, what is observed ``(B,d)``."""


class Settling(Equations):
    """Labels, latents and centroids of :class:`clam_dist.models.tdcm.TDCM`, which sets these.

    Attributes
    ----------
    network : Network
    latent, blocks : int
        ``m`` and ``L``.
    tau : float
    sigma : {'identity', 'softplus', 'log1p'}
    standardise : bool
    mask_value : Tensor (d,) or float
    """

    network: Network
    latent: int
    blocks: int
    tau: float
    sigma: Sigma
    standardise: bool
    mask_value: Tensor | float

    def fill(self, x: Tensor, observed: Tensor | None) -> Tensor:
        """Rows with ``mask_value`` where nothing is observed."""
        if observed is None:
            return x
        value = torch.as_tensor(self.mask_value, dtype=x.dtype, device=x.device)
        return torch.where(observed, x, value)

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

    def decode(self, parameters: Parameters, z: Tensor) -> Tensor:
        """Rows ``(n,d)`` that the decoder makes of standardised latents or centroids ``(n,m)``."""
        single = one_member(parameters)
        network = {n: value for n, value in single.items() if n.startswith(NETWORK)}

        def decoded(part: Tensor, _: Tensor | None) -> Tensor:
            return self.network.decode(network, part * single["spread"] + single["center"])

        with torch.no_grad():
            width = decoded(z[:1], None).shape[1]
            return padded_blocks(decoded, z, None, width)

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardised latents ``(B,m)``, all of them known."""
        single = one_member(parameters)
        return (self.encode(single, x, observed) - single["center"]) / single["spread"], None

    def predict(
        self,
        parameters: Parameters,
        beta: float,
        x: Tensor,
        observed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Labels: the largest assignment after the last block, which is the least ``q(z - c)``.

        Distances are Euclidean, between the standardised latent and the label's centroid.
        """
        return self.predict_and_represent(parameters, beta, x, observed)[0]

    def predict_and_represent(
        self,
        parameters: Parameters,
        beta: float,  # noqa: ARG002
        x: Tensor,
        observed: Tensor | None,
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor | None]]:
        """What :meth:`predict` and :meth:`represent` give, from one encoding."""
        single = one_member(parameters)
        (z, seen), prototypes = self.represent(single, x, observed), single["prototypes"]
        factor = metric_factor(single["metric"])
        labels = torch.empty(len(x), dtype=torch.int64, device=x.device)
        for part in blocks(len(x), BLOCK_ROWS):
            padded = z.new_zeros((BLOCK_ROWS, self.latent))
            padded[: part.stop - part.start] = z[part]
            nearest = first_greatest(-quadratic(padded, prototypes, factor).T.contiguous())
            labels[part] = nearest[: part.stop - part.start]
        return (labels, torch.linalg.vector_norm(z - prototypes[labels], dim=1)), (z, seen)

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
        center, spread = self.standards(statistics)
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
        center, spread = self.standards(statistics)
        found = {"prototypes": centroids, "center": center, "spread": spread}
        return {name: value.to(like) for name, value in found.items()} | {
            "start": parameters["start"]
        }

    def derive(
        self, parameters: Parameters, x: Tensor, weight: Tensor | None, observed: Tensor | None
    ) -> dict[str, Tensor]:
        """:meth:`adapt` to the given rows, in chunks: of each, all members' latents are held."""

        def chunks() -> Iterator[Chunk]:
            for part in blocks(len(x), CHUNK_ROWS):
                pair = (None if value is None else value[part] for value in (weight, observed))
                yield x[part], next(pair), next(pair)

        return self.adapt(parameters, chunks)

    def standards(self, statistics: LatentSums) -> tuple[Tensor, Tensor]:
        """What latents are standardised by, ``(P,m)`` float64 each."""
        center, spread = statistics.statistics()
        if self.standardise:
            return center, spread
        return torch.zeros_like(center), torch.ones_like(spread)

    def _members_latents(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        network = {n: value for n, value in parameters.items() if n.startswith(NETWORK)}
        # A network without parameters, such as the identity, is the same for all members.
        held = next(iter(network.values()), None)
        members = range(len(parameters["metric"] if held is None else held))
        own = [{name: value[i] for name, value in network.items()} for i in members]
        return torch.stack([self.encode(one, x, observed) for one in own])


def one_member(parameters: Parameters) -> dict[str, Tensor]:
    """One member's parameters without the leading axis."""
    leading = parameters["metric"].ndim == 3
    return {name: value[0] if leading else value for name, value in parameters.items()}
