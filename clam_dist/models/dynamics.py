"""The attractor dynamics of ClAM in k-space, forward and hand-written backward.

Letters of this folder: ``B`` rows, ``d`` features, ``k`` prototypes, ``T`` steps, ``P`` members of
a sweep, ``n`` problems that are solved side by side (``n = P``, or groups of rows times ``P``).
``X (B,d)`` rows, ``R (P,k,d)`` prototypes, ``G = R R'`` ``(P,k,k)``, ``g = diag G``, step size
``α``, ``a = 1 - α``.

Every state of the recursion ``x ← x + α (w R - x)`` (Saha et al., ICML 2023, equations 2-4 and
Algorithm 1) is a mixture ``x_t = a^t x_0 + C_t R`` of the start and the prototypes, so only the
logits ``z = β (2 x R' - g)`` are ever needed. With ``1' C_t = 1 - a^t`` they are

    z_t = b_t z_0 + N C_t ,    w_t = softmax(z_t) ,    C_{t+1} = C_t + α (w_t - C_t) ,  C_0 = 0

for a matrix ``N`` (a *coupling*, which may carry an image of ``C`` in place of ``C``) and
``b_t = a^t`` where all features move from ``x_0 = x``, or ``b_t = 1`` where only hidden features
move and their start is in ``z_0`` already. All arrays are laid out ``(n,k,B)``: softmax then runs
along long contiguous lines of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clam_dist.models.couplings import Coupling
from clam_dist.models.workspace import Workspace


def resolve_step_size(step_size: float | None, steps: int) -> float:
    """Step size ``α``: the paper's ``1 / T`` where none is given."""
    return 1.0 / steps if step_size is None else float(step_size)


def remaining(alpha: float, steps: int) -> float:
    """Share ``A = (1 - α)^T`` of the start that is left after ``steps`` steps."""
    return float((1.0 - alpha) ** steps)


@dataclass(frozen=True)
class Path:
    """What the forward recursion leaves for the backward one.

    Parameters
    ----------
    shares : tuple of T Tensors (n,k,B)
        ``w_0 … w_{T-1}``, the softmax of each step.
    carries : tuple of T Tensors
        What the coupling carries after each step; one tensor, again and again, where it needs the
        last alone.
    """

    shares: tuple[Tensor, ...]
    carries: tuple[Tensor, ...]

    @property
    def final(self) -> Tensor:
        """What is carried after the last step."""
        return self.carries[-1]


def descend(
    start: Tensor,
    coupling: Coupling,
    alpha: float,
    steps: int,
    decays: bool,
    space: Workspace,
) -> Path:
    """Run the recursion forward, keeping what :func:`ascend` needs.

    Parameters
    ----------
    start : Tensor (n,k,B)
        ``z_0``; not changed.
    coupling : Coupling
        ``N``.
    alpha, steps
        Step size and number of steps ``T >= 1``.
    decays : bool
        ``b_t = (1-α)^t`` (all features move) rather than 1 (only hidden ones).
    space : Workspace
        Where the path is put; it is valid until the next call with the same workspace.
    """
    shares = space.take("shares", (steps, *start.shape), start).unbind()
    carries = coupling.carries(steps, shares[0], space)
    logits = space.take("logits", start.shape, start)
    torch.softmax(start, 1, out=shares[0])
    coupling.advance(None, shares[0], alpha, carries[0])
    for t in range(1, steps):
        keep = remaining(alpha, t) if decays else 1.0
        coupling.logits(start, keep, carries[t - 1], logits)
        torch.softmax(logits, 1, out=shares[t])
        coupling.advance(carries[t - 1], shares[t], alpha, carries[t])
    return Path(shares, carries)


def ascend(
    adjoint: Tensor,
    path: Path,
    coupling: Coupling,
    alpha: float,
    decays: bool,
    space: Workspace,
) -> Tensor:
    """Run the recursion backward from the adjoint of what is carried last.

    Everything is left without the factor ``α`` (the caller scales small arrays instead).

    Parameters
    ----------
    adjoint : Tensor
        Derivative of the loss by ``path.final``; overwritten.
    path, coupling, alpha, decays, space
        As in :func:`descend`. The coupling learns the gradient by its factors.

    Returns
    -------
    Tensor (n,k,B)
        Scratch ``Σ_t b_t error_t`` with ``error_t`` the adjoint of the logits of step ``t``;
        ``α`` times this is the derivative by ``z_0``.
    """
    last = len(path.shares) - 1
    error = space.take("error", path.shares[0].shape, path.shares[0])
    # Σ_{s >= t} (1-α)^{s-t} error_s: at t = 0 this is the sum wanted where b decays.
    trail = space.take("trail", error.shape, error)
    plain = trail if decays else space.take("plain", error.shape, error)
    for t in range(last, -1, -1):
        line = coupling.spread(adjoint, path.shares[t], space)
        # The derivative of softmax, w ⊙ (line - w'line), in one fused pass.
        torch._softmax_backward_data(line, path.shares[t], 1, line.dtype, grad_input=error)
        if decays or coupling.uses_trail:
            _accumulate(trail, error, 1.0 - alpha, t == last)
        if not decays:
            _accumulate(plain, error, 1.0, t == last)
        if t:
            coupling.pull(error, trail, path.shares[t - 1], path.carries[t - 1], adjoint, alpha)
    return plain


def _accumulate(total: Tensor, term: Tensor, decay: float, first: bool) -> None:
    """``total ← term + decay · total`` in place; what was there before the ``first`` is ignored."""
    if first:
        total.copy_(term)
    else:
        torch.add(term, total, alpha=decay, out=total)


def settle(
    start: Tensor, coupling: Coupling, alpha: float, steps: int, decays: bool, space: Workspace
) -> Tensor:
    """Logits ``z_T`` of the last state, shape ``(n,k,B)``, keeping no path (inference)."""
    logits = space.take("logits", start.shape, start)
    shares = space.take("share", start.shape, start)
    (carry,) = coupling.carries(1, shares, space)
    torch.softmax(start, 1, out=shares)
    coupling.advance(None, shares, alpha, carry)
    for t in range(1, steps):
        coupling.logits(start, remaining(alpha, t) if decays else 1.0, carry, logits)
        torch.softmax(logits, 1, out=shares)
        coupling.advance(carry, shares, alpha, carry)
    return coupling.logits(start, remaining(alpha, steps) if decays else 1.0, carry, logits)
