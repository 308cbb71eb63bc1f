"""One micro-batch's way through TDCM's loss and back, in stages between exchanged sums.

Of its rows only the latents are kept while a stage waits for sums, and their gradient on the way
back: every stage goes through blocks of rows, forward without a graph, and once more with one when
the exchanged adjoint of what it gave out has come. So what a micro-batch holds does not depend on
the network's depth or the number of blocks, and no gradient mode is left open while it waits. The
price is the encoder's and the attention's way forward a second time: 1.1 times as long in all with
784 features, 1.2 times with 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from clam_dist.models.adaptation import center_and_spread, latent_moments
from clam_dist.models.attention import attend, gathered, imbalance, metric_factor, updated
from clam_dist.models.sums import Sums, blocks

if TYPE_CHECKING:
    from clam_dist.models.tdcm import TDCM

TRAINED_ROWS = 2048
"""Rows that a stage goes through at once: half as many take 1.1 times as long (64 features)."""


class Network(Protocol):
    """Encoder and decoder without state, differentiable; names start `encoder.`, `decoder.`."""

    def encode(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Latents ``(B,m)`` of rows ``(B,d)`` under one member's parameters."""
        ...

    def decode(self, parameters: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """Rows ``(B,d)`` of latents ``(B,m)`` under one member's parameters."""
        ...


@dataclass
class _Block:
    """A block's centroids ``(P,k,m)``, and its total ``(P,k,m+1)`` with what that costs."""

    centroids: Tensor
    total: Tensor
    unbalanced: Tensor


class MicroBatch:
    """The stages, to be called in the order of :meth:`.TDCM.gradient_exchange`.

    Parameters
    ----------
    model : TDCM
        Settings.
    parameters : mapping of str to Tensor (P,...)
    x : Tensor (B,d)
        ``B`` may be 0.
    weight : Tensor (B,), optional
    observed : Tensor (B,d) bool, optional
    """

    def __init__(
        self,
        model: TDCM,
        parameters: Mapping[str, Tensor],
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
    ) -> None:
        self.model, self.weight, self.observed = model, weight, observed
        self.x = model.fill(x, observed)
        self.parameters = {n: v for n, v in parameters.items() if n not in model.derived}
        self.start = parameters["start"]
        self.members = len(self.start)
        entries = x.new_full((len(x),), x.shape[1]) if observed is None else observed.sum(1).to(x)
        weights = torch.ones_like(entries) if weight is None else weight
        known = [weights.sum(dtype=torch.float64), (weights * entries).sum(dtype=torch.float64)]
        self.own = torch.stack(known)
        self.blocks: list[_Block] = []
        self.loss = torch.zeros(self.members, dtype=torch.float64, device=x.device)
        self.gradients: dict[str, Tensor] = {}

    def encode(self) -> Tensor:
        """Partial sums: rows' weights, observed entries' weights, moments of the latents."""
        self.z = self.x.new_empty((self.members, len(self.x), self.model.latent))
        moments = self.x.new_zeros((self.members, 2, self.model.latent), dtype=torch.float64)
        with torch.no_grad():
            for rows, weight in self._parts():
                for member in range(self.members):
                    own = self._member(member, "encoder.")
                    self.z[member, rows] = self.model.network.encode(own, self.x[rows])
                moments += latent_moments(self.z[:, rows], weight)
        return torch.cat([self.own, moments.flatten()])

    def standardise(self, total: Tensor) -> None:
        """Take up the total of :meth:`encode`."""
        self.rows, self.entries = total[0], total[1]
        self.moments = leaf(total[2:].view(self.members, 2, -1))
        self.metric = leaf(self.parameters["metric"])
        with torch.enable_grad():
            self.factored = metric_factor(self.metric)
            self.standards = center_and_spread(self.rows, self.moments)
        self.factor = leaf(self.factored)
        self.center, self.spread = (leaf(value) for value in self.standards)

    def attend(self, number: int) -> Tensor:
        """Partial sums ``Σ δ s`` and ``Σ δ`` of a block."""
        centroids = self.start
        if self.blocks:
            centroids = updated(self.blocks[-1].total.detach(), self.start)
        shape = (*centroids.shape[:2], self.model.latent + 1)
        partial = self.x.new_zeros(shape, dtype=torch.float64)
        with torch.no_grad():
            for rows, weight in self._parts():
                found, clustering = self._assign(self.z[:, rows], weight, centroids, number)
                partial += found
                self.loss += clustering
        self.blocks.append(_Block(centroids, partial, partial))
        return partial.flatten()

    def settle(self, total: Tensor, number: int) -> None:
        """Take up the total of :meth:`attend`; the imbalance is shared out by rows' weights."""
        block = self.blocks[number]
        block.total = leaf(total.view_as(block.total))
        scale = self.model.balance * self.model.alphas[number] * self.own[0]
        with torch.enable_grad():
            block.unbalanced = scale * imbalance(block.total[..., -1])
        self.loss += block.unbalanced.detach()

    def reconstruct(self) -> None:
        """The decoder's way forward and back; needs no exchange."""
        self.adjoint = torch.zeros_like(self.z)  # of the latents
        self.gradients = {name: torch.zeros_like(v) for name, v in self.parameters.items()}
        if not self.model.reconstruction > 0.0:
            return
        scale = torch.where(self.entries > 0.0, self.rows / self.entries, 0.0)
        for rows, weight in self._parts():
            for member in range(self.members):
                own, z = self._leaves(member, "decoder."), leaf(self.z[member, rows])
                with torch.enable_grad():
                    error = self.model.network.decode(own, z) - self.x[rows]
                    if self.observed is not None:
                        error = error * self.observed[rows]
                    squares = weighted(error.square().sum(-1).to(torch.float64), weight)
                    loss = self.model.reconstruction * scale * squares
                self.loss[member] += loss.detach()
                loss.backward()
                self.adjoint[member, rows] = gradient(z)
                self._learn(member, own)

    def block_adjoint(self, number: int) -> Tensor:
        """Partial derivative of the loss by a block's total."""
        block = self.blocks[number]
        back(block.unbalanced)
        return gradient(block.total).flatten()

    def block_back(self, total: Tensor, number: int) -> None:
        """Take up the exchanged :meth:`block_adjoint`."""
        block = self.blocks[number]
        centroids, outer = leaf(block.centroids), total.view_as(block.total)
        for rows, weight in self._parts():
            z = leaf(self.z[:, rows])
            with torch.enable_grad():
                partial, clustering = self._assign(z, weight, centroids, number)
            torch.autograd.backward([partial, clustering], [outer, torch.ones_like(clustering)])
            self.adjoint[:, rows] += gradient(z)
        if number:
            with torch.enable_grad():
                found = updated(self.blocks[number - 1].total, self.start)
            found.backward(gradient(centroids))

    def moments_adjoint(self) -> Tensor:
        """Partial derivative of the loss by the moments' total."""
        outer = [gradient(self.center), gradient(self.spread)]
        torch.autograd.backward(self.standards, outer)
        self.factored.backward(gradient(self.factor))
        self.gradients["metric"] += gradient(self.metric)
        return gradient(self.moments).flatten()

    def encoder_back(self, total: Tensor) -> None:
        """Take up the exchanged :meth:`moments_adjoint`."""
        outer = total.view(self.members, 2, -1)
        for rows, weight in self._parts():
            z = leaf(self.z[:, rows])
            with torch.enable_grad():
                moments = latent_moments(z, weight)
            moments.backward(outer)
            adjoint = self.adjoint[:, rows] + gradient(z)
            for member in range(self.members):
                own = self._leaves(member, "encoder.")
                with torch.enable_grad():
                    encoded = self.model.network.encode(own, self.x[rows])
                encoded.backward(adjoint[member])
                self._learn(member, own)

    def sums(self) -> Sums:
        """This micro-batch's share."""
        return Sums(self.loss, self.own[0], self.gradients)

    def _parts(self) -> Iterator[tuple[slice, Tensor | None]]:
        """Blocks of rows, and their weights; none where there are no rows."""
        for rows in blocks(len(self.x), TRAINED_ROWS):
            yield rows, None if self.weight is None else self.weight[rows]

    def _assign(
        self, z: Tensor, weight: Tensor | None, centroids: Tensor, number: int
    ) -> tuple[Tensor, Tensor]:
        """A block's sums ``(P,k,m+1)`` over latents ``(P,B,m)``, and their part of the loss."""
        model = self.model
        if model.standardise:
            centered = z - self.center.to(z.dtype).unsqueeze(1)
            z = centered / self.spread.to(z.dtype).unsqueeze(1)
        delta, found = attend(z, centroids, self.factor, model.tau, model.sigma)
        rows = -(delta * found).sum(-1).to(torch.float64)
        return gathered(delta, z, weight), model.alphas[number] * weighted(rows, weight)

    def _member(self, number: int, prefix: str) -> dict[str, Tensor]:
        """One member's parameters of the encoder or the decoder."""
        named = self.parameters.items()
        return {name: value[number] for name, value in named if name.startswith(prefix)}

    def _leaves(self, number: int, prefix: str) -> dict[str, Tensor]:
        return {name: leaf(value) for name, value in self._member(number, prefix).items()}

    def _learn(self, number: int, leaves: Mapping[str, Tensor]) -> None:
        """Add what leaves of one member have gathered."""
        for name, value in leaves.items():
            self.gradients[name][number] += gradient(value)


def leaf(value: Tensor) -> Tensor:
    """The same numbers where autograd starts anew."""
    return value.detach().requires_grad_()


def gradient(value: Tensor) -> Tensor:
    """What a leaf has gathered, zeros where nothing came."""
    return torch.zeros_like(value) if value.grad is None else value.grad


def back(loss: Tensor) -> None:
    """Backward from the members' losses ``(P,)``; no operation, so any gradient mode will do."""
    torch.autograd.backward([loss], [torch.ones_like(loss)])


def weighted(rows: Tensor, weight: Tensor | None) -> Tensor:
    """Sum over rows ``(…,B)`` float64, as ``(…)``."""
    return rows.sum(-1) if weight is None else rows @ weight.to(torch.float64)
