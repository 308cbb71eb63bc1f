"""Objective (9) where every row has a hidden set of its own: missing values, or one mask a row.

With rows and prototypes measured from ``v``, ``z_t = z_0 + 2 β R (m̄ ⊙ R' C_t)``, where ``m̄`` are
the features that move. Either two products with ``R`` a step, or each row's own matrix from
:mod:`clam_dist.models.pairs`. Exact for missing values, where the features that move (hidden or
missing) are more than those in the loss (hidden and observed).
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models import pairs as pair_products
from clam_dist.models.couplings import FactoredCoupling
from clam_dist.models.dynamics import ascend, descend
from clam_dist.models.products import Precision
from clam_dist.models.sums import (
    SPACE,
    Prototypes,
    Sums,
    as_numbers,
    block_rows,
    blocks,
    scored_entries,
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
    precision: Precision = "float32",
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
    precision : {'float32', 'tf32', 'bfloat16'}
        Of the two products of ``x`` with prototypes, see :mod:`clam_dist.models.products`.

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon``.
    """
    value = value.to(x.dtype)
    # Nothing in the recursion depends on the origin but a number common to a row's logits.
    held = Prototypes(prototypes - value, beta, log_epsilon, precision)
    work = _Rowwise(held, alpha, steps)
    for rows in blocks(len(x), work.block_rows()):
        part = None if weight is None else weight[rows].to(x.dtype)
        shifted = torch.sub(x[rows], value, out=SPACE.take("shifted", x[rows].shape, x))
        work.add(shifted, part, moving[rows], scored[rows])
    return work.finish()


class _Rowwise:
    """Sums in the making; ``add`` takes one block of rows, measured from ``v``."""

    def __init__(self, held: Prototypes, alpha: float, steps: int) -> None:
        self.held, self.alpha, self.steps = held, alpha, steps
        self.loss = torch.zeros(held.members, dtype=torch.float64, device=held.rows.device)
        self.entries = torch.zeros((), dtype=torch.float64, device=held.rows.device)
        self.start_gradient = torch.zeros_like(held.rows)
        self.start_total = torch.zeros_like(held.offset)
        self.by_scaled = torch.zeros_like(held.rows)
        self.by_rows = torch.zeros_like(held.rows)
        self.pairs: pair_products.Pairs | None = None
        if pair_products.pairs_are_cheaper(held.members, held.count, held.width, steps):
            self.pairs = pair_products.Pairs(held.scaled, held.rows)

    def block_rows(self) -> int:
        """Rows that :meth:`add` takes well at a time."""
        held = self.held
        widest = 2 * max(held.count, held.width)  # every step keeps d numbers a row
        if self.pairs is not None:  # arrays of d numbers a row are few there
            widest = max(held.count**2, held.width // 16)
        return block_rows(held.members * widest, held.width)

    def add(self, x: Tensor, weight: Tensor | None, moving: Tensor, scored: Tensor) -> None:
        held, alpha = self.held, self.alpha
        moves, counts = as_numbers(moving, "moves", x), as_numbers(scored, "counts", x)
        seen = SPACE.take("seen", x.shape, x)
        seen = held.lower(torch.sub(1.0, moves, out=seen).mul_(x))
        target = x
        coupling: FactoredCoupling | pair_products.PairCoupling
        if self.pairs is None:
            coupling = FactoredCoupling(held.scaled, held.rows, moves.T.contiguous())
            target, counts = x.T, counts.T
        else:
            coupling = self.pairs.couple(moves)
            weight = None if weight is None else weight.unsqueeze(-1)
        path = descend(held.start(seen, SPACE), coupling, alpha, self.steps, False, SPACE)

        error = coupling.displacement(path.final, SPACE)  # (P,d,B), or (P,B,d) of pairs
        torch.sub(target, error, out=error).mul_(counts)
        self.loss += weighted_squares(error, weight)
        self.entries += scored_entries(x, scored, None if weight is None else weight.view(-1))

        # Adjoints are carried times -1/2 (the -2 of the square's derivative comes last).
        adjoint = coupling.adjoin(error, path.final, SPACE)
        lines = ascend(adjoint, path, coupling, alpha, False, SPACE)
        held.gather(lines, seen, self.start_gradient)
        self.start_total += lines.sum(-1)
        if isinstance(coupling, FactoredCoupling):
            self._learn(*coupling.gradients(alpha))
        else:
            coupling.finish()

    def _learn(self, by_scaled: Tensor, by_rows: Tensor) -> None:
        self.by_scaled += by_scaled
        self.by_rows += by_rows

    def finish(self) -> Sums:
        """Put the factors back and take every adjoint to the prototypes."""
        held = self.held
        if self.pairs is not None:
            self._learn(*self.pairs.gradients(self.alpha))
        through = 2.0 * held.beta * (self.alpha * self.start_gradient + self.by_scaled)
        held.gradient -= 2.0 * (through + self.by_rows)
        held.offset_gradient -= 2.0 * self.alpha * self.start_total
        return Sums(self.loss, self.entries, held.gradients())
