"""One micro-batch's way through TDCM's loss and back, in stages between exchanged sums.

Autograd runs inside a stage only: what enters a stage is a leaf, and whatever leaves it for an
exchange comes back as the leaf of the next. On the way back each stage runs once, in the opposite
order, with the exchanged adjoint of what it gave out. So the encoder runs once forward and once
back, whatever the number of blocks, and no gradient mode is left open while a stage waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from clam_dist.models.adaptation import center_and_spread, latent_moments
from clam_dist.models.attention import attend, gathered, imbalance, metric_factor, updated
from clam_dist.models.sums import Sums

if TYPE_CHECKING:
    from clam_dist.models.tdcm import TDCM


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
    """What one block gave out, and the total ``(P,k,m+1)`` that it got back."""

    partial: Tensor
    clustering: Tensor
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
        self.leaves = {
            name: leaf(value) for name, value in parameters.items() if name not in model.derived
        }
        self.start = parameters["start"]
        self.members = len(self.start)
        entries = x.new_full((len(x),), x.shape[1]) if observed is None else observed.sum(1).to(x)
        weights = torch.ones_like(entries) if weight is None else weight
        known = [weights.sum(dtype=torch.float64), (weights * entries).sum(dtype=torch.float64)]
        self.own = torch.stack(known)
        self.blocks: list[_Block] = []
        self.loss = torch.zeros(self.members, dtype=torch.float64, device=x.device)

    def encode(self) -> Tensor:
        """Partial sums: rows' weights, observed entries' weights, moments of the latents."""
        with torch.enable_grad():
            self.encoded = self._through(self.model.network.encode, self.x, self.model.latent)
            self.z = leaf(self.encoded)
            self.partial_moments = latent_moments(self.z, self.weight)
        return torch.cat([self.own, self.partial_moments.detach().flatten()])

    def standardise(self, total: Tensor) -> None:
        """Take up the total of :meth:`encode`."""
        self.rows, self.entries = total[0], total[1]
        self.moments = leaf(total[2:].view(self.members, 2, -1))
        with torch.enable_grad():
            self.factored = metric_factor(self.leaves["metric"])
            self.standardised = self.z
            if self.model.standardise:
                center, spread = center_and_spread(self.rows, self.moments)
                centered = self.z - center.to(self.z.dtype).unsqueeze(1)
                self.standardised = centered / spread.to(self.z.dtype).unsqueeze(1)
        self.s, self.factor = leaf(self.standardised), leaf(self.factored)

    def attend(self, number: int) -> Tensor:
        """Partial sums ``Σ δ s`` and ``Σ δ`` of a block."""
        model = self.model
        with torch.enable_grad():
            centroids = self.start
            if self.blocks:
                centroids = updated(self.blocks[-1].total, self.start)
            delta, found = attend(self.s, centroids, self.factor, model.tau, model.sigma)
            partial = gathered(delta, self.s, self.weight)
            rows = -(delta * found).sum(-1).to(torch.float64)
            clustering = model.alphas[number] * weighted(rows, self.weight)
        none = clustering.detach()
        self.blocks.append(_Block(partial, clustering, none, none))
        return partial.detach().flatten()

    def settle(self, total: Tensor, number: int) -> None:
        """Take up the total of :meth:`attend`; the imbalance is shared out by rows' weights."""
        block = self.blocks[number]
        block.total = leaf(total.view_as(block.partial))
        scale = self.model.balance * self.model.alphas[number] * self.own[0]
        with torch.enable_grad():
            block.unbalanced = scale * imbalance(block.total[..., -1])
        self.loss += block.clustering.detach() + block.unbalanced.detach()

    def reconstruct(self) -> None:
        """The decoder's way forward and back; needs no exchange."""
        if not self.model.reconstruction > 0.0 or not len(self.x):
            return
        with torch.enable_grad():
            error = self._through(self.model.network.decode, self.z, self.x.shape[1]) - self.x
            if self.observed is not None:
                error = error * self.observed
            squares = weighted(error.square().sum(-1).to(torch.float64), self.weight)
            scale = torch.where(self.entries > 0.0, self.rows / self.entries, 0.0)
            loss = self.model.reconstruction * scale * squares
        self.loss += loss.detach()
        back(loss)

    def block_adjoint(self, number: int) -> Tensor:
        """Partial derivative of the loss by a block's total."""
        block = self.blocks[number]
        back(block.unbalanced)
        return gradient(block.total).flatten()

    def block_back(self, total: Tensor, number: int) -> None:
        """Take up the exchanged :meth:`block_adjoint`."""
        block = self.blocks[number]
        outer = total.view_as(block.partial)
        torch.autograd.backward(
            [block.partial, block.clustering], [outer, torch.ones_like(block.clustering)]
        )

    def moments_adjoint(self) -> Tensor:
        """Partial derivative of the loss by the moments' total."""
        if self.model.standardise:
            self.standardised.backward(gradient(self.s))
        else:
            self.z.grad = gradient(self.z) + gradient(self.s)
        self.factored.backward(gradient(self.factor))
        return gradient(self.moments).flatten()

    def encoder_back(self, total: Tensor) -> None:
        """Take up the exchanged :meth:`moments_adjoint`."""
        self.partial_moments.backward(total.view_as(self.partial_moments))
        if len(self.x):
            self.encoded.backward(gradient(self.z))

    def sums(self) -> Sums:
        """This micro-batch's share."""
        gradients = {name: gradient(value) for name, value in self.leaves.items()}
        return Sums(self.loss, self.own[0], gradients)

    def _through(
        self, function: Callable[[Mapping[str, Tensor], Tensor], Tensor], rows: Tensor, width: int
    ) -> Tensor:
        """``(P,B,width)`` of rows ``(B,...)``, or of each member's rows ``(P,B,...)``."""
        if not len(self.x):
            return rows.new_zeros((self.members, 0, width))
        found = []
        for number in range(self.members):
            own = {name: value[number] for name, value in self.leaves.items()}
            found.append(function(own, rows if rows is self.x else rows[number]))
        return torch.stack(found)


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
    """Sum over rows ``(P,B)`` float64, as ``(P,)``."""
    return rows.sum(-1) if weight is None else rows @ weight.to(torch.float64)
