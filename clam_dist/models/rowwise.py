"""Objective (9) where every row has a hidden set of its own: missing values, or one mask a row.

``z_t = z_0 + 2 β R (m̄ ⊙ Q' C_t)`` with ``Q = R - v`` and ``m̄ (d,B)`` the features that move: two
products with the prototypes a step, whatever the masks. Exact for missing values, where the
features that move (hidden or missing) are more than those in the loss (hidden and observed).
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.dynamics import ascend, descend
from clam_dist.models.sums import SPACE, Prototypes, Sums, block_rows, blocks, total, weigh
from clam_dist.models.workspace import Workspace

BLOCK_ELEMENTS = 1 << 16
"""Elements of the larger of a block's ``(P,k,rows)`` and ``(P,d,rows)`` arrays."""


class RowCoupling:
    """Coupling of the logits through features that each row hides for itself.

    Parameters
    ----------
    scaled : Tensor (P,k,d)
        ``2 β R``.
    shifted : Tensor (P,k,d)
        ``Q = R - v``.
    moving : Tensor (d,B)
        1 where a feature moves, 0 where it is clamped.

    Attributes
    ----------
    scaled_gradient, shifted_gradient : Tensor (P,k,d)
        Summed over rows and steps, without the factor ``α``.
    """

    def __init__(self, scaled: Tensor, shifted: Tensor, moving: Tensor, space: Workspace) -> None:
        self.scaled, self.shifted, self.moving, self._space = scaled, shifted, moving, space
        self.scaled_gradient = torch.zeros_like(scaled)
        self.shifted_gradient = torch.zeros_like(shifted)

    def _moved(self, matrix: Tensor, lines: Tensor, name: str) -> Tensor:
        """``m̄ ⊙ (matrix' lines)``: ``(P,k,d)``, ``(P,k,B)`` to ``(P,d,B)`` scratch."""
        out = self._space.take(name, (len(matrix), matrix.shape[2], lines.shape[2]), lines)
        return torch.bmm(matrix.transpose(1, 2), lines, out=out).mul_(self.moving)

    def logits(self, start: Tensor, keep: float, mixture: Tensor, out: Tensor) -> Tensor:
        moved = self._moved(self.shifted, mixture, "moved")
        return torch.baddbmm(start, self.scaled, moved, beta=keep, out=out)

    def pull(
        self, error: Tensor, mixture: Tensor, adjoint: Tensor, keep: float, gain: float
    ) -> None:
        moved = self._moved(self.shifted, mixture, "moved")
        self.scaled_gradient.baddbmm_(error, moved.transpose(1, 2))
        back = self._moved(self.scaled, error, "moved")
        self.shifted_gradient.baddbmm_(mixture, back.transpose(1, 2))
        adjoint.baddbmm_(self.shifted, back, beta=keep, alpha=gain)


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
    for rows in blocks(
        len(x), block_rows(held.members * max(held.count, held.width), BLOCK_ELEMENTS)
    ):
        part = None if weight is None else weight[rows].to(x.dtype)
        moves = moving[rows]
        seen = torch.where(moves, value, x[rows])
        coupling = RowCoupling(held.scaled, shifted, moves.T.to(x.dtype).contiguous(), SPACE)
        start = held.start(seen, SPACE)
        path = descend(start, coupling, alpha, steps, False, SPACE)
        mixture = path.final

        error = SPACE.take("residual", (held.members, held.width, len(seen)), x)
        base = (x[rows] - value).T.expand(held.members, -1, -1)
        torch.baddbmm(base, shifted.transpose(1, 2), mixture, alpha=-1.0, out=error)
        error.mul_(scored[rows].T)
        loss += total(error.square().sum(1), part)
        entries += float(total(scored[rows].sum(1), part))
        weigh(error, part)

        # Adjoints are carried times -1/2, and those of the recursion without the factor α.
        adjoint = SPACE.take("adjoint", start.shape, x)
        torch.bmm(shifted, error, out=adjoint)
        held.gradient.baddbmm_(mixture, error.transpose(1, 2), alpha=-2.0)
        first = SPACE.take("start_gradient", start.shape, x).zero_()
        ascend(adjoint, path, coupling, alpha, False, first, SPACE)
        lines = first.view(-1, len(seen))
        from_start = (lines @ seen).view(held.rows.shape)
        through = from_start + coupling.scaled_gradient
        held.gradient -= 2.0 * alpha * (2.0 * held.beta * through + coupling.shifted_gradient)
        held.offset_gradient -= 2.0 * alpha * first.sum(-1)
    return Sums(loss, entries, held.gradients())
