"""Everything in this process, one item after another: the reference that every executor equals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from clam_dist.executor import Collective, Event, Item, Result
from clam_dist.launch import machine
from clam_dist.launch.devices import Facts, visible


class SerialExecutor:
    """Runs maps in a loop and gangs as the one rank of a world of one.

    Parameters
    ----------
    threads : int, optional
        Compute threads the rank of a gang may use side by side; all usable cores by default.
    """

    workers = 1

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or machine.usable_cores()
        self._facts: Facts | None = None

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """``cuda`` where this process sees a GPU."""
        self._facts = self._facts or visible()
        return "cuda" if self._facts.gpus else "cpu"

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        in_flight: int | None = None,
    ) -> Iterator[Result]:
        """Yield ``function(item)`` in the order of ``items``; see ``clam_dist.executor``."""
        if in_flight is not None and in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, got {in_flight}")
        return map(function, items)

    def gang(
        self,
        function: Callable[[Collective, Any], Result],
        payload: Any,
        *,
        world_size: int | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> list[Result]:
        """Run ``function`` as rank 0 of 1, whatever ``world_size`` allows at most."""
        # torch is imported with the collectives: a run that only maps does not pay for it.
        from clam_dist.launch.collectives import LocalCollective

        if world_size is not None and world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")

        def send(event: str) -> None:
            if on_event is not None:
                on_event(json.loads(event))

        collective = LocalCollective(threads=self.threads, send=send, device=self.device)
        return [function(collective, payload)]

    def peak_rss_bytes(self) -> dict[str, int]:
        """Peak resident memory of this process in bytes, as ``driver``."""
        return {"driver": machine.peak_rss_bytes()}

    def close(self) -> None:
        """Do nothing: no process was started."""
