"""What a gang needs of a cluster, and how long it waits for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from clam_dist.launch.seat import Network, Outcome, Seat

MOST_WORKERS = 4096
"""More than anyone has tried; a number beyond it is a slip of the pen."""


@dataclass(frozen=True)
class Patience:
    """How long a gang waits for what, in seconds; and how often it starts again.

    Attributes
    ----------
    wait : float
        For a worker to be there at all.
    settle : float
        After a failure, for lost workers to come back, while others are there.
    grace : float
        After a failure, for the remaining ranks to end by themselves.
    rendezvous : float
        For all ranks of an attempt to come: a worker may be busy with another run's task.
    collective : float
        For an ``all_gather``.
    patient : float
        For the other collective calls, before which rank 0 may work alone.
    silent : float
        For a sign of life of a worker; long calls that hold the interpreter's lock give none.
    grow : float
        An attempt that has run this long is started again with more ranks, at a checkpoint, when
        workers have joined that it does not use.
    max_restarts : int
        Times a gang is started again after a failure.
    """

    wait: float = 120.0
    settle: float = 5.0
    grace: float = 10.0
    rendezvous: float = 600.0
    collective: float = 60.0
    patient: float = 600.0
    silent: float = 90.0
    grow: float = 60.0
    max_restarts: int = 5


class Handle(Protocol):
    """A rank that was started."""

    def outcome(self) -> Outcome | BaseException | None:
        """How it ended; an exception when the cluster could not run it; None while it runs."""
        ...

    def drop(self) -> None:
        """Tell the cluster that nobody waits for it any more."""
        ...


class Pool(Protocol):
    """A cluster, seen by a gang. A worker is named by its address.

    Nothing here waits but ``messages``, so that a test can put its own time in place of the
    machine's.
    """

    def there(self, *, ready: bool = False) -> Mapping[str, str]:
        """The workers that are there, in a fixed order, and a mark of each one's process.

        A worker that was lost and came back at the same address has another mark. ``ready``: only
        those that may be given a rank.
        """
        ...

    def start(self, seat: Seat, store: tuple[str, int] | None, work: tuple[Any, Any]) -> Handle:
        """Start a rank on its seat's worker; ``work`` is (function, payload)."""
        ...

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        """What ranks sent since the last call; waits up to ``seconds`` for something to happen."""
        ...

    def renew(self, worker: str, pid: int | None) -> None:
        """Kill a worker that no longer answers, where it is ours to kill and replace.

        ``pid`` is its process, where its rank has told it.
        """
        ...

    def silence(self, worker: str) -> float:
        """Seconds since the last sign of life of a worker that is there."""
        ...

    def seat_details(self, worker: str) -> tuple[Network, int]:
        """Where a rank there listens for its peers, and its compute threads."""
        ...

    def placement(self, workers: Sequence[str]) -> tuple[Literal["nccl", "gloo"], list[str]]:
        """What the ranks on these workers, in order, speak over, and each one's device."""
        ...

    def why_lost(self, worker: str) -> str:
        """What is known of the end of a worker, or nothing."""
        ...

    def keep_logs(self, ends: Sequence[tuple[Seat, str]]) -> str:
        """Keep the last lines of a failed attempt's workers, each with how its rank ended.

        Returns where they lie, or nothing.
        """
        ...
