"""The attractor dynamics of ClAM in k-space, forward and hand-written backward.

Letters of this folder: ``B`` rows, ``d`` features, ``k`` prototypes, ``T`` steps, ``P`` members of
a sweep, ``n`` problems that are solved side by side (``n = P``, or groups of rows times ``P``).
``X (B,d)`` rows, ``R (P,k,d)`` prototypes, ``G = R R'`` ``(P,k,k)``, ``g = diag G``, step size
``α``, ``a = 1 - α``.

Every state of the recursion ``x ← x + α (w R - x)`` (Saha et al., ICML 2023, equations 2-4 and
Algorithm 1) is a mixture ``x_t = a^t x_0 + C_t R`` of the start and the prototypes, so only the
logits ``z = β (2 x R' - g)`` are ever needed. With ``1' C_t = 1 - a^t`` they are

    z_t = b_t z_0 + N C_t ,    w_t = softmax(z_t) ,    C_{t+1} = C_t + α (w_t - C_t) ,  C_0 = 0

for a matrix ``N`` (a *coupling*) and ``b_t = a^t`` where all features move from ``x_0 = x``, or
``b_t = 1`` where only hidden features move and their start is in ``z_0`` already. All arrays are
laid out ``(n,k,B)``: softmax then runs along long contiguous lines of rows.
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
    mixtures : tuple of T Tensors (n,k,B)
        ``C_1 … C_T``, each after the step of the same index.
    """

    shares: tuple[Tensor, ...]
    mixtures: tuple[Tensor, ...]

    @property
    def final(self) -> Tensor:
        """``C_T``, shape ``(n,k,B)``."""
        return self.mixtures[-1]


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
    shape = (steps, *start.shape)
    shares = space.take("shares", shape, start).unbind()
    mixtures = space.take("mixtures", shape, start).unbind()
    logits = space.take("logits", start.shape, start)
    torch.softmax(start, 1, out=shares[0])
    torch.mul(shares[0], alpha, out=mixtures[0])
    for t in range(1, steps):
        keep = remaining(alpha, t) if decays else 1.0
        coupling.logits(start, keep, mixtures[t - 1], logits)
        torch.softmax(logits, 1, out=shares[t])
        torch.lerp(mixtures[t - 1], shares[t], alpha, out=mixtures[t])
    return Path(shares, mixtures)


def ascend(
    adjoint: Tensor,
    path: Path,
    coupling: Coupling,
    alpha: float,
    decays: bool,
    start_gradient: Tensor,
    space: Workspace,
) -> None:
    """Run the recursion backward from the adjoint of ``C_T``.

    Everything is left without the factor ``α`` (the caller scales small arrays instead): with
    ``error_t = softmax'(w_t) · adjoint`` this adds ``Σ_t b_t error_t`` to ``start_gradient``, and
    ``Σ_t error_t C_t'`` to what ``coupling`` has learnt; the true ones are ``α`` times these.

    Parameters
    ----------
    adjoint : Tensor (n,k,B)
        Derivative of the loss by ``C_T``; overwritten.
    path, coupling, alpha, decays, space
        As in :func:`descend`.
    start_gradient : Tensor (n,k,B)
        Added to in place.
    """
    error = space.take("error", adjoint.shape, adjoint)
    for t in range(len(path.shares) - 1, -1, -1):
        # The derivative of softmax, w ⊙ (adjoint - w'adjoint), in one fused pass.
        torch._softmax_backward_data(adjoint, path.shares[t], 1, adjoint.dtype, grad_input=error)
        start_gradient.add_(error, alpha=remaining(alpha, t) if decays else 1.0)
        if t:
            coupling.pull(error, path.mixtures[t - 1], adjoint, 1.0 - alpha, alpha)


def settle(
    start: Tensor, coupling: Coupling, alpha: float, steps: int, decays: bool, space: Workspace
) -> Tensor:
    """Logits ``z_T`` of the last state, shape ``(n,k,B)``, keeping no path (inference)."""
    logits = space.take("logits", start.shape, start)
    shares = space.take("share", start.shape, start)
    mixture = space.take("mixture", start.shape, start)
    torch.softmax(start, 1, out=shares)
    torch.mul(shares, alpha, out=mixture)
    for t in range(1, steps):
        coupling.logits(start, remaining(alpha, t) if decays else 1.0, mixture, logits)
        torch.softmax(logits, 1, out=shares)
        mixture.lerp_(shares, alpha)
    return coupling.logits(start, remaining(alpha, steps) if decays else 1.0, mixture, logits)
