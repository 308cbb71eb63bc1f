"""The spherical objectives and their gradients, for all members at once.

Saha et al., ICML 2023, equation 12, under the losses (8) and (9). Rows are normalised over what is
observed of them, ``y = o ⊙ x / ‖o ⊙ x‖``, and start from what is shown, ``x_0 = m ⊙ x / ‖m ⊙ x‖``;
every feature moves, since clamping and normalising contradict each other; the loss
``Σ_S (y - x_T)²`` is taken over the scored features ``S`` of the normalised row: all observed ones
under (8), where ``m = o``, or the hidden and observed ones under (9), where ``x_0`` is 0 on ``S``.
A missing value is never shown and never scored. A row that shows nothing but zeros has no direction
to start from: it has no loss, no gradient and no entries.

With ``x_T = c x_0 + C R`` (see :mod:`clam_dist.models.sphere`) and nothing missing, (8) is
``2 - 2 (c + C·R x_0)`` and (9) is ``‖y_S - C R_S‖²``. Prototypes are parameters of any length, and
are normalised here; one that is all zeros stays so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.groups import (
    Columns,
    by_group,
    by_member,
    group_blocks,
    hidden_part,
    shown_part,
)
from clam_dist.models.products import Precision, add_product, lower
from clam_dist.models.sphere import Gram, Orbit, orbit, retrace
from clam_dist.models.sums import (
    SPACE,
    Sums,
    as_numbers,
    block_rows,
    blocks,
    scored_entries,
    total,
    weighted_squares,
)


def spherical_unmasked_sums(
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
    """Loss (8) on the sphere, summed over rows, and its gradient.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows of any length; what a missing entry holds does not matter, as long as it is finite.
    weight : Tensor (B,), optional
        Row weights.
    prototypes : Tensor (P,k,d)
        Of any length.
    beta : Tensor (P,)
        Inverse temperature of cosines, without unit.
    alpha, steps
        Step size and number of steps.
    observed : Tensor (B,d) bool, optional
        False where a value is missing.
    log_epsilon : Tensor (P,k), optional
        Logarithm of the prototypes' weights.
    precision : {'float32', 'tf32', 'bfloat16'}
        Of the two products of ``x``'s size, see :mod:`clam_dist.models.products`.

    Returns
    -------
    Sums
        ``gradients`` holds ``prototypes`` and, where given, ``log_epsilon``.
    """
    work = _Spherical(prototypes, beta, alpha, steps, log_epsilon, precision)
    for rows in blocks(len(x), work.block_rows):
        part = None if weight is None else weight[rows].to(x.dtype)
        if observed is None:
            work.add_complete(x[rows], part)
        else:
            work.add_rowwise(x[rows], part, observed[rows], observed[rows], True)
    return work.finish()


def spherical_masked_sums(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: Tensor,
    alpha: float,
    steps: int,
    hidden: Tensor,
    group_rows: int,
    *,
    log_epsilon: Tensor | None = None,
    precision: Precision = "float32",
) -> Sums:
    """Loss (9) of complete rows on the sphere, one mask for ``group_rows`` of them.

    Parameters
    ----------
    hidden : Tensor (groups,h) int64
        Hidden columns, each once, of each group; at least ``ceil(B / group_rows)`` groups.
    group_rows : int
        Rows ``i·group_rows … (i+1)·group_rows - 1`` share the mask ``hidden[i]``.
    x, weight, prototypes, beta, alpha, steps, log_epsilon, precision
        As in :func:`spherical_unmasked_sums`, as is the result.
    """
    work = _Spherical(prototypes, beta, alpha, steps, log_epsilon, precision)
    for rows, groups in group_blocks(len(x), group_rows, work.block_rows):
        part = None if weight is None else weight[rows].to(x.dtype)
        work.add_groups(x[rows], part, hidden[groups])
    return work.finish()


def spherical_rowwise_sums(
    x: Tensor,
    weight: Tensor | None,
    prototypes: Tensor,
    beta: Tensor,
    alpha: float,
    steps: int,
    shown: Tensor,
    scored: Tensor,
    *,
    log_epsilon: Tensor | None = None,
    precision: Precision = "float32",
) -> Sums:
    """Loss (9) on the sphere where every row hides for itself.

    Parameters
    ----------
    shown, scored : Tensor (B,d) bool
        Observed and not hidden; observed and hidden. No entry is both.
    x, weight, prototypes, beta, alpha, steps, log_epsilon, precision
        As in :func:`spherical_unmasked_sums`, as is the result.
    """
    work = _Spherical(prototypes, beta, alpha, steps, log_epsilon, precision)
    for rows in blocks(len(x), work.block_rows):
        part = None if weight is None else weight[rows].to(x.dtype)
        work.add_rowwise(x[rows], part, shown[rows], scored[rows], False)
    return work.finish()


def inverse_lengths(x: Tensor) -> Tensor:
    """``1 / ‖x‖`` of each row of ``x (…,d)``, and 0 for a row of zeros; ``(…)``."""
    lengths = torch.linalg.vector_norm(x, dim=-1)
    return torch.where(lengths > 0, lengths.reciprocal(), 0.0)


class _Spherical:
    """Sums in the making; each ``add_`` takes one block of rows.

    All adjoints are carried times -1/2: the -2 of the square's derivative comes in ``finish``.
    """

    def __init__(
        self,
        prototypes: Tensor,
        beta: Tensor,
        alpha: float,
        steps: int,
        log_epsilon: Tensor | None,
        precision: Precision,
    ) -> None:
        self.members, self.count, self.width = prototypes.shape
        self.alpha, self.steps, self.precision = alpha, steps, precision
        self.beta = beta.to(prototypes.dtype).view(-1, 1, 1)
        self.inverse = inverse_lengths(prototypes).unsqueeze(-1)  # (P,k,1)
        self.rows = prototypes * self.inverse
        self.lowered = lower((self.beta * self.rows).view(-1, self.width), precision)
        self.gram = Gram(self.rows, alpha * self.beta, alpha)
        self.columns = Columns(self.rows)
        self.log_epsilon = None if log_epsilon is None else log_epsilon.unsqueeze(-1)
        self.by_log_epsilon = None if log_epsilon is None else torch.zeros_like(log_epsilon)
        self.loss = torch.zeros(self.members, dtype=torch.float64, device=prototypes.device)
        self.entries = torch.zeros((), dtype=torch.float64, device=prototypes.device)
        self.by_rows = torch.zeros_like(self.rows)
        # Missing values take an array of d numbers a row and member, but only once.
        lines = max(self.count, self.width // 16)
        self.block_rows = block_rows(self.members * lines, self.width)
        self.nothing = torch.zeros((1, 1), dtype=prototypes.dtype, device=prototypes.device)

    def _forward(self, shown: Tensor, inverse: Tensor) -> Orbit:
        """The orbit of rows ``shown (B,d)``, lowered, times ``inverse (B,)``."""
        start = SPACE.take("start", (self.members, self.count, len(shown)), self.rows)
        lines = start.view(-1, len(shown))
        add_product(self.nothing, self.lowered, shown.T, self.precision, lines)
        start.mul_(inverse)
        return orbit(start, self.gram, self.beta, self.alpha, self.steps, self.log_epsilon, SPACE)

    def _backward(
        self, path: Orbit, by_mixture: Tensor, by_rest: Tensor | None, extra: Tensor | None
    ) -> Tensor:
        """Derivative by ``R x_0``, and ``extra`` beside it where the loss has ``R x_0`` itself."""
        lines = retrace(
            path, by_mixture, by_rest, self.gram, self.beta, self.alpha, SPACE, self.by_log_epsilon
        )
        return lines if extra is None else lines.add_(extra)

    def _gather(self, lines: Tensor, shown: Tensor, inverse: Tensor) -> None:
        """Take the derivative by ``R x_0`` to the prototypes."""
        flat = lower(lines.mul_(inverse).view(-1, len(shown)), self.precision)
        into = self.by_rows.view(-1, self.width)
        add_product(into, flat, shown, self.precision, into)

    def add_complete(self, x: Tensor, weight: Tensor | None) -> None:
        """(8), nothing missing: the loss is ``2 - 2 (c + C·R y)``."""
        inverse = inverse_lengths(x)
        alive = _alive(inverse, weight)
        shown = lower(x, self.precision)
        path = self._forward(shown, inverse)
        mixture = path.mixture(self.alpha, SPACE)
        by_mixture = SPACE.take("by_mixture", mixture.shape, mixture)
        torch.mul(mixture, path.logits[0], out=by_mixture)
        cosine = path.left[0][:, 0] + by_mixture.sum(1) / self.beta[:, 0]
        self.loss += total(2.0 - 2.0 * cosine, alive)
        self.entries += scored_entries(x, None, alive)
        torch.mul(path.logits[0], alive, out=by_mixture).div_(self.beta)
        by_rest = alive.expand(self.members, 1, -1)
        lines = self._backward(path, by_mixture, by_rest, mixture.mul_(alive))
        self._gather(lines, shown, inverse)

    def add_groups(self, x: Tensor, weight: Tensor | None, hidden: Tensor) -> None:
        """(9), nothing missing, whole groups: the loss is ``‖y_S - C R_S‖²``."""
        groups, h = hidden.shape
        rows, n = len(x) // groups, groups * self.members
        # A difference of lengths would not tell a row that shows nothing from rounding: a copy.
        seen, target = shown_part(x, hidden, SPACE), hidden_part(x, hidden, SPACE)
        inverse = inverse_lengths(seen)
        alive = _alive(inverse, weight)
        target.mul_(inverse_lengths(x).view(groups, 1, rows))
        shown = lower(seen, self.precision)
        path = self._forward(shown, inverse)
        mixture = path.mixture(self.alpha, SPACE)
        grouped = by_group(mixture, groups, SPACE.take("grouped", mixture.shape, mixture))

        columns = self.columns.take(hidden)  # (n,h,k)
        error = SPACE.take("residual", (groups, self.members, h, rows), x)
        torch.bmm(columns, grouped, out=error.view(n, h, rows))
        torch.sub(target.unsqueeze(1), error, out=error)
        loss = weighted_squares(error, alive.view(groups, 1, 1, rows))
        self.loss += loss.view(groups, self.members).sum(0)
        self.entries += scored_entries(x[:, :h], None, alive)

        error = error.view(n, h, rows)
        self.columns.learn(hidden, torch.bmm(error, grouped.mT))
        by_mixture = torch.bmm(columns.mT, error)
        by_mixture = by_member(by_mixture, groups, SPACE.take("by_mixture", mixture.shape, mixture))
        self._gather(self._backward(path, by_mixture, None, None), shown, inverse)

    def add_rowwise(
        self,
        x: Tensor,
        weight: Tensor | None,
        shown: Tensor,
        scored: Tensor,
        same: bool,
    ) -> None:
        """Either loss where rows hide or miss for themselves; ``same``: the shown are scored."""
        counts = as_numbers(scored, "counts", x)
        start = x * (counts if same else as_numbers(shown, "shown", x))
        inverse = inverse_lengths(start)
        alive = _alive(inverse, weight)
        low = lower(start, self.precision)
        path = self._forward(low, inverse)
        mixture = path.mixture(self.alpha, SPACE)

        error = SPACE.take("residual", (self.members, *x.shape), x)
        torch.bmm(mixture.mT, self.rows, out=error)
        rest = path.left[0].mT  # c, (P,B,1)
        if same:
            torch.sub(start * (inverse.unsqueeze(1) * (1.0 - rest)), error, out=error)
        else:
            hidden = x * counts
            whole = inverse_lengths(start + hidden).unsqueeze(1)
            torch.sub(hidden * whole, error, out=error)
        error.mul_(counts)
        self.loss += weighted_squares(error, alive.unsqueeze(1))
        self.entries += scored_entries(x, scored, alive)

        self.by_rows.baddbmm_(mixture, error)
        by_mixture = SPACE.take("by_mixture", mixture.shape, mixture)
        torch.bmm(self.rows, error.mT, out=by_mixture)
        by_rest = (error * start).sum(2).mul_(inverse).unsqueeze(1) if same else None
        self._gather(self._backward(path, by_mixture, by_rest, None), low, inverse)

    def finish(self) -> Sums:
        """Put the factors back, and go back through the normalisation of the prototypes."""
        found = -2.0 * (self.by_rows + self.columns.gradient() + self.gram.gradient())
        radial = (found * self.rows).sum(-1, keepdim=True)
        gradients = {"prototypes": (found - radial * self.rows) * self.inverse}
        if self.by_log_epsilon is not None:
            gradients["log_epsilon"] = -2.0 * self.by_log_epsilon
        return Sums(self.loss, self.entries, gradients)


def _alive(inverse: Tensor, weight: Tensor | None) -> Tensor:
    """Row weights ``(B,)``, 0 where a row has no direction to start from."""
    alive = (inverse > 0).to(inverse.dtype)
    return alive if weight is None else alive.mul_(weight)
