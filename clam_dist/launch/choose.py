"""Which executor a run gets, how many workers, and how much memory each: pure rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from clam_dist.errors import ConfigError
from clam_dist.executor import Event, Executor
from clam_dist.launch import machine
from clam_dist.launch.pool import MOST_WORKERS, Patience
from clam_dist.launch.seat import Network
from clam_dist.launch.serial import SerialExecutor

SERIAL_BELOW_BYTES = 256 * 2**20
"""Decoded data under this many bytes is worked on in this process when nothing else is asked."""
WORKER_BYTES = 2**30
"""Memory an automatically chosen worker is given at least."""
SMALLEST_WORKER_BYTES = 512 * 2**20
"""A worker with torch and pyarrow imported stands at about 280 MiB before any work."""
SHARE_OF_MEMORY = 0.9
"""Of the memory that is free, the share that workers' limits add up to; the driver has the rest."""
WORKERS_A_CORE = 64
"""More processes than this for every core of this machine are one, too."""


class ClusterSettings(Protocol):
    """The ``cluster`` section of a config, as far as the launcher reads it."""

    @property
    def kind(self) -> str:
        """One of auto, serial, local, address, class."""
        ...

    @property
    def workers(self) -> int | Literal["auto"]:
        """Processes asked for."""
        ...

    @property
    def memory_limit(self) -> int | Literal["auto"]:
        """Bytes a worker may use."""
        ...

    @property
    def address(self) -> str | None:
        """Of a scheduler."""
        ...

    @property
    def cluster_class(self) -> str | None:
        """Dotted path of a Dask cluster class."""
        ...

    @property
    def cluster_kwargs(self) -> Mapping[str, Any]:
        """Its arguments."""
        ...

    @property
    def wait(self) -> float:
        """Seconds to wait for workers."""
        ...

    @property
    def max_restarts(self) -> int:
        """Times a gang is started again."""
        ...

    @property
    def collective_interface(self) -> str | None:
        """Network interface on which ranks listen for one another."""
        ...

    @property
    def collective_host(self) -> str | None:
        """Address, name or network (``10.1.0.0/16``) on which they do."""
        ...

    @property
    def collective_port(self) -> int:
        """Port of the store on rank 0; 0 lets the system choose."""
        ...


def choose_kind(settings: ClusterSettings, decoded_bytes: int) -> str:
    """One of ``serial``, ``local``, ``address``, ``class``.

    ``auto`` is what an address or a class asks for; else serial when ``workers`` is auto or 1 and
    the decoded data is under 256 MiB; else local.

    Raises
    ------
    ConfigError
        When the kind needs a key that is not set, or a key is set that the kind does not use.
    """
    kind = settings.kind
    if kind == "auto":
        if settings.address:
            kind = "address"
        elif settings.cluster_class:
            kind = "class"
        elif settings.workers in ("auto", 1) and decoded_bytes < SERIAL_BELOW_BYTES:
            kind = "serial"
        else:
            kind = "local"
    if kind == "address" and not settings.address:
        raise ConfigError("cluster.address is not set; cluster.kind: address needs it")
    if kind == "class" and not settings.cluster_class:
        raise ConfigError("cluster.cluster_class is not set; cluster.kind: class needs it")
    if settings.address and kind != "address":
        raise ConfigError(f"cluster.address is set, but cluster.kind is {kind}; use kind: address")
    if kind == "serial" and settings.workers not in ("auto", 1):
        raise ConfigError(
            f"cluster.workers is {settings.workers}, but cluster.kind: serial works in one "
            "process; use kind: local"
        )
    if settings.collective_interface and settings.collective_host:
        raise ConfigError(
            "cluster.collective_interface and cluster.collective_host are both set; leave one out"
        )
    return kind


def check_workers(asked: int | str, cores: int | None = None) -> None:
    """Refuse a number that must be a mistake; ``cores`` of this machine, where all would run on it.

    Raises
    ------
    ConfigError
        With both numbers.
    """
    if asked == "auto":
        return
    if int(asked) > MOST_WORKERS:
        raise ConfigError(
            f"cluster.workers: {asked} is more than {MOST_WORKERS}, the most this tool starts; "
            "workers are processes, not threads or rows"
        )
    if cores is not None and int(asked) > WORKERS_A_CORE * cores:
        raise ConfigError(
            f"cluster.workers: {asked} processes on {cores} core(s) are more than "
            f"{WORKERS_A_CORE} a core; ask for about {cores}, or name a cluster with "
            "cluster.address or cluster.cluster_class"
        )


def plan_workers(asked: int | str, *, cores: int, memory_bytes: int, n_shards: int) -> int:
    """Processes of an embedded cluster: as asked, else min(cores, memory / 1 GiB, shards)."""
    check_workers(asked, cores)
    if asked != "auto":
        return int(asked)
    return max(1, min(cores, memory_bytes // WORKER_BYTES, n_shards))


def plan_memory_limit(asked: int | str, *, workers: int, memory_bytes: int) -> int:
    """Bytes each worker of an embedded cluster may use before it is ended.

    Automatically an even share of what is free, but at least 1 GiB: a limit reserves nothing.

    Raises
    ------
    ConfigError
        When fewer bytes are asked for than a worker takes before any work.
    """
    if asked == "auto":
        return max(WORKER_BYTES, int(SHARE_OF_MEMORY * memory_bytes) // workers)
    limit = int(asked)
    if limit < SMALLEST_WORKER_BYTES:
        raise ConfigError(
            f"cluster.memory_limit: {limit / 2**20:.0f} MiB a worker is less than the "
            f"{SMALLEST_WORKER_BYTES // 2**20} MiB it needs to begin; raise it, and lower "
            "cluster.workers if memory is short"
        )
    return limit


def make_executor(
    settings: ClusterSettings,
    *,
    decoded_bytes: int,
    n_shards: int,
    work_folder: str | None = None,
    log_folder: str | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Executor:
    """Start what the config asks for, checked and ready for work; the caller closes it.

    Parameters
    ----------
    settings : ClusterSettings
        The ``cluster`` section of the config.
    decoded_bytes : int
        Size of the whole source once decoded.
    n_shards : int
        More workers than shards would have nothing to train on.
    work_folder : str, optional
        Folder that all workers must share; checked before anything is sent there.
    log_folder : str, optional
        Where the last log lines of workers of failed attempts go; ``logs`` in the work folder.
    on_event : callable, optional
        Takes ``cluster`` and ``log`` events; called only while a method of the executor runs.

    Raises
    ------
    ConfigError
        When settings contradict one another, a package is missing, a worker cannot read the work
        folder or runs other versions.
    RunError
        When too few workers came within ``cluster.wait`` seconds.
    """
    tell = on_event or _ignore
    kind = choose_kind(settings, decoded_bytes)
    check_workers(settings.workers)
    if kind == "serial":
        tell({"event": "cluster", "workers": 1, "dashboard": None})
        return SerialExecutor()
    # distributed takes 0.3 s to import and 25 MiB to hold: only when it is used.
    from clam_dist.launch import dask
    from clam_dist.launch.workers import DaskExecutor

    patience = Patience(wait=settings.wait, max_restarts=settings.max_restarts)
    if kind == "local":
        memory = machine.usable_memory()
        cores = machine.usable_cores()
        workers = plan_workers(
            settings.workers, cores=cores, memory_bytes=memory, n_shards=n_shards
        )
        limit = plan_memory_limit(settings.memory_limit, workers=workers, memory_bytes=memory)
        link = dask.embedded(workers, limit, max(1, cores // workers))
    elif kind == "address":
        link = dask.connected(str(settings.address), settings.wait, settings.cluster_kwargs)
    else:
        link = dask.constructed(
            str(settings.cluster_class), settings.cluster_kwargs, settings.workers
        )
    network = Network(
        settings.collective_host or "",
        settings.collective_interface or "",
        settings.collective_port,
    )
    if log_folder is None and work_folder is not None:
        log_folder = str(Path(work_folder) / "logs")
    logs = None if log_folder is None else Path(log_folder).absolute()
    try:
        executor = DaskExecutor(link, patience=patience, on_event=tell, network=network, logs=logs)
        executor.wait_for_workers(None if settings.workers == "auto" else int(settings.workers))
        executor.preflight(work_folder)
        if link.encrypted:
            tell(
                {
                    "event": "log",
                    "level": "WARNING",
                    "message": "Dask's connections are encrypted, those between ranks are not: "
                    "gloo sends sums of gradients and sampled rows' labels as they are; keep the "
                    "workers in a network of their own",
                    "worker": None,
                }
            )
    except BaseException:
        link.close()
        raise
    tell({"event": "cluster", "workers": executor.workers, "dashboard": link.dashboard})
    return executor


def _ignore(event: Event) -> None:
    """Take an event that nobody asked for."""
