"""How the logits of the recursion follow from its mixture: ``z = b z_0 + N C``, and the way back.

Letters as in :mod:`clam_dist.models.dynamics`; ``r`` the rank of ``N``. Every ``N`` of the models
is a product ``L Q'`` of two ``(n,k,r)`` factors made of prototypes:

- all features move from ``x_0 = x``: ``L = [2 β R, c]``, ``Q = [R, 1]``, ``r = d + 1``;
- hidden columns ``H`` move from ``v``: ``L = 2 β R_H``, ``Q = R_H - v_H``, ``r = h``;
- each row hides for itself: ``L = 2 β R``, ``Q = R - v`` with the row's ``m̄`` between, ``r = d``.

So a coupling may multiply by ``N`` (``k²`` multiply-adds a row) or by its factors one after the
other (``2 k r``), whichever is cheaper; :func:`couple` decides.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from clam_dist.models.workspace import Workspace


class Coupling(Protocol):
    """One ``N`` for each of ``n`` problems, and its gradient in the making."""

    def logits(self, start: Tensor, keep: float, mixture: Tensor, out: Tensor) -> Tensor:
        """``keep · z_0 + N C`` into ``out``; all ``(n,k,B)``."""
        ...

    def learn(self, error: Tensor, mixture: Tensor, scale: float) -> None:
        """Add ``scale · error C'`` to the gradient by ``N``."""
        ...

    def pull(
        self, error: Tensor, mixture: Tensor, adjoint: Tensor, keep: float, gain: float
    ) -> None:
        """Learn from ``error``, and set ``adjoint ← keep · adjoint + gain · N' error`` in place."""
        ...

    def products(self) -> tuple[Tensor, Tensor]:
        """``D Q`` and ``D' L``, both ``(n,k,r)``, of the gradient ``D`` learnt by ``N``.

        They are the derivatives by the factors ``L`` and ``Q``.
        """
        ...


class DenseCoupling:
    """Multiplies by ``N`` itself.

    Parameters
    ----------
    left, right : Tensor (n,k,r)
        ``L`` and ``Q``.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left, self._right = left, right
        self._matrix = torch.bmm(left, right.mT)
        self._transposed = self._matrix.mT
        self._gradient = torch.zeros_like(self._matrix)

    def logits(self, start: Tensor, keep: float, mixture: Tensor, out: Tensor) -> Tensor:
        return torch.baddbmm(start, self._matrix, mixture, beta=keep, out=out)

    def learn(self, error: Tensor, mixture: Tensor, scale: float) -> None:
        self._gradient.baddbmm_(error, mixture.mT, alpha=scale)

    def pull(
        self, error: Tensor, mixture: Tensor, adjoint: Tensor, keep: float, gain: float
    ) -> None:
        self._gradient.baddbmm_(error, mixture.mT)
        adjoint.baddbmm_(self._transposed, error, beta=keep, alpha=gain)

    def products(self) -> tuple[Tensor, Tensor]:
        left = torch.bmm(self._gradient.mT, self._left)
        return torch.bmm(self._gradient, self._right), left


class FactoredCoupling:
    """Multiplies by the factors, with each row's own mask between them where there is one.

    Parameters
    ----------
    left, right : Tensor (n,k,r)
        ``L`` and ``Q``.
    space : Workspace
        For the ``(n,r,B)`` array between the factors.
    moving : Tensor (r,B), optional
        1 where a feature moves, 0 where it is clamped.
    """

    def __init__(
        self, left: Tensor, right: Tensor, space: Workspace, moving: Tensor | None = None
    ) -> None:
        self._left, self._right, self._space, self._moving = left, right, space, moving
        self._left_gradient = torch.zeros_like(left)
        self._right_gradient = torch.zeros_like(right)

    def _between(self, factor: Tensor, lines: Tensor) -> Tensor:
        """``m̄ ⊙ (factor' lines)``: ``(n,k,r)``, ``(n,k,B)`` to ``(n,r,B)`` scratch."""
        out = self._space.take("between", (len(factor), factor.shape[2], lines.shape[2]), lines)
        torch.bmm(factor.mT, lines, out=out)
        return out if self._moving is None else out.mul_(self._moving)

    def logits(self, start: Tensor, keep: float, mixture: Tensor, out: Tensor) -> Tensor:
        between = self._between(self._right, mixture)
        return torch.baddbmm(start, self._left, between, beta=keep, out=out)

    def learn(self, error: Tensor, mixture: Tensor, scale: float) -> None:
        between = self._between(self._right, mixture)
        self._left_gradient.baddbmm_(error, between.mT, alpha=scale)
        between = self._between(self._left, error)
        self._right_gradient.baddbmm_(mixture, between.mT, alpha=scale)

    def pull(
        self, error: Tensor, mixture: Tensor, adjoint: Tensor, keep: float, gain: float
    ) -> None:
        between = self._between(self._right, mixture)
        self._left_gradient.baddbmm_(error, between.mT)
        between = self._between(self._left, error)
        self._right_gradient.baddbmm_(mixture, between.mT)
        adjoint.baddbmm_(self._right, between, beta=keep, alpha=gain)

    def products(self) -> tuple[Tensor, Tensor]:
        return self._left_gradient, self._right_gradient


def factors_are_cheaper(k: int, rank: int) -> bool:
    """The one cost model of the two couplings.

    A step forward and backward takes ``7 k r`` multiply-adds by factors and ``3 k²`` by ``N``;
    thinner products run a third below the rate of thicker ones, and under 32 prototypes the calls
    cost more than the arithmetic (measured on one CPU thread for k 8 … 160, r 1 … 769).
    """
    return k >= 32 and 7 * rank < 2 * k


def couple(left: Tensor, right: Tensor, space: Workspace) -> Coupling:
    """The cheaper coupling for factors ``(n,k,r)`` shared by all rows of a problem."""
    if factors_are_cheaper(left.shape[1], left.shape[2]):
        return FactoredCoupling(left, right, space)
    return DenseCoupling(left, right)
