"""Sums over rows that every training objective returns, and what their kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clam_dist.models.workspace import Workspace

SPACE = Workspace()
"""Scratch of the training kernels, one set of buffers a thread."""


LINE_ELEMENTS = 1 << 16
"""Elements of a block's largest scratch array: below, calls cost more than they compute."""

ROW_ELEMENTS = 1 << 20
"""Elements of a block's rows, so that the second product finds them in cache."""


@dataclass
class Sums:
    """Loss and gradients summed over rows; divide by ``entries`` summed over the global batch.

    Parameters
    ----------
    loss : Tensor (P,) float64
        Sum over rows and scored entries of ``weight · (x - x_T)²``, in squared units of ``x``.
    entries : float
        Sum of the weights of the scored entries (their number where there are no weights).
    gradients : dict of str to Tensor (P,...)
        Derivative of ``loss`` by each parameter, in the parameter's dtype.
    """

    loss: Tensor
    entries: float
    gradients: dict[str, Tensor]

    def __add__(self, other: Sums) -> Sums:
        """Sums over the rows of both."""
        return Sums(
            self.loss + other.loss,
            self.entries + other.entries,
            {name: value + other.gradients[name] for name, value in self.gradients.items()},
        )


class Prototypes:
    """Members' prototypes with all that depends on them alone, and their gradient in the making.

    Parameters
    ----------
    prototypes : Tensor (P,k,d)
    beta : Tensor (P,)
        Inverse temperature of each member, 1 over squared length.
    log_epsilon : Tensor (P,k), optional
        Logarithm of the prototypes' weights (equation 10).

    Attributes
    ----------
    rows : Tensor (P,k,d)
        ``R``, contiguous.
    scaled : Tensor (P,k,d)
        ``2 β R``.
    offset : Tensor (P,k)
        ``c = -β g + log ε``, the part of the logits that no row changes.
    """

    def __init__(self, prototypes: Tensor, beta: Tensor, log_epsilon: Tensor | None = None) -> None:
        self.rows = prototypes.contiguous()
        self.members, self.count, self.width = prototypes.shape
        self.beta = beta.to(prototypes.dtype).view(-1, 1, 1)
        self.weighted = log_epsilon is not None
        self.scaled = 2.0 * self.beta * self.rows
        self.offset = -self.beta[:, :, 0] * self.rows.square().sum(-1)
        if log_epsilon is not None:
            self.offset = self.offset + log_epsilon
        self.offset_gradient = torch.zeros_like(self.offset)
        self.gradient = torch.zeros_like(self.rows)

    def start(self, x: Tensor, space: Workspace) -> Tensor:
        """Logits ``z_0 = 2 β x_0 R' + c`` of rows ``x (B,d)``, as ``(P,k,B)`` scratch."""
        out = space.take("start", (self.members * self.count, len(x)), self.rows)
        torch.addmm(self.offset.view(-1, 1), self.scaled.view(-1, self.width), x.T, out=out)
        return out.view(self.members, self.count, len(x))

    def all_move(self) -> tuple[Tensor, Tensor]:
        """Factors of the coupling where all features move: ``[2βR, c]`` and ``[R, 1]``."""
        left = torch.cat([self.scaled, self.offset.unsqueeze(-1)], 2)
        ones = torch.ones_like(self.offset).unsqueeze(-1)
        return left, torch.cat([self.rows, ones], 2)

    def gradients(self) -> dict[str, Tensor]:
        """By name; ``c`` is taken back to ``g = ‖ρ‖²`` and ``log ε``."""
        pull = (2.0 * self.beta) * self.offset_gradient.unsqueeze(-1)
        found = {"prototypes": self.gradient - pull * self.rows}
        if self.weighted:
            found["log_epsilon"] = self.offset_gradient
        return found


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` rows, the same for the same number of rows."""
    for first in range(0, rows, size):
        yield slice(first, min(first + size, rows))


def block_rows(lines: int, width: int) -> int:
    """Rows of a block, a multiple of 64, the same for the same sizes.

    Parameters
    ----------
    lines : int
        Lines of rows in a block's largest scratch array.
    width : int
        Features ``d``.
    """
    rows = min(LINE_ELEMENTS // max(lines, 1), ROW_ELEMENTS // max(width, 1))
    return max(64, rows // 64 * 64)


def weigh(values: Tensor, weight: Tensor | None) -> Tensor:
    """``values (..., B)`` times ``weight (B,)`` in place."""
    return values if weight is None else values.mul_(weight)


def total(rows: Tensor, weight: Tensor | None) -> Tensor:
    """Weighted sum over the last axis in float64: ``(..., B)`` to ``(...)``."""
    if weight is None:
        return rows.sum(-1, dtype=torch.float64)
    return rows.to(torch.float64) @ weight.to(torch.float64)


def weighted_squares(error: Tensor, weight: Tensor | None) -> Tensor:
    """``Σ weight · error²`` of each problem in float64, and ``error ← weight · error`` in place.

    Parameters
    ----------
    error : Tensor (..., B)
        Contiguous; all axes but the last two are problems.
    weight : Tensor, optional
        Non-negative, broadcasts against ``error``.

    Returns
    -------
    Tensor (n,) float64
        One sum for each of the ``n`` problems.
    """
    root = None if weight is None else weight.sqrt()
    if root is not None:
        error.mul_(root)
    norms = torch.linalg.vector_norm(error.flatten(-2), dim=-1)  # one pass, no temporary
    if root is not None:
        error.mul_(root)
    return norms.to(torch.float64).square_().flatten()
