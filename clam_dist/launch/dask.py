"""Everything that touches Dask: clusters opened and closed, tasks sent, workers asked.

The only file that imports ``distributed``; ``workers`` makes an executor of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dask import config
from distributed import Client, Future, LocalCluster, Lock, Nanny, Worker, WorkerPlugin, get_worker
from distributed.comm import get_address_host
from distributed.scheduler import KilledWorker

from clam_dist.errors import ConfigError, RunError
from clam_dist.launch import ranks
from clam_dist.launch.embedded import NannyLog, bind_to_parent, environment_kept, kill
from clam_dist.launch.seat import Outcome, Seat

GANG_LOCK = "clam_dist-gang"
"""Name of the lock, and of the scheduler's metadata that say who holds it."""
CLOSE_SECONDS = 0.25
"""How long embedded workers may take to end by themselves: they keep nothing worth saving."""
CONNECT_TRIES = 5
_MEMORY_STEPS = ("target", "spill", "pause")
INSTALL = {"dask_cuda": "clam-dist[gpu]"}
"""What to install for a cluster class's package, where that is not the package's own name."""


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
    """

    name: str
    host: str
    threads: int
    ready: bool
    heard: float


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

    def workers(self) -> dict[str, WorkerInfo]:
        """The workers that are there, by address, in the order of their names.

        Raises
        ------
        RunError
            When the scheduler no longer answers.
        """
        try:
            told = self.client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, TimeoutError, RuntimeError) as error:
            raise scheduler_lost(error) from error
        found = {
            address: WorkerInfo(
                name=str(worker["name"]),
                host=get_address_host(address),
                threads=self.threads or int(worker["nthreads"]),
                ready=worker.get("status", "running") == "running",
                heard=float(worker["last_seen"]),
            )
            for address, worker in told.items()
        }
        return dict(sorted(found.items(), key=lambda pair: (len(pair[1].name), pair[1].name)))

    def listen(self, topic: str, hear: Callable[[dict[str, Any]], None]) -> None:
        """Call ``hear`` with every message that tasks send on ``topic``, on Dask's thread."""
        self.client.subscribe_topic(topic, lambda event: hear(event[1]))

    def send(self, topic: str, function: Callable[[Any], Any], item: Any, key: str) -> Future:
        """Run ``function(item)`` on any worker; Dask runs it again when that worker is lost."""
        return self.client.submit(map_task, topic, function, item, key=key, pure=False)

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
        self, function: Callable[..., Any], *arguments: Any, seconds: float
    ) -> dict[str, Any]:
        """Results, or exceptions, by worker; run beside whatever task a worker is busy with."""
        # Client.run has no time limit of its own, and a stopped worker never answers.
        answers: dict[str, Any] = self.client.sync(
            self.client._run,
            function,
            *arguments,
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
            if self.nannies:
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
            config={f"distributed.worker.memory.{what}": False for what in _MEMORY_STEPS},
            silence_logs=logging.CRITICAL,
            plugins=[BoundToParent(os.getpid())],
        )
    return Link(_client(cluster), cluster, threads, nannies, settings)


def connected(address: str, wait: float) -> Link:
    """Connect to a scheduler that someone else runs.

    Raises
    ------
    ConfigError
        When nothing answers there within ``wait`` seconds.
    """
    try:
        return Link(_client(address, timeout=wait))
    except (OSError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"cluster.address: no Dask scheduler answers at {address} within {wait:.0f} s "
            f"({type(error).__name__}); start `dask scheduler` there, or correct the address"
        ) from error


def constructed(path: str, arguments: Mapping[str, Any], workers: int | str) -> Link:
    """Make a cluster of the class at ``path`` (``package.module.Class``), scaled to ``workers``.

    Raises
    ------
    ConfigError
        When the package is missing, has no such class, or the class refuses the arguments.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        install = INSTALL.get(package, package.replace("_", "-"))
        raise ConfigError(
            f"cluster.cluster_class: {path} needs the package {package}; "
            f"install it with: pip install '{install}'"
        ) from error
    except (AttributeError, ValueError) as error:
        raise ConfigError(
            f"cluster.cluster_class: there is no class {path}; write package.module.Class"
        ) from error
    try:
        cluster = made(**arguments)
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
    with ranks.heard(partial(worker.log_event, topic), worker.address):
        return function(item)


def rank_task(
    topic: str, seat: Seat, store: tuple[str, int] | None, work: tuple[Any, Any]
) -> Outcome:
    """Take a seat, if this is its worker."""
    worker = get_worker()
    if worker.address != seat.worker:
        return Outcome(seat, "misplaced")
    key = f"rank-{seat.attempt}-{seat.rank}"

    def wanted() -> bool:
        # The scheduler frees the task of a driver that gave up, or is gone.
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    send = partial(worker.log_event, topic)
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
    await asyncio.gather(*(_end_worker(nanny) for nanny in list(cluster.workers.values())))


async def _end_worker(nanny: Nanny) -> None:
    pid = nanny.pid
    closing = asyncio.ensure_future(nanny.close())
    await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    if not closing.done() and pid is not None:
        kill(pid)
    await closing
