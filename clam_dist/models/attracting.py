"""What a trained DClAM does with rows: latents, labels and reconstructions.

Saha et al., *Deep Clustering with Associative Memories*. Letters as in
:mod:`clam_dist.models.dclam`; ``n`` latents or rows. A row's results do not depend on which rows it
comes with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from clam_dist.models.autoencoders import Autoencoder, build_network
from clam_dist.models.base import Equations, Parameters
from clam_dist.models.inference import first_greatest
from clam_dist.models.latents import padded_blocks
from clam_dist.models.recursion import recurse


class Attracting(Equations):
    """Inference of :class:`clam_dist.models.dclam.DClAM`, which sets these.

    Attributes
    ----------
    steps, alpha : int and float
        Depth ``T`` of the recursion and its step size.
    width, latent : int
        ``d`` and ``m``.
    network : mapping
        Description of the autoencoder, every default written out.
    mask_value : Tensor (d,) or ()
        What missing features are filled with at the encoder's input.
    """

    own_space = True
    reconstructs = True
    by_cluster = ("prototypes",)

    steps: int
    alpha: float
    width: int
    latent: int
    network: Mapping[str, Any]
    mask_value: Tensor

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, None]:
        """Latents ``e(x)`` ``(B,m)`` before the recursion, of one member; all of each is known."""
        own, network = self._one(parameters), self._modules()
        return self._map(lambda rows: network.encode(own, rows), x, observed, self.latent), None

    def recursed(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """Latents ``A^T(e(x))`` ``(B,m)`` after the recursion, of one member."""
        own, network = self._one(parameters), self._modules()
        prototypes, scale = own["prototypes"], _scalar(beta, x)

        def function(rows: Tensor) -> Tensor:
            return recurse(network.encode(own, rows), prototypes, scale, self.alpha, self.steps)[0]

        return self._map(function, x, observed, self.latent)

    def judged(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """Latents after the recursion, which are what the decoder sees.

        It undoes the pull by stretching clusters from within, so that latents before it would
        favour the least trained state (digits: 1.9 to 2.5 times k-means' silhouette after it, .7 to
        .95 times before). What keeps this from flattering is that only members count whose
        reconstruction, of these same latents, is within a tenth of the pretrained one.
        """
        return self.recursed(parameters, beta, x, observed)

    def decode(self, parameters: Parameters, z: Tensor) -> Tensor:
        """Rows ``(n,d)`` that one member's decoder makes of latents or prototypes ``(n,m)``."""
        own, network = self._one(parameters), self._modules()
        return self._map(lambda rows: network.decode(own, rows), z, None, self.width)

    def reconstruct(
        self,
        parameters: Parameters,
        x: Tensor,
        observed: Tensor | None,
        beta: float | None = None,
    ) -> Tensor:
        """``d(e(x))`` ``(B,d)`` of one member, or ``d(A^T(e(x)))`` where ``beta`` is given."""
        if beta is None:
            return self.decode(parameters, self.represent(parameters, x, observed)[0])
        return self.decode(parameters, self.recursed(parameters, beta, x, observed))

    def predict(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Labels and distances of rows under one member's parameters.

        A row's result does not depend on which rows it comes with.

        Returns
        -------
        labels : Tensor (B,) int64
            The prototype nearest to the latent after the recursion.
        distances : Tensor (B,)
            Euclidean distance from the latent before it to that prototype.
        """
        found = self._placed_rows(parameters, beta, x, observed, 0)
        return found[:, 0].to(torch.int64), found[:, 1].to(x.dtype)

    def predict_and_represent(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, None]]:
        """What :meth:`predict` and :meth:`represent` give, from one encoding."""
        found = self._placed_rows(parameters, beta, x, observed, self.latent)
        labels, distances = found[:, 0].to(torch.int64), found[:, 1].to(x.dtype)
        return (labels, distances), (found[:, 2:].to(x.dtype), None)

    def _placed_rows(
        self,
        parameters: Parameters,
        beta: float,
        x: Tensor,
        observed: Tensor | None,
        shown: int,
    ) -> Tensor:
        """Label, distance and the first ``shown`` numbers of the latent, ``(B,2+shown)`` float64.

        float64 holds all three exactly.
        """
        own, network = self._one(parameters), self._modules()
        prototypes, scale = own["prototypes"], _scalar(beta, x)

        def function(rows: Tensor) -> Tensor:
            latents = network.encode(own, rows)
            final = recurse(latents, prototypes, scale, self.alpha, self.steps)[1]
            labels = first_greatest(final)
            distances = torch.linalg.vector_norm(latents - prototypes[labels], dim=1)
            columns = [labels[:, None], distances[:, None], latents[:, :shown]]
            return torch.cat([column.to(torch.float64) for column in columns], 1)

        return self._map(function, x, observed, 2 + shown, torch.float64)

    def _one(self, parameters: Parameters) -> dict[str, Tensor]:
        """One member's parameters without the leading axis of length 1, if there is one."""
        name, value = next(iter(parameters.items()))
        own = 2 if name == "prototypes" else self._modules().get_parameter(name).ndim
        if value.ndim == own:
            return dict(parameters)
        return {name: value[0] for name, value in parameters.items()}

    def _modules(self) -> Autoencoder:
        return build_network(self.network, self.width, self.latent)

    def _filled(self, x: Tensor, observed: Tensor | None) -> Tensor:
        if observed is None:
            return x
        return torch.where(observed, x, self.mask_value.to(x.device, x.dtype))

    def _map(
        self,
        function: Callable[[Tensor], Tensor],
        x: Tensor,
        observed: Tensor | None,
        width: int,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """``function`` of filled rows in padded blocks of one size: ``(B,width)``."""

        def from_rows(rows: Tensor, seen: Tensor | None) -> Tensor:
            return function(self._filled(rows, seen))

        return padded_blocks(from_rows, x, observed, width, dtype)


def _scalar(beta: float, x: Tensor) -> Tensor:
    return torch.full((), beta, dtype=x.dtype, device=x.device)
