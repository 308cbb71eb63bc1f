"""Objective (8), ``‖x - x_T‖²`` with all features seen and free to move, and its gradient.

Saha et al., ICML 2023, equation 8, in k-space: with ``U = R X'`` and ``A = (1-α)^T``

    ‖x - x_T‖² = (1-A)² ‖x‖² - 2 (1-A) C·U + C' G C ,    ∂/∂C = 2 (G C - (1-A) U)

and since ``N = 2 β G + c 1'`` and ``1' C = 1 - A``, ``β ∂/∂C = N C - (1-A) z_0``: one product.
The adjoints below are carried times ``β``, which spares a pass over every large array.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models import couplings
from clam_dist.models.ambient import ambient_sums
from clam_dist.models.couplings import DenseCoupling
from clam_dist.models.dynamics import Path, ascend, descend, remaining
from clam_dist.models.products import Precision
from clam_dist.models.sums import (
    SPACE,
    Prototypes,
    Sums,
    as_numbers,
    block_rows,
    blocks,
    scored_entries,
    total,
    weigh,
    weighted_squares,
)


def unmasked_sums(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: Tensor,
    alpha: float,
    steps: int,
    *,
    observed: Tensor | None = None,
    log_epsilon: Tensor | None = None,
    precision: Precision = "float32",
) -> Sums:
    """Loss (8) summed over rows, and its gradient, for all members at once.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows; a missing entry holds what it is filled with.
    weight : Tensor (B,), optional
        Row weights.
    prototypes : Tensor (P,k,d)
    beta : Tensor (P,)
    alpha, steps
        Step size and number of steps.
    observed : Tensor (B,d) bool, optional
        False where a value is missing: it starts filled, moves with the rest, and never enters
        the loss. Exact; it costs two more products of ``x``'s size.
    log_epsilon : Tensor (P,k), optional
        Logarithm of the prototypes' weights (equation 10).
    precision : {'float32', 'tf32', 'bfloat16'}
        Of the two products of ``x``'s size, see :mod:`clam_dist.models.products`.

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon``.
    """
    count, width = prototypes.shape[1:]
    if couplings.factors_are_cheaper(count, width):
        return ambient_sums(
            x, weight, prototypes, beta, alpha, steps, observed=observed, log_epsilon=log_epsilon
        )
    held = Prototypes(prototypes, beta, log_epsilon, precision)
    work = _Unmasked(held, alpha, steps)
    # Missing values take an array of d numbers a row and member, but only once.
    lines = held.count if observed is None else max(held.count, held.width // 16)
    for rows in blocks(len(x), block_rows(held.members * lines, held.width)):
        part = None if weight is None else weight[rows].to(x.dtype)
        work.add(x[rows], part, None if observed is None else observed[rows])
    return work.finish()


class _Unmasked:
    """Sums in the making; ``add`` takes one block of rows."""

    def __init__(self, held: Prototypes, alpha: float, steps: int) -> None:
        self.held, self.alpha, self.steps = held, alpha, steps
        self.coupling = DenseCoupling(*held.all_move())
        self.moved = 1.0 - remaining(alpha, steps)  # 1 - A
        self.loss = torch.zeros(held.members, dtype=torch.float64, device=held.rows.device)
        self.entries = torch.zeros((), dtype=torch.float64, device=held.rows.device)
        self.start_gradient = torch.zeros_like(held.rows)  # Σ_t b_t error_t X
        self.start_total = torch.zeros_like(held.offset)  # Σ_t b_t error_t 1
        self.direct = torch.zeros_like(held.rows)  # explicit part of ∂/∂R, missing values only

    def add(self, x: Tensor, weight: Tensor | None, observed: Tensor | None) -> None:
        lowered = self.held.lower(x)
        start = self.held.start(lowered, SPACE)
        path = descend(start, self.coupling, self.alpha, self.steps, True, SPACE)
        explicit = None
        if observed is None:
            adjoint, explicit = self._complete(x, weight, start, path)
        else:
            adjoint = self._incomplete(x, weight, observed, path)
        self.entries += scored_entries(x, observed, weight)
        lines = ascend(adjoint, path, self.coupling, self.alpha, True, SPACE)
        if explicit is not None:
            lines += explicit
        self.held.gather(lines, lowered, self.start_gradient)
        self.start_total += lines.sum(-1)

    def _complete(
        self, x: Tensor, weight: Tensor | None, start: Tensor, path: Path
    ) -> tuple[Tensor, Tensor]:
        """Loss of rows with nothing missing; returns β ∂/∂C and what ∂/∂U adds to ∂/∂z_0 / α."""
        held, moved, mixture = self.held, self.moved, path.final
        adjoint = SPACE.take("adjoint", start.shape, start)
        self.coupling.logits(start, -moved, mixture, adjoint)
        # C·(β ∂/∂C - (1-A) z_0) + (1-A) C·c = 2 β (C'GC - 2 (1-A) C·U), a row at a time.
        product = SPACE.take("error", start.shape, start)
        torch.add(adjoint, start, alpha=-moved, out=product).mul_(mixture)
        length = torch.linalg.vector_norm(x, dim=1).square_()  # one pass, no temporary
        weighed = torch.mul(
            mixture, -moved / self.alpha, out=SPACE.take("explicit", start.shape, start)
        )
        weigh(weighed, weight)
        offset_total = weighed.sum(-1)  # -(1-A)/α Σ_b weight C
        inner = total(product.sum(1), weight)
        inner -= self.alpha * (offset_total.double() * held.offset.double()).sum(-1)
        self.loss += moved**2 * total(length, weight) + inner / (2.0 * held.beta.view(-1).double())
        # The explicit ∂/∂G = Σ_b weight C C' joins what the recursion learns of N = 2 β G + c 1'.
        # That puts -offset_total/2 into the share of c, and ∂/∂U in ``weighed`` puts offset_total
        # there, both wrongly.
        self.coupling.learn(weighed, mixture, -0.5 / moved)
        self.start_total -= 0.5 * offset_total
        return weigh(adjoint, weight), weighed

    def _incomplete(self, x: Tensor, weight: Tensor | None, observed: Tensor, path: Path) -> Tensor:
        """The same by ``m ⊙ ((1-A) x - C R)``, the loss on observed entries alone."""
        held, mixture = self.held, path.final
        error = SPACE.take("residual", (held.members, *x.shape), x)
        torch.bmm(mixture.mT, held.rows, out=error)
        torch.sub(x * self.moved, error, out=error).mul_(as_numbers(observed, "counts", x))
        self.loss += weighted_squares(error, None if weight is None else weight.unsqueeze(-1))
        self.direct.baddbmm_(mixture, error, alpha=-2.0)
        adjoint = SPACE.take("adjoint", mixture.shape, x)
        return torch.bmm(held.scaled, error.mT, out=adjoint).neg_()

    def finish(self) -> Sums:
        """Put the factors back and take every adjoint to the prototypes."""
        held, alpha, d = self.held, self.alpha, self.held.width
        left, right = self.coupling.gradients(alpha)  # by [2 β R, c] and [R, 1]
        through = left[..., :d] + right[..., :d] / (2.0 * held.beta)
        held.gradient += 2.0 * (alpha * self.start_gradient + through) + self.direct
        offset = alpha * self.start_total + left[..., d]
        held.offset_gradient += offset / held.beta[:, :, 0]
        return Sums(self.loss, self.entries, held.gradients())
