"""The objectives with all their options: noise at the start, robust losses, a learned metric.

Saha et al., ICML 2023. The recursion is that of :mod:`clam_dist.models.unmasked`,
:mod:`~clam_dist.models.masked` and :mod:`~clam_dist.models.rowwise`, in k-space; but what a row is
compared with need not be what it started from (equation 5), and the difference is made in x-space,
``e = x - A x_0 - C R``, where any function of it can be taken: one product more than the squared
losses of those modules need, and one more on the way back. ``f'(e) / 2`` then stands where the
error stood, and the rest of the way back is theirs.

All adjoints are carried times -1/2: the -2 of the square's derivative comes last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clam_dist.models.couplings import FactoredCoupling, couple
from clam_dist.models.dynamics import ascend, descend, remaining
from clam_dist.models.groups import Columns, by_group, by_member, group_blocks, hidden_part
from clam_dist.models.metric import Warped
from clam_dist.models.robust import Penalty
from clam_dist.models.sums import SPACE, Sums, as_numbers, block_rows, blocks, scored_entries


@dataclass(frozen=True)
class Recursion:
    """What the three forms below share.

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


def moving_sums(
    start: Tensor,
    target: Tensor,
    weight: Tensor | None,
    held: Warped,
    recursion: Recursion,
    scored: Tensor | None = None,
) -> Sums:
    """Loss of rows all of whose features move, and its gradient.

    Parameters
    ----------
    start, target : Tensor (B,d)
        ``x_0`` and what ``x_T`` is compared with: the same in (8), with noise apart in (5).
    weight : Tensor (B,), optional
        Row weights.
    held : Warped
        Prototypes of all members.
    recursion : Recursion
    scored : Tensor (B,d) bool, optional
        Entries in the loss; all by default.

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon`` and ``metric``.
    """
    work = _Moving(held, recursion)
    lines = max(held.count, held.width // 16)  # d numbers a row and member, but only twice
    for rows in blocks(len(start), block_rows(held.members * lines, held.width)):
        part = None if weight is None else weight[rows].to(start.dtype)
        work.add(start[rows], target[rows], part, None if scored is None else scored[rows])
    return work.finish()


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
    hidden : Tensor (groups,h) int64
        Hidden columns, each once, of each group; at least ``ceil(B / group_rows)`` groups.
    group_rows : int
        Rows ``i·group_rows … (i+1)·group_rows - 1`` share the mask ``hidden[i]``.
    value : Tensor (d,)
        ``v``, put where a feature is hidden.
    weight, held, recursion
        As in :func:`moving_sums`, as is the result.
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
        As in :func:`moving_sums`, as is the result.
    """
    work = _Clamped(held, recursion)
    lines = 2 * max(held.count, held.width)  # every step keeps d numbers a row
    for rows in blocks(len(x), block_rows(held.members * lines, held.width)):
        part = None if weight is None else weight[rows].to(x.dtype)
        work.add(x[rows], part, moving[rows], scored[rows])
    return work.finish()


class _Work:
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


class _Moving(_Work):
    """``add`` takes one block of rows."""

    def __init__(self, held: Warped, recursion: Recursion) -> None:
        super().__init__(held, recursion)
        self.coupling = couple(*held.all_move())
        self.left_over = remaining(self.alpha, self.steps)  # A

    def add(
        self, start: Tensor, target: Tensor, weight: Tensor | None, scored: Tensor | None
    ) -> None:
        lowered = self.held.lower(start)
        first = self.held.start(lowered, SPACE)
        path = descend(first, self.coupling, self.alpha, self.steps, True, SPACE)
        error = self.coupling.displacement(path.final, SPACE)  # (P,d+1,B)
        shown = error[:, :-1]
        torch.sub(torch.sub(target, start, alpha=self.left_over).T, shown, out=shown)
        error[:, -1] = 0.0  # 1' C: not of the state
        if scored is not None:
            shown.mul_(as_numbers(scored, "counts", start).T)
        self.loss += self.penalty(error, weight)
        self.entries += scored_entries(start, scored, weight)
        adjoint = self.coupling.adjoin(error, path.final, SPACE)
        lines = ascend(adjoint, path, self.coupling, self.alpha, True, SPACE)
        self.start_learns(lines, lowered)

    def finish(self) -> Sums:
        by_left, by_right = self.coupling.gradients(self.alpha)  # by [2 β R W, c] and [R, 1]
        self.by_scaled += by_left[..., :-1]
        self.by_offset += by_left[..., -1]
        self.by_rows += by_right[..., :-1]
        return super().finish()


class _Grouped(_Work):
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
        loss = self.penalty(error, None if weight is None else weight.view(groups, 1, 1, rows))
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


class _Clamped(_Work):
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
        self.loss += self.penalty(error, weight)
        self.entries += scored_entries(x, scored, weight)
        adjoint = coupling.adjoin(error, path.final, SPACE)
        lines = ascend(adjoint, path, coupling, self.alpha, False, SPACE)
        self.start_learns(lines, seen)
        by_scaled, by_rows = coupling.gradients(self.alpha)
        self.by_scaled += by_scaled
        self.by_rows += by_rows
