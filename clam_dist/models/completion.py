"""Missing values filled by where the recursion takes them, block by block.

Letters as in :mod:`clam_dist.models.dynamics`; ``c`` the columns in which a block has any missing
value. Only missing features move, from ``v``, so the state is known by ``y = m̄ ⊙ (x_t - v)`` on
those columns, and the logits follow from it without the others:

    z_t = z_0 + 2 β R y_t ,    y_{t+1} = y_t + α (m̄ ⊙ (R - v)' w_t - y_t) ,    y_0 = 0

so a step costs ``2 k c`` multiply-adds a row, however many features are seen.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_ROWS = 2048


def complete(
    x: Tensor,
    observed: Tensor,
    prototypes: Tensor,
    beta: float,
    alpha: float,
    steps: int,
    value: Tensor,
    *,
    objective: str,
    log_epsilon: Tensor | None = None,
) -> Tensor:
    """Rows with their missing entries filled and all others as they are.

    Under objective (9) the fill is ``x_T`` itself, which training compares with the hidden truth.
    Under (8) it is ``w_T R``, the mixture of prototypes that ``x_T`` is drawn to: ``x_T`` would
    keep the share ``(1-α)^T`` of the arbitrary start.

    Parameters
    ----------
    x : Tensor (B,d)
        Scaled rows; what a missing entry holds does not matter, as long as it is finite.
    observed : Tensor (B,d) bool
        False where a value is missing.
    prototypes : Tensor (k,d)
    beta, alpha, steps
        Inverse temperature, step size, number of steps.
    value : Tensor (d,)
        ``v``, where missing features start.
    objective : {'masked', 'unmasked'}
        What the prototypes were trained for.
    log_epsilon : Tensor (k,), optional
        Logarithm of the prototypes' weights (equation 10).

    Returns
    -------
    Tensor (B,d)
    """
    value = value.to(x.dtype).expand(x.shape[1])
    scaled = 2.0 * beta * prototypes
    offset = -beta * prototypes.square().sum(1)
    if log_epsilon is not None:
        offset = offset + log_epsilon
    result = torch.where(observed, x, value)
    for rows, seen in zip(result.split(BLOCK_ROWS), observed.split(BLOCK_ROWS), strict=True):
        missing = ~seen
        columns = missing.any(0).nonzero()[:, 0]
        if len(columns) == 0:
            continue
        moving = missing[:, columns].T.to(x.dtype)  # (c,B)
        start = torch.addmm(offset.unsqueeze(1), scaled, rows.T)  # (k,B)
        left, right = scaled[:, columns], prototypes[:, columns]
        shifted = right - value[columns]
        moved = torch.zeros_like(moving)
        logits = start
        for _ in range(steps):
            pull = shifted.T @ torch.softmax(logits, 0)
            moved = torch.lerp(moved, pull.mul_(moving), alpha)
            logits = torch.addmm(start, left, moved)
        if objective == "masked":
            fill = value[columns].unsqueeze(1) + moved
        else:
            fill = right.T @ torch.softmax(logits, 0)
        # a view of the result, filled in place
        rows[:, columns] = torch.where(missing[:, columns], fill.T, rows[:, columns])
    return result
