"""What models of latents share: passes in padded blocks, and prototypes placed among latents.

Letters: ``B`` rows, ``d`` features, ``m`` numbers of a latent, ``k`` prototypes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from clam_dist.models.seeding import starts
from clam_dist.models.sums import blocks

BLOCK_ROWS = 256
"""Rows of every pass of inference. Shorter blocks are padded: a product's or a convolution's
digits depend on its shape."""

TRIES = 10
"""Runs of k-means that prototypes are chosen from."""


def padded_blocks(
    function: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    observed: Tensor | None,
    width: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``function`` of rows in blocks of one size, without gradients.

    A row's result does not depend on which rows it comes with.

    Parameters
    ----------
    function
        Of ``(BLOCK_ROWS,d)`` rows and what is seen of them, to ``(BLOCK_ROWS,width)``; each row of
        its result depends on that row alone.
    x : Tensor (B,d)
    observed : Tensor (B,d) bool, optional
    width : int
    dtype : torch.dtype, optional
        Of the result; that of ``x`` where None.

    Returns
    -------
    Tensor (B,width)
    """
    found = torch.empty((len(x), width), dtype=dtype or x.dtype, device=x.device)
    with torch.no_grad():
        for part in blocks(len(x), BLOCK_ROWS):
            count = part.stop - part.start
            rows = x.new_zeros((BLOCK_ROWS, x.shape[1]))
            rows[:count] = x[part]
            seen = None
            if observed is not None:
                seen = observed.new_ones(rows.shape)
                seen[:count] = observed[part]
            found[part] = function(rows, seen)[:count]
    return found


def best_kmeans(z: Tensor, weight: Tensor | None, k: int, seed: int) -> tuple[Tensor, float]:
    """Prototypes by k-means, the run of least inertia of :data:`TRIES`.

    Parameters
    ----------
    z : Tensor (B,m)
    weight : Tensor (B,), optional
        Row weights.
    k, seed : int

    Returns
    -------
    prototypes : Tensor (k,m) like ``z``
    inertia : float
        Weighted mean squared distance of rows to their prototypes, in squared units of ``z``.
    """
    rows = z.cpu().numpy().astype(np.float32)
    weights = None if weight is None else weight.cpu().numpy()
    tries, _ = starts(rows, weights, k, TRIES, "kmeans", seed)
    inertias = [_inertia(rows, weights, prototypes) for prototypes in tries]
    least = int(np.argmin(inertias))
    return torch.from_numpy(tries[least]).to(z), inertias[least]


def _inertia(z: np.ndarray, weight: np.ndarray | None, prototypes: np.ndarray) -> float:
    squared = np.full(len(z), np.inf)
    for prototype in prototypes:
        np.minimum(squared, np.square(z - prototype).sum(1, dtype=np.float64), out=squared)
    return float(np.average(squared, weights=weight))
