"""The life of a gang: seats taken, failures told apart, everything started again together.

Knows neither Dask nor torch: a `Pool` does what must be done on a cluster, so that the logic here
can be tried without one.

Every rank of an attempt ends before the next begins. An attempt has a name of its own; what ranks
of an earlier one still send is dropped, so that a stale rank can change nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from clam_dist.errors import RunError
from clam_dist.executor import Event
from clam_dist.launch.seat import Outcome, Seat

TELL_SECONDS = 10.0
"""How often the launcher says that it is still waiting."""


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
    """What a gang needs of a cluster."""

    def there(self, *, ready: bool = False) -> Sequence[str]:
        """Addresses of the workers that are there, in a fixed order; ready: that take tasks."""
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

    def seat_details(self, worker: str) -> tuple[str, int]:
        """Host that the worker's peers reach it by, and compute threads of a rank there."""
        ...

    def why_lost(self, worker: str) -> str:
        """What is known of the end of a worker, or nothing."""
        ...


@dataclass
class Attempt:
    """One try: its seats, what came of them so far."""

    seats: list[Seat]
    handles: dict[int, Handle] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    """Ranks that ended without an outcome, and why."""
    store: tuple[str, int] | None = None
    pids: dict[int, int] = field(default_factory=dict)
    """Process of each rank that has begun."""

    @property
    def pending(self) -> list[int]:
        """Ranks that have been started and have not ended."""
        return [r for r in self.handles if r not in self.outcomes and r not in self.lost]

    @property
    def failed(self) -> bool:
        """Whether any rank ended otherwise than well."""
        return bool(self.lost) or any(o.state != "done" for o in self.outcomes.values())

    @property
    def done(self) -> bool:
        """Whether every rank ended well."""
        return len(self.outcomes) == len(self.seats) and not self.failed


def run_gang(
    pool: Pool,
    function: Callable[[Any, Any], Any],
    payload: Any,
    *,
    ranks: int,
    patience: Patience,
    on_event: Callable[[Event], None],
    tell: Callable[[str, str], None],
) -> list[Outcome]:
    """Run ``function(collective, payload)`` on up to ``ranks`` workers until all of them are done.

    Parameters
    ----------
    pool : Pool
        Where to run.
    ranks : int
        Ranks wanted, one on each worker; fewer when fewer workers are there.
    patience : Patience
        Time limits and the number of restarts.
    on_event : callable
        Takes what ranks report; called in this thread.
    tell : callable
        Takes a level name and a message of the launcher itself.

    Returns
    -------
    list of Outcome
        In rank order, all of them done.

    Raises
    ------
    RunError
        When no worker is there within ``patience.wait``, or the gang failed once more than
        ``patience.max_restarts`` times for reasons that lie in the cluster.
    Exception
        What a rank's function raised, unchanged: doing the same again would end the same.
    """
    aside: set[str] = set()
    cause = ""
    for restart in range(patience.max_restarts + 1):
        workers = gather_workers(pool, ranks, aside, patience, cause)
        attempt = Attempt(plan_seats(workers, pool.seat_details, patience))
        try:
            _run_attempt(pool, attempt, (function, payload), patience, on_event, tell)
        finally:
            for handle in attempt.handles.values():
                handle.drop()
        if attempt.done:
            return [attempt.outcomes[rank] for rank in range(len(attempt.seats))]
        for rank in attempt.pending:
            # Replaced, a worker has a new address; not replaced, it still hangs.
            aside.add(attempt.seats[rank].worker)
            pool.renew(attempt.seats[rank].worker, attempt.pids.get(rank))
        raise_if_its_own(attempt)
        cause = describe_failure(attempt)
        if restart < patience.max_restarts:
            tell(
                "WARNING",
                f"{cause}; starting all ranks again from the last checkpoint "
                f"(restart {restart + 1} of {patience.max_restarts})",
            )
    raise RunError(
        f"gave up after {patience.max_restarts} restarts (cluster.max_restarts); the last cause: "
        f"{cause}; finished work is kept: run the same command again to resume"
    )


def plan_seats(
    workers: Sequence[str],
    details: Callable[[str], tuple[str, int]],
    patience: Patience,
) -> list[Seat]:
    """One seat for each worker, in order, under a fresh attempt name."""
    attempt = uuid.uuid4().hex[:12]
    seats = []
    for rank, worker in enumerate(workers):
        host, threads = details(worker)
        seats.append(
            Seat(
                attempt=attempt,
                rank=rank,
                world_size=len(workers),
                worker=worker,
                host=host,
                threads=threads,
                rendezvous_seconds=patience.rendezvous,
                collective_seconds=patience.collective,
                patient_seconds=patience.patient,
            )
        )
    return seats


def gather_workers(
    pool: Pool, ranks: int, aside: set[str], patience: Patience, cause: str
) -> list[str]:
    """The workers of the next attempt: up to ``ranks``, at least one.

    Waits ``patience.settle`` for all that are wanted, and ``patience.wait`` for the first.

    Raises
    ------
    RunError
        When none is there in time.
    """
    began = time.monotonic()
    while True:
        there = [worker for worker in pool.there(ready=True) if worker not in aside]
        waited = time.monotonic() - began
        if len(there) >= ranks or (there and waited >= patience.settle):
            return there[:ranks]
        if waited >= patience.wait:
            raise RunError(
                f"no worker is there, {waited:.0f} s (cluster.wait) after {cause or 'the start'}; "
                "start workers and run the same command again: it resumes"
            )
        pool.messages(min(0.2, patience.wait / 10))


def _run_attempt(
    pool: Pool,
    attempt: Attempt,
    work: tuple[Any, Any],
    patience: Patience,
    on_event: Callable[[Event], None],
    tell: Callable[[str, str], None],
) -> None:
    """Start the ranks and wait until all have ended, or ``patience.grace`` after a failure."""
    attempt.handles[0] = pool.start(attempt.seats[0], None, work)
    began = told = time.monotonic()
    give_up: float | None = None
    while attempt.pending:
        for message in pool.messages(0.5):
            _hear(attempt, message, on_event)
        if attempt.store is not None and len(attempt.handles) == 1 and not attempt.failed:
            for seat in attempt.seats[1:]:
                attempt.handles[seat.rank] = pool.start(seat, attempt.store, work)
        _collect(pool, attempt)
        now = time.monotonic()
        if any(pool.silence(attempt.seats[r].worker) > patience.silent for r in attempt.pending):
            break
        if attempt.failed:
            give_up = give_up or now + patience.grace
            if now > give_up:
                break
        elif attempt.store is None and len(attempt.seats) > 1:
            if now - began > patience.rendezvous:
                break
            if now - told > TELL_SECONDS:
                told = now
                tell("INFO", f"waiting for worker {attempt.seats[0].worker}, busy so far")
    # What ranks sent before they ended is heard before anything is made of their end.
    for message in pool.messages(0):
        _hear(attempt, message, on_event)


def _hear(attempt: Attempt, message: Mapping[str, Any], on_event: Callable[[Event], None]) -> None:
    """Take a message of this attempt's ranks; drop what earlier ones still send."""
    if message.get("attempt") != attempt.seats[0].attempt:
        return
    if message["kind"] == "report":
        on_event(json.loads(message["event"]))
    elif message["kind"] == "begun":
        attempt.pids[message["rank"]] = message["pid"]
    elif message["kind"] == "store":
        host, port = message["address"]
        attempt.store = (host, port)


def _collect(pool: Pool, attempt: Attempt) -> None:
    """Note ranks that have ended, and ranks whose worker is gone."""
    pending = attempt.pending
    there = set(pool.there()) if pending else set()
    for rank in pending:
        ended = attempt.handles[rank].outcome()
        if isinstance(ended, Outcome):
            attempt.outcomes[rank] = ended
        elif ended is not None:
            attempt.lost[rank] = f"could not be run: {type(ended).__name__}: {ended}"
        elif attempt.seats[rank].worker not in there:
            told = pool.why_lost(attempt.seats[rank].worker)
            attempt.lost[rank] = "was lost" + (f" ({told})" if told else "")


def raise_if_its_own(attempt: Attempt) -> None:
    """Raise what a rank's own function raised; the lowest rank's where there are several."""
    for _, outcome in sorted(attempt.outcomes.items()):
        if outcome.state == "failed":
            assert outcome.error is not None
            outcome.error.add_note(f"rank {outcome.seat.rank} on worker {outcome.seat.worker}")
            raise outcome.error


def describe_failure(attempt: Attempt) -> str:
    """One line: which workers, and what happened; the likeliest cause first."""
    told = [f"worker {attempt.seats[r].worker} {why}" for r, why in sorted(attempt.lost.items())]
    if not told:
        told = [
            f"worker {attempt.seats[rank].worker} did not answer any more"
            for rank in attempt.pending
        ]
    if not told:
        told = [
            f"rank {rank} on worker {outcome.seat.worker}: {outcome.error or 'was run elsewhere'}"
            for rank, outcome in sorted(attempt.outcomes.items())
            if outcome.state != "done"
        ][:1]
    return "; ".join(told)
