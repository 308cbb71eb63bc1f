"""What a row's distances to all prototypes say of it: energy, memberships, entropy.

Saha et al., ICML 2023, equations 1, 10, 12 and 13. All follow from the logits

    z_μ = -β ‖ρ_μ - x‖² + log ε_μ ,   on the sphere   z_μ = β ρ_μ·x + log ε_μ

of the row itself, over the features seen of it. They are taken in float64, block by block; a row's
digits do not depend on which rows it comes with. Letters: ``B`` rows, ``d`` features, ``k``
prototypes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from clam_dist.models.spherical import inverse_lengths
from clam_dist.models.sums import blocks

BLOCK_ROWS = 2048
"""Rows of every product. Shorter blocks are padded: a product's digits depend on its shape."""


class Reading(Protocol):
    """One of the functions below."""

    def __call__(
        self,
        x: Tensor,
        prototypes: Tensor,
        beta: float,
        log_epsilon: Tensor | None = None,
        observed: Tensor | None = None,
        *,
        spherical: bool = False,
    ) -> Tensor:
        """``(B,)`` or ``(B,k)``."""
        ...


def energies(
    x: Tensor,
    prototypes: Tensor,
    beta: float,
    log_epsilon: Tensor | None = None,
    observed: Tensor | None = None,
    *,
    spherical: bool = False,
) -> Tensor:
    """Energy ``-1/β log Σ_μ ε_μ exp(-β ‖ρ_μ - x‖²)`` of each row (equation 1).

    Parameters
    ----------
    x : Tensor (B,d)
        Rows; what a missing entry holds does not matter, as long as it is finite.
    prototypes : Tensor (k,d)
    beta : float
        Inverse temperature, 1 over squared length (without unit on the sphere).
    log_epsilon : Tensor (k,), optional
        Logarithm of the prototypes' weights (equation 10).
    observed : Tensor (B,d) bool, optional
        False where a value is missing: such features add nothing to a distance.
    spherical : bool
        Cosines for distances (equation 12): ``-1/β log Σ_μ ε_μ exp(β cos)``.

    Returns
    -------
    Tensor (B,) of ``x``'s dtype
        Squared scaled units; on the sphere without unit, and nan for a row of zeros.
    """

    def of(logits: Tensor, squares: Tensor) -> Tensor:
        return squares - torch.logsumexp(logits, 1) / beta

    return _by_block(x, prototypes, beta, log_epsilon, observed, spherical, of, ())


def memberships(
    x: Tensor,
    prototypes: Tensor,
    beta: float,
    log_epsilon: Tensor | None = None,
    observed: Tensor | None = None,
    *,
    spherical: bool = False,
) -> Tensor:
    """Shares ``p = softmax(-β ‖ρ - x‖² + log ε)`` of each row itself (equation 13).

    Parameters
    ----------
    x, prototypes, beta, log_epsilon, observed, spherical
        As in :func:`energies`.

    Returns
    -------
    Tensor (B,k) of ``x``'s dtype
        Each row sums to 1; on the sphere nan for a row of zeros.
    """

    def of(logits: Tensor, _squares: Tensor) -> Tensor:
        return torch.softmax(logits, 1)

    shape = (len(prototypes),)
    return _by_block(x, prototypes, beta, log_epsilon, observed, spherical, of, shape)


def entropies(
    x: Tensor,
    prototypes: Tensor,
    beta: float,
    log_epsilon: Tensor | None = None,
    observed: Tensor | None = None,
    *,
    spherical: bool = False,
) -> Tensor:
    """Entropy ``-Σ_μ p_μ log p_μ`` of each row's :func:`memberships` (equation 13).

    Near 0 a row belongs to one prototype alone, as in a Voronoi partition.

    Parameters
    ----------
    x, prototypes, beta, log_epsilon, observed, spherical
        As in :func:`energies`.

    Returns
    -------
    Tensor (B,) of ``x``'s dtype
        Natural units, 0 … ``log k``; on the sphere nan for a row of zeros.
    """

    def of(logits: Tensor, _squares: Tensor) -> Tensor:
        return entropy(torch.softmax(logits, 1))

    return _by_block(x, prototypes, beta, log_epsilon, observed, spherical, of, ())


def entropy(shares: Tensor) -> Tensor:
    """``-Σ p log p`` over the last axis, in natural units; 0 log 0 is 0."""
    return torch.special.entr(shares).sum(-1)


def _by_block(
    x: Tensor,
    prototypes: Tensor,
    beta: float,
    log_epsilon: Tensor | None,
    observed: Tensor | None,
    spherical: bool,
    of: Callable[[Tensor, Tensor], Tensor],
    shape: tuple[int, ...],
) -> Tensor:
    """``of(logits (B,k), squares (B,))`` of all rows; logits lack ``-β ‖x‖²``, see ``squares``."""
    double = torch.float64
    rows, middle = prototypes.to(double), torch.zeros_like(prototypes[0], dtype=double)
    if spherical:
        rows = rows * inverse_lengths(rows).unsqueeze(1)
    else:  # about their own mean: far from the origin products lose digits
        middle = rows.mean(0)
        rows = rows - middle
    offset = torch.zeros(len(rows), dtype=double, device=x.device)
    offset = offset if log_epsilon is None else offset + log_epsilon
    found = torch.empty((len(x), *shape), dtype=x.dtype, device=x.device)
    for part in blocks(len(x), BLOCK_ROWS):
        count = part.stop - part.start
        block = torch.zeros((BLOCK_ROWS, x.shape[1]), dtype=double, device=x.device)
        seen = torch.ones_like(block)
        if observed is not None:
            seen[:count] = observed[part]
        block[:count] = x[part]
        block.sub_(middle).mul_(seen)
        if spherical:
            inverse = inverse_lengths(block).unsqueeze(1)
            logits = (block * inverse @ rows.T).mul_(beta).add_(offset)
            logits = torch.where(inverse > 0, logits, torch.nan)
            squares = torch.zeros(BLOCK_ROWS, dtype=double, device=x.device)
        else:
            lengths = seen @ rows.square().T
            logits = (2.0 * block @ rows.T).sub_(lengths).mul_(beta).add_(offset)
            squares = block.square().sum(1)
        found[part] = of(logits, squares)[:count].to(x.dtype)
    return found
