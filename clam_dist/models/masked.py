"""Objective (9), the loss on hidden features that alone move, and its gradient.

Saha et al., ICML 2023, equation 9 and Algorithm 1, with one mask for a group of rows (a group of
one row is the algorithm as printed). Only the hidden columns ``H`` of a group are ever gathered.
With ``v`` the value put where a feature is hidden and ``Q = R_H - v_H``

    x_T = v + C Q  on H ,   N = 2 β R_H Q' ,   z_t = z_0 + N C_t ,   loss = ‖x_H - v_H - C Q‖²

where ``z_0`` comes from the row with ``v`` in place of what is hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.couplings import couple
from clam_dist.models.dynamics import ascend, descend
from clam_dist.models.sums import SPACE, Prototypes, Sums, block_rows, blocks, weighted_squares


def masked_sums(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: Tensor,
    alpha: float,
    steps: int,
    hidden: Tensor,
    group_rows: int,
    value: Tensor,
    *,
    log_epsilon: Tensor | None = None,
) -> Sums:
    """Loss (9) of complete rows summed over rows, and its gradient, for all members at once.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows without missing values.
    weight : Tensor (B,), optional
        Row weights.
    prototypes : Tensor (P,k,d)
    beta : Tensor (P,)
    alpha, steps
        Step size and number of steps.
    hidden : Tensor (groups,h) int64
        Hidden columns, each once, of each group; at least ``ceil(B / group_rows)`` groups.
    group_rows : int
        Rows ``i·group_rows … (i+1)·group_rows - 1`` share the mask ``hidden[i]``.
    value : Tensor (d,)
        ``v``, put where a feature is hidden.
    log_epsilon : Tensor (P,k), optional
        Logarithm of the prototypes' weights (equation 10).

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon``.
    """
    held = Prototypes(prototypes, beta, log_epsilon)
    work = _Masked(held, alpha, steps, value.to(x.dtype))
    whole = len(x) // group_rows
    at_once = max(1, block_rows(held.members * held.count, held.width) // group_rows)
    for groups in blocks(whole, at_once):
        rows = slice(groups.start * group_rows, groups.stop * group_rows)
        work.add(x[rows], None if weight is None else weight[rows].to(x.dtype), hidden[groups])
    if whole * group_rows < len(x):
        rows = slice(whole * group_rows, len(x))
        last = hidden[whole : whole + 1]
        work.add(x[rows], None if weight is None else weight[rows].to(x.dtype), last)
    return work.finish()


class _Masked:
    """Sums in the making; ``add`` takes whole groups of equal size. ``n = groups · P``."""

    def __init__(self, held: Prototypes, alpha: float, steps: int, value: Tensor) -> None:
        self.held, self.alpha, self.steps, self.value = held, alpha, steps, value
        self.loss = torch.zeros(held.members, dtype=torch.float64, device=held.rows.device)
        self.entries = 0.0
        self.start_gradient = torch.zeros_like(held.rows)
        self.start_total = torch.zeros_like(held.offset)
        # Feature-major, so that a hidden column is one contiguous line of P·k numbers.
        lines = held.members * held.count
        self.columns = held.rows.view(lines, held.width).T.contiguous()
        self.column_gradient = torch.zeros_like(self.columns)

    def add(self, x: Tensor, weight: Tensor | None, hidden: Tensor) -> None:
        held, alpha = self.held, self.alpha
        groups, h = hidden.shape
        rows, (P, k) = len(x) // groups, (held.members, held.count)
        n = groups * P
        value = self.value[hidden]  # (groups,h)

        index = hidden.unsqueeze(1).expand(groups, rows, h)
        cube = x.view(groups, rows, -1)
        picked = torch.gather(cube, 2, index, out=SPACE.take("picked", index.shape, x))
        picked.sub_(value.unsqueeze(1))
        target = SPACE.take("target", (groups, h, rows), x).copy_(picked.transpose(1, 2))
        seen = SPACE.take("seen", cube.shape, x).copy_(cube)
        seen.scatter_(2, index, value.unsqueeze(1).expand(groups, rows, h))
        seen = seen.view(len(x), -1)

        # Hidden columns of the prototypes, (groups,h,P,k) to (n,h,k).
        gathered = self.columns.index_select(0, hidden.reshape(-1)).view(groups, h, P, k)
        columns = gathered.transpose(1, 2).reshape(n, h, k)
        shifted = columns - value.repeat_interleave(P, 0).unsqueeze(-1)  # Q'
        beta = held.beta.repeat(groups, 1, 1)  # (n,1,1)
        left = (2.0 * beta * columns).transpose(1, 2).contiguous()
        coupling = couple(left, shifted.transpose(1, 2).contiguous(), SPACE)

        start = SPACE.take("grouped", (groups, P, k, rows), x)
        start.copy_(held.start(seen, SPACE).view(P, k, groups, rows).permute(2, 0, 1, 3))
        start = start.view(n, k, rows)
        path = descend(start, coupling, alpha, self.steps, False, SPACE)
        mixture = path.final

        error = SPACE.take("residual", (groups, P, h, rows), x)
        torch.bmm(shifted, mixture, out=error.view(n, h, rows))
        torch.sub(target.unsqueeze(1), error, out=error)
        loss = weighted_squares(error, None if weight is None else weight.view(groups, 1, 1, rows))
        self.loss += loss.view(groups, P).sum(0)
        self.entries += h * (len(x) if weight is None else float(weight.double().sum()))
        error = error.view(n, h, rows)

        # Adjoints are carried times -1/2 (the -2 of the square's derivative comes last).
        adjoint = SPACE.take("adjoint", start.shape, x)
        torch.bmm(shifted.transpose(1, 2), error, out=adjoint)
        shifted_gradient = torch.bmm(error, mixture.transpose(1, 2))  # (n,h,k)
        first = SPACE.take("start_gradient", start.shape, x).zero_()
        ascend(adjoint, path, coupling, alpha, False, first, SPACE)

        by_left, by_right = coupling.products()  # (n,k,h), by 2 β R_H and by Q
        by_columns = alpha * (2.0 * beta * by_left + by_right).transpose(1, 2)
        column_gradient = by_columns + shifted_gradient
        flat = column_gradient.view(groups, P, h, k).transpose(1, 2).reshape(groups * h, P * k)
        self.column_gradient.index_add_(0, hidden.reshape(-1), flat)

        lines = SPACE.take("start", (P, k, groups, rows), x)
        lines.copy_(first.view(groups, P, k, rows).permute(1, 2, 0, 3))
        lines = lines.view(P * k, len(x))
        self.start_gradient.view(P * k, -1).addmm_(lines, seen)
        self.start_total += lines.sum(-1).view(P, k)

    def finish(self) -> Sums:
        """Put the factors back and take every adjoint to the prototypes."""
        held, alpha = self.held, self.alpha
        held.gradient -= 4.0 * alpha * held.beta * self.start_gradient
        held.gradient -= 2.0 * self.column_gradient.T.reshape(held.rows.shape)
        held.offset_gradient -= 2.0 * alpha * self.start_total
        return Sums(self.loss, self.entries, held.gradients())
