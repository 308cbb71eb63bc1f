"""A network by its description, for models that encode and decode one member's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clam_dist.models.autoencoders import build_network


@dataclass(frozen=True)
class Coder:
    """Encoder and decoder without state: modules are the calling thread's own.

    Parameters
    ----------
    network : mapping
        See :mod:`clam_dist.models.autoencoders`.
    width, latent : int
        Features ``d`` of a row and numbers ``m`` of a latent.
    """

    network: Mapping[str, Any]
    width: int
    latent: int

    def encode(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Latents ``(B,m)`` of rows ``(B,d)``, differentiable."""
        return build_network(self.network, self.width, self.latent).encode(parameters, x)

    def decode(self, parameters: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """Rows ``(B,d)`` of latents ``(B,m)``, differentiable."""
        return build_network(self.network, self.width, self.latent).decode(parameters, z)
