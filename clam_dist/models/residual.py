"""Objective (9) with a robust loss or a learned metric, where only hidden features move.

Saha et al., ICML 2023, in k-space as in :mod:`clam_dist.models.masked` and
:mod:`~clam_dist.models.rowwise`. The difference is made in x-space there already, so that any
function of it may be the loss: ``f'(e) / 2`` stands where the error stood on the way back.

All adjoints are carried times -1/2: the -2 of the square's derivative comes last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clam_dist.models.couplings import FactoredCoupling, couple
from clam_dist.models.dynamics import ascend, descend
from clam_dist.models.groups import Columns, by_group, by_member, group_blocks, hidden_part
from clam_dist.models.metric import Warped
from clam_dist.models.robust import Penalty
from clam_dist.models.sums import SPACE, Sums, as_numbers, block_rows, blocks, scored_entries


@dataclass(frozen=True)
class Recursion:
    """What all forms of the recursion share.

    Parameters
    ----------
    alpha, steps
        Step size and number of steps.
    penalty : Penalty
        The cost of a difference.
    """

    alpha: float
    steps: int
    penalty: Penalty


def grouped_sums(
    x: Tensor,
    weight: Tensor | None,
    held: Warped,
    recursion: Recursion,
    hidden: Tensor,
    group_rows: int,
    value: Tensor,
) -> Sums:
    """Loss of complete rows on hidden features, which alone move; one mask a group.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows without missing values.
    weight : Tensor (B,), optional
        Row weights.
    held : Warped
        Prototypes of all members.
    recursion : Recursion
    hidden : Tensor (groups,h) int64
        Hidden columns, each once, of each group; at least ``ceil(B / group_rows)`` groups.
    group_rows : int
        Rows ``i·group_rows … (i+1)·group_rows - 1`` share the mask ``hidden[i]``.
    value : Tensor (d,)
        ``v``, put where a feature is hidden.

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon`` and ``metric``.
    """
    work = _Grouped(held, recursion, value.to(x.dtype))
    most = block_rows(held.members * held.count, held.width)
    for rows, groups in group_blocks(len(x), group_rows, most):
        work.add(x[rows], None if weight is None else weight[rows].to(x.dtype), hidden[groups])
    return work.finish()


def clamped_sums(
    x: Tensor,
    weight: Tensor | None,
    held: Warped,
    recursion: Recursion,
    moving: Tensor,
    scored: Tensor,
) -> Sums:
    """Loss on ``scored`` entries of rows whose ``moving`` features start at 0 and move.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows measured from ``v``, as are the prototypes of ``held``.
    moving, scored : Tensor (B,d) bool
        Hidden or missing; hidden and observed (a subset of ``moving``).
    weight, held, recursion
        As in :func:`grouped_sums`, as is the result.
    """
    work = _Clamped(held, recursion)
    lines = 2 * max(held.count, held.width)  # every step keeps d numbers a row
    for rows in blocks(len(x), block_rows(held.members * lines, held.width)):
        part = None if weight is None else weight[rows].to(x.dtype)
        work.add(x[rows], part, moving[rows], scored[rows])
    return work.finish()


class Work:
    """Sums in the making."""

    def __init__(self, held: Warped, recursion: Recursion) -> None:
        self.held, self.penalty = held, recursion.penalty
        self.alpha, self.steps = recursion.alpha, recursion.steps
        self.loss = torch.zeros(held.members, dtype=torch.float64, device=held.rows.device)
        self.entries = torch.zeros((), dtype=torch.float64, device=held.rows.device)
        self.start_gradient = torch.zeros_like(held.rows)  # Σ_t b_t error_t X
        self.start_total = torch.zeros_like(held.offset)  # Σ_t b_t error_t 1
        self.by_scaled = torch.zeros_like(held.rows)
        self.by_rows = torch.zeros_like(held.rows)
        self.by_offset = torch.zeros_like(held.offset)

    def start_learns(self, lines: Tensor, lowered: Tensor) -> None:
        """Take the adjoint of ``z_0 / α`` to its factors."""
        self.held.gather(lines, lowered, self.start_gradient)
        self.start_total += lines.sum(-1)

    def finish(self) -> Sums:
        """Put the factors back and take every adjoint to the parameters."""
        held, alpha = self.held, self.alpha
        held.gradient -= 2.0 * self.by_rows
        held.by_scaled -= 2.0 * (alpha * self.start_gradient + self.by_scaled)
        held.offset_gradient -= 2.0 * (alpha * self.start_total + self.by_offset)
        return Sums(self.loss, self.entries, held.gradients())


class _Grouped(Work):
    """``add`` takes whole groups of equal size; ``n = groups · P``."""

    def __init__(self, held: Warped, recursion: Recursion, value: Tensor) -> None:
        super().__init__(held, recursion)
        self.value = value
        self.columns, self.scaled_columns = Columns(held.rows), Columns(held.scaled)

    def add(self, x: Tensor, weight: Tensor | None, hidden: Tensor) -> None:
        held, alpha = self.held, self.alpha
        groups, h = hidden.shape
        rows, (P, k) = len(x) // groups, (held.members, held.count)
        n = groups * P
        value = self.value[hidden].unsqueeze(-1)  # (groups,h,1)
        target = hidden_part(x, hidden, SPACE).sub_(value)
        shifted = self.columns.take(hidden) - value.repeat_interleave(P, 0)  # Q', (n,h,k)
        left = self.scaled_columns.take(hidden).transpose(1, 2).contiguous()
        coupling = couple(left, shifted.transpose(1, 2).contiguous())

        lowered = held.lower(x)
        grouped = SPACE.take("grouped", (n, k, rows), x)
        start = by_group(held.start(lowered, SPACE), groups, grouped)
        stacked = (groups, P * k, -1)  # the members of a group side by side
        start.view(stacked).baddbmm_(left.view(stacked), target, alpha=-1.0)
        path = descend(start, coupling, alpha, self.steps, False, SPACE)

        error = coupling.displacement(path.final, SPACE).view(groups, P, h, rows)
        torch.sub(target.unsqueeze(1), error, out=error)
        weights = None if weight is None else weight.view(groups, 1, 1, rows)
        loss = held.measure_columns(error, hidden, self.penalty, weights)
        self.loss += loss.view(groups, P).sum(0)
        self.entries += scored_entries(x[:, :h], None, weight)

        adjoint = coupling.adjoin(error.view(n, h, rows), path.final, SPACE)
        first = ascend(adjoint, path, coupling, alpha, False, SPACE)
        by_left, by_right = coupling.gradients(alpha)  # (n,k,h), by (2 β R W)_H and by Q
        unseen = torch.bmm(first.view(stacked), target.mT).view(by_left.shape)
        self.scaled_columns.learn(hidden, (by_left - alpha * unseen).transpose(1, 2))
        self.columns.learn(hidden, by_right.transpose(1, 2))
        lines = by_member(first, groups, SPACE.take("start", (P, k, len(x)), x))
        self.start_learns(lines, lowered)

    def finish(self) -> Sums:
        self.by_scaled += self.scaled_columns.gradient()
        self.by_rows += self.columns.gradient()
        return super().finish()


class _Clamped(Work):
    """``add`` takes one block of rows, measured from ``v``."""

    def add(self, x: Tensor, weight: Tensor | None, moving: Tensor, scored: Tensor) -> None:
        moves, counts = as_numbers(moving, "moves", x), as_numbers(scored, "counts", x)
        seen = SPACE.take("seen", x.shape, x)
        seen = self.held.lower(torch.sub(1.0, moves, out=seen).mul_(x))
        coupling = FactoredCoupling(self.held.scaled, self.held.rows, moves.T.contiguous())
        start = self.held.start(seen, SPACE)
        path = descend(start, coupling, self.alpha, self.steps, False, SPACE)
        error = coupling.displacement(path.final, SPACE)  # (P,d,B)
        torch.sub(x.T, error, out=error).mul_(counts.T)
        self.loss += self.held.measure_columns(error.unsqueeze(0), None, self.penalty, weight)
        self.entries += scored_entries(x, scored, weight)
        adjoint = coupling.adjoin(error, path.final, SPACE)
        lines = ascend(adjoint, path, coupling, self.alpha, False, SPACE)
        self.start_learns(lines, seen)
        by_scaled, by_rows = coupling.gradients(self.alpha)
        self.by_scaled += by_scaled
        self.by_rows += by_rows
