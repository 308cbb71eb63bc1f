"""The recursion of ClAM as the paper writes it: in x-space, one mask a row, by autograd.

The slow and obvious form. Nothing in a pipeline calls it; it is the oracle that the k-space form
is tested against, and the baseline that ``tests/bench/kernels.py`` times.
"""

from __future__ import annotations

import torch
from torch import Tensor


def direct_step(
    x: Tensor,
    prototypes: Tensor,
    beta: float | Tensor,
    alpha: float,
    moving: Tensor | None = None,
    log_epsilon: Tensor | None = None,
) -> Tensor:
    """One attractor step ``x + α m ⊙ (w R - x)``, ``w = softmax(-β ‖ρ - x‖² + log ε)``.

    Equations 4, 6 and 10 of Saha et al. (ICML 2023), by explicit differences.

    Parameters
    ----------
    x : Tensor (B,d)
    prototypes : Tensor (k,d)
    beta, alpha
        Inverse temperature (1 over squared length) and step size.
    moving : Tensor (B,d), optional
        1 where a feature moves, 0 where it is clamped; all move by default.
    log_epsilon : Tensor (k,), optional
        Logarithm of the prototypes' weights.

    Returns
    -------
    Tensor (B,d)
    """
    difference = prototypes[None] - x[:, None]  # (B,k,d)
    logits = -beta * difference.square().sum(-1)  # (B,k)
    if log_epsilon is not None:
        logits = logits + log_epsilon
    shares = torch.softmax(logits, -1)
    pull = (shares[..., None] * difference).sum(1)  # Σ w (ρ - x) = w R - x
    return x + alpha * (pull if moving is None else moving * pull)


def direct_states(
    x: Tensor,
    prototypes: Tensor,
    beta: float | Tensor,
    alpha: float,
    steps: int,
    *,
    hidden: Tensor | None = None,
    value: Tensor | None = None,
    clamp: bool = True,
    log_epsilon: Tensor | None = None,
) -> list[Tensor]:
    """All states ``x_0 … x_T``, each ``(B,d)``; ``hidden`` features start at ``value``.

    Parameters
    ----------
    x, prototypes, beta, alpha, steps, log_epsilon
        As in :func:`direct_step`.
    hidden : Tensor (B,d) bool, optional
        Features whose value is not to be seen.
    value : Tensor (d,), optional
        Put where a feature is hidden.
    clamp : bool
        Only hidden features move (objective 9), otherwise all do.
    """
    state = x if hidden is None or value is None else torch.where(hidden, value, x)
    moving = hidden.to(x.dtype) if hidden is not None and clamp else None
    states = [state]
    for _ in range(steps):
        state = direct_step(state, prototypes, beta, alpha, moving, log_epsilon)
        states.append(state)
    return states


def direct_loss(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: float | Tensor,
    alpha: float,
    steps: int,
    *,
    scored: Tensor | None = None,
    hidden: Tensor | None = None,
    value: Tensor | None = None,
    clamp: bool = True,
    log_epsilon: Tensor | None = None,
) -> Tensor:
    """Sum over rows and scored entries of ``weight · (x - x_T)²``: objectives (8) and (9).

    Parameters
    ----------
    weight : Tensor (B,), optional
    scored : Tensor (B,d) bool, optional
        Entries that enter the loss; all by default.
    x, prototypes, beta, alpha, steps, hidden, value, clamp, log_epsilon
        As in :func:`direct_states`.
    """
    final = direct_states(
        x,
        prototypes,
        beta,
        alpha,
        steps,
        hidden=hidden,
        value=value,
        clamp=clamp,
        log_epsilon=log_epsilon,
    )[-1]
    error = (x - final).square()
    if scored is not None:
        error = torch.where(scored, error, 0.0)
    rows = error.sum(1)
    return rows.sum() if weight is None else (weight * rows).sum()


def direct_labels(final: Tensor, prototypes: Tensor) -> Tensor:
    """Index of the prototype nearest to each final state, int64 ``(B,)`` (InferClAM, line 22)."""
    return (prototypes[None] - final[:, None]).square().sum(-1).argmin(1)


def direct_spherical_states(
    x: Tensor,
    prototypes: Tensor,
    beta: float | Tensor,
    alpha: float,
    steps: int,
    *,
    log_epsilon: Tensor | None = None,
) -> list[Tensor]:
    """All states ``x_0 … x_T`` of equation 12, each ``(B,d)``; rows of zeros stay what they are.

    Parameters
    ----------
    x : Tensor (B,d)
        Of any length, with 0 where a feature is not shown.
    prototypes : Tensor (k,d)
        Of any length.
    beta, alpha, steps, log_epsilon
        As in :func:`direct_states`.
    """
    directions = _normalised(prototypes)
    states = [_normalised(x)]
    for _ in range(steps):
        logits = beta * states[-1] @ directions.T
        if log_epsilon is not None:
            logits = logits + log_epsilon
        states.append(_normalised(states[-1] + alpha * torch.softmax(logits, 1) @ directions))
    return states


def direct_spherical_loss(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: float | Tensor,
    alpha: float,
    steps: int,
    *,
    shown: Tensor,
    scored: Tensor,
    log_epsilon: Tensor | None = None,
) -> Tensor:
    """Sum over rows that show anything of ``weight · (y - x_T)²``, ``y`` the normalised row.

    Parameters
    ----------
    shown, scored : Tensor (B,d) bool
        Entries that ``x_0`` has, and entries in the loss; those in neither are missing.
    x, weight, prototypes, beta, alpha, steps, log_epsilon
        As in :func:`direct_spherical_states`.
    """
    start = torch.where(shown, x, 0.0)
    alive = start.abs().sum(1) > 0
    row = _normalised(torch.where(shown | scored, x, 0.0))[alive]
    states = direct_spherical_states(
        start[alive], prototypes, beta, alpha, steps, log_epsilon=log_epsilon
    )
    rows = torch.where(scored[alive], (row - states[-1]).square(), 0.0).sum(1)
    return rows.sum() if weight is None else (weight[alive] * rows).sum()


def _normalised(x: Tensor) -> Tensor:
    length = x.norm(dim=1, keepdim=True)
    return torch.where(length > 0, x / length.clamp_min(1e-300), x)
