"""Labels of rows: InferClAM (Saha et al., ICML 2023, Algorithm 2) in k-space, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.dynamics import Coupling, SharedCoupling, settle
from clam_dist.models.rowwise import RowCoupling
from clam_dist.models.sums import Prototypes
from clam_dist.models.workspace import Workspace

BLOCK_ROWS = 1024
"""Rows of every product. Shorter blocks are padded: a product's digits depend on its shape."""

SPACE = Workspace()


def infer(
    x: Tensor,
    observed: Tensor | None,
    prototypes: Tensor,
    beta: float,
    alpha: float,
    steps: int,
    value: Tensor,
    clamp: bool,
    log_epsilon: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Label each row by the prototype nearest to ``x_T``, nothing hidden but what is missing.

    A row's result does not depend on which rows it comes with: rows go through blocks of one
    fixed size, complete and incomplete rows apart where they are computed differently.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows; what a missing entry holds does not matter, as long as it is finite.
    observed : Tensor (B,d) bool, optional
        False where a value is missing; all seen by default.
    prototypes : Tensor (k,d)
    beta, alpha, steps
        Inverse temperature, step size, number of steps.
    value : Tensor (d,)
        Where missing features start.
    clamp : bool
        In incomplete rows only the missing features move, rather than all.
    log_epsilon : Tensor (k,), optional
        Weights in the dynamics; the label is the nearest prototype without them.

    Returns
    -------
    labels : Tensor (B,) int64
    distances : Tensor (B,) of ``x``'s dtype
        Euclidean distance from the row to its prototype over the features seen.
    """
    labels = torch.empty(len(x), dtype=torch.int64, device=x.device)
    distances = torch.empty(len(x), dtype=x.dtype, device=x.device)
    weights = None if log_epsilon is None else log_epsilon[None]
    held = Prototypes(prototypes[None], torch.full((1,), beta, dtype=x.dtype), weights)
    value = value.to(x.dtype)
    if observed is None:
        everything = [(slice(0, len(x)), False)]
    elif clamp:
        whole = observed.all(1)
        everything = [(whole.nonzero()[:, 0], False), ((~whole).nonzero()[:, 0], True)]
    else:
        everything = [(slice(0, len(x)), False)]
    gram = torch.bmm(held.rows, held.rows.transpose(1, 2))
    shared = SharedCoupling(2.0 * held.beta * gram + held.offset.unsqueeze(-1))
    for rows, own in everything:
        part, seen = x[rows], None if observed is None else observed[rows]
        found = [
            _block(
                part[i : i + BLOCK_ROWS],
                None if seen is None else seen[i : i + BLOCK_ROWS],
                held,
                shared,
                alpha,
                steps,
                value,
                own,
                log_epsilon,
            )
            for i in range(0, len(part), BLOCK_ROWS)
        ]
        if found:
            labels[rows] = torch.cat([label for label, _ in found])
            distances[rows] = torch.cat([distance for _, distance in found])
    return labels, distances


def _block(
    x: Tensor,
    observed: Tensor | None,
    held: Prototypes,
    shared: SharedCoupling,
    alpha: float,
    steps: int,
    value: Tensor,
    clamp: bool,
    log_epsilon: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One block of at most ``BLOCK_ROWS`` rows, padded to that many."""
    rows = len(x)
    padded = SPACE.take("rows", (BLOCK_ROWS, held.width), x)
    padded[rows:] = 0.0
    if observed is None:
        padded[:rows] = x
    else:
        torch.where(observed, x, value, out=padded[:rows])
    coupling: Coupling = shared
    if clamp and observed is not None:
        moving = torch.zeros((held.width, BLOCK_ROWS), dtype=x.dtype, device=x.device)
        moving[:, :rows] = ~observed.T
        coupling = RowCoupling(held.scaled, held.rows - value, moving, SPACE)
    start = held.start(padded, SPACE)
    logits = settle(start, coupling, alpha, steps, not clamp, SPACE)[0]
    if log_epsilon is not None:
        logits = logits - log_epsilon.unsqueeze(-1)
    labels = logits[:, :rows].argmax(0)
    difference = x - held.rows[0].index_select(0, labels)
    if observed is not None:
        difference.mul_(observed)
    return labels, difference.square().sum(1).sqrt_()
