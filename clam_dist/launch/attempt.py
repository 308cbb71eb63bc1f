"""One try of a gang: its seats, what its ranks say, and how each of them ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clam_dist.executor import Event
from clam_dist.launch.pool import Handle, Patience, Pool
from clam_dist.launch.seat import Outcome, Seat


@dataclass
class Attempt:
    """A try's seats and what came of them so far.

    Attributes
    ----------
    name : str
        Unique; ranks send it with all they say, and what others' ranks say is dropped.
    began : float
        On the gang's clock.
    outcomes : dict of int to Outcome
        Of ranks that ended and told how.
    lost : dict of int to str
        Ranks that ended otherwise, or are taken as ended, and why.
    stuck : set of int
        Those of the lost that may still be at it.
    gone : set of int
        Ranks that have said that they are at their end, whether or not the outcome came.
    pids : dict of int to int
        Process of each rank that has begun.
    """

    name: str
    seats: list[Seat]
    began: float
    handles: dict[int, Handle] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    pids: dict[int, int] = field(default_factory=dict)
    store: tuple[str, int] | None = None
    growing: bool = False
    """Ended on purpose, to go on with more ranks."""

    @property
    def pending(self) -> list[int]:
        """Ranks that have been started and have not ended."""
        ended = self.gone if self.growing else set()
        known = (self.outcomes, self.lost, ended)
        return [r for r in self.handles if not any(r in ends for ends in known)]

    @property
    def failed(self) -> bool:
        """Whether any rank ended otherwise than well."""
        return bool(self.lost) or any(o.state != "done" for o in self.outcomes.values())

    @property
    def done(self) -> bool:
        """Whether every rank ended well."""
        return len(self.outcomes) == len(self.seats) and not self.failed

    def start(self, pool: Pool, rank: int, work: tuple[Any, Any], now: float) -> None:
        """Start a rank."""
        self.handles[rank] = pool.start(self.seats[rank], self.store, work)
        self.started[rank] = now

    def hear(self, message: Mapping[str, Any], on_event: Callable[[Event], None]) -> str | None:
        """Take a message of this attempt's ranks; the name of the event it reported, if any."""
        if message.get("attempt") != self.name:
            return None
        rank = message.get("rank", 0)
        if message["kind"] == "begun":
            self.pids[rank] = message["pid"]
        elif message["kind"] == "ended":
            self.gone.add(rank)
        elif message["kind"] == "store":
            host, port = message["address"]
            self.store = (host, port)
        elif message["kind"] == "report":
            event = json.loads(message["event"])
            on_event(event)
            return str(event.get("event"))
        return None

    def collect(self, pool: Pool) -> None:
        """Note ranks that have ended, and ranks whose worker is gone."""
        pending = self.pending
        there = pool.there() if pending else {}
        for rank in pending:
            worker = self.seats[rank].worker
            # Ranks that were called off have no outcome to fetch; they say that they end.
            ended = None if self.growing else self.handles[rank].outcome()
            if isinstance(ended, Outcome):
                self.outcomes[rank] = ended
            elif ended is not None:
                self.lost[rank] = f"could not be run: {type(ended).__name__}: {ended}"
            elif worker not in there:
                told = pool.why_lost(worker)
                self.lost[rank] = "was lost" + (f" ({told})" if told else "")
            elif there[worker] != self.seats[rank].mark:
                self.lost[rank] = "was lost and is back as another process"

    def give_up_on_silent(self, pool: Pool, patience: Patience, now: float) -> None:
        """Take ranks as lost whose worker gives no sign of life, or never began with them.

        A worker that can be replaced is killed here and now: its connections close, which is what
        wakes the peers that wait for it.
        """
        for rank in self.pending:
            worker = self.seats[rank].worker
            silent = pool.silence(worker)
            if silent > patience.silent:
                self.lost[rank] = f"did not answer any more (no sign of life for {silent:.0f} s)"
                self.stuck.add(rank)
                pool.renew(worker, self.pids.get(rank))
            elif rank not in self.pids and now - self.started[rank] > patience.rendezvous:
                self.lost[rank] = (
                    f"did not begin within {patience.rendezvous:.0f} s: it is busy otherwise"
                )
                pool.renew(worker, None)

    def give_up_on_pending(self, pool: Pool) -> None:
        """Take as lost, and replace where possible, whatever has not ended by now."""
        for rank in self.pending:
            worker = self.seats[rank].worker
            self.lost[rank] = "did not answer any more"
            self.stuck.add(rank)
            pool.renew(worker, self.pids.get(rank))

    def ends(self) -> list[tuple[Seat, str]]:
        """How the rank on each seat ended, in words."""
        return [(seat, self._end(seat.rank)) for seat in self.seats]

    def _end(self, rank: int) -> str:
        if rank in self.lost:
            return f"worker {self.seats[rank].worker} {self.lost[rank]}"
        if rank in self.outcomes:
            outcome = self.outcomes[rank]
            told = str(outcome.error or outcome.state)
            if outcome.state == "misplaced":
                told = "was run elsewhere, for the process it was sent to was lost"
            return f"rank {rank} on worker {outcome.seat.worker}: {told}"
        return f"rank {rank} was not started"

    def describe_failure(self) -> str:
        """One line: which workers, and what happened; the likeliest cause first.

        Peers only echo the first failure; a rank that was merely waited for in vain after it is
        named last.
        """
        waited = "did not answer any more"
        first = [rank for rank in sorted(self.lost) if self.lost[rank] != waited]
        ranks = first or sorted(self.lost)
        if not ranks:
            ends = sorted(self.outcomes.items(), key=lambda end: (end[1].state == "peers", end[0]))
            ranks = [rank for rank, outcome in ends if outcome.state != "done"][:1]
        return "; ".join(self._end(rank) for rank in ranks)
