"""Objectives (8) and (5) with noise, a robust loss or a learned metric: all features move.

Saha et al., ICML 2023, in k-space as in :mod:`clam_dist.models.unmasked`. What a row is compared
with need not be what it started from: with ``y = x - A x_0`` and ``A = (1-α)^T`` the difference is

    e = x - x_T = y - C R ,   ‖e‖² = ‖y‖² - 2 C·(y R') + C G C'

so a squared loss over whole rows needs the product ``y R'`` alone; any other function of ``e``, a
missing value or a metric needs the product ``C R``. Either costs two products of the rows' size
more than (8) as it stands in the paper, and a full metric ``d²`` multiply-adds a row besides. Where
prototypes are many and features few, ``x_t`` itself is carried.

All adjoints are carried times -1/2: the -2 of the square's derivative comes last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models import couplings
from clam_dist.models.couplings import DenseCoupling, FactoredCoupling
from clam_dist.models.dynamics import ascend, descend, remaining
from clam_dist.models.metric import Warped
from clam_dist.models.residual import Recursion, Work
from clam_dist.models.sums import (
    SPACE,
    Sums,
    as_numbers,
    block_rows,
    blocks,
    scored_entries,
    total,
    weigh,
)


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
    in_k_space = scored is None and recursion.penalty.loss == "squared"
    lines, form = held.count, _Moving
    if held.factor is not None:
        lines = max(lines, held.width // 4)
    elif couplings.factors_are_cheaper(held.count, held.width + 1):
        form = _Factored
    elif in_k_space:
        form = _Mixtures
    else:
        lines = max(lines, held.width // 16)  # d numbers a row and member, but only once
    work = form(held, recursion)
    for rows in blocks(len(start), block_rows(held.members * lines, held.width)):
        part = None if weight is None else weight[rows].to(start.dtype)
        work.add(start[rows], target[rows], part, None if scored is None else scored[rows])
    return work.finish()


class _Moving(Work):
    """``add`` takes one block of rows; the difference is made in x-space."""

    coupling: DenseCoupling | FactoredCoupling

    def __init__(self, held: Warped, recursion: Recursion) -> None:
        super().__init__(held, recursion)
        self.coupling = self._couple(*held.all_move())
        self.left_over = remaining(self.alpha, self.steps)  # A

    def _couple(self, left: Tensor, right: Tensor) -> DenseCoupling | FactoredCoupling:
        return DenseCoupling(left, right)

    def add(
        self, start: Tensor, target: Tensor, weight: Tensor | None, scored: Tensor | None
    ) -> None:
        lowered = self.held.lower(start)
        first = self.held.start(lowered, SPACE)
        path = descend(first, self.coupling, self.alpha, self.steps, True, SPACE)
        goal = torch.sub(target, start, alpha=self.left_over)  # y
        adjoint = self._score(goal, path.final, weight, scored)
        self.entries += scored_entries(start, scored, weight)
        lines = ascend(adjoint, path, self.coupling, self.alpha, True, SPACE)
        self.start_learns(lines, lowered)

    def _score(
        self, goal: Tensor, carry: Tensor, weight: Tensor | None, scored: Tensor | None
    ) -> Tensor:
        """Add to the loss and to ``by_rows``; the adjoint of what is carried."""
        rows = self.held.rows
        error = SPACE.take("residual", (self.held.members, *goal.shape), goal)
        torch.bmm(carry.mT, rows, out=error)
        torch.sub(goal, error, out=error)
        counts = None if scored is None else as_numbers(scored, "counts", goal)
        if counts is not None:
            error.mul_(counts)
        weights = None if weight is None else weight.unsqueeze(-1)
        self.loss += self.held.measure(error, self.penalty, weights)
        if counts is not None and self.held.factor is not None:
            error.mul_(counts)  # a full map brought something of the others there
        self.by_rows.baddbmm_(carry, error)
        return torch.bmm(rows, error.mT, out=SPACE.take("adjoint", carry.shape, carry))

    def finish(self) -> Sums:
        by_left, by_right = self.coupling.gradients(self.alpha)  # by [2 β R W, c] and [R, 1]
        self.by_scaled += by_left[..., :-1]
        self.by_offset += by_left[..., -1]
        self.by_rows += by_right[..., :-1]
        return super().finish()


class _Factored(_Moving):
    """Features first, as the coupling carries them."""

    def _couple(self, left: Tensor, right: Tensor) -> DenseCoupling | FactoredCoupling:
        return FactoredCoupling(left, right)

    def _score(
        self, goal: Tensor, carry: Tensor, weight: Tensor | None, scored: Tensor | None
    ) -> Tensor:
        error = self.coupling.displacement(carry, SPACE)  # (P,d+1,B)
        shown = error[:, :-1]
        torch.sub(goal.T, shown, out=shown)
        error[:, -1] = 0.0  # 1' C is no feature
        if scored is not None:
            shown.mul_(as_numbers(scored, "counts", goal).T)
        self.loss += self.penalty(error, weight)
        return self.coupling.adjoin(error, carry, SPACE)


class _Mixtures(_Moving):
    """Squares of whole rows: the difference is never made."""

    def __init__(self, held: Warped, recursion: Recursion) -> None:
        super().__init__(held, recursion)
        self.gram = torch.bmm(held.rows, held.rows.mT)
        self.by_gram = torch.zeros_like(self.gram)  # Σ_b weight C C'

    def _score(
        self, goal: Tensor, carry: Tensor, weight: Tensor | None, scored: Tensor | None
    ) -> Tensor:
        assert scored is None
        product = SPACE.take("residual", carry.shape, carry)
        self.held.project(goal, product)  # R y'
        adjoint = SPACE.take("adjoint", carry.shape, carry)
        torch.baddbmm(product, self.gram, carry, alpha=-1.0, out=adjoint)
        inner = product.add_(adjoint).mul_(carry).sum(1)  # 2 C·(y R') - C G C'
        length = torch.linalg.vector_norm(goal, dim=1).square_()
        self.loss += total(length - inner, weight)
        weighed = weigh(torch.mul(carry, 1.0, out=product), weight)
        self.held.gather(weighed, self.held.lower(goal), self.by_rows)
        self.by_gram.baddbmm_(weighed, carry.mT)
        return weigh(adjoint, weight)

    def finish(self) -> Sums:
        self.by_rows -= torch.bmm(self.by_gram, self.held.rows)
        return super().finish()
