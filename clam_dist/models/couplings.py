"""How the logits of the recursion follow from what it carries, and the way back.

Letters as in :mod:`clam_dist.models.dynamics`; ``r`` the rank of the coupling. Every coupling is
made of two ``(n,k,r)`` factors of prototypes, ``z_t = b_t z_0 + L y_t`` with ``y_t = Q' C_t``:

- all features move from ``x_0 = x``: ``L = [2 β R, c]``, ``Q = [R, 1]``, ``r = d + 1``;
- hidden columns ``H`` move from ``v``: ``L = 2 β R_H``, ``Q = R_H - v_H``, ``r = h``;
- each row hides for itself: ``L = 2 β (R - v)``, ``Q = R - v``, and ``y_t = m̄ ⊙ Q' C_t``.

What is carried from step to step is either the mixture ``C_t (n,k,B)``, multiplied by ``N = L Q'``
(``k²`` multiply-adds a row and step), or ``y_t (n,r,B)`` itself (``2 k r``); :func:`couple` and
:func:`couple_rows` take the cheaper.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from clam_dist.models.workspace import Workspace


class Coupling(Protocol):
    """``n`` problems side by side, and the gradient of their factors in the making.

    ``carry`` is ``(n,k,B)`` or ``(n,r,B)``, as :meth:`carries` makes it; ``shares``, ``error`` and
    logits are ``(n,k,B)``. Adjoints come without the factor ``α`` that every step of the recursion
    has; the couplings' ``gradients`` put it back.
    """

    uses_trail: bool
    """Whether :meth:`pull` looks at ``trail``."""

    def carries(self, steps: int, shares: Tensor, space: Workspace, /) -> tuple[Tensor, ...]:
        """Where each step puts its carry; one place for all of them if only the last is needed."""
        ...

    def advance(self, carry: Tensor | None, shares: Tensor, alpha: float, out: Tensor, /) -> None:
        """``out ← (1-α) carry + α w`` or its image; no ``carry`` at the first step."""
        ...

    def logits(self, start: Tensor, keep: float, carry: Tensor, out: Tensor, /) -> Tensor:
        """``keep · z_0 + N C`` into ``out``."""
        ...

    def displacement(self, carry: Tensor, space: Workspace, /) -> Tensor:
        """``Q' C``, how far the moving features are from their start: ``(n,r,B)`` scratch."""
        ...

    def adjoin(self, error: Tensor, carry: Tensor, space: Workspace, /) -> Tensor:
        """Learn from ``error (n,r,B)``, the adjoint of the displacement; return the carry's."""
        ...

    def spread(self, adjoint: Tensor, shares: Tensor, space: Workspace, /) -> Tensor:
        """Learn from the step that ``shares`` made; return their adjoint, ``(n,k,B)``."""
        ...

    def pull(
        self,
        error: Tensor,
        trail: Tensor,
        shares: Tensor,
        carry: Tensor,
        adjoint: Tensor,
        alpha: float,
        /,
    ) -> None:
        """Learn from ``error`` in the logits, and take the adjoint a step back in place.

        Parameters
        ----------
        error : Tensor (n,k,B)
            Adjoint of the logits of step ``t``.
        trail : Tensor (n,k,B)
            ``Σ_{s >= t} (1-α)^{s-t} error_s``.
        shares, carry : Tensor
            ``w_{t-1}`` and what was carried after it.
        adjoint : Tensor
            By the carry before step ``t`` on return.
        alpha : float
        """
        ...


class CarriesMixture:
    """What couplings share that carry ``C`` itself.

    The gradient by ``N`` is ``Σ_t error_t C_t'``; since ``C_t`` is a decaying sum of shares, that
    equals ``α Σ_t trail_{t+1} w_t'``: no mixture but the last is ever kept.

    Parameters
    ----------
    right : Tensor (n,k,r)
        ``Q``.
    """

    uses_trail = True

    def __init__(self, right: Tensor) -> None:
        self._right = right
        self._explicit: Tensor | None = None  # ∂/∂Q of the displacement at fixed C

    def carries(self, steps: int, shares: Tensor, space: Workspace, /) -> tuple[Tensor, ...]:
        return (space.take("mixture", shares.shape, shares),) * steps

    def advance(self, carry: Tensor | None, shares: Tensor, alpha: float, out: Tensor) -> None:
        if carry is None:
            torch.mul(shares, alpha, out=out)
        else:
            torch.lerp(carry, shares, alpha, out=out)

    def displacement(self, carry: Tensor, space: Workspace) -> Tensor:
        shape = (len(carry), self._right.shape[2], carry.shape[2])
        return torch.bmm(self._right.mT, carry, out=space.take("residual", shape, carry))

    def adjoin(self, error: Tensor, carry: Tensor, space: Workspace) -> Tensor:
        explicit = torch.bmm(carry, error.mT)
        self._explicit = explicit if self._explicit is None else self._explicit.add_(explicit)
        return torch.bmm(self._right, error, out=space.take("adjoint", carry.shape, carry))

    def spread(self, adjoint: Tensor, _shares: Tensor, _space: Workspace, /) -> Tensor:
        return adjoint


class DenseCoupling(CarriesMixture):
    """Carries ``C`` and multiplies by ``N``.

    Parameters
    ----------
    left, right : Tensor (n,k,r)
        ``L`` and ``Q``.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        super().__init__(right)
        self._left = left
        self._matrix = torch.bmm(left, right.mT)
        self._transposed = self._matrix.mT
        self._gradient = torch.zeros_like(self._matrix)

    def logits(self, start: Tensor, keep: float, carry: Tensor, out: Tensor) -> Tensor:
        return torch.baddbmm(start, self._matrix, carry, beta=keep, out=out)

    def learn(self, left: Tensor, right: Tensor, scale: float) -> None:
        """Add ``scale · left right'`` to the gradient by ``N``, before its factor ``α``."""
        self._gradient.baddbmm_(left, right.mT, alpha=scale)

    def pull(
        self,
        error: Tensor,
        trail: Tensor,
        shares: Tensor,
        _carry: Tensor,
        adjoint: Tensor,
        alpha: float,
        /,
    ) -> None:
        self._gradient.baddbmm_(trail, shares.mT, alpha=alpha)
        adjoint.baddbmm_(self._transposed, error, beta=1.0 - alpha, alpha=alpha)

    def gradients(self, alpha: float) -> tuple[Tensor, Tensor]:
        """Derivatives by the factors ``L`` and ``Q``, both ``(n,k,r)``."""
        by_left = torch.bmm(self._gradient, self._right).mul_(alpha)
        by_right = torch.bmm(self._gradient.mT, self._left).mul_(alpha)
        return by_left, by_right if self._explicit is None else by_right.add_(self._explicit)


class FactoredCoupling:
    """Carries ``y`` and multiplies by one factor at a time, each row's own mask between them.

    Parameters
    ----------
    left, right : Tensor (n,k,r)
        ``L`` and ``Q``.
    moving : Tensor (r,B), optional
        1 where a feature moves, 0 where it is clamped.
    """

    uses_trail = False

    def __init__(self, left: Tensor, right: Tensor, moving: Tensor | None = None) -> None:
        self._left, self._right, self._moving = left, right, moving
        # The products that fill these run up to twice as fast with the short side first.
        self._turned = left.shape[2] <= max(16, left.shape[1])
        self._left_gradient = torch.zeros_like(left.mT.contiguous() if self._turned else left)
        self._right_gradient = torch.zeros_like(self._left_gradient)

    def _learn(self, into: Tensor, lines: Tensor, features: Tensor) -> None:
        """Add ``lines (n,k,B) · features (n,r,B)'`` to a gradient."""
        first, second = (features, lines) if self._turned else (lines, features)
        into.baddbmm_(first, second.mT)

    def carries(self, steps: int, shares: Tensor, space: Workspace) -> tuple[Tensor, ...]:
        shape = (steps, len(shares), self._left.shape[2], shares.shape[2])
        return space.take("carries", shape, shares).unbind()

    def advance(self, carry: Tensor | None, shares: Tensor, alpha: float, out: Tensor) -> None:
        if carry is None:
            torch.bmm(self._right.mT, shares, out=out).mul_(alpha)
        else:
            torch.baddbmm(carry, self._right.mT, shares, beta=1.0 - alpha, alpha=alpha, out=out)
        if self._moving is not None:
            out.mul_(self._moving)

    def logits(self, start: Tensor, keep: float, carry: Tensor, out: Tensor) -> Tensor:
        return torch.baddbmm(start, self._left, carry, beta=keep, out=out)

    def displacement(self, carry: Tensor, space: Workspace, /) -> Tensor:
        return space.take("residual", carry.shape, carry).copy_(carry)

    def adjoin(self, error: Tensor, _carry: Tensor, _space: Workspace, /) -> Tensor:
        # The loss looks at moving features alone, so the error is masked already.
        return error

    def spread(self, adjoint: Tensor, shares: Tensor, space: Workspace) -> Tensor:
        self._learn(self._right_gradient, shares, adjoint)
        return torch.bmm(self._right, adjoint, out=space.take("spread", shares.shape, shares))

    def pull(
        self,
        error: Tensor,
        _trail: Tensor,
        _shares: Tensor,
        carry: Tensor,
        adjoint: Tensor,
        alpha: float,
        /,
    ) -> None:
        self._learn(self._left_gradient, error, carry)
        adjoint.baddbmm_(self._left.mT, error, beta=1.0 - alpha, alpha=alpha)
        if self._moving is not None:
            adjoint.mul_(self._moving)

    def gradients(self, alpha: float) -> tuple[Tensor, Tensor]:
        """Derivatives by the factors ``L`` and ``Q``, both ``(n,k,r)``."""
        left, right = alpha * self._left_gradient, alpha * self._right_gradient
        return (left.mT, right.mT) if self._turned else (left, right)


def factors_are_cheaper(k: int, rank: int) -> bool:
    """The cost model of couplings that all rows of a problem share.

    A step forward and backward takes ``6 k r`` multiply-adds by factors and ``3 k²`` by ``N``,
    which also passes twice more over arrays of ``k`` lines; under 32 prototypes the calls cost more
    than the arithmetic (measured on one CPU thread, k 16 … 256, r 4 … 200: equal at r = .47 k).
    """
    return k >= 32 and 9 * rank < 4 * k


def couple(left: Tensor, right: Tensor) -> DenseCoupling | FactoredCoupling:
    """The cheaper coupling for factors ``(n,k,r)`` shared by all rows of a problem."""
    if factors_are_cheaper(left.shape[1], left.shape[2]):
        return FactoredCoupling(left, right)
    return DenseCoupling(left, right)
