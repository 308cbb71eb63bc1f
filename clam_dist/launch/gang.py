"""The life of a gang: seats taken, failures told apart, everything started again together.

Knows neither Dask nor torch: a `Pool` does what must be done on a cluster, so that the logic here
can be tried without one, and in a pretended time.

Every rank of an attempt ends before the next begins, or its worker is left aside until it has. An
attempt has a name of its own; what ranks of an earlier one still send is dropped, so that a stale
rank can change nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clam_dist.errors import RunError
from clam_dist.executor import Event
from clam_dist.launch.attempt import Attempt
from clam_dist.launch.pool import Handle, Patience, Pool
from clam_dist.launch.seat import Outcome, Seat

__all__ = ["TELL_SECONDS", "Handle", "Patience", "Pool", "run_gang"]

TELL_SECONDS = 10.0
"""How often the launcher says that it is still waiting."""
Clock = Callable[[], float]


@dataclass
class Roster:
    """Which workers may be given a rank.

    Attributes
    ----------
    aside : dict
        By worker and process mark, the attempt and rank that are stuck there: not used until that
        rank has ended, or the process is gone.
    busy : set of (worker, mark)
        Never began with a rank they were given: used only where there is nobody else.
    """

    aside: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    busy: set[tuple[str, str]] = field(default_factory=set)

    def usable(self, pool: Pool) -> dict[str, str]:
        """Workers that may be given a rank, with their marks."""
        ready = {w: m for w, m in pool.there(ready=True).items() if (w, m) not in self.aside}
        idle = {w: m for w, m in ready.items() if (w, m) not in self.busy}
        return idle or ready

    def hear(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """A stuck rank that ends after all sets its worker free."""
        for message in messages:
            if message["kind"] == "ended":
                ended = (message["attempt"], message["rank"])
                self.aside = {w: rank for w, rank in self.aside.items() if rank != ended}

    def note(self, attempt: Attempt) -> None:
        """After an attempt: who is stuck, who never began."""
        for rank in attempt.handles:
            place = (attempt.seats[rank].worker, attempt.seats[rank].mark)
            if rank in attempt.stuck and rank not in attempt.gone:
                self.aside[place] = (attempt.name, rank)
            if rank in attempt.lost and rank not in attempt.pids:
                self.busy.add(place)
            else:
                self.busy.discard(place)


def run_gang(
    pool: Pool,
    function: Callable[[Any, Any], Any],
    payload: Any,
    *,
    ranks: int,
    patience: Patience,
    on_event: Callable[[Event], None],
    tell: Callable[[str, str], None],
    most: int | None = None,
    clock: Clock = time.monotonic,
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
        Takes what ranks report; called in this thread. An event ``checkpoint`` says that what came
        before it is kept: there the gang may be started again with more ranks.
    tell : callable
        Takes a level name and a message of the launcher itself.
    most : int, optional
        Ranks to use where more workers have joined when the gang is started again.
    clock : callable
        Seconds on a clock that never goes back; ``pool.messages`` lets it go on.

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
    gang = _Gang(
        pool, (function, payload), ranks, max(ranks, most or ranks), patience, on_event, tell, clock
    )
    return gang.run()


def plan_attempt(workers: Mapping[str, str], pool: Pool, patience: Patience, now: float) -> Attempt:
    """One seat for each worker, in order, under a fresh name."""
    name = uuid.uuid4().hex[:12]
    backend, devices = pool.placement(list(workers))
    seats = []
    for rank, (worker, mark) in enumerate(workers.items()):
        network, threads = pool.seat_details(worker)
        seats.append(
            Seat(
                attempt=name,
                rank=rank,
                world_size=len(workers),
                worker=worker,
                mark=mark,
                network=network,
                threads=threads,
                rendezvous_seconds=patience.rendezvous,
                collective_seconds=patience.collective,
                patient_seconds=patience.patient,
                device=devices[rank],
                backend=backend,
            )
        )
    return Attempt(name, seats, now)


@dataclass
class _Gang:
    """A call of `run_gang`: its arguments, and what it learns of the workers on the way."""

    pool: Pool
    work: tuple[Callable[[Any, Any], Any], Any]
    ranks: int
    most: int
    patience: Patience
    on_event: Callable[[Event], None]
    tell: Callable[[str, str], None]
    clock: Clock
    roster: Roster = field(default_factory=Roster)

    def run(self) -> list[Outcome]:
        """Attempt after attempt until one is done; see `run_gang`."""
        pool, limit = self.pool, self.patience.max_restarts
        cause, restart = "", 0
        while True:
            workers = self.gather(cause)
            attempt = plan_attempt(workers, pool, self.patience, self.clock())
            try:
                self.attend(attempt)
                if not attempt.done:
                    attempt.give_up_on_pending(pool)
            finally:
                for handle in attempt.handles.values():
                    handle.drop()
            if attempt.done:
                return [attempt.outcomes[rank] for rank in range(len(attempt.seats))]
            self.roster.note(attempt)
            if attempt.growing and not attempt.failed:
                continue
            kept = pool.keep_logs(attempt.ends())
            self.raise_if_its_own(attempt, kept)
            cause = attempt.describe_failure() + (f" (logs: {kept})" if kept else "")
            if restart == limit:
                raise RunError(
                    f"gave up after {restart} restarts (cluster.max_restarts); the last cause: "
                    f"{cause}; finished work is kept: run the same command again to resume"
                )
            restart += 1
            self.tell(
                "WARNING",
                f"{cause}; starting all ranks again from the last checkpoint "
                f"(restart {restart} of {limit})",
            )

    def gather(self, cause: str) -> dict[str, str]:
        """The workers of the next attempt with their marks: up to ``most``, at least one.

        Waits ``patience.settle`` for the ``ranks`` that are wanted, and ``patience.wait`` for the
        first.

        Raises
        ------
        RunError
            When none is there in time.
        """
        patience, began = self.patience, self.clock()
        settle, told = min(patience.settle, patience.wait), began
        while True:
            usable, now = self.roster.usable(self.pool), self.clock()
            if len(usable) >= self.ranks or (usable and now - began >= settle):
                return dict(list(usable.items())[: self.most])
            stuck = len(self.pool.there())
            if now - began >= patience.wait:
                there = f"{stuck} worker(s) do not answer, and no other" if stuck else "no worker"
                raise RunError(
                    f"{there} is there, {now - began:.0f} s (cluster.wait) after "
                    f"{cause or 'the start'}; "
                    "start workers and run the same command again: it resumes"
                )
            if now - told > TELL_SECONDS:
                told = now
                self.tell("INFO", f"waiting for a worker ({stuck} there do not answer)")
            self.roster.hear(self.pool.messages(min(0.2, patience.wait / 10)))

    def attend(self, attempt: Attempt) -> None:
        """Start the ranks and wait until all have ended, or ``patience.grace`` after a failure."""
        pool, patience = self.pool, self.patience
        attempt.start(pool, 0, self.work, self.clock())
        told, give_up = self.clock(), 0.0
        while attempt.pending:
            messages = pool.messages(0.5)
            self.roster.hear(messages)
            heard = [attempt.hear(message, self.on_event) for message in messages]
            if attempt.store is not None and len(attempt.handles) == 1 and not attempt.failed:
                for seat in attempt.seats[1:]:
                    attempt.start(pool, seat.rank, self.work, self.clock())
            attempt.collect(pool)
            now = self.clock()
            attempt.give_up_on_silent(pool, patience, now)
            if attempt.failed or attempt.growing:
                # Ranks that are called off while all is well may be in a long call of their own.
                grace = patience.grace if attempt.failed else patience.grace + patience.collective
                give_up = give_up or now + grace
                if now > give_up:
                    break
            elif "checkpoint" in heard and now - attempt.began > patience.grow:
                self._grow(attempt)
            elif now - told > TELL_SECONDS:
                told = now
                late = [s.worker for s in attempt.seats if s.rank not in attempt.pids]
                if late:
                    self.tell("INFO", f"waiting for worker {late[0]}, busy so far")
        # What ranks sent before they ended is heard before anything is made of their end.
        for message in pool.messages(0):
            attempt.hear(message, self.on_event)

    def _grow(self, attempt: Attempt) -> None:
        """Call the ranks off where more workers have joined: all that came before is kept."""
        joined = min(len(self.roster.usable(self.pool)), self.most) - len(attempt.seats)
        if joined > 0 and not attempt.outcomes:
            self.tell("INFO", f"{joined} more worker(s) joined: going on with them from here")
            attempt.growing = True
            for handle in attempt.handles.values():
                handle.drop()

    def raise_if_its_own(self, attempt: Attempt, kept: str) -> None:
        """Raise what a rank's own function raised; the lowest rank's where there are several."""
        for rank, outcome in sorted(attempt.outcomes.items()):
            if outcome.state == "failed":
                error = outcome.error
                assert error is not None
                who = f"rank {rank} on worker {outcome.seat.worker}"
                where = f" (logs: {kept})" if kept else ""
                self.tell("ERROR", f"{who} raised {type(error).__name__}: {error}{where}")
                error.add_note(f"{who}{where}")
                raise error
