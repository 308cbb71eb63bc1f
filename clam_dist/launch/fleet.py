"""The workers behind a link, as a gang sees them: who is there, who is silent, what they say."""

from __future__ import annotations

import json
import queue
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clam_dist.errors import ConfigError, RunError
from clam_dist.executor import Event
from clam_dist.launch import dask, preflight
from clam_dist.launch.devices import Facts, choose_backend, choose_devices
from clam_dist.launch.seat import Network, Outcome, Seat
from clam_dist.launch.worker_logs import WorkerLogs

ANSWER_SECONDS = 30.0
"""How long a worker may take to answer a question that needs no work."""
FETCH_SECONDS = 5.0
"""How long fetching a small result may take before it is asked whether its worker lives."""
LOOK_SECONDS = 0.25
"""The set of workers is asked for no more often than this."""
VET_SECONDS, VET_AGAIN_SECONDS = 5.0, 30.0
"""How long a worker that joined late may take to answer, and when it is asked again."""


class Fleet:
    """Implements `clam_dist.launch.pool.Pool` on a cluster's workers.

    Parameters
    ----------
    link : Link
        An open connection to a cluster.
    on_event : callable, optional
        Takes ``log`` events of workers and of the launcher, in the thread of the caller.
    network : Network
        Where ranks listen for one another.
    logs : Path, optional
        Folder for the logs of failed attempts.
    """

    def __init__(
        self,
        link: dask.Link,
        on_event: Callable[[Event], None] | None = None,
        network: Network | None = None,
        logs: Path | None = None,
    ) -> None:
        self.link = link
        self.topic = f"clam_dist-{uuid.uuid4().hex}"
        self._on_event = on_event
        self._network = network or Network()
        self._logs = WorkerLogs(logs)
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._seen: dict[str, dask.WorkerInfo] = {}
        self._known: dict[str, dask.WorkerInfo] = {}
        self._seen_at = 0.0
        self._heard: dict[str, tuple[float, float]] = {}
        self._labels: dict[str, str] = {}
        self._facts: dict[str, Facts] = {}
        self._folder: str | None = None
        self._vetted: dict[tuple[str, str], bool] | None = None
        self._asked = -VET_AGAIN_SECONDS
        link.listen(self.topic, self._inbox.put)

    # -- before any work -------------------------------------------------------------------------

    def preflight(self, folder: str | None, seconds: float) -> None:
        """See that every worker shares ``folder`` and runs the same software as the driver.

        Workers that join later are asked the same before they are given a rank.

        Raises
        ------
        ConfigError
            Naming the workers, and the folder or the versions.
        RunError
            When one does not answer within ``seconds``.
        """
        there = self.look(fresh=True)
        try:
            self._check(folder, None, seconds)
        except TimeoutError as error:
            raise RunError(
                f"a worker did not answer within {seconds:.0f} s (cluster.wait); "
                "see that all of them run"
            ) from error
        self._folder = folder
        self._vetted = {(address, worker.mark): True for address, worker in there.items()}

    def _check(self, folder: str | None, workers: list[str] | None, seconds: float) -> None:
        path: Path | None = None
        nonce: str | None = None
        if folder is not None:
            path, nonce = preflight.write_nonce(folder)
        asked = None if path is None else str(path)
        try:
            answers = self.link.everywhere(preflight.probe, asked, seconds=seconds, workers=workers)
        finally:
            if path is not None:
                path.unlink(missing_ok=True)
        preflight.check(preflight.probe(), answers, folder=str(folder), nonce=nonce)
        # By name: an embedded worker that is replaced keeps it.
        for address, answer in answers.items():
            if address in self._known:
                self._facts[self._known[address].name] = answer.facts

    def _is_fit(self, address: str, worker: dask.WorkerInfo) -> bool:
        """Whether a worker may be given a rank: one that joined late is asked first."""
        if self._vetted is None or self.link.nannies:
            return True  # an embedded worker is a copy of the one it replaces
        key = (address, worker.mark)
        if key in self._vetted:
            return self._vetted[key]
        now = time.monotonic()
        if now - self._asked < VET_AGAIN_SECONDS:
            return False
        try:
            self._check(self._folder, [address], VET_SECONDS)
        except (ConfigError, RunError) as error:
            self.tell("WARNING", f"a worker that joined is not used: {error}")
            self._vetted[key] = False
            return False
        except (OSError, TimeoutError):
            self._asked = now
            return False
        self._vetted[key] = True
        return True

    # -- the Pool protocol -----------------------------------------------------------------------

    def there(self, *, ready: bool = False) -> dict[str, str]:
        """The workers that are there, in the order of their names, with their processes' marks."""
        return {
            address: worker.mark
            for address, worker in self.look().items()
            if not ready or (worker.ready and self._is_fit(address, worker))
        }

    def start(self, seat: Seat, store: tuple[str, int] | None, work: tuple[Any, Any]) -> RankHandle:
        """Start a rank on its seat's worker."""
        return RankHandle(self.watch(self.link.start(self.topic, seat, store, work)))

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
            self._note(message)
            if message["kind"] == "log" and self._on_event is not None:
                self._on_event(json.loads(message["event"]))
        return [message for message in heard if message["kind"] not in ("log", "wake")]

    def renew(self, worker: str, pid: int | None) -> None:
        """Kill the process of an embedded worker, whatever it does; its nanny starts another."""
        if self.link.nannies:
            self.tell("WARNING", f"worker {worker} does not answer; its process is ended")
            self.link.kill(self._known[worker].name, pid)

    def silence(self, worker: str) -> float:
        """Seconds since the worker's last sign of life changed, as far as was looked."""
        return time.monotonic() - self._heard[worker][1]

    def seat_details(self, worker: str) -> tuple[Network, int]:
        """Where a worker's rank listens, and its compute threads."""
        known = self._known[worker]
        return self._network.at(known.host), known.threads

    def placement(self, workers: Sequence[str]) -> tuple[Literal["nccl", "gloo"], list[str]]:
        """What ranks on these workers speak over, and each one's device."""
        facts = [self._facts.get(self._known[worker].name, Facts()) for worker in workers]
        return choose_backend(facts), choose_devices(facts)

    def why_lost(self, worker: str) -> str:
        """What is known of the end of a worker."""
        return self.link.why_lost(worker)

    def keep_logs(self, ends: Sequence[tuple[Seat, str]]) -> str:
        """Write the last lines of a failed attempt's workers; the pattern of the files' names."""
        return self._logs.keep([(seat.worker, self.label(seat.worker), end) for seat, end in ends])

    # -- for the executor ------------------------------------------------------------------------

    def look(self, *, fresh: bool = False) -> dict[str, dask.WorkerInfo]:
        """The workers that are there, as of a moment ago."""
        now = time.monotonic()
        if fresh or now - self._seen_at > LOOK_SECONDS:
            self._seen = self.link.workers()
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

    def label(self, worker: str) -> str:
        """Short name of a worker, ``worker-0``."""
        return self._labels.get(worker, worker)

    def silent(self, seconds: float) -> list[str]:
        """Workers that are there and have given no sign of life for so long."""
        return [worker for worker in self.there() if self.silence(worker) > seconds]

    def replace_silent(self, seconds: float) -> bool:
        """Kill and replace what fell silent, where it is ours; whether anyone is there."""
        now = time.monotonic()
        for worker in self.silent(seconds) if self.link.nannies else ():
            self._heard[worker] = (self._heard[worker][0], now)  # once, until it is gone
            self.renew(worker, None)
        return bool(self.there())

    def send(self, task: MapTask, seconds: float) -> None:
        """Have a task done by a worker that is not silent; call off an earlier try."""
        if task.future is not None:
            dask.cancel(task.future)
        silent = self.silent(seconds)
        lively = [w for w in self.there() if w not in silent] if silent else None
        task.tries += 1
        key = f"{task.key}.{task.tries}" if task.tries > 1 else task.key
        task.future = self.watch(
            self.link.send(self.topic, task.function, task.item, key, lively or None)
        )

    def is_stuck(self, task: MapTask, seconds: float) -> bool:
        """Whether a worker that fell silent, and that is not ours to replace, has the task."""
        silent = [] if self.link.nannies else self.silent(seconds)
        lively = len(self.there()) > len(silent)
        return bool(silent and lively and self.link.given_to(task.future, silent))

    def tell(self, level: str, message: str) -> None:
        """Say something of the launcher's own."""
        if self._on_event is not None:
            self._on_event({"event": "log", "level": level, "message": message, "worker": None})

    def watch(self, future: dask.Future) -> dask.Future:
        """Have the end of a task end a wait in ``messages``; called on one of Dask's threads."""
        future.add_done_callback(lambda _: self._inbox.put({"kind": "wake"}))
        return future

    def _note(self, message: dict[str, Any]) -> None:
        """Keep a line of what a worker said, for its log."""
        worker = message.get("worker")
        if worker is None:
            return
        if message["kind"] == "log":
            event = json.loads(message["event"])
            self._logs.hear(worker, f"{event['level']} {event['message']}")
        elif message["kind"] == "report":
            self._logs.hear(worker, f"reported {message['event'][:200]}")
        else:
            told = {k: v for k, v in message.items() if k not in ("kind", "worker")}
            self._logs.hear(worker, f"rank {message['kind']} {json.dumps(told)}")


@dataclass
class MapTask:
    """One item of a map, and the try at it that counts."""

    function: Callable[[Any], Any]
    item: Any
    key: str
    future: Any = None
    tries: int = 0


class RankHandle:
    """A rank's future, seen as a gang sees it."""

    def __init__(self, future: dask.Future) -> None:
        self._future = future

    def outcome(self) -> Outcome | BaseException | None:
        """How the rank ended; None while it runs, or while its worker does not hand it over."""
        if not self._future.done():
            return None
        try:
            outcome: Outcome = self._future.result(timeout=FETCH_SECONDS)
        except TimeoutError as error:
            # It ended, but its worker is gone or stopped since: the worker's loss tells the rest.
            return error if self._future.status == "error" else None
        except Exception as error:
            return dask.explain(error, str(self._future.key))
        return outcome

    def drop(self) -> None:
        """Let the scheduler free the task, which the rank notices."""
        dask.cancel(self._future)
