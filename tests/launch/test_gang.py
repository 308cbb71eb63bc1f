"""The life of a gang on a pretended cluster: deaths, hangs, exceptions, stale ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.errors import DataError, RunError
from clam_dist.launch.gang import Patience, run_gang
from clam_dist.launch.seat import Network, Outcome, PeersLostError, Seat

QUICK = Patience(wait=0.2, settle=0.02, grace=0.03, rendezvous=0.2, max_restarts=3)

Fate = str
"""What becomes of a rank: done, raises, dies, hangs, peers, misplaced, refused."""


@dataclass
class PretendHandle:
    pool: PretendPool
    seat: Seat
    fate: Fate

    def outcome(self) -> Outcome | BaseException | None:
        seat = self.seat
        if self.fate == "done":
            return Outcome(seat, "done", (seat.rank, seat.world_size, seat.attempt))
        if self.fate == "raises":
            return Outcome(seat, "failed", error=DataError(f"bad row in rank {seat.rank}"))
        if self.fate == "peers":
            return Outcome(seat, "peers", error=PeersLostError("connection closed"))
        if self.fate == "misplaced":
            return Outcome(seat, "misplaced")
        if self.fate == "refused":
            return RunError("refused")
        if self.fate == "dies" and self.seat.worker in self.pool.alive:
            self.pool.alive.remove(self.seat.worker)
            if self.pool.revive:
                self.pool.born += 1
                self.pool.alive.append(f"new-{self.pool.born}")
        return None

    def drop(self) -> None:
        self.pool.dropped.append(self.seat)


@dataclass
class PretendPool:
    """Workers by name; ``fates(attempt, rank, ranks)`` says what becomes of each rank."""

    alive: list[str]
    fates: Callable[[int, int, int], Fate]
    revive: bool = False
    ours: bool = True
    mute: tuple[str, ...] = ()
    """Workers that give no sign of life."""
    silent: bool = False
    """Ranks of the first attempt never begin."""
    gpus: bool = False
    born: int = 0
    marks: dict[str, str] = field(default_factory=dict)
    kept: list[list[tuple[Seat, str]]] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    seats: list[Seat] = field(default_factory=list)
    dropped: list[Seat] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    box: list[dict[str, Any]] = field(default_factory=list)

    def there(self, *, ready: bool = False) -> dict[str, str]:
        assert ready in (True, False)
        return {worker: self.marks.get(worker, "first") for worker in self.alive}

    def start(
        self, seat: Seat, store: tuple[str, int] | None, work: tuple[Any, Any]
    ) -> PretendHandle:
        assert work == ("function", "payload")
        assert (store is None) == (seat.rank == 0)
        if seat.attempt not in self.attempts:
            self.attempts.append(seat.attempt)
        self.seats.append(seat)
        fate = self.fates(len(self.attempts) - 1, seat.rank, seat.world_size)
        silent = self.silent and len(self.attempts) == 1
        if seat.rank == 0 and fate != "refused" and not silent:
            self.box.append({"kind": "store", "attempt": seat.attempt, "address": ["h", 1]})
        begun = {"attempt": seat.attempt, "rank": seat.rank, "pid": 100 + seat.worker.count("b")}
        if not silent:
            self.box.append({"kind": "begun", **begun})
        for attempt in self.attempts:  # ranks of earlier attempts still talk
            text = json.dumps({"event": "epoch", "from": [attempt, seat.rank]})
            self.box.append({"kind": "report", "attempt": attempt, "event": text})
        return PretendHandle(self, seat, fate)

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        time.sleep(min(seconds, 0.001))
        box, self.box = self.box, []
        return box

    def silence(self, worker: str) -> float:
        return 99.0 if worker in self.mute else 0.0

    def renew(self, worker: str, pid: int | None) -> None:
        assert pid in (None, 100 + worker.count("b"))
        self.renewed.append(worker)
        if self.ours:
            self.alive[self.alive.index(worker)] = worker + "+"

    def seat_details(self, worker: str) -> tuple[Network, int]:
        return Network(f"host of {worker}"), 3

    def placement(self, workers: Sequence[str]) -> tuple[Any, list[str]]:
        return ("nccl" if self.gpus else "gloo"), [
            f"cuda:{i}" if self.gpus else "cpu" for i in range(len(workers))
        ]

    def why_lost(self, worker: str) -> str:
        return f"{worker} was killed by signal 9"

    def keep_logs(self, ends: Sequence[tuple[Seat, str]]) -> str:
        self.kept.append(list(ends))
        return ""


def run(
    pool: PretendPool, ranks: int, patience: Patience = QUICK, said: list[str] | None = None
) -> tuple[Any, ...]:
    events: list[Any] = []
    said = [] if said is None else said
    outcomes = run_gang(
        pool,
        "function",  # type: ignore[arg-type]
        "payload",
        ranks=ranks,
        patience=patience,
        on_event=events.append,
        tell=lambda level, message: said.append(f"{level} {message}"),
    )
    return [outcome.value for outcome in outcomes], events, said


def always(fate: Fate) -> Callable[[int, int, int], Fate]:
    return lambda *_: fate


def only(
    attempt: int, rank: int, fate: Fate, rest: Fate = "peers"
) -> Callable[[int, int, int], Fate]:
    """One rank of one attempt meets ``fate``, its peers the rest; later attempts go well."""

    def fates(a: int, r: int, _ranks: int) -> Fate:
        if a != attempt:
            return "done"
        return fate if r == rank else rest

    return fates


def test_each_rank_sits_on_a_worker_of_its_own() -> None:
    pool = PretendPool(["a", "b", "c"], always("done"))
    values, events, said = run(pool, 3)
    assert [value[:2] for value in values] == [(0, 3), (1, 3), (2, 3)]
    assert [(s.rank, s.worker, s.network.host, s.threads) for s in pool.seats] == [
        (rank, name, f"host of {name}", 3) for rank, name in enumerate("abc")
    ]
    assert len(events) == 3
    assert said == []
    assert pool.dropped == pool.seats


def test_fewer_ranks_than_workers() -> None:
    pool = PretendPool(["a", "b", "c"], always("done"))
    values, _, _ = run(pool, 2)
    assert len(values) == 2


def test_a_lost_worker_starts_all_again_on_who_is_left() -> None:
    pool = PretendPool(["a", "b", "c"], only(0, 1, "dies"))
    values, events, said = run(pool, 3)
    assert [value[:2] for value in values] == [(0, 2), (1, 2)]
    assert [seat.worker for seat in pool.seats[3:]] == ["a", "c"]
    assert len({value[2] for value in values}) == 1
    assert said == [
        "WARNING worker b was lost (b was killed by signal 9); starting all ranks again from the "
        "last checkpoint (restart 1 of 3)"
    ]
    # what ranks of the first attempt say after its end is not heard
    second = values[0][2]
    assert [e["from"] for e in events[3:]] == [[second, 0], [second, 1]]


def test_a_worker_that_comes_back_is_used() -> None:
    pool = PretendPool(["a", "b"], only(0, 0, "dies"), revive=True)
    values, _, _ = run(pool, 2)
    assert [value[:2] for value in values] == [(0, 2), (1, 2)]
    assert [seat.worker for seat in pool.seats[2:]] == ["b", "new-1"]


@pytest.mark.parametrize("rest", ["peers", "done", "hangs"])
def test_what_a_function_raises_is_raised_at_once(rest: Fate) -> None:
    pool = PretendPool(["a", "b"], only(0, 1, "raises", rest))
    said: list[str] = []
    with pytest.raises(DataError, match="bad row in rank 1") as caught:
        run(pool, 2, said=said)
    assert caught.value.__notes__ == ["rank 1 on worker b"]
    assert said == ["ERROR rank 1 on worker b raised DataError: bad row in rank 1"]
    assert len(pool.attempts) == 1


def test_a_hung_worker_is_replaced() -> None:
    pool = PretendPool(["a", "b"], only(0, 1, "hangs"))
    values, _, said = run(pool, 2)
    assert pool.renewed == ["b"]
    assert [seat.worker for seat in pool.seats[2:]] == ["a", "b+"]
    assert "worker b did not answer any more" in said[0]
    assert len(values) == 2


def test_a_hung_worker_that_is_not_ours_is_left_aside() -> None:
    pool = PretendPool(["a", "b"], only(0, 1, "hangs"), ours=False)
    values, _, _ = run(pool, 2)
    assert [value[:2] for value in values] == [(0, 1)]
    assert pool.seats[-1].worker == "a"


def test_rank_zero_that_never_begins_is_given_up() -> None:
    """Its worker is busy with something else: left aside."""
    pool = PretendPool(["a", "b"], only(0, 0, "hangs"), silent=True, ours=False)
    began = time.monotonic()
    values, _, _ = run(pool, 2)
    assert time.monotonic() - began >= QUICK.rendezvous
    assert [value[:2] for value in values] == [(0, 1)]
    assert pool.seats[-1].worker == "b"
    assert pool.renewed == ["a"]


def test_a_lone_rank_that_never_begins_is_given_up() -> None:
    """It was waited for without a limit; busy once, its worker may be free the next time."""
    pool = PretendPool(["a"], only(0, 0, "hangs"), silent=True, ours=False)
    values, _, said = run(pool, 1)
    assert [value[:2] for value in values] == [(0, 1)]
    assert "worker a did not begin within 0 s: it is busy otherwise" in said[0]


def test_every_attempt_is_placed_anew() -> None:
    """What ranks speak over, and each one's device, hold for those who are there."""
    pool = PretendPool(["a", "b", "c"], only(0, 1, "dies"), gpus=True)
    run(pool, 3)
    seats = [(seat.rank, seat.world_size, seat.device, seat.backend) for seat in pool.seats]
    assert seats == [
        *[(rank, 3, f"cuda:{rank}", "nccl") for rank in range(3)],
        *[(rank, 2, f"cuda:{rank}", "nccl") for rank in range(2)],
    ]


def test_more_ranks_than_there_are_workers_start_with_who_is_there() -> None:
    """And take who has come since, whenever they start anew, up to the number that has work."""
    pool = PretendPool(["a", "b"], only(0, 0, "peers"))

    def messages(seconds: float) -> list[dict[str, Any]]:
        if len(pool.attempts) == 1 and len(pool.alive) == 2:
            pool.alive += ["c", "d", "e"]
        return PretendPool.messages(pool, seconds)

    pool.messages = messages  # type: ignore[method-assign]
    outcomes = run_gang(
        pool,
        "function",  # type: ignore[arg-type]
        "payload",
        ranks=2,
        most=4,
        patience=QUICK,
        on_event=lambda _: None,
        tell=lambda *_: None,
    )
    assert [outcome.value[:2] for outcome in outcomes] == [(rank, 4) for rank in range(4)]


def test_how_every_rank_of_a_failed_attempt_ended_is_kept() -> None:
    pool = PretendPool(["a", "b", "c"], only(0, 1, "dies"))
    run(pool, 3)
    ((first, second, third),) = pool.kept
    assert [seat.worker for seat, _ in pool.kept[0]] == ["a", "b", "c"]
    assert first[1] == "rank 0 on worker a: connection closed"
    assert second[1] == "worker b was lost (b was killed by signal 9)"
    assert third[1] == "rank 2 on worker c: connection closed"


def test_where_the_logs_lie_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PretendPool, "keep_logs", lambda *_: "logs/attempt-1-*.log")
    _, _, said = run(PretendPool(["a", "b"], only(0, 1, "dies")), 2)
    assert "was lost (b was killed by signal 9) (logs: logs/attempt-1-*.log); starting" in said[0]
    with pytest.raises(DataError) as caught:
        run(PretendPool(["a", "b"], only(0, 1, "raises")), 2)
    assert caught.value.__notes__ == ["rank 1 on worker b (logs: logs/attempt-1-*.log)"]


def test_a_worker_that_gives_no_sign_of_life_is_replaced() -> None:
    """Its peers are done, so that nobody else would ever notice."""
    pool = PretendPool(["a", "b"], only(0, 1, "hangs", "done"), mute=("b",))
    values, _, said = run(pool, 2)
    assert [value[:2] for value in values] == [(0, 2), (1, 2)]
    assert pool.renewed == ["b"]
    assert "worker b did not answer any more" in said[0]


@pytest.mark.parametrize(
    ("fate", "cause"),
    [
        ("peers", "rank 0 on worker a: connection closed"),
        ("misplaced", "rank 0 on worker a: was run elsewhere"),
        ("refused", "worker a could not be run: RunError: refused"),
    ],
)
def test_a_cluster_that_fails_every_time_is_given_up(fate: Fate, cause: str) -> None:
    pool = PretendPool(["a"], always(fate))
    with pytest.raises(RunError, match=f"gave up after 3 restarts .*{cause}.* to resume"):
        run(pool, 1)
    assert len(pool.attempts) == 4


def test_no_worker_at_all() -> None:
    pool = PretendPool([], always("done"))
    with pytest.raises(RunError, match=r"no worker is there, 0 s \(cluster.wait\) after the start"):
        run(pool, 2)


def test_no_worker_left() -> None:
    pool = PretendPool(["a"], always("dies"))
    with pytest.raises(RunError, match=r"after worker a was lost \(a was killed by signal 9\)"):
        run(pool, 1)


def test_an_interrupt_frees_every_rank() -> None:
    pool = PretendPool(["a", "b"], always("hangs"))

    def interrupt(seconds: float) -> list[dict[str, Any]]:
        if len(pool.seats) == 2:
            raise KeyboardInterrupt
        return PretendPool.messages(pool, seconds)

    pool.messages = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(pool, 2)
    assert pool.dropped == pool.seats


FATES = st.sampled_from(["done", "dies", "peers", "misplaced", "hangs", "refused"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(FATES, min_size=4, max_size=4), max_size=4), st.booleans())
def test_any_schedule_ends_in_one_whole_attempt_or_in_an_error(
    schedule: list[list[Fate]], revive: bool
) -> None:
    def fates(attempt: int, rank: int, ranks: int) -> Fate:
        if attempt >= len(schedule):
            return "done"
        # A rank that hangs is noticed by its peers: somebody always fails beside it.
        row = schedule[attempt][:ranks]
        alone = all(fate in ("done", "hangs") for fate in row)
        return "peers" if alone and row[rank] == "hangs" else row[rank]

    pool = PretendPool(["a", "b", "c", "d"], fates, revive=revive)
    patience = Patience(wait=0.02, settle=0.005, grace=0.005, rendezvous=0.05, max_restarts=3)
    gave_up = None
    try:
        values, events, _ = run(pool, 4, patience)
    except RunError as error:
        gave_up = str(error)
    if gave_up is not None:
        assert "worker" in gave_up
        assert len(schedule) >= 4 or not pool.alive
        return
    last = pool.attempts[-1]
    assert values == [(rank, len(values), last) for rank in range(len(values))]
    ended = [event["from"][1] for event in events if event["from"][0] == last]
    assert ended == list(range(len(values)))
    assert sorted(seat.rank for seat in pool.dropped) == sorted(seat.rank for seat in pool.seats)
