"""The attractor dynamics of ClAM among the layers of a network: differentiated by autograd.

Letters: ``B`` rows, ``m`` dimensions, ``k`` prototypes, ``T`` steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.dynamics import remaining


def recurse(
    z: Tensor, prototypes: Tensor, beta: Tensor, alpha: float, steps: int
) -> tuple[Tensor, Tensor]:
    """``T`` attractor steps from ``z``, differentiable, by products with prototypes alone.

    Every state is ``a^t z + C R``, so that with ``G = R R'`` its inner products with the prototypes
    follow from those of ``z`` (see :mod:`clam_dist.models.dynamics`).

    Parameters
    ----------
    z : Tensor (B,m)
    prototypes : Tensor (k,m)
        ``R``.
    beta : Tensor ()
        Inverse temperature.
    alpha, steps
        Step size and number of steps ``T >= 1``.

    Returns
    -------
    final : Tensor (B,m)
        ``z_T``.
    logits : Tensor (k,B)
        ``β (2 R z_T' - g)``, greatest at the prototype nearest to ``z_T``.
    """
    gram = prototypes @ prototypes.T
    offset = -beta * gram.diagonal().unsqueeze(1)  # (k,1)
    coupling = 2.0 * beta * gram + offset  # 1' C = 1 - a^t takes the offset along
    logits = torch.addmm(offset, 2.0 * beta * prototypes, z.T)  # (k,B)
    mixture = torch.zeros_like(logits)
    for _ in range(steps):
        share = torch.softmax(logits, 0)
        mixture = torch.lerp(mixture, share, alpha)
        logits = torch.lerp(logits, coupling @ share, alpha)
    final = torch.addmm(remaining(alpha, steps) * z, mixture.T, prototypes)
    return final, logits
