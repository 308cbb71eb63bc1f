"""Everything that touches Dask: clusters opened and closed, tasks sent, workers asked.

The only file that imports ``distributed``; ``workers`` makes an executor of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dask import config
from distributed import Client, Future, LocalCluster, Lock, Nanny, Worker, WorkerPlugin, get_worker
from distributed.client import ClosedClientError
from distributed.comm import get_address_host
from distributed.scheduler import KilledWorker
from distributed.security import Security

from clam_dist.errors import ConfigError, RunError
from clam_dist.launch import ranks
from clam_dist.launch.cluster_class import find_class, refused_connection
from clam_dist.launch.embedded import NannyLog, bind_to_parent, environment_kept, kill
from clam_dist.launch.seat import Outcome, Seat

GANG_LOCK = "clam_dist-gang"
"""Name of the lock, and of the scheduler's metadata that say who holds it."""
CLOSE_SECONDS = 0.25
"""How long embedded workers may take to end by themselves: they keep nothing worth saving."""
CONNECT_TRIES = 5
_MEMORY_STEPS = ("target", "spill", "pause")


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as the scheduler sees it.

    Attributes
    ----------
    name : str
        Unique among the workers; an embedded worker that was replaced keeps it.
    host : str
        Address or name that its peers reach it by.
    threads : int
        Compute threads of a rank.
    ready : bool
        Whether it takes new tasks.
    heard : float
        When it last gave a sign of life, on the scheduler's clock.
    mark : str
        Tells its process from an earlier one at the same address.
    memory_limit : int
        Bytes at which it is ended; 0 for no limit.
    """

    name: str
    host: str
    threads: int
    ready: bool
    heard: float
    mark: str
    memory_limit: int = 0


@dataclass
class Link:
    """A connection to a cluster.

    Attributes
    ----------
    client : distributed.Client
        Connected, not the process's default.
    cluster : object, optional
        The cluster, where it was started here and ends with the link.
    threads : int, optional
        Compute threads of a rank; what each worker says by default.
    nannies : NannyLog, optional
        What the nannies of an embedded cluster said.
    settings : context manager, optional
        Dask's settings while the link is open.
    """

    client: Client
    cluster: Any = None
    threads: int | None = None
    nannies: NannyLog | None = None
    settings: contextlib.AbstractContextManager[Any] | None = None
    _lock: Lock | None = field(default=None, init=False)

    @property
    def dashboard(self) -> str | None:
        """Address of the Dask dashboard, if it has one."""
        return self.client.dashboard_link or None

    @property
    def connected(self) -> bool:
        """Whether the scheduler is there, as far as is known."""
        return self.client.status == "running" and self.client.scheduler is not None

    @property
    def encrypted(self) -> bool:
        """Whether Dask's own connections are."""
        return self.client.scheduler is not None and str(self.client.scheduler.address).startswith(
            "tls://"
        )

    def workers(self) -> dict[str, WorkerInfo]:
        """The workers that are there, by address, in the order of their names.

        Raises
        ------
        RunError
            When the scheduler no longer answers.
        """
        try:
            told = self.client.scheduler_info(n_workers=-1)["workers"]
        except (*_LOST, KeyError) as error:  # of a lost one, nothing at all is known
            raise scheduler_lost(ConnectionError()) from error
        found = {
            address: WorkerInfo(
                name=str(worker["name"]),
                host=get_address_host(address),
                threads=self.threads or int(worker["nthreads"]),
                ready=worker.get("status", "running") == "running",
                heard=float(worker["last_seen"]),
                # Every worker process makes a scratch folder of its own.
                mark=str(worker["local_directory"]),
                memory_limit=int(worker.get("memory_limit") or 0),
            )
            for address, worker in told.items()
        }
        return dict(sorted(found.items(), key=lambda pair: (len(pair[1].name), pair[1].name)))

    def listen(self, topic: str, hear: Callable[[dict[str, Any]], None]) -> None:
        """Call ``hear`` with every message that tasks send on ``topic``, on Dask's thread."""
        self.client.subscribe_topic(topic, lambda event: hear(event[1]))

    def send(
        self,
        topic: str,
        function: Callable[[Any], Any],
        item: Any,
        key: str,
        workers: list[str] | None = None,
    ) -> Future:
        """Run ``function(item)`` on any worker; Dask runs it again when that worker is lost.

        ``workers``: where to run it as long as one of them is there.
        """
        return self.client.submit(
            map_task,
            topic,
            function,
            item,
            key=key,
            pure=False,
            workers=workers,
            allow_other_workers=workers is not None,
        )

    def given_to(self, future: Future, workers: list[str]) -> bool:
        """Whether one of these workers has a task, running, waiting or done."""
        with scheduler_needed():
            given = self.client.processing(workers)
            held = self.client.who_has([future])
        having = [w for w in workers if str(future.key) in map(str, given.get(w, ()))]
        return bool(having or set(workers) & {w for where in held.values() for w in where})

    def start(
        self,
        topic: str,
        seat: Seat,
        store: tuple[str, int] | None,
        work: tuple[Any, Any],
    ) -> Future:
        """Run a rank on its seat's worker and nowhere else."""
        return self.client.submit(
            rank_task,
            topic,
            seat,
            store,
            work,
            key=f"rank-{seat.attempt}-{seat.rank}",
            pure=False,
            retries=0,
            workers=[seat.worker],
            allow_other_workers=False,
        )

    def everywhere(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float,
        workers: list[str] | None = None,
    ) -> dict[str, Any]:
        """Results, or exceptions, by worker; run beside whatever task a worker is busy with.

        Raises
        ------
        TimeoutError
            When one does not answer within ``seconds``.
        RunError
            When the scheduler is gone.
        """
        if not self.connected:  # Dask's client would stumble over it
            raise scheduler_lost(ConnectionError())
        # Client.run has no time limit of its own, and a stopped worker never answers.
        answers: dict[str, Any] = self.client.sync(
            self.client._run,
            function,
            *arguments,
            workers=workers,
            on_error="return",
            callback_timeout=seconds,
        )
        return answers

    def lock(self) -> Lock:
        """The cluster's one lock for gangs."""
        if self._lock is None:
            self._lock = Lock(GANG_LOCK, scheduler_rpc=self.client.scheduler, loop=self.client.loop)
        return self._lock

    def kill(self, name: str, pid: int | None) -> None:
        """End an embedded worker, whatever it does; its nanny starts another.

        The process that a rank names goes before what the nanny believes, which after quick
        restarts may be one restart old.
        """
        for nanny in self.cluster.workers.values() if self.nannies else ():
            if str(nanny.name) == name and (pid or nanny.pid):
                kill(pid or nanny.pid)

    def why_lost(self, worker: str) -> str:
        """What the nannies last said, for an embedded worker; otherwise nothing is known."""
        return self.nannies.last(worker) if self.nannies else ""

    def close(self) -> None:
        """Leave the cluster; end it, with every process of it, where it was started here."""
        if self._lock is not None and self.client.loop is not None:
            self.client.loop.add_callback(self._lock.refresh_callback.stop)
        with environment_kept():
            if isinstance(self.cluster, LocalCluster):
                self.cluster.sync(_end_workers, self.cluster)
            self.client.close()
            if self.cluster is not None:
                self.cluster.close()
        if self.nannies:
            self.nannies.detach()
        if self.settings is not None:
            self.settings.__exit__(None, None, None)


def embedded(workers: int, memory_limit: int, threads: int) -> Link:
    """Start a scheduler in this process and worker processes that die with it.

    Parameters
    ----------
    workers : int
        Processes, one task at a time each.
    memory_limit : int
        Bytes at 95 % of which a worker is ended and replaced.
    threads : int
        Compute threads of a rank.

    Raises
    ------
    ConfigError
        When called while the main module of a worker is being imported.
    """
    import multiprocessing

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a script that starts worker processes is imported by each of them: put its work "
            "under `if __name__ == '__main__':`"
        )
    # A worker lost twice within this time is otherwise taken out for good, its nanny closed:
    # Dask looks once, this long after the first loss, whether the worker is there at that moment.
    settings = config.set({"distributed.deploy.lost-worker-timeout": "1000 days"})
    nannies = NannyLog()
    with environment_kept():
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=memory_limit,
            # Results are small, so there is nothing to spill; and a worker paused at 80 % whose
            # allocator keeps its pages would stay paused for ever.
            # Call stacks, taken of every worker all the time, grow by 0.1 MiB a second for an hour.
            config={f"distributed.worker.memory.{what}": False for what in _MEMORY_STEPS}
            | {"distributed.worker.profile.enabled": False},
            silence_logs=logging.CRITICAL,
            plugins=[BoundToParent(os.getpid())],
        )
    return Link(_client(cluster), cluster, threads, nannies, settings)


def connected(address: str, wait: float, options: Mapping[str, Any] | None = None) -> Link:
    """Connect to a scheduler that someone else runs.

    Certificates come from Dask's own settings (``distributed.comm.tls`` in its YAML files or
    environment), or from ``options``.

    Parameters
    ----------
    options : mapping, optional
        Keyword arguments of Dask's ``Client``; ``security`` may be a mapping.

    Raises
    ------
    ConfigError
        When nothing answers there within ``wait`` seconds, or not to us.
    """
    given = _with_security(options or {}, "cluster.cluster_kwargs")
    try:
        if address.startswith("tls://"):
            # Dask's client would notice the lack of it late, and not end for 40 s.
            security = given.get("security") or Security()
            if security.get_connection_args("client")["ssl_context"] is None:
                raise ValueError("no certificate is set")
        return Link(_client(address, timeout=wait, **given))
    except (OSError, TimeoutError, ValueError, RuntimeError, TypeError) as error:
        raise refused_connection(address, wait, error) from error


def _with_security(arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The arguments with a ``security`` mapping made into Dask's ``Security``.

    Raises
    ------
    ConfigError
        When it has keys that Dask does not know.
    """
    given = dict(arguments)
    if isinstance(given.get("security"), Mapping):
        try:
            given["security"] = Security(**given["security"])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key}: security: {error}") from error
    return given


def constructed(path: str, arguments: Mapping[str, Any], workers: int | str) -> Link:
    """Make a cluster of the class at ``path`` (``package.module.Class``), scaled to ``workers``.

    Raises
    ------
    ConfigError
        When the package is missing, has no such class, or the class refuses the arguments.
    """
    made = find_class(path)
    given = _with_security(arguments, "cluster.cluster_kwargs")
    try:
        cluster = made(**given)
    except Exception as error:
        raise ConfigError(
            f"cluster.cluster_kwargs: {path} refused them: {type(error).__name__}: {error}"
        ) from error
    if workers != "auto":
        cluster.scale(int(workers))
    return Link(_client(cluster), cluster)


def _client(target: Any, **options: Any) -> Client:
    """A connected client, which is not made the process's default.

    Dask asserts that the scheduler's greeting comes alone; when two clients register at the same
    moment, it may come together with other news, and registering again is all that is needed.
    """
    for _ in range(CONNECT_TRIES - 1):
        with contextlib.suppress(AssertionError):
            return Client(target, set_as_default=False, **options)
    return Client(target, set_as_default=False, **options)


def explain(error: BaseException, key: str) -> BaseException:
    """A task's error as the caller should see it: its own unchanged, Dask's in plain words."""
    if isinstance(error, KilledWorker):
        return RunError(
            f"{key}: {error.allowed_failures + 1} workers died while working on it, the last "
            f"{error.last_worker.address}; if they ran out of memory, raise cluster.memory_limit"
        )
    if isinstance(error, asyncio.CancelledError) or type(error).__name__ == "FutureCancelledError":
        return scheduler_lost(error)
    return error


_LOST = (ClosedClientError, OSError, TimeoutError, RuntimeError)
"""What calls of Dask raise where the scheduler does not answer."""


def cancel(future: Future) -> None:
    """Let the scheduler forget a task; where it is gone, so is the task."""
    with contextlib.suppress(*_LOST):
        future.cancel()


@contextlib.contextmanager
def scheduler_needed() -> Iterator[None]:
    """Tell in plain words that the scheduler does not answer what is asked in the block."""
    try:
        yield
    except _LOST as error:
        raise scheduler_lost(error) from error


def scheduler_lost(error: BaseException) -> RunError:
    """The error for a cluster whose scheduler is gone."""
    return RunError(
        f"the connection to the Dask scheduler was lost ({type(error).__name__}); see that it "
        "runs, then run the same command again: it resumes"
    )


# -- on a worker ---------------------------------------------------------------------------------


def map_task(topic: str, function: Callable[[Any], Any], item: Any) -> Any:
    """Run ``function(item)``, its log sent to the driver."""
    worker = get_worker()
    with ranks.heard(partial(_send, worker, topic), worker.address):
        return function(item)


def _send(worker: Worker, topic: str, message: dict[str, Any]) -> None:
    """Send a message to the driver, in order, without waiting."""
    worker.log_event(topic, {**message, "worker": worker.address})


def rank_task(
    topic: str, seat: Seat, store: tuple[str, int] | None, work: tuple[Any, Any]
) -> Outcome:
    """Take a seat, if this is its worker, in the very process it was meant for."""
    worker = get_worker()
    if worker.address != seat.worker or worker.local_directory != seat.mark:
        return Outcome(seat, "misplaced")
    key = f"rank-{seat.attempt}-{seat.rank}"

    def wanted() -> bool:
        # The scheduler frees the task of a driver that gave up, or is gone.
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    send = partial(_send, worker, topic)
    with ranks.heard(send, worker.address):
        return ranks.take_seat(seat, store, *work, send=send, wanted=wanted)


class BoundToParent(WorkerPlugin):
    """Ties an embedded worker to the process that started it."""

    name = "clam_dist-bound-to-parent"

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Called by Dask on the worker's main thread."""
        bind_to_parent(self.parent)


async def _end_workers(cluster: LocalCluster) -> None:
    """End all workers at once, by force those that are busy."""
    nannies = [worker for worker in cluster.workers.values() if isinstance(worker, Nanny)]
    await asyncio.gather(*(_end_worker(nanny) for nanny in nannies))


async def _end_worker(nanny: Nanny) -> None:
    pid = nanny.pid
    closing = asyncio.ensure_future(nanny.close())
    await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    if not closing.done() and pid is not None:
        kill(pid)
    await closing
