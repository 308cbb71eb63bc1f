"""A cluster in a pretended time: the real gang and the real ranks, everything else made up.

One schedule is one seed. Ranks are threads that hand a baton to and fro, so that exactly one runs
at a time and every run of a seed is the same; they run `ranks.take_seat` over an in-memory
collective. Faults strike at drawn times or steps. Minutes pass in milliseconds.

Letters: W ranks, T seconds of the pretended clock.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from clam_dist.errors import DataError, RunError
from clam_dist.launch import collectives, machine, ranks
from clam_dist.launch.gang import Patience, run_gang
from clam_dist.launch.seat import Network, Outcome, PeersLostError, Seat

STEPS, LANES, PRIME = 12, 8, 1_000_003
WIDTHS = (2, 3, 1)
"""Numbers that travel in each exchange of a step: sums of the rows, their adjoint, the sums that
training adds up; each of another shape, and each needs the one before."""
PATIENCE = Patience(
    wait=40.0,
    settle=2.0,
    grace=3.0,
    rendezvous=30.0,
    collective=8.0,
    patient=20.0,
    silent=12.0,
    grow=4.0,
    max_restarts=4,
)
ASK, NOTICE = 1.0, 0.04
"""Seconds between a rank's questions to the driver; until a broken connection is seen."""


class Killed(BaseException):
    """Ends a rank's thread as SIGKILL ends a process: nothing of it runs on."""


class Thread:
    """A thread that runs only while the kernel waits for it."""

    def __init__(self, kernel: Kernel, body: Callable[[], None]) -> None:
        self.kernel, self.turn = kernel, threading.Semaphore(0)
        self.killed = self.stopped = self.ended = False
        self.token = 0
        """Wakes of an earlier rest have another number, and are not for this one."""
        self.late = False
        self.thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self.thread.start()

    def _run(self, body: Callable[[], None]) -> None:
        self.turn.acquire()
        try:
            if not self.killed:
                body()
        except Killed:
            pass
        finally:
            self.ended = True
            self.kernel.turn.release()

    def go(self, token: int) -> None:
        """Called by the kernel: let it run until it rests or ends."""
        if self.ended or token != self.token:
            return
        if self.stopped and not self.killed:
            self.late = True
            return
        self.kernel.current = self
        self.turn.release()
        self.kernel.turn.acquire()

    def rest(self, seconds: float | None) -> None:
        """Called by the thread: sleep, or wait to be woken (None: only that)."""
        self.token += 1
        if seconds is not None:
            self.kernel.at(seconds, self.waker())
        self.kernel.turn.release()
        self.turn.acquire()
        if self.killed:
            raise Killed

    def waker(self) -> Callable[[], None]:
        token = self.token
        return lambda: self.go(token)

    def kill(self) -> None:
        self.killed = True
        self.go(self.token)

    def resume(self) -> None:
        """SIGCONT."""
        self.stopped = False
        if self.late:
            self.late = False
            self.kernel.at(0.0, self.waker())


class Kernel:
    """The pretended time, and what is to happen in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turn = threading.Semaphore(0)
        self.current: Thread | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        """In so many seconds, do that; in order of asking where the times are equal."""
        heapq.heappush(self._events, (self.now + seconds, next(self._number), do))

    def run(self, until: float, stop: Callable[[], bool]) -> None:
        """Let time pass until then, or until ``stop()``."""
        while not stop():
            if not self._events or self._events[0][0] > until:
                self.now = max(self.now, until)
                return
            when, _, do = heapq.heappop(self._events)
            self.now = max(self.now, when)
            do()

    @property
    def me(self) -> Thread:
        assert self.current is not None
        return self.current


@dataclass
class Process:
    """A worker process; one task at a time, others wait in line."""

    worker: str
    mark: str
    pid: int
    heard_until: float | None = None
    """When it was stopped, if it is."""
    alive: bool = True
    thread: Thread | None = None
    line: list[Task] = field(default_factory=list)
    busy_until: float = 0.0


@dataclass
class Task:
    """A rank as the scheduler has it."""

    seat: Seat
    store: tuple[str, int] | None
    work: tuple[Any, Any]
    process: Process | None = None
    outcome: Outcome | BaseException | None = None
    dropped: bool = False
    thread: Thread | None = None
    """Of the rank, once it has taken its seat."""

    @property
    def runs(self) -> bool:
        """Whether the rank is at it, stopped or not."""
        return self.thread is not None and not self.thread.ended


@dataclass
class Group:
    """The connections of one attempt, and the calls on them."""

    world: int
    members: dict[int, Process] = field(default_factory=dict)
    store: Process | None = None
    broken: bool = False
    calls: dict[int, dict[int, Any]] = field(default_factory=dict)
    kinds: dict[int, set[str]] = field(default_factory=dict)
    waiting: list[Thread] = field(default_factory=list)


class Collective:
    """One rank's view of a group in memory, with the time limits of the real one."""

    def __init__(self, cluster: Cluster, seat: Seat, send: Any, wanted: Any) -> None:
        self.cluster, self.seat, self._send, self._wanted = cluster, seat, send, wanted
        self.rank, self.world_size, self.threads = seat.rank, seat.world_size, seat.threads
        self.group = cluster.groups[seat.attempt]
        self._call, self._closed = 0, False

    def report(self, event: dict[str, Any]) -> None:
        self._ask()
        self._send(json.dumps(event))

    def exchange(self, value: list[int], seconds: float) -> list[list[int]]:
        """Every rank's numbers in rank order."""
        self._ask()
        if self.world_size == 1:
            return [value]
        group, kernel = self.group, self.cluster.kernel
        here = group.calls.setdefault(self._call, {})
        self._call += 1
        here[self.rank] = value
        kinds = group.kinds.setdefault(self._call, set())
        kinds.add(f"{len(value)} numbers")
        if len(kinds) > 1:  # gloo would end the process
            self.cluster.problems.append(f"ranks exchange different things: {sorted(kinds)}")
        self.cluster.wake(group)
        began = kernel.now
        while len(here) < group.world:
            if self._closed or group.broken:
                raise PeersLostError(f"rank {self.rank} lost its peers: connection closed")
            if kernel.now - began >= seconds:
                missing = [
                    f"rank {r} on worker {group.members[r].worker}"
                    for r in range(group.world)
                    if r not in here
                ]
                raise PeersLostError(f"timed out; {', '.join(missing)} did not come")
            group.waiting.append(kernel.me)
            kernel.me.rest(min(ASK, max(began + seconds - kernel.now, 0.001)))
            self._ask()
        kernel.me.rest(0.001)
        return [here[rank] for rank in range(group.world)]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.cluster.break_group(self.group)

    def _ask(self) -> None:
        if not self._wanted():
            self.close()
            raise PeersLostError("the driver no longer wants this attempt")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, once.

    Attributes
    ----------
    kind : str
        ``kill``; ``stop`` (SIGSTOP, for ``seconds``); ``slow`` (a step takes so long); ``raise``
        (the rank's own error); ``refuse`` (the cluster cannot run the task); ``busy`` (the worker
        has another run's task for so long); ``lag`` (its messages come so late).
    worker : int
        Number of the worker that it strikes.
    time, step : float, int or None
        When; at a step of training, or at a time.
    seconds : float
        How long it lasts; for ``kill``, until the worker is back, 0 for never.
    part : int
        At a step, before which of its exchanges.
    """

    kind: str
    worker: int
    time: float | None
    step: int | None
    seconds: float
    part: int = 0


@dataclass(frozen=True)
class Schedule:
    """All that is drawn for one run."""

    seed: int
    workers: int
    ours: bool
    same_address: bool
    faults: tuple[Fault, ...]
    joins: tuple[float, ...]
    lost_messages: float
    """Chance that what a killed worker sent last does not arrive."""


KINDS = ("kill", "kill", "kill", "stop", "stop", "slow", "raise", "refuse", "busy", "lag")


def draw(seed: int) -> Schedule:
    """The schedule of a seed: up to four workers, six faults and two late ones."""
    rng = random.Random(seed)
    workers = rng.randint(1, 4)
    faults = []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        kind = rng.choice(KINDS)
        if kind == "raise" and rng.random() < 0.7:
            kind = "kill"
        at_step = kind in ("slow", "raise") or rng.random() < 0.5
        longest = 70.0 if kind in ("stop", "slow", "busy") else 12.0
        seconds = rng.choice((0.0, rng.uniform(0, 2), rng.uniform(0, longest)))
        faults.append(
            Fault(
                kind=kind,
                worker=rng.randrange(workers),
                time=None if at_step else rng.uniform(0, 12),
                step=rng.randrange(STEPS) if at_step else None,
                seconds=seconds,
                part=rng.randrange(len(WIDTHS)) if at_step else 0,
            )
        )
    joins = tuple(sorted(rng.uniform(0, 20) for _ in range(rng.choice((0, 0, 0, 1, 2)))))
    return Schedule(
        seed,
        workers,
        rng.random() < 0.5,
        rng.random() < 0.5,
        tuple(faults),
        joins,
        rng.choice((0.0, 0.5, 1.0)),
    )


class Cluster:
    """Workers, scheduler and network; a `Pool` for the gang."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.kernel = schedule, Kernel()
        self.rng = random.Random(f"cluster {schedule.seed}")
        self.processes: dict[str, Process] = {}
        """By address, the living one or the last one."""
        self.numbers: dict[str, int] = {}
        """Which worker of the schedule an address stands for."""
        self.there_now: dict[str, str] = {}
        self.joined: dict[str, float] = {}
        self.groups: dict[str, Group] = {}
        self.tasks: list[Task] = []
        self.inbox: list[dict[str, Any]] = []
        self.lag: dict[str, float] = {}
        self.arrived: dict[str, float] = {}
        self.attempts: list[str] = []
        self.worlds: list[int] = []
        self.struck: dict[int, float] = {}
        """When a fault last struck each worker."""
        self.pending_steps = [f for f in schedule.faults if f.step is not None]
        self.refused: set[int] = set()
        self.problems: list[str] = []
        self.saved: dict[str, tuple[int, int]] = {}
        self.current: str | None = None
        self._pids = itertools.count(1000)
        for number in range(schedule.workers):
            self.join(number, f"w{number}")
        for position, when in enumerate(schedule.joins):
            number = schedule.workers + position
            self.kernel.at(when, lambda n=number: self.join(n, f"w{n}"))
        for fault in schedule.faults:
            if fault.time is not None:
                self.kernel.at(fault.time, lambda f=fault: self.strike(f))

    # -- workers ---------------------------------------------------------------------------------

    def join(self, number: int, address: str) -> None:
        pid = next(self._pids)
        process = Process(address, f"{address}-{pid}", pid)
        self.processes[address] = process
        self.numbers[address] = number
        self.there_now[address] = process.mark
        self.joined[process.mark] = self.kernel.now
        # The scheduler gives tasks that are pinned to the address, and were lost, to the new one.
        for task in self.tasks:
            if task.seat.worker == address and task.outcome is None and not task.dropped:
                self.give(task, process)

    def address_of(self, number: int) -> str | None:
        found = [a for a, n in self.numbers.items() if n == number and self.processes[a].alive]
        return found[-1] if found else None

    def strike(self, fault: Fault) -> None:
        address = self.address_of(fault.worker)
        if address is None:
            return
        process = self.processes[address]
        self.struck[fault.worker] = self.kernel.now + fault.seconds
        if fault.kind == "kill":
            self.kill(process, fault.seconds or None)
        elif fault.kind == "stop" and process.heard_until is None:
            process.heard_until = self.kernel.now
            if process.thread is not None:
                process.thread.stopped = True
            # 0 seconds: for ever
            if fault.seconds:
                self.kernel.at(fault.seconds, lambda: self.cont(process))
        elif fault.kind == "busy":
            process.busy_until = self.kernel.now + fault.seconds
            self.kernel.at(fault.seconds, lambda: self.next_task(process))
        elif fault.kind == "lag":
            self.lag[address] = fault.seconds
        elif fault.kind == "refuse":
            self.refused.add(fault.worker)

    def cont(self, process: Process) -> None:
        process.heard_until = None
        if process.alive and process.thread is not None:
            process.thread.resume()
        self.next_task(process)

    def kill(self, process: Process, back: float | None) -> None:
        if not process.alive:
            return
        process.alive = False
        address = process.worker
        if process.thread is not None and self.kernel.current is not process.thread:
            process.thread.kill()
        elif process.thread is not None:
            process.thread.killed = True
        self.kernel.at(self.rng.uniform(0.01, 0.3), lambda: self.forget(process))
        for group in self.groups.values():
            if process in group.members.values() or group.store is process:
                self.kernel.at(NOTICE, lambda g=group: self.break_group(g, now=True))
        if back is not None:
            number = self.numbers[address]
            new = address if self.schedule.same_address else f"{address}+"
            self.kernel.at(0.35 + back, lambda: self.join(number, new))

    def forget(self, process: Process) -> None:
        if self.there_now.get(process.worker) == process.mark:
            del self.there_now[process.worker]

    # -- tasks -----------------------------------------------------------------------------------

    def give(self, task: Task, process: Process) -> None:
        process.line.append(task)
        self.kernel.at(self.rng.uniform(0.002, 0.05), lambda: self.next_task(process))

    def next_task(self, process: Process) -> None:
        running = process.thread is not None and not process.thread.ended
        ready = process.alive and process.heard_until is None and not running
        if not ready or self.kernel.now < process.busy_until:
            return
        while process.line:
            task = process.line.pop(0)
            if task.dropped:
                continue
            process.thread = Thread(self.kernel, partial(self.run_task, task, process))
            process.thread.go(0)
            return

    def run_task(self, task: Task, process: Process) -> None:
        """On the rank's thread: what `dask.rank_task` does."""
        seat = task.seat
        if process.worker != seat.worker or process.mark != seat.mark:
            self.end_task(task, process, Outcome(seat, "misplaced"))
            return
        if task.thread is not None:
            self.problems.append(f"rank {seat.rank} of {seat.attempt} took its seat twice")
        task.thread, task.process = self.kernel.me, process

        def send(message: dict[str, Any]) -> None:
            self.send(process, {**message, "worker": process.worker})

        def wanted() -> bool:
            return not task.dropped

        outcome = ranks.take_seat(seat, task.store, *task.work, send=send, wanted=wanted)
        self.end_task(task, process, outcome)

    def end_task(self, task: Task, process: Process, outcome: Outcome) -> None:
        def arrive() -> None:
            if process.alive or self.rng.random() > self.schedule.lost_messages:
                task.outcome = task.outcome or outcome
                self.inbox.append({"kind": "wake"})

        self.kernel.at(self.rng.uniform(0.005, 0.1), arrive)
        self.kernel.at(0.0, lambda: self.next_task(process))

    def send(self, process: Process, message: dict[str, Any]) -> None:
        delay = self.rng.uniform(0.001, 0.05) + self.lag.get(process.worker, 0.0)
        when = max(self.kernel.now + delay, self.arrived.get(process.mark, 0.0))
        self.arrived[process.mark] = when

        def arrive() -> None:
            if process.alive or self.rng.random() > self.schedule.lost_messages:
                self.inbox.append(message)

        self.kernel.at(when - self.kernel.now, arrive)

    # -- connections -----------------------------------------------------------------------------

    def wake(self, group: Group) -> None:
        waiting, group.waiting = group.waiting, []
        for thread in waiting:
            self.kernel.at(0.0, thread.waker())

    def break_group(self, group: Group, *, now: bool = False) -> None:
        def do() -> None:
            group.broken = True
            self.wake(group)

        do() if now else self.kernel.at(NOTICE, do)

    def open_store(self, network: Network) -> SimpleNamespace:
        process = self.processes[network.host]
        return SimpleNamespace(address=(process.worker, process.pid))

    def connect(self, seat: Seat, store: tuple[str, int], *, send: Any, wanted: Any) -> Collective:
        kernel, group = self.kernel, self.groups.setdefault(seat.attempt, Group(seat.world_size))
        holder = self.processes.get(store[0])
        if holder is None or holder.pid != store[1] or not holder.alive:
            raise PeersLostError("could not join through the store")
        group.store = holder
        group.members[seat.rank] = self.processes[seat.worker]
        self.wake(group)
        began = kernel.now
        while len(group.members) < group.world:
            if group.broken:
                raise PeersLostError("lost the store on rank 0")
            if kernel.now - began >= seat.rendezvous_seconds:
                missing = [str(r) for r in range(group.world) if r not in group.members]
                raise PeersLostError(f"waited for rank(s) {', '.join(missing)}")
            group.waiting.append(kernel.me)
            kernel.me.rest(ASK)
            if not wanted():
                raise PeersLostError("the driver no longer wants this attempt")
        kernel.me.rest(0.01)
        return Collective(self, seat, send, wanted)

    def alone(self, threads: int, send: Any, wanted: Any, device: str) -> Collective:
        me = next(task for task in self.tasks if task.thread is self.kernel.me)
        self.groups.setdefault(me.seat.attempt, Group(1))
        assert (threads, device) == (1, "cpu")
        return Collective(self, me.seat, send, wanted)

    # -- the Pool protocol -----------------------------------------------------------------------

    def there(self, *, ready: bool = False) -> dict[str, str]:
        assert ready in (True, False)
        return dict(sorted(self.there_now.items()))

    def start(self, seat: Seat, store: tuple[str, int] | None, work: tuple[Any, Any]) -> Handle:
        if seat.attempt not in self.attempts:
            self.attempts.append(seat.attempt)
            self.worlds.append(seat.world_size)
        for other in self.tasks:
            if other.seat.attempt != seat.attempt and other.runs:
                process = other.process
                assert process is not None
                # One that is stopped, or deaf in a long step, cannot be ended; it is left alone.
                if process.mark == seat.mark:
                    self.problems.append(f"{seat.mark} is given a rank while one still runs")
                if not other.dropped:
                    self.problems.append(f"a rank of {other.seat.attempt} was not called off")
        task = Task(seat, store, work)
        self.tasks.append(task)
        number = self.numbers[seat.worker]
        if number in self.refused:
            self.refused.discard(number)
            task.outcome = RunError("refused")
            return Handle(task)
        process = self.processes[seat.worker]
        if process.alive:
            self.give(task, process)
        return Handle(task)

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        self.kernel.run(self.kernel.now + seconds, lambda: bool(self.inbox) and seconds > 0)
        box, self.inbox = self.inbox, []
        return [message for message in box if message["kind"] != "wake"]

    def renew(self, worker: str, pid: int | None) -> None:
        process = self.processes[worker]
        if self.schedule.ours and (pid in (None, process.pid)):
            self.kill(process, 1.0)

    def silence(self, worker: str) -> float:
        stopped = self.processes[worker].heard_until
        return 0.0 if stopped is None else self.kernel.now - stopped

    def seat_details(self, worker: str) -> tuple[Network, int]:
        return Network(worker), 1

    def placement(self, workers: Sequence[str]) -> tuple[Any, list[str]]:
        return "gloo", ["cpu"] * len(workers)

    def why_lost(self, worker: str) -> str:
        return f"{worker} was killed by signal 9"

    def keep_logs(self, ends: Sequence[tuple[Seat, str]]) -> str:
        assert all(seat.attempt == self.attempts[-1] for seat, _ in ends)
        return ""


@dataclass
class Handle:
    task: Task

    def outcome(self) -> Outcome | BaseException | None:
        return RunError("cancelled") if self.task.dropped else self.task.outcome

    def drop(self) -> None:
        self.task.dropped = True


def partial_sums(part: int, lanes: Sequence[int], step: int, before: Sequence[int]) -> list[int]:
    """These lanes' numbers in one exchange of a step; they need the totals of the one before."""
    return [
        sum((lane + 1) * (step + 3 + i + sum(before)) for lane in lanes) % PRIME
        for i in range(WIDTHS[part])
    ]


def truth(step: int, value: int) -> int:
    """One step: what the lanes' parts add up to, exchange by exchange, folded into the state."""
    totals: list[int] = [value]
    for part in range(len(WIDTHS)):
        parts = [partial_sums(part, [lane], step, totals) for lane in range(LANES)]
        totals = [sum(column) % PRIME for column in zip(*parts, strict=True)]
    return (value * 31 + totals[0]) % PRIME


def undisturbed() -> int:
    """The result of a run in which nothing happens."""
    value = 7
    for step in range(STEPS):
        value = truth(step, value)
    return value


def train(collective: Collective, cluster: Cluster) -> int:
    """A rank's work: from the published checkpoint on, sums over lanes, a checkpoint now and then.

    As in training: rank 0 writes, the driver publishes; all load what is published.
    """
    kernel, seat = cluster.kernel, collective.seat
    number = cluster.numbers[seat.worker]
    step, value = (0, 7) if cluster.current is None else cluster.saved[cluster.current]
    world, rank = collective.world_size, collective.rank
    mine = range(rank * LANES // world, (rank + 1) * LANES // world)
    while step < STEPS:
        totals = [value]
        for part in range(len(WIDTHS)):
            kernel.me.rest(cluster.rng.uniform(0.02, 0.2))
            strike_within(cluster, number, (step, part))
            sums = partial_sums(part, mine, step, totals)
            parts = collective.exchange(sums, seat.collective_seconds)
            totals = [sum(column) % PRIME for column in zip(*parts, strict=True)]
        value = (value * 31 + totals[0]) % PRIME
        step += 1
        if step % 3 == 0:
            values = collective.exchange([value], seat.patient_seconds)
            assert all(v == [value] for v in values), "ranks began at different checkpoints"
            if rank == 0:
                name = f"checkpoint-{step}"
                if cluster.saved.setdefault(name, (step, value)) != (step, value):
                    cluster.problems.append(f"{name} was written twice, unlike")
                collective.report({"event": "checkpoint", "name": name, "by": seat.attempt})
    return value


def strike_within(cluster: Cluster, number: int, where: tuple[int, int]) -> None:
    """The faults that strike a worker at an exchange of a step, called on its rank's thread."""
    kernel = cluster.kernel
    here = [f for f in cluster.pending_steps if (f.worker, (f.step, f.part)) == (number, where)]
    for fault in here:
        cluster.pending_steps.remove(fault)
        if fault.kind == "raise":
            cluster.struck[number] = kernel.now
            raise DataError(f"bad row on worker {number}")
        if fault.kind == "slow":
            cluster.struck[number] = kernel.now + fault.seconds
            kernel.me.rest(fault.seconds)
        else:
            kernel.at(0.0, lambda f=fault: cluster.strike(f))
            kernel.me.rest(0.001)


def unjustified(cluster: Cluster, error: Exception, patience: Patience, restarts: int) -> list[str]:
    """Why a run should not have ended in this error."""
    kinds = {fault.kind for fault in cluster.schedule.faults}
    if isinstance(error, DataError):
        return [] if "raise" in kinds else [f"nobody raised: {error}"]
    if "gave up after" in str(error):
        return [] if restarts == patience.max_restarts else [f"too early: {error}"]
    held = {t.process.mark for t in cluster.tasks if t.runs and t.process is not None}
    free = [
        process.mark
        for process in cluster.processes.values()
        if process.alive
        and process.heard_until is None
        and process.mark not in held
        and cluster.kernel.now - cluster.joined[process.mark] > 1.0
    ]
    return [f"{free} could be used: {error}"] if free else []


@dataclass(frozen=True)
class Ending:
    """What came of a schedule."""

    value: int | None
    error: BaseException | None
    seconds: float
    worlds: tuple[int, ...]
    """Ranks of each attempt."""
    restarts: int
    growths: int
    problems: tuple[str, ...]
    said: tuple[str, ...]


def simulate(schedule: Schedule, patience: Patience = PATIENCE) -> Ending:
    """Run one schedule to its end."""
    cluster = Cluster(schedule)
    said: list[str] = []
    restarts: list[tuple[str, dict[int, float]]] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["by"] != cluster.attempts[-1]:
            cluster.problems.append("a stale attempt published a checkpoint")
        cluster.current = event["name"]

    def tell(level: str, message: str) -> None:
        said.append(f"{level} {message}")
        if level == "WARNING":
            restarts.append((message, dict(cluster.struck)))

    value: int | None = None
    error: BaseException | None = None
    with (
        mock.patch.object(collectives, "open_store", cluster.open_store),
        mock.patch.object(collectives, "join", cluster.connect),
        mock.patch.object(collectives, "LocalCollective", cluster.alone),
        mock.patch.object(machine, "peak_rss_bytes", return_value=1),
    ):
        try:
            outcomes = run_gang(
                cluster,
                train,
                cluster,
                ranks=schedule.workers,
                most=8,
                patience=patience,
                on_event=on_event,  # type: ignore[arg-type]
                tell=tell,
                clock=lambda: cluster.kernel.now,
            )
            values = {outcome.value for outcome in outcomes}
            value = values.pop()
            if values:
                cluster.problems.append("ranks differ")
        except (RunError, DataError) as caught:
            error = caught
            cluster.problems += unjustified(cluster, caught, patience, len(restarts))
        ended = cluster.kernel.now
        for message, struck in restarts:
            named = [n for a, n in cluster.numbers.items() if a in message]
            if not set(named) & set(struck):
                cluster.problems.append(f"names nobody at fault ({struck}): {message}")
        # Whatever is still at it goes on for a while: none of it may have any effect.
        before = (cluster.current, len(cluster.attempts))
        cluster.kernel.run(ended + 100.0, lambda: False)
        if before != (cluster.current, len(cluster.attempts)):
            cluster.problems.append("something happened after the end")
        for process in cluster.processes.values():
            if process.thread is not None and not process.thread.ended:
                if process.heard_until is None and process.alive:
                    cluster.problems.append(f"a rank on {process.mark} never ends")
                process.thread.kill()
    growths = sum("joined" in line for line in said)
    attempts = len(cluster.attempts)
    if attempts > patience.max_restarts + 1 + growths:
        cluster.problems.append(f"{attempts} attempts, {growths} of them to grow")
    limit = patience.rendezvous + patience.patient + patience.collective + patience.silent
    limit = attempts * (limit + patience.grace + patience.settle + STEPS) + patience.wait
    if ended > limit + sum(fault.seconds for fault in schedule.faults):
        cluster.problems.append(f"took {ended:.0f} s")
    return Ending(
        value,
        error,
        ended,
        tuple(cluster.worlds),
        len(restarts),
        growths,
        tuple(cluster.problems),
        tuple(said),
    )
