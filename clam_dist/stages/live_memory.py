"""What a function holds at its peak, found by walking it on torch's meta device.

There tensors have shapes and no numbers: a pass through any network, and back, is walked in
milliseconds, and every tensor that it makes is counted from when it is made to when nothing refers
to it any more, as allocators do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts the tensors made while it is entered, on the calling thread.

    Attributes
    ----------
    held, most : int
        Bytes of those that live, and the most there were at any time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation and count the memory of what it gives."""
        given = {*_storages(args), *_storages(kwargs)}
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, Tensor):
                self._count(value, given)
        return found

    def _count(self, value: Tensor, given: set[int]) -> None:
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._known or key in given:  # a view, also of what was there before
            return
        size = storage.nbytes()
        self._known.add(key)
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._leave, key, size).atexit = False

    def _leave(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size


def peak_bytes(function: Callable[[], Any]) -> int:
    """The most that a function's tensors take at any time, what it returns included."""
    with Live() as live:
        kept = function()
    del kept
    return live.most


def like(shapes: Mapping[str, torch.Size], members: int, device: str) -> dict[str, Tensor]:
    """Parameters of so many members, by name and shape of one."""
    return {name: torch.zeros((members, *shape), device=device) for name, shape in shapes.items()}


def _storages(values: Any) -> set[int]:
    leaves = tree_leaves(values)
    return {v.untyped_storage()._cdata for v in leaves if isinstance(v, Tensor)}
