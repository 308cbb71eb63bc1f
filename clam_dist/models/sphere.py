"""The spherical attractor dynamics in k-space, forward and hand-written backward.

Saha et al., ICML 2023, equation 12: rows and prototypes have length 1, and

    x̃ = x + α R' w ,   w = softmax(β R x + log ε) ,   x ← x̃ / ‖x̃‖ .

With the cosines ``s = R x``, their images ``R x̃ = s + α G w`` and ``‖x‖ = 1``, a step needs ``G``
alone: ``‖x̃‖² = 1 + α w·(s + R x̃)``. A state is the mixture ``x_t = c_t x_0 + R' C_t``. Cosines are
kept as logits ``z = β s``; with ``N = α β G`` then ``β R x̃ = z + N w``.

Backward, with ``q_t = Π_{s >= t} 1/‖x̃_s‖`` the share of step ``t`` that is left at the end (so
``c_T = q_0`` and ``C_T = α Σ q_t w_t``), adjoints are carried without their factor ``q_t``. With
``λ`` the adjoint of the cosines, ``(ĉ, Ĉ)`` those of ``(c_T, C_T)``, ``r = 1/‖x̃‖`` and ``s'`` the
cosines after the step, a step back is

    κ = λ·s' + v' ,   e = softmax'(w) · α (G λ + Ĉ - κ s') ,   λ ← λ - α r κ w + β e

where ``v_{t+1} = r (v_t + α w·Ĉ)`` and ``v_0 = ĉ``: ``κ`` is the adjoint's part along the state,
which normalising takes away. ``G`` learns ``α (λ - α r κ w / 2) (q w)'``.

A row opposite to its prototype multiplies rounding errors by up to ``1/(1-α) + α/(1-α)²`` a step:
harmless for the usual ``α = 1/T``, less so near 1. Letters and layout as in
:mod:`clam_dist.models.dynamics`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clam_dist.models import couplings
from clam_dist.models.workspace import Workspace

SMALLEST = 1e-12
"""Least ``‖x̃‖²`` that is divided by: a state may vanish (``x = -ρ``, ``α = 1``), never to nan."""


class Gram:
    """Multiplies by ``N = α β R R'``, as a whole or by its factors, and learns its gradient.

    Parameters
    ----------
    rows : Tensor (P,k,d)
        ``R``, unit length.
    scale : Tensor (P,1,1)
        ``α β``.
    alpha : float
    """

    def __init__(self, rows: Tensor, scale: Tensor, alpha: float) -> None:
        self._rows, self._alpha = rows, alpha
        self._left = scale * rows
        self._matrix: Tensor | None = None
        if not couplings.factors_are_cheaper(rows.shape[1], rows.shape[2]):
            self._matrix = torch.bmm(self._left, rows.mT)
            self._gradient = torch.zeros_like(self._matrix)
        else:
            self._gradient = torch.zeros_like(rows)

    def product(self, base: Tensor, keep: float, lines: Tensor, out: Tensor) -> Tensor:
        """``keep · base + N lines`` into ``out``; all ``(P,k,B)``."""
        if self._matrix is not None:
            return torch.baddbmm(base, self._matrix, lines, beta=keep, out=out)
        between = torch.bmm(self._rows.mT, lines)
        return torch.baddbmm(base, self._left, between, beta=keep, out=out)

    def learn(self, error: Tensor, shares: Tensor) -> None:
        """Add ``error shares'``, without its factor ``α``, to the gradient by ``G``."""
        if self._matrix is not None:
            self._gradient.baddbmm_(error, shares.mT)
            return
        self._gradient.baddbmm_(error, torch.bmm(self._rows.mT, shares).mT)
        self._gradient.baddbmm_(shares, torch.bmm(self._rows.mT, error).mT)

    def gradient(self) -> Tensor:
        """Derivative by ``R`` through ``G``, ``(P,k,d)``."""
        if self._matrix is None:
            return self._alpha * self._gradient
        both = self._gradient + self._gradient.mT
        return self._alpha * torch.bmm(both, self._rows)


@dataclass(frozen=True)
class Orbit:
    """What the forward recursion leaves for the backward one.

    Parameters
    ----------
    shares : tuple of T Tensors (P,k,B)
        ``w_0 … w_{T-1}``.
    logits : tuple of T + 1 Tensors (P,k,B)
        ``z_0 … z_T``, without ``log ε``.
    shrinks : tuple of T Tensors (P,1,B)
        ``1/‖x̃‖`` of each step.
    left : tuple of T Tensors (P,1,B)
        ``q_0 … q_{T-1}``; the first is ``c_T``.
    """

    shares: tuple[Tensor, ...]
    logits: tuple[Tensor, ...]
    shrinks: tuple[Tensor, ...]
    left: tuple[Tensor, ...]

    def mixture(self, alpha: float, space: Workspace) -> Tensor:
        """``C_T`` as ``(P,k,B)`` scratch."""
        out = space.take("mixture", self.shares[0].shape, self.shares[0])
        torch.mul(self.shares[0], self.left[0] * alpha, out=out)
        for share, left in zip(self.shares[1:], self.left[1:]):
            out.addcmul_(share, left, value=alpha)
        return out


def orbit(
    start: Tensor,
    gram: Gram,
    beta: Tensor,
    alpha: float,
    steps: int,
    log_epsilon: Tensor | None,
    space: Workspace,
) -> Orbit:
    """Run the recursion forward.

    Parameters
    ----------
    start : Tensor (P,k,B)
        ``z_0 = β R x_0`` of rows of length 1.
    gram : Gram
    beta : Tensor (P,1,1)
    alpha, steps
        Step size and number of steps ``T >= 1``.
    log_epsilon : Tensor (P,k,1), optional
    space : Workspace
        Where the orbit is put; valid until the next call with the same workspace.
    """
    shares = space.take("shares", (steps, *start.shape), start).unbind()
    logits = (start, *space.take("orbit", (steps, *start.shape), start).unbind())
    scratch = space.take("product", start.shape, start)
    lengths = alpha / beta
    shrinks = []
    for t in range(steps):
        if log_epsilon is None:
            torch.softmax(logits[t], 1, out=shares[t])
        else:
            torch.softmax(torch.add(logits[t], log_epsilon, out=scratch), 1, out=shares[t])
        both = gram.product(logits[t], 2.0, shares[t], logits[t + 1])  # z + β R x̃
        along = torch.mul(both, shares[t], out=scratch).sum(1, keepdim=True)
        shrinks.append((1.0 + lengths * along).clamp_(min=SMALLEST).rsqrt_())
        both.sub_(logits[t]).mul_(shrinks[-1])
    left = [shrinks[-1]]
    for shrink in reversed(shrinks[:-1]):
        left.append(shrink * left[-1])
    return Orbit(shares, logits, tuple(shrinks), tuple(reversed(left)))


def retrace(
    path: Orbit,
    by_mixture: Tensor,
    by_rest: Tensor | None,
    gram: Gram,
    beta: Tensor,
    alpha: float,
    space: Workspace,
    by_log_epsilon: Tensor | None = None,
) -> Tensor:
    """Run the recursion backward.

    Parameters
    ----------
    path : Orbit
    by_mixture : Tensor (P,k,B)
        ``Ĉ``, derivative of the loss by ``C_T`` at fixed prototypes; overwritten.
    by_rest : Tensor (P,1,B), optional
        ``ĉ``, that by ``c_T``; 0 by default.
    gram, beta, alpha, space
        As in :func:`orbit`; ``gram`` learns.
    by_log_epsilon : Tensor (P,k), optional
        Gains the derivative by ``log ε``.

    Returns
    -------
    Tensor (P,k,B)
        Derivative by ``s_0 = R x_0``, as scratch.
    """
    steps = len(path.shares)
    direct = by_mixture.mul_(alpha * beta)
    scratch = space.take("product", direct.shape, direct)
    along = [torch.zeros_like(path.left[0]) if by_rest is None else beta * by_rest]  # β v
    for t in range(steps):
        gained = torch.mul(path.shares[t], direct, out=scratch).sum(1, keepdim=True)
        along.append((along[-1] + gained).mul_(path.shrinks[t]))
    line = space.take("line", direct.shape, direct)
    error = space.take("error", direct.shape, direct)
    adjoint = space.take("adjoint", direct.shape, direct).zero_()  # λ
    lengths = alpha / beta
    for t in range(steps - 1, -1, -1):
        shares, after = path.shares[t], path.logits[t + 1]
        radial = torch.mul(adjoint, after, out=scratch).sum(1, keepdim=True)
        radial.add_(along[t + 1]).mul_(lengths)  # α κ
        gram.product(direct, 1.0, adjoint, line).addcmul_(after, radial, value=-1.0)
        torch._softmax_backward_data(line, shares, 1, line.dtype, grad_input=error)  # β e
        half = radial.mul_(path.shrinks[t])
        adjoint.addcmul_(shares, half, value=-0.5)
        left = torch.mul(shares, path.left[t], out=scratch)
        gram.learn(adjoint, left)
        adjoint.addcmul_(shares, half, value=-0.5).add_(error)
        if by_log_epsilon is not None:
            grown = torch.mul(error, path.left[t], out=scratch).sum(-1)
            by_log_epsilon += grown / beta[:, :, 0]
    return adjoint.mul_(path.left[0])


def last_logits(
    start: Tensor,
    gram: Gram,
    beta: Tensor,
    alpha: float,
    steps: int,
    log_epsilon: Tensor | None,
    space: Workspace,
) -> Tensor:
    """``z_T`` of the last state, ``(P,k,B)`` scratch, keeping nothing (inference)."""
    state = space.take("state", start.shape, start).copy_(start)
    after = space.take("after", start.shape, start)
    shares = space.take("share", start.shape, start)
    for _ in range(steps):
        torch.softmax(state if log_epsilon is None else state + log_epsilon, 1, out=shares)
        gram.product(state, 2.0, shares, after)
        along = shares.mul_(after).sum(1, keepdim=True)
        after.sub_(state).mul_((1.0 + alpha / beta * along).clamp_(min=SMALLEST).rsqrt_())
        state, after = after, state
    return state
