"""Rows of plain arrays as the tensors that models take.

Letters: ``B`` rows, ``d`` features.
"""

from __future__ import annotations

import numpy as np
import torch

CACHE_LINE = 64
"""Bytes."""


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
    rows, target = torch.from_numpy(x), torch.device(device)
    if not has_missing:
        return upload(rows, target), None
    # On the host: what is missing decides there which forms are taken.
    observed = ~torch.isnan(rows)
    if bool(observed.all()):
        return upload(rows, target), None
    return upload(torch.where(observed, rows, 0.0), target), upload(observed, target)


def aligned(values: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it begins at a cache line, else a copy that does.

    A product's last digits can depend on where in a cache line its rows begin.
    """
    return values if values.data_ptr() % CACHE_LINE == 0 else values.clone()


def upload(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on ``device``, without waiting for what the device is doing.

    From ordinary memory a copy to a CUDA device waits for the device's queue; from pinned memory it
    joins that queue.
    """
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
