"""Scratch memory of one thread, kept between calls so that kernels do not page-fault anew."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor


class Workspace(threading.local):
    """Named scratch buffers, one set for each thread that uses the object.

    A buffer grows to the largest size asked for and is reused afterwards; its content is undefined
    when taken. Two buffers taken under different names never overlap.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Contiguous scratch of ``shape`` with the dtype and device of ``like``."""
        size = math.prod(shape)
        key = (name, like.dtype, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=like.dtype, device=like.device)
            self._buffers[key] = buffer
        return buffer[:size].view(tuple(shape))
