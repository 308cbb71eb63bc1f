"""DClAM behind the face that training and labelling see (Saha et al., *Deep Clustering with
Associative Memories*).

Letters: ``B`` rows, ``d`` features, ``m`` numbers of a latent, ``k`` prototypes, ``T`` steps, ``P``
members of a sweep. Encoder ``e``, decoder ``d``, and ``A^T`` the attractor dynamics of ClAM in the
space of the latents: one loss, ``‖x - d(A^T(e(x)))‖²``, for all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.attracting import Attracting
from clam_dist.models.autoencoders import (
    initial_parameters,
    resolve_network,
)
from clam_dist.models.base import Parameters
from clam_dist.models.dynamics import resolve_step_size
from clam_dist.models.latents import best_kmeans
from clam_dist.models.recursion import recurse
from clam_dist.models.sums import Sums, blocks, scored_entries

Objective = Literal["clustering", "reconstruction"]

TRAINED_ROWS = 1024
"""Rows of a training pass at most, which bounds what is kept for the way back."""

RATES = {"encoder": 1.0, "decoder": 1.0, "prototypes": 1.0}


class DClAM(Attracting):
    """Deep clustering with associative memories: the equations, no state.

    The parameters are a mapping with ``prototypes`` ``(P,k,m)`` and those of the network, named
    ``encoder.…`` and ``decoder.…``, ``(P,…)`` each; :meth:`initial_parameters` gives one member's.

    Parameters
    ----------
    n_clusters : int
        Number of prototypes ``k``.
    steps : int
        Depth ``T`` of the recursion; 10 to 15 in the paper.
    step_size : float, optional
        ``α`` in (0, 2); ``1 / T`` as in ClAM where None.
    width : int
        Features of a row ``d``.
    latent : int, optional
        Numbers of a latent ``m``; as many as clusters where None, as in the paper.
    network : mapping, optional
        Description of the autoencoder, see :mod:`clam_dist.models.autoencoders`; fully connected
        where None.
    mask_value : array (d,)
        What missing features are filled with at the encoder's input, in scaled units.
    seed : int
        Keys the start of the network.
    objective : {'clustering', 'reconstruction'}
        The one loss, or that of the autoencoder alone, ``‖x - d(e(x))‖²``, which trains it before.
    rates : mapping, optional
        Factors on the learning rate of ``encoder``, ``decoder`` and ``prototypes``.
    """

    def __init__(
        self,
        n_clusters: int,
        steps: int,
        step_size: float | None = None,
        *,
        width: int,
        latent: int | None = None,
        network: Mapping[str, Any] | None = None,
        mask_value: ArrayLike = 0.0,
        seed: int = 0,
        objective: Objective = "clustering",
        rates: Mapping[str, float] | None = None,
    ) -> None:
        alpha = resolve_step_size(step_size, steps)
        if not 0.0 < alpha < 2.0:
            raise ConfigError(
                f"model.step_size: {alpha} is outside (0, 2), where the energy falls; "
                "leave it null for 1 / steps"
            )
        if objective not in get_args(Objective):
            raise ConfigError(
                f"model.objective: {objective!r} is unknown; use {' or '.join(get_args(Objective))}"
            )
        self.n_clusters, self.steps, self.alpha = n_clusters, steps, alpha
        self.width, self.latent = width, n_clusters if latent is None else latent
        self.network = resolve_network(network or {}, width, self.latent)
        self.mask_value = torch.from_numpy(np.array(mask_value, dtype=np.float32))
        self.seed, self.objective = seed, objective
        self.rates = _checked_rates(rates or {})

    def rate(self, name: str) -> float:
        """Factor on the learning rate of a parameter."""
        return self.rates[name.partition(".")[0]]

    def initial_parameters(self, restart: int) -> dict[str, Tensor]:
        """What one member's network starts from, keyed by the model's seed and ``restart``."""
        return initial_parameters(self.network, self.width, self.latent, self.seed, restart)

    def begin(
        self,
        network: Parameters,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        seed: int,
    ) -> tuple[dict[str, Tensor], float]:
        """Prototypes ``(k,m)`` by k-means on the latents of a sample, and its inertia a row.

        Parameters
        ----------
        network : mapping of str to Tensor
            One member's pretrained encoder.
        x, weight, observed
            As in :meth:`gradient_sums`.
        seed : int
            Keys k-means.

        Returns
        -------
        parameters : dict of str to Tensor
            ``prototypes``, without the axis over members.
        inertia : float
            Weighted mean squared distance of latents to their prototypes, in squared latent units.
        """
        latents = self.represent(network, x, observed)[0]
        prototypes, inertia = best_kmeans(latents, weight, self.n_clusters, seed)
        return {"prototypes": prototypes}, inertia

    def gradient_sums(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],  # noqa: ARG002 - nothing is drawn
    ) -> Sums:
        """Loss and gradients of all members, summed over the rows of a micro-batch.

        ``beta`` has the unit of 1 over a squared length of latents. Only observed entries are
        scored. Members are independent to the last bit.
        """
        gradients = {name: torch.zeros_like(value) for name, value in parameters.items()}
        loss = torch.zeros(len(beta), dtype=torch.float64, device=x.device)
        recursion = self.objective == "clustering"
        # One member after the other: torch.func.vmap over them takes 1.13x as long for one member,
        # 0.95x for two, 0.92x for four and 0.88x for eight (784-256-64-10, 256 rows, one thread),
        # holds all members' activations at once, and changes digits with their number.
        for member in range(len(beta)):
            with torch.enable_grad():
                leaves = {
                    name: value[member].detach().requires_grad_()
                    for name, value in parameters.items()
                    if recursion or name != "prototypes"
                }
                for rows in blocks(len(x), TRAINED_ROWS):
                    part = _Rows(x, weight, observed, rows)
                    squares = self._squares(leaves, beta[member] if recursion else None, part)
                    found = torch.autograd.grad(squares, list(leaves.values()))
                    loss[member] += squares.detach().to(torch.float64)
                    for name, gradient in zip(leaves, found):
                        gradients[name][member] += gradient
        return Sums(loss, scored_entries(x, observed, weight), gradients)

    def reconstruction_error(
        self,
        parameters: Parameters,
        beta: Tensor | None,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Loss of all members summed over rows, without gradients.

        Parameters
        ----------
        parameters : mapping of str to Tensor (P,...)
        beta : Tensor (P,), optional
            Of the recursion between encoder and decoder; the plain autoencoder where None.
        x, weight, observed
            As in :meth:`gradient_sums`.

        Returns
        -------
        loss : Tensor (P,) float64
        entries : Tensor () float64
            Summed weights of the scored entries.
        """
        members = len(next(iter(parameters.values())))
        loss = torch.zeros(members, dtype=torch.float64, device=x.device)
        with torch.no_grad():
            for member in range(members):
                own = {name: value[member] for name, value in parameters.items()}
                for rows in blocks(len(x), TRAINED_ROWS):
                    part = _Rows(x, weight, observed, rows)
                    loss[member] += self._squares(own, None if beta is None else beta[member], part)
        return loss, scored_entries(x, observed, weight)

    def _squares(
        self, parameters: Mapping[str, Tensor], beta: Tensor | None, part: _Rows
    ) -> Tensor:
        """Weighted squared error summed over one member's rows."""
        network = self._modules()
        latents = network.encode(parameters, self._filled(part.x, part.observed))
        if beta is not None:
            latents = recurse(
                latents, parameters["prototypes"], beta.to(part.x.dtype), self.alpha, self.steps
            )[0]
        error = network.decode(parameters, latents) - part.x
        if part.observed is not None:
            error = torch.where(part.observed, error, 0.0)
        rows = error.square().sum(1)
        return rows.sum() if part.weight is None else rows @ part.weight.to(rows.dtype)


class _Rows:
    """A slice of rows with all that goes with them."""

    def __init__(
        self, x: Tensor, weight: Tensor | None, observed: Tensor | None, rows: slice
    ) -> None:
        self.x = x[rows]
        self.weight = None if weight is None else weight[rows]
        self.observed = None if observed is None else observed[rows]


def _checked_rates(rates: Mapping[str, float]) -> dict[str, float]:
    for name, value in rates.items():
        if name not in RATES:
            raise ConfigError(
                f"model.rates.{name}: unknown; known here are {', '.join(sorted(RATES))}"
            )
        if not value > 0:
            raise ConfigError(f"model.rates.{name}: {value} is not above 0; use 1 for no change")
    return {**RATES, **rates}
