"""Rows of plain arrays as the tensors that models take.

Letters: ``B`` rows, ``d`` features.
"""

from __future__ import annotations

import numpy as np
import torch


def to_tensors(
    x: np.ndarray, *, has_missing: bool = True, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Split rows into values and what is seen of them.

    Parameters
    ----------
    x
        ``(B, d)`` float32, nan where missing. Shares memory with the result where nothing is
        missing and the device is the CPU.
    has_missing
        False where no value can be missing, which saves looking.
    device
        Where the tensors go.

    Returns
    -------
    values
        ``(B, d)`` float32, 0 where missing.
    observed
        ``(B, d)`` bool, or None where everything is seen.
    """
    rows = torch.from_numpy(x).to(device)
    if not has_missing:
        return rows, None
    observed = ~torch.isnan(rows)
    if bool(observed.all()):
        return rows, None
    return torch.where(observed, rows, torch.zeros((), device=rows.device)), observed
