"""Objective (9), the loss on hidden features that alone move, and its gradient.

Saha et al., ICML 2023, equation 9 and Algorithm 1, with one mask for a group of rows (a group of
one row is the algorithm as printed). Only the hidden columns ``H`` of a group are ever gathered.
With ``v`` the value put where a feature is hidden and ``Q = R_H - v_H``

    x_T = v + C Q  on H ,   N = 2 β R_H Q' ,   z_t = z_0 + N C_t ,   loss = ‖x_H - v_H - C Q‖²

where ``z_0`` comes from the row with ``v`` in place of what is hidden: the logits of the whole row
less ``2 β R_H (x_H - v_H)``, which spares a copy of the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.couplings import couple
from clam_dist.models.dynamics import ascend, descend
from clam_dist.models.groups import Columns, by_group, by_member, group_blocks, hidden_part
from clam_dist.models.products import Precision
from clam_dist.models.sums import (
    SPACE,
    Prototypes,
    Sums,
    block_rows,
    scored_entries,
    weighted_squares,
)


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
    precision: Precision = "float32",
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
    precision : {'float32', 'tf32', 'bfloat16'}
        Of the two products of ``x``'s size, see :mod:`clam_dist.models.products`.

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon``.
    """
    held = Prototypes(prototypes, beta, log_epsilon, precision)
    work = _Masked(held, alpha, steps, value.to(x.dtype))
    most = block_rows(held.members * held.count, held.width)
    for rows, groups in group_blocks(len(x), group_rows, most):
        work.add(x[rows], None if weight is None else weight[rows].to(x.dtype), hidden[groups])
    return work.finish()


class _Masked:
    """Sums in the making; ``add`` takes whole groups of equal size. ``n = groups · P``."""

    def __init__(self, held: Prototypes, alpha: float, steps: int, value: Tensor) -> None:
        self.held, self.alpha, self.steps, self.value = held, alpha, steps, value
        self.loss = torch.zeros(held.members, dtype=torch.float64, device=held.rows.device)
        self.entries = torch.zeros((), dtype=torch.float64, device=held.rows.device)
        self.start_gradient = torch.zeros_like(held.rows)
        self.start_total = torch.zeros_like(held.offset)
        self.columns = Columns(held.rows)

    def add(self, x: Tensor, weight: Tensor | None, hidden: Tensor) -> None:
        held, alpha = self.held, self.alpha
        groups, h = hidden.shape
        rows, (P, k) = len(x) // groups, (held.members, held.count)
        n = groups * P
        value = self.value[hidden].unsqueeze(-1)  # (groups,h,1)
        target = hidden_part(x, hidden, SPACE).sub_(value)
        columns = self.columns.take(hidden)  # (n,h,k)
        shifted = columns - value.repeat_interleave(P, 0)  # Q'
        beta = held.beta.repeat(groups, 1, 1)  # (n,1,1)
        left = (2.0 * beta * columns).transpose(1, 2).contiguous()
        coupling = couple(left, shifted.transpose(1, 2).contiguous())

        grouped = SPACE.take("grouped", (n, k, rows), x)
        lowered = held.lower(x)
        start = by_group(held.start(lowered, SPACE), groups, grouped)
        stacked = (groups, P * k, -1)  # the members of a group side by side
        start.view(stacked).baddbmm_(left.view(stacked), target, alpha=-1.0)
        path = descend(start, coupling, alpha, self.steps, False, SPACE)

        error = coupling.displacement(path.final, SPACE).view(groups, P, h, rows)
        torch.sub(target.unsqueeze(1), error, out=error)
        loss = weighted_squares(error, None if weight is None else weight.view(groups, 1, 1, rows))
        self.loss += loss.view(groups, P).sum(0)
        self.entries += scored_entries(x[:, :h], None, weight)

        # Adjoints are carried times -1/2 (the -2 of the square's derivative comes last).
        adjoint = coupling.adjoin(error.view(n, h, rows), path.final, SPACE)
        first = ascend(adjoint, path, coupling, alpha, False, SPACE)

        by_left, by_right = coupling.gradients(alpha)  # (n,k,h), by 2 β R_H and by Q
        unseen = torch.bmm(first.view(stacked), target.mT).view(by_left.shape)
        by_left = by_left - alpha * unseen
        self.columns.learn(hidden, (2.0 * beta * by_left + by_right).transpose(1, 2))

        lines = by_member(first, groups, SPACE.take("start", (P, k, len(x)), x))
        held.gather(lines, lowered, self.start_gradient)
        self.start_total += lines.sum(-1)

    def finish(self) -> Sums:
        """Put the factors back and take every adjoint to the prototypes."""
        held, alpha = self.held, self.alpha
        held.gradient -= 4.0 * alpha * held.beta * self.start_gradient
        held.gradient -= 2.0 * self.columns.gradient()
        held.offset_gradient -= 2.0 * alpha * self.start_total
        return Sums(self.loss, self.entries, held.gradients())
