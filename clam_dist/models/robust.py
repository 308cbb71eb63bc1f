"""What a difference costs: its square, or less where it is large.

The objectives (8) and (9) of Saha et al. (ICML 2023) take squared differences, so a few rows far
from all others may draw a prototype to themselves. The paper's appendix B.8 proposes the Manhattan
distance against that. Here both it and Huber's compromise stand for the square in the loss alone:
the recursion, and with it every label, stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.sums import weighted_squares

Loss = Literal["squared", "huber", "manhattan"]


@dataclass(frozen=True)
class Penalty:
    """The cost ``f(e)`` of the difference ``e`` in one entry of a row.

    Parameters
    ----------
    loss : {'squared', 'huber', 'manhattan'}
        ``e²``; ``e²`` up to the threshold ``h`` and ``2 h |e| - h²`` beyond it; ``|e|``.
    threshold : float
        ``h``, in scaled units.

    Raises
    ------
    ConfigError
        There is no such loss, or the threshold is not above 0.
    """

    loss: Loss = "squared"
    threshold: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in get_args(Loss):
            raise ConfigError(
                f"model.loss: {self.loss!r} is unknown; use {', '.join(get_args(Loss))}"
            )
        if not self.threshold > 0.0:
            raise ConfigError(
                f"model.huber: {self.threshold} is not above 0, so that nothing would cost "
                "anything; use about 1 (a standard deviation)"
            )

    def __call__(self, error: Tensor, weight: Tensor | None) -> Tensor:
        """``Σ weight · f(error)`` of each problem, and ``error ← weight · f'(error) / 2`` in place.

        Half the derivative, so that the square leaves the error itself.

        Parameters
        ----------
        error : Tensor (..., B)
            Contiguous; all axes but the last two are problems.
        weight : Tensor, optional
            Non-negative, broadcasts against ``error``.

        Returns
        -------
        Tensor (n,) float64
            One sum for each of the ``n`` problems.
        """
        if self.loss == "squared":
            return weighted_squares(error, weight)
        if self.loss == "huber":
            bounded = error.clamp(-self.threshold, self.threshold)
            costs = torch.addcmul(-bounded.square(), bounded, error, value=2.0)
            error.copy_(bounded)
        else:
            costs = error.abs()
            error.sign_().mul_(0.5)
        if weight is not None:
            costs.mul_(weight)
            error.mul_(weight)
        return costs.flatten(-2).sum(-1, dtype=torch.float64).flatten()
