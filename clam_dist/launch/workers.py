"""The executor over a cluster's workers: maps in order, gangs that start again together."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from clam_dist.errors import RunError
from clam_dist.executor import Collective, Event, Item, Result
from clam_dist.launch import dask, machine
from clam_dist.launch.fleet import ANSWER_SECONDS, FETCH_SECONDS, Fleet, MapTask
from clam_dist.launch.gang import TELL_SECONDS, run_gang
from clam_dist.launch.pool import MOST_WORKERS, Patience
from clam_dist.launch.seat import Network
from clam_dist.launch.window import in_order

LOOK_AGAIN_SECONDS = 1.0
"""How often it is asked whether a task is with a worker that fell silent."""


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
    network : Network, optional
        Where ranks listen for one another; on the addresses that Dask uses by default.
    logs : Path, optional
        Folder for the last log lines of the workers of failed attempts.
    """

    def __init__(
        self,
        link: dask.Link,
        *,
        patience: Patience | None = None,
        on_event: Callable[[Event], None] | None = None,
        network: Network | None = None,
        logs: Path | None = None,
    ) -> None:
        self.patience = patience or Patience()
        self._link = link
        self._fleet = Fleet(link, on_event, network, logs)
        self._peaks: dict[str, int] = {}
        self.workers = max(1, len(self._fleet.look()))

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """``cuda`` where every worker sees a GPU, as the preflight found."""
        _, devices = self._fleet.placement(list(self._fleet.look()))
        return "cpu" if not devices or "cpu" in devices else "cuda"

    @property
    def memory_limit(self) -> int | None:
        """Bytes at which Dask ends a worker, the least of all; None where none has a limit."""
        limits = [worker.memory_limit for worker in self._fleet.look().values()]
        return min((limit for limit in limits if limit), default=None)

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

        def start(item: Item) -> MapTask:
            key = f"{name}-{uuid.uuid4().hex[:12]}-{next(numbered)}"
            task = MapTask(function, item, key)
            self._fleet.send(task, self.patience.silent)
            return task

        return in_order(
            items,
            start=start,
            finish=self._finish,
            cancel=lambda task: dask.cancel(task.future),
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
        ``patience.max_restarts`` times; workers that joined late are used then, or, once an
        attempt has run for ``patience.grow`` seconds, from the next ``checkpoint`` event on. What
        a rank's function raises is raised here.
        """
        if world_size is not None and world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")
        # A worker that is just being replaced is waited for, so it counts.
        wanted = max(self.workers, len(self._fleet.look(fresh=True)))
        with self._turn():
            outcomes = run_gang(
                self._fleet,
                function,
                payload,
                ranks=wanted if world_size is None else min(wanted, world_size),
                patience=self.patience,
                on_event=on_event or _ignore,
                tell=self._fleet.tell,
                most=world_size or MOST_WORKERS,
            )
        for outcome in outcomes:
            self._note_peak(outcome.seat.worker, outcome.peak_rss_bytes)
        return [outcome.value for outcome in outcomes]

    def peak_rss_bytes(self) -> dict[str, int]:
        """Peak resident memory (VmHWM) in bytes of the driver and each worker, by name."""
        try:
            answers = self._link.everywhere(machine.peak_rss_bytes, seconds=ANSWER_SECONDS)
        except (OSError, TimeoutError, RunError):
            answers = {}  # a worker that is stopped or gone: what ranks told before stands
        if answers:
            self._fleet.look(fresh=True)
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
        while len(there := self._fleet.look(fresh=True)) < (wanted or 1):
            now = time.monotonic()
            if now - began > self.patience.wait:
                remedy = "start more, raise cluster.wait, or lower cluster.workers"
                if wanted is None:
                    remedy = (
                        "start some, raise cluster.wait, or, for a cluster class that starts its "
                        "workers when asked, set cluster.workers"
                    )
                raise RunError(
                    f"{len(there)} of {wanted or 1} workers came within "
                    f"{self.patience.wait:.0f} s (cluster.wait); {remedy}"
                )
            if now - told > TELL_SECONDS:
                told = now
                self._fleet.tell(
                    "INFO", f"waiting for workers: {len(there)} of {wanted or 1} are there"
                )
            time.sleep(0.1)
        self.workers = len(there)

    def preflight(self, folder: str | None) -> None:
        """See that every worker shares ``folder`` and runs the same software as the driver.

        Raises
        ------
        ConfigError
            Naming the workers, and the folder or the versions.
        """
        self._fleet.preflight(folder, self.patience.wait)

    # -- inside ----------------------------------------------------------------------------------

    def _finish(self, task: MapTask) -> Any:
        """A map task's result, once it is there; watches over those who work on it."""
        fetch_seconds = FETCH_SECONDS
        last_there = looked = time.monotonic()
        while True:
            while not task.future.done():
                self._fleet.messages(0.5)
                last_there = self._watch_over(last_there)
                looked = self._move_on(task, looked)
            self._fleet.messages(0)
            try:
                return task.future.result(timeout=fetch_seconds)
            except BaseException as error:
                if isinstance(error, TimeoutError) and task.future.status != "error":
                    # The task has ended, but the worker that holds its result does not answer.
                    last_there = self._watch_over(last_there)
                    looked = self._move_on(task, looked)
                    fetch_seconds *= 2
                    continue
                told = dask.explain(error, str(task.future.key))
                if told is error:
                    raise
                raise told from error

    def _move_on(self, task: MapTask, looked: float) -> float:
        """Send a task again that a silent worker holds; asks no more often than now and then."""
        now = time.monotonic()
        if now - looked < LOOK_AGAIN_SECONDS:
            return looked
        if self._fleet.is_stuck(task, self.patience.silent):
            self._fleet.tell("WARNING", f"{task.key} is with a worker that fell silent: sent again")
            self._fleet.send(task, self.patience.silent)
        return now

    def _watch_over(self, last_there: float) -> float:
        """Replace workers that fell silent; when someone was last there, on the monotonic clock.

        Raises
        ------
        RunError
            When nobody has been there for ``patience.wait`` seconds.
        """
        there, now = self._fleet.replace_silent(self.patience.silent), time.monotonic()
        if not there and now - last_there > self.patience.wait:
            raise RunError(
                f"no worker was there for {self.patience.wait:.0f} s (cluster.wait); "
                "start workers and run the same command again: it resumes"
            )
        return now if there else last_there

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the cluster's lock for gangs, so that two runs never interleave their ranks."""
        with dask.scheduler_needed():
            lock, client = self._link.lock(), self._link.client
            while not lock.acquire(timeout=TELL_SECONDS):
                holder = client.get_metadata([dask.GANG_LOCK], default="another run")
                self._fleet.tell("INFO", f"waiting for the cluster: {holder} is training on it")
        try:
            with dask.scheduler_needed():
                client.set_metadata(
                    [dask.GANG_LOCK], f"process {os.getpid()} on {socket.gethostname()}"
                )
            yield
        finally:
            # Where the scheduler is gone, so is the lock; asking for it would take long.
            if self._link.connected:
                lock.release()

    def _note_peak(self, worker: str, peak: int) -> None:
        label = self._fleet.label(worker)
        self._peaks[label] = max(peak, self._peaks.get(label, 0))


def _innermost(function: Any) -> Any:
    return _innermost(function.func) if isinstance(function, partial) else function


def _ignore(event: Event) -> None:
    """Take an event that nobody asked for."""
