"""Objective (9) where every row has a hidden set of its own: missing values, or one mask a row.

``z_t = z_0 + 2 β R (m̄ ⊙ Q' C_t)`` with ``Q = R - v`` and ``m̄ (d,B)`` the features that move: two
products with the prototypes a step, whatever the masks. Exact for missing values, where the
features that move (hidden or missing) are more than those in the loss (hidden and observed).
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.couplings import FactoredCoupling
from clam_dist.models.dynamics import ascend, descend
from clam_dist.models.sums import (
    SPACE,
    Prototypes,
    Sums,
    block_rows,
    blocks,
    total,
    weighted_squares,
)


def rowwise_sums(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: Tensor,
    alpha: float,
    steps: int,
    moving: Tensor,
    scored: Tensor,
    value: Tensor,
    *,
    log_epsilon: Tensor | None = None,
) -> Sums:
    """Loss on ``scored`` entries of rows whose ``moving`` features start at ``value`` and move.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows; what a missing entry holds does not matter, as long as it is finite.
    weight : Tensor (B,), optional
        Row weights.
    prototypes : Tensor (P,k,d)
    beta : Tensor (P,)
    alpha, steps
        Step size and number of steps.
    moving, scored : Tensor (B,d) bool
        Hidden or missing; hidden and observed (a subset of ``moving``).
    value : Tensor (d,)
        ``v``.
    log_epsilon : Tensor (P,k), optional
        Logarithm of the prototypes' weights (equation 10).

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon``.
    """
    held = Prototypes(prototypes, beta, log_epsilon)
    value = value.to(x.dtype)
    shifted = held.rows - value
    loss = torch.zeros(held.members, dtype=torch.float64, device=x.device)
    entries = 0.0
    widest = held.members * max(held.count, held.width)
    for rows in blocks(len(x), block_rows(widest, held.width)):
        part = None if weight is None else weight[rows].to(x.dtype)
        moves = moving[rows]
        seen = torch.where(moves, value, x[rows])
        coupling = FactoredCoupling(held.scaled, shifted, SPACE, moves.T.to(x.dtype).contiguous())
        start = held.start(seen, SPACE)
        path = descend(start, coupling, alpha, steps, False, SPACE)
        mixture = path.final

        error = SPACE.take("residual", (held.members, held.width, len(seen)), x)
        torch.bmm(shifted.transpose(1, 2), mixture, out=error)
        torch.sub((x[rows] - value).T, error, out=error)
        error.mul_(scored[rows].T)
        loss += weighted_squares(error, part)
        entries += float(total(scored[rows].sum(1), part))

        # Adjoints are carried times -1/2, and those of the recursion without the factor α.
        adjoint = SPACE.take("adjoint", start.shape, x)
        torch.bmm(shifted, error, out=adjoint)
        held.gradient.baddbmm_(mixture, error.transpose(1, 2), alpha=-2.0)
        first = SPACE.take("start_gradient", start.shape, x).zero_()
        ascend(adjoint, path, coupling, alpha, False, first, SPACE)
        lines = first.view(-1, len(seen))
        from_start = (lines @ seen).view(held.rows.shape)
        by_scaled, by_shifted = coupling.products()
        through = 2.0 * held.beta * (from_start + by_scaled) + by_shifted
        held.gradient -= 2.0 * alpha * through
        held.offset_gradient -= 2.0 * alpha * first.sum(-1)
    return Sums(loss, entries, held.gradients())
