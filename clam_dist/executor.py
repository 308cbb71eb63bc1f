"""The two Protocols that stages know of: who maps work over items, and who speaks between ranks.

Implemented in ``clam_dist.launch``. The serial executor is the reference; every other equals it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
Event = Mapping[str, Any]


class Collective(Protocol):
    """How one rank speaks with the others. Every rank makes the same calls in the same order."""

    rank: int
    world_size: int
    threads: int
    """Compute threads this rank may use side by side, each at one intra-op thread."""
    device: str
    """Where this rank may compute: ``cpu``, or the GPU given to it (``cuda`` or ``cuda:N``)."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Stack every rank's ``tensor`` (same shape and dtype everywhere) in rank order.

        Returns shape ``(world_size, *tensor.shape)``, a new tensor on the same device.
        """
        ...

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's JSON-serialisable ``value``, on every rank; the others' argument is ignored."""
        ...

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor (same shape and dtype everywhere) on every rank."""
        ...

    def barrier(self) -> None:
        """Return once every rank has called it."""
        ...

    def report(self, event: Event) -> None:
        """Send a JSON-serialisable event to the driver's ``on_event``; in order, not waiting."""
        ...


class Executor(Protocol):
    """Runs plain functions over items, and gangs of ranks."""

    workers: int
    """Processes that work side by side; 1 for the serial executor."""

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """``cuda`` where every process that may be given a rank sees a GPU."""
        ...

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        in_flight: int | None = None,
    ) -> Iterator[Result]:
        """Yield ``function(item)`` in the order of ``items``.

        ``function`` is a module-level function or a ``functools.partial`` of one; it must be
        idempotent (it may run twice when a worker is lost). At most ``in_flight`` items are being
        worked on or waiting to be yielded (default: twice the workers). An exception raised by
        the function is raised here unchanged, the rest cancelled.
        """
        ...

    def gang(
        self,
        function: Callable[[Collective, Any], Result],
        payload: Any,
        *,
        world_size: int | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> list[Result]:
        """Run ``function(collective, payload)`` once on each of ``world_size`` ranks at most.

        Fewer where fewer workers are there; ``world_size`` may be more than ``workers``, for
        workers that join later. Returns the results in rank order: so many ranks there were in
        the end. ``function`` is module-level; it must begin from the
        last published checkpoint, for a gang that lost a rank is launched again as a whole, on
        whoever is there then. A reported event ``{"event": "checkpoint", …}`` says that what came
        before it is kept once ``on_event`` has returned: there a gang may be launched again with
        more ranks, where workers have joined.
        """
        ...

    def peak_rss_bytes(self) -> dict[str, int]:
        """Peak resident memory (VmHWM) in bytes of the driver and each worker, by name."""
        ...

    def close(self) -> None:
        """Stop everything this executor started."""
        ...
