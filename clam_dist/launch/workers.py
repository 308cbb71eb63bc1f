"""The executor over a cluster's workers: maps in order, gangs that start again together."""

from __future__ import annotations

import json
import os
import queue
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from clam_dist.errors import RunError
from clam_dist.executor import Collective, Event, Item, Result
from clam_dist.launch import dask, machine, preflight
from clam_dist.launch.gang import TELL_SECONDS, Patience, run_gang
from clam_dist.launch.seat import Outcome, Seat
from clam_dist.launch.window import in_order

ANSWER_SECONDS = 30.0
"""How long a worker may take to answer a question that needs no work."""
FETCH_SECONDS = 5.0
"""How long fetching a small result may take before it is asked whether its worker lives."""
LOOK_SECONDS = 0.25
"""The set of workers is asked for no more often than this."""


class DaskExecutor:
    """Runs maps and gangs on the workers behind a link.

    Parameters
    ----------
    link : Link
        An open connection to a cluster; closed with the executor.
    patience : Patience
        Time limits and restarts.
    on_event : callable
        Takes ``log`` events of workers and of the launcher, in the thread of the caller of
        ``map`` or ``gang``.
    """

    def __init__(
        self,
        link: dask.Link,
        *,
        patience: Patience | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.patience = patience or Patience()
        self._link = link
        self._on_event = on_event
        self._topic = f"clam_dist-{uuid.uuid4().hex}"
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._seen: dict[str, dask.WorkerInfo] = {}
        self._known: dict[str, dask.WorkerInfo] = {}
        self._seen_at = 0.0
        self._heard: dict[str, tuple[float, float]] = {}
        self._labels: dict[str, str] = {}
        self._peaks: dict[str, int] = {}
        link.listen(self._topic, self._inbox.put)
        self.workers = max(1, len(self._look()))

    # -- the Executor protocol -------------------------------------------------------------------

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        in_flight: int | None = None,
    ) -> Iterator[Result]:
        """Yield ``function(item)`` in the order of ``items``; see ``clam_dist.executor``.

        Raises
        ------
        RunError
            When an item's worker died again and again, or no worker or scheduler is left.
        """
        name = getattr(_innermost(function), "__name__", "map")
        numbered = iter(range(len(items)))

        def start(item: Item) -> dask.Future:
            key = f"{name}-{uuid.uuid4().hex[:12]}-{next(numbered)}"
            return self._watch(self._link.send(self._topic, function, item, key))

        return in_order(
            items,
            start=start,
            finish=self._finish,
            cancel=lambda future: future.cancel(),
            in_flight=2 * self.workers if in_flight is None else in_flight,
        )

    def gang(
        self,
        function: Callable[[Collective, Any], Result],
        payload: Any,
        *,
        world_size: int | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> list[Result]:
        """Run ``function`` as one rank on each worker, on ``world_size`` workers at most.

        All ranks start again together when one is lost, on whoever is there then, up to
        ``patience.max_restarts`` times. What a rank's function raises is raised here.
        """
        if world_size is not None and world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")
        # A worker that is just being replaced is waited for, so it counts.
        wanted = max(self.workers, len(self._look(fresh=True)))
        with self._turn():
            outcomes = run_gang(
                self,
                function,
                payload,
                ranks=wanted if world_size is None else min(wanted, world_size),
                patience=self.patience,
                on_event=on_event or _ignore,
                tell=self._tell,
            )
        for outcome in outcomes:
            self._note_peak(outcome.seat.worker, outcome.peak_rss_bytes)
        return [outcome.value for outcome in outcomes]

    def peak_rss_bytes(self) -> dict[str, int]:
        """Peak resident memory (VmHWM) in bytes of the driver and each worker, by name."""
        try:
            answers = self._link.everywhere(machine.peak_rss_bytes, seconds=ANSWER_SECONDS)
        except (OSError, TimeoutError):
            answers = {}  # a worker that is stopped or gone: what ranks told before stands
        self._look(fresh=bool(answers))
        for worker, answer in answers.items():
            if isinstance(answer, int):
                self._note_peak(worker, answer)
        return {"driver": machine.peak_rss_bytes(), **dict(sorted(self._peaks.items()))}

    def close(self) -> None:
        """Leave the cluster, ending what was started here; within about a second."""
        self._link.close()

    # -- before any work -------------------------------------------------------------------------

    def wait_for_workers(self, wanted: int | None) -> None:
        """Wait until ``wanted`` workers are there (None: any), with a line now and then.

        Raises
        ------
        RunError
            When fewer are there after ``patience.wait`` seconds.
        """
        began = told = time.monotonic()
        while len(there := self._look(fresh=True)) < (wanted or 1):
            now = time.monotonic()
            if now - began > self.patience.wait:
                raise RunError(
                    f"{len(there)} of {wanted or 1} workers came within "
                    f"{self.patience.wait:.0f} s (cluster.wait); start more, raise cluster.wait, "
                    "or lower cluster.workers"
                )
            if now - told > TELL_SECONDS:
                told = now
                self._tell("INFO", f"waiting for workers: {len(there)} of {wanted or 1} are there")
            time.sleep(0.1)
        self.workers = len(there)

    def preflight(self, folder: str | None) -> None:
        """See that every worker shares ``folder`` and runs the same software as the driver.

        Raises
        ------
        ConfigError
            Naming the workers, and the folder or the versions.
        """
        path: Path | None = None
        nonce: str | None = None
        if folder is not None:
            path, nonce = preflight.write_nonce(folder)
        asked = None if path is None else str(path)
        try:
            answers = self._link.everywhere(preflight.probe, asked, seconds=self.patience.wait)
        except TimeoutError as error:
            raise RunError(
                f"a worker did not answer within {self.patience.wait:.0f} s (cluster.wait); "
                "see that all of them run"
            ) from error
        finally:
            if path is not None:
                path.unlink(missing_ok=True)
        preflight.check(preflight.probe(), answers, folder=str(folder), nonce=nonce)

    # -- the gang's Pool protocol; `workers` is the executor's count, so the pool asks `there` ----

    def there(self, *, ready: bool = False) -> list[str]:
        """Addresses of the workers that are there, in the order of their names."""
        return [address for address, worker in self._look().items() if worker.ready or not ready]

    def start(
        self, seat: Seat, store: tuple[str, int] | None, work: tuple[Any, Any]
    ) -> _RankHandle:
        """Start a rank on its seat's worker."""
        return _RankHandle(self._watch(self._link.start(self._topic, seat, store, work)))

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        """What ranks sent; log lines go to ``on_event`` on the way."""
        heard: list[dict[str, Any]] = []
        try:
            heard.append(self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait())
            while True:
                heard.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        for message in heard:
            if message["kind"] == "log" and self._on_event is not None:
                self._on_event(json.loads(message["event"]))
        return [message for message in heard if message["kind"] not in ("log", "wake")]

    def renew(self, worker: str, pid: int | None) -> None:
        """Kill the process of an embedded worker, whatever it does; its nanny starts another."""
        if self._link.nannies:
            self._tell("WARNING", f"worker {worker} does not answer; its process is ended")
            self._link.kill(self._known[worker].name, pid)

    def silence(self, worker: str) -> float:
        """Seconds since the worker's last sign of life changed, as far as was looked."""
        return time.monotonic() - self._heard[worker][1]

    def seat_details(self, worker: str) -> tuple[str, int]:
        """Host and compute threads of a worker."""
        known = self._known[worker]
        return known.host, known.threads

    def why_lost(self, worker: str) -> str:
        """What is known of the end of a worker."""
        return self._link.why_lost(worker)

    # -- inside ----------------------------------------------------------------------------------

    def _finish(self, future: dask.Future) -> Any:
        """A map task's result, once it is there; watches over those who work on it."""
        fetch_seconds = FETCH_SECONDS
        last_there = time.monotonic()
        while True:
            while not future.done():
                self.messages(0.5)
                last_there = self._watch_over(last_there)
            self.messages(0)
            try:
                return future.result(timeout=fetch_seconds)
            except BaseException as error:
                if isinstance(error, TimeoutError) and future.status != "error":
                    # The task has ended, but the worker that holds its result does not answer.
                    last_there = self._watch_over(last_there)
                    fetch_seconds *= 2
                    continue
                told = dask.explain(error, str(future.key))
                if told is error:
                    raise
                raise told from error

    def _watch_over(self, last_there: float) -> float:
        """Replace workers that fell silent; when someone was last there, on the monotonic clock.

        Raises
        ------
        RunError
            When nobody has been there for ``patience.wait`` seconds.
        """
        there, now = self.there(), time.monotonic()
        for worker in there:
            if self.silence(worker) > self.patience.silent:
                self._heard[worker] = (self._heard[worker][0], now)  # once, until it is gone
                self.renew(worker, None)
        if not there and now - last_there > self.patience.wait:
            raise RunError(
                f"no worker was there for {self.patience.wait:.0f} s (cluster.wait); "
                "start workers and run the same command again: it resumes"
            )
        return now if there else last_there

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the cluster's lock for gangs, so that two runs never interleave their ranks."""
        lock, client = self._link.lock(), self._link.client
        while not lock.acquire(timeout=TELL_SECONDS):
            holder = client.get_metadata([dask.GANG_LOCK], default="another run")
            self._tell("INFO", f"waiting for the cluster: {holder} is training on it")
        try:
            client.set_metadata(
                [dask.GANG_LOCK], f"process {os.getpid()} on {socket.gethostname()}"
            )
            yield
        finally:
            lock.release()

    def _look(self, *, fresh: bool = False) -> dict[str, dask.WorkerInfo]:
        """The workers that are there, as of a moment ago."""
        now = time.monotonic()
        if fresh or now - self._seen_at > LOOK_SECONDS:
            self._seen = self._link.workers()
            self._seen_at = now
            self._known |= self._seen
            for address, worker in self._seen.items():
                # The scheduler's clock is not ours: only that the sign is a new one counts.
                if self._heard.get(address, (0.0, 0.0))[0] != worker.heard:
                    self._heard[address] = (worker.heard, now)
                # An embedded worker that was replaced keeps its name, and so its label.
                number = worker.name if worker.name.isdigit() else len(self._labels)
                self._labels.setdefault(address, f"worker-{number}")
        return self._seen

    def _note_peak(self, worker: str, peak: int) -> None:
        label = self._labels.get(worker, worker)
        self._peaks[label] = max(peak, self._peaks.get(label, 0))

    def _tell(self, level: str, message: str) -> None:
        if self._on_event is not None:
            self._on_event({"event": "log", "level": level, "message": message, "worker": None})

    def _watch(self, future: dask.Future) -> dask.Future:
        """Have the end of a task end a wait in ``messages``; called on one of Dask's threads."""
        future.add_done_callback(lambda _: self._inbox.put({"kind": "wake"}))
        return future


class _RankHandle:
    """A rank's future, seen as a gang sees it."""

    def __init__(self, future: dask.Future) -> None:
        self._future = future

    def outcome(self) -> Outcome | BaseException | None:
        """How the rank ended; None while it runs."""
        if not self._future.done():
            return None
        try:
            outcome: Outcome = self._future.result(timeout=ANSWER_SECONDS)
        except Exception as error:
            return dask.explain(error, str(self._future.key))
        return outcome

    def drop(self) -> None:
        """Let the scheduler free the task, which the rank notices."""
        self._future.cancel()


def _innermost(function: Any) -> Any:
    return _innermost(function.func) if isinstance(function, partial) else function


def _ignore(event: Event) -> None:
    """Take an event that nobody asked for."""
