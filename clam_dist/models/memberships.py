"""Memberships of rows where the recursion takes them: the probabilities behind the labels.

A label is the prototype nearest to ``x_T`` (Saha et al., ICML 2023, InferClAM), without weights.
Its probabilities are therefore ``softmax(-β ‖ρ - x_T‖²)``, without weights too: the softmax keeps
the order of its logits, and these are the very ones that labelling compares, from the same products
over blocks of the same size. Only rounding could make two unequal logits into equal shares; then
the label's is raised by its last digit, so that the first greatest share is always the label's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.couplings import Coupling, FactoredCoupling, couple
from clam_dist.models.dynamics import settle
from clam_dist.models.inference import BLOCK_ROWS, SPACE, first_greatest
from clam_dist.models.sphere import Gram, last_logits
from clam_dist.models.spherical import inverse_lengths
from clam_dist.models.sums import Prototypes, blocks


def settled_memberships(
    x: Tensor,
    observed: Tensor | None,
    prototypes: Tensor,
    beta: float,
    alpha: float,
    steps: int,
    value: Tensor,
    clamp: bool,
    log_epsilon: Tensor | None = None,
) -> Tensor:
    """Shares ``softmax(-β ‖ρ - x_T‖²)``, nothing hidden but what is missing.

    Parameters
    ----------
    x, observed, prototypes, beta, alpha, steps, value, clamp, log_epsilon
        As :func:`clam_dist.models.inference.infer` takes them.

    Returns
    -------
    Tensor (B,k) of ``x``'s dtype
        The greatest of each row, the first of equals, is at the label that ``infer`` gives.
    """
    weights = None if log_epsilon is None else log_epsilon[None]
    betas = torch.full((1,), beta, dtype=x.dtype, device=x.device)
    held = Prototypes(prototypes[None], betas, weights)
    value = value.to(x.dtype).expand(x.shape[1])
    shared, shifted = couple(*held.all_move()), held.rows - value
    found = torch.empty((len(x), len(prototypes)), dtype=x.dtype, device=x.device)
    for rows, own in _parts(len(x), observed if clamp else None, x.device):
        count = len(x[rows])
        padded = SPACE.take("rows", (BLOCK_ROWS, held.width), x)
        padded[count:] = 0.0
        padded[:count] = x[rows]
        coupling: Coupling = shared
        if observed is not None and (own or not clamp):
            seen = observed[rows]
            padded[:count] = torch.where(seen, padded[:count], value)
            if own:
                moving = torch.zeros((held.width, BLOCK_ROWS), dtype=x.dtype, device=x.device)
                moving[:, :count] = ~seen.T
                coupling = FactoredCoupling(held.scaled, shifted, moving)
        start = held.start(padded, SPACE)
        logits = settle(start, coupling, alpha, steps, not own, SPACE)[0]
        if log_epsilon is not None:
            logits = logits - log_epsilon.unsqueeze(-1)
        found[rows] = _shares(logits)[:, :count].T
    return found


def settled_spherical_memberships(
    x: Tensor,
    observed: Tensor | None,
    prototypes: Tensor,
    beta: float,
    alpha: float,
    steps: int,
    log_epsilon: Tensor | None = None,
) -> Tensor:
    """Shares ``softmax(β cos)`` of the cosines of prototypes with ``x_T`` (equation 12).

    Parameters
    ----------
    x, observed, prototypes, beta, alpha, steps, log_epsilon
        As :func:`clam_dist.models.spherical_inference.infer_spherical` takes them.

    Returns
    -------
    Tensor (B,k) of ``x``'s dtype
        The greatest of each row is at its label; nan for a row of zeros, which has none.
    """
    rows = prototypes * inverse_lengths(prototypes).unsqueeze(-1)
    betas = torch.full((1, 1, 1), beta, dtype=x.dtype, device=x.device)
    gram = Gram(rows[None], alpha * betas, alpha)
    weights = None if log_epsilon is None else log_epsilon.view(1, -1, 1)
    found = torch.empty((len(x), len(prototypes)), dtype=x.dtype, device=x.device)
    for part in blocks(len(x), BLOCK_ROWS):
        count = part.stop - part.start
        padded = SPACE.take("rows", (BLOCK_ROWS, x.shape[1]), x)
        padded[count:] = 0.0
        padded[:count] = x[part] if observed is None else x[part] * observed[part]
        inverse = inverse_lengths(padded)
        start = torch.mm(beta * rows, padded.T).mul_(inverse).unsqueeze(0)
        final = last_logits(start, gram, betas, alpha, steps, weights, SPACE)[0]
        shares = torch.where(inverse > 0, _shares(final), torch.nan)
        found[part] = shares[:, :count].T
    return found


def _parts(
    rows: int, observed: Tensor | None, device: torch.device
) -> list[tuple[slice | Tensor, bool]]:
    """Blocks of complete rows, then of incomplete ones, as labelling cuts them."""
    if observed is None:
        return [(part, False) for part in blocks(rows, BLOCK_ROWS)]
    numbers = torch.arange(rows, device=device)
    whole = observed.all(1)
    found: list[tuple[slice | Tensor, bool]] = []
    for own, kept in ((False, whole), (True, ~whole)):
        found += [(part, own) for part in numbers[kept].split(BLOCK_ROWS) if len(part)]
    return found


def _shares(logits: Tensor) -> Tensor:
    """Softmax of ``(k,B)`` whose first greatest is the logits'."""
    labels = first_greatest(logits)
    shares = torch.softmax(logits, 0)
    greatest = shares.gather(0, labels.unsqueeze(0))
    tied = first_greatest(shares) != labels
    raised = torch.nextafter(greatest, torch.full_like(greatest, 2.0))
    return shares.scatter_(0, labels.unsqueeze(0), torch.where(tied, raised, greatest))
