"""Objective (8) where prototypes are many and features few: the recursion in ``x`` itself.

The states ``x_t (P,d,B)`` are carried, ``z_t = c + 2 β R x_t``, and every product has ``d`` for its
short side: ``6 k d`` multiply-adds a row and step where :mod:`clam_dist.models.unmasked` takes
``3 k²``, and no array of ``k`` lines a row is touched but logits and shares. Missing values cost
nothing more. All products stay in the rows' own precision, as none of them is larger than others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.couplings import FactoredCoupling
from clam_dist.models.sums import (
    SPACE,
    Prototypes,
    Sums,
    block_rows,
    blocks,
    scored_entries,
    weighted_squares,
)


def ambient_sums(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: Tensor,
    alpha: float,
    steps: int,
    *,
    observed: Tensor | None = None,
    log_epsilon: Tensor | None = None,
) -> Sums:
    """Loss (8) summed over rows, and its gradient; see :func:`unmasked_sums` for everything."""
    held = Prototypes(prototypes, beta, log_epsilon)
    work = _Ambient(held, alpha, steps)
    lines = held.members * max(held.count, held.width)
    for rows in blocks(len(x), block_rows(lines, held.width)):
        part = None if weight is None else weight[rows].to(x.dtype)
        work.add(x[rows], part, None if observed is None else observed[rows])
    return work.finish()


class _Ambient:
    """Sums in the making; ``add`` takes one block of rows."""

    def __init__(self, held: Prototypes, alpha: float, steps: int) -> None:
        self.held, self.alpha, self.steps = held, alpha, steps
        self.coupling = FactoredCoupling(held.scaled, held.rows)
        self.loss = torch.zeros(held.members, dtype=torch.float64, device=held.rows.device)
        self.entries = torch.zeros((), dtype=torch.float64, device=held.rows.device)
        self.offset_total = torch.zeros_like(held.offset)

    def add(self, x: Tensor, weight: Tensor | None, observed: Tensor | None) -> None:
        held, alpha, coupling = self.held, self.alpha, self.coupling
        state = (held.members, held.width, len(x))
        lines = (held.members, held.count, len(x))
        states = SPACE.take("states", (self.steps + 1, *state), x).unbind()
        shares = SPACE.take("shares", (self.steps, *lines), x).unbind()
        logits = SPACE.take("logits", lines, x)
        states[0].copy_(x.T)
        for t in range(self.steps):
            coupling.logits(held.offset.unsqueeze(-1), 1.0, states[t], logits)
            torch.softmax(logits, 1, out=shares[t])
            coupling.advance(states[t], shares[t], alpha, states[t + 1])

        # Adjoints are carried times -1/2 (the -2 of the square's derivative comes last).
        adjoint = torch.sub(x.T, states[-1], out=SPACE.take("residual", state, x))
        if observed is not None:
            adjoint.mul_(observed.T)
        self.loss += weighted_squares(adjoint, weight)
        self.entries += scored_entries(x, observed, weight)
        error = SPACE.take("error", lines, x)
        for t in range(self.steps - 1, -1, -1):
            line = coupling.spread(adjoint, shares[t], SPACE)
            torch._softmax_backward_data(line, shares[t], 1, line.dtype, grad_input=error)
            self.offset_total += error.sum(-1)
            coupling.pull(error, error, shares[t], states[t], adjoint, alpha)

    def finish(self) -> Sums:
        """Put the factors back and take every adjoint to the prototypes."""
        held = self.held
        by_scaled, by_rows = self.coupling.gradients(self.alpha)
        held.gradient -= 2.0 * (2.0 * held.beta * by_scaled + by_rows)
        held.offset_gradient -= 2.0 * self.alpha * self.offset_total
        return Sums(self.loss, self.entries, held.gradients())
