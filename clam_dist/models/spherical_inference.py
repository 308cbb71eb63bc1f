"""Labels of rows on the sphere: the largest cosine after the recursion, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.inference import BLOCK_ROWS, SPACE, first_greatest
from clam_dist.models.sphere import Gram, last_logits
from clam_dist.models.spherical import inverse_lengths
from clam_dist.models.sums import blocks


def infer_spherical(
    x: Tensor,
    observed: Tensor | None,
    prototypes: Tensor,
    beta: float,
    alpha: float,
    steps: int,
    log_epsilon: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Label each row by the prototype of the largest cosine with ``x_T``.

    ``x_0`` is the normalised row with 0 where a value is missing, and every feature moves. A row's
    result does not depend on which rows it comes with: all go through blocks of one fixed size.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows of any length; what a missing entry holds does not matter, as long as it is finite.
    observed : Tensor (B,d) bool, optional
        False where a value is missing; all seen by default.
    prototypes : Tensor (k,d)
        Of any length.
    beta, alpha, steps
        Inverse temperature, step size, number of steps.
    log_epsilon : Tensor (k,), optional
        Weights in the dynamics; the label is the largest cosine without them.

    Returns
    -------
    labels : Tensor (B,) int64
        -1 for a row without a direction, which shows nothing but zeros.
    distances : Tensor (B,) of ``x``'s dtype
        ``1 - cos``, 0 … 2, between the row and its prototype over the features seen; nan where the
        label is -1.
    """
    rows = prototypes * inverse_lengths(prototypes).unsqueeze(-1)
    betas = torch.full((1, 1, 1), beta, dtype=x.dtype, device=x.device)
    gram = Gram(rows[None], alpha * betas, alpha)
    weights = None if log_epsilon is None else log_epsilon.view(1, -1, 1)
    labels = torch.empty(len(x), dtype=torch.int64, device=x.device)
    distances = torch.empty(len(x), dtype=x.dtype, device=x.device)
    for part in blocks(len(x), BLOCK_ROWS):
        count = part.stop - part.start
        padded = SPACE.take("rows", (BLOCK_ROWS, x.shape[1]), x)
        padded[count:] = 0.0
        padded[:count] = x[part] if observed is None else x[part] * observed[part]
        inverse = inverse_lengths(padded)
        start = torch.mm(beta * rows, padded.T).mul_(inverse).unsqueeze(0)
        final = last_logits(start, gram, betas, alpha, steps, weights, SPACE)[0]
        found = first_greatest(final)
        nearest = torch.index_select(rows, 0, found)
        if observed is not None:
            nearest[:count] *= observed[part]
        cosines = (padded * nearest).sum(1) * inverse * inverse_lengths(nearest)
        lost = inverse == 0
        labels[part] = torch.where(lost, -1, found)[:count]
        distances[part] = torch.where(lost, torch.nan, 1.0 - cosines)[:count]
    return labels, distances
