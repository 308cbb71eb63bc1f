"""Sums over rows that every training objective returns, and what their kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clam_dist.models.products import Precision, add_product, lower
from clam_dist.models.workspace import Workspace

SPACE = Workspace()
"""Scratch of the training kernels, one set of buffers a thread."""


LINE_ELEMENTS = 1 << 17
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
    entries : Tensor () float64
        Sum of the weights of the scored entries (their number where there are no weights). A
        tensor on the device of the rows, since reading it would wait for the device.
    gradients : dict of str to Tensor (P,...)
        Derivative of ``loss`` by each parameter, in the parameter's dtype.
    """

    loss: Tensor
    entries: Tensor
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
    precision : {'float32', 'tf32', 'bfloat16'}
        Of the products with rows.

    Attributes
    ----------
    rows : Tensor (P,k,d)
        ``R``, contiguous.
    scaled : Tensor (P,k,d)
        ``2 β R``.
    offset : Tensor (P,k)
        ``c = -β g + log ε``, the part of the logits that no row changes.
    """

    def __init__(
        self,
        prototypes: Tensor,
        beta: Tensor,
        log_epsilon: Tensor | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.precision: Precision = precision
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
        self._lowered = lower(self.scaled.view(-1, self.width), precision)

    def lower(self, x: Tensor) -> Tensor:
        """Rows as :meth:`start` and :meth:`gather` take them."""
        return lower(x, self.precision)

    def start(self, x: Tensor, space: Workspace) -> Tensor:
        """Logits ``z_0 = 2 β x_0 R' + c`` of lowered rows ``x (B,d)``, as ``(P,k,B)`` scratch."""
        out = space.take("start", (self.members * self.count, len(x)), self.rows)
        add_product(self.offset.view(-1, 1), self._lowered, x.T, self.precision, out)
        return out.view(self.members, self.count, len(x))

    def gather(self, lines: Tensor, x: Tensor, into: Tensor) -> None:
        """``into (P,k,d) += lines (P,k,B) · x``, the way back of :meth:`start`."""
        flat = into.view(-1, self.width)
        add_product(flat, self.lower(lines.view(len(flat), -1)), x, self.precision, flat)

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


def as_numbers(mask: Tensor, name: str, like: Tensor) -> Tensor:
    """A bool mask as 0 and 1 like ``like``, scratch ``name``; through bytes, which is 8x faster."""
    return SPACE.take(name, mask.shape, like).copy_(mask.view(torch.uint8))


def filled(x: Tensor, observed: Tensor, value: Tensor) -> Tensor:
    """``x (B,d)`` with ``value (d,)`` where it is not observed; 4x faster than ``torch.where``."""
    seen = as_numbers(observed, "observed", x)
    return torch.addcmul(x * seen, 1.0 - seen, value)


def scored_entries(x: Tensor, scored: Tensor | None, weight: Tensor | None) -> Tensor:
    """Summed weight of the scored entries of rows ``x (B,d)``, all by default; ``()`` float64."""
    if scored is not None:
        return total(scored.sum(1), weight)
    if weight is None:
        return torch.full((), x.numel(), dtype=torch.float64, device=x.device)
    return x.shape[1] * weight.sum(dtype=torch.float64)


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
