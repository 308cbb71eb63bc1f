"""Which executor a run gets, how many workers, and how much memory each: pure rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from clam_dist.errors import ConfigError
from clam_dist.executor import Event, Executor
from clam_dist.launch import machine
from clam_dist.launch.gang import Patience
from clam_dist.launch.serial import SerialExecutor

SERIAL_BELOW_BYTES = 256 * 2**20
"""Decoded data under this many bytes is worked on in this process when nothing else is asked."""
WORKER_BYTES = 2**30
"""Memory an automatically chosen worker is given at least."""
SMALLEST_WORKER_BYTES = 512 * 2**20
"""A worker with torch and pyarrow imported stands at about 280 MiB before any work."""
SHARE_OF_MEMORY = 0.9
"""Of the memory that is free, the share that workers' limits add up to; the driver has the rest."""


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
    return kind


def plan_workers(asked: int | str, *, cores: int, memory_bytes: int, n_shards: int) -> int:
    """Processes of an embedded cluster: as asked, else min(cores, memory / 1 GiB, shards)."""
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
        link = dask.connected(str(settings.address), settings.wait)
    else:
        link = dask.constructed(
            str(settings.cluster_class), settings.cluster_kwargs, settings.workers
        )
    try:
        executor = DaskExecutor(link, patience=patience, on_event=tell)
        executor.wait_for_workers(None if settings.workers == "auto" else int(settings.workers))
        executor.preflight(work_folder)
    except BaseException:
        link.close()
        raise
    tell({"event": "cluster", "workers": executor.workers, "dashboard": link.dashboard})
    return executor


def _ignore(event: Event) -> None:
    """Take an event that nobody asked for."""
