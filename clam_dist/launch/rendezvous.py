"""How the ranks of one attempt find one another: a store on rank 0, then a gloo group.

Gloo's options carry private names and a store's quirks; both are dealt with here and in
``collectives`` only.
"""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import psutil
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from clam_dist.errors import ConfigError
from clam_dist.launch.seat import Network, PeersLostError, Seat

Result = TypeVar("Result")
CONNECT_SECONDS = 10.0
"""Gloo tries a connection five times this long; between live peers one takes about 10 ms."""
ASK_SECONDS = 1.0
"""How often, at most, a rank asks whether the driver still wants it."""


def listening_host(network: Network) -> str:
    """The address that this machine's rank binds.

    Raises
    ------
    ConfigError
        When it has no such interface, or no address in such a network.
    """
    if not network.interface and "/" not in network.host:
        return network.host
    own = {
        name: [a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
        for name, addresses in psutil.net_if_addrs().items()
    }
    name = socket.gethostname()
    if network.interface:
        if not own.get(network.interface):
            raise ConfigError(
                f"cluster.collective_interface: {network.interface} has no address on {name}; "
                f"its interfaces are {', '.join(sorted(own))}"
            )
        return own[network.interface][0]
    block = ipaddress.ip_network(network.host, strict=False)
    found = [a for addresses in own.values() for a in addresses]
    inside = [a for a in found if ipaddress.ip_address(a.partition("%")[0]) in block]
    if not inside:
        raise ConfigError(
            f"cluster.collective_host: {name} has no address in {network.host}; "
            f"its addresses are {', '.join(found)}"
        )
    return inside[0]


@dataclass(frozen=True)
class OpenStore:
    """A TCP store that lives as long as this value; ``address`` is what the other ranks need."""

    store: TCPStore
    address: tuple[str, int]


def open_store(network: Network) -> OpenStore:
    """Serve a key-value store for one attempt, on the network's address only.

    Raises
    ------
    PeersLostError
        When the port that was asked for stays taken.
    """
    # TCPStore binds every interface; a listening socket made here binds one.
    host = listening_host(network)
    listener = _listen(host, network.port)
    port = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=timedelta(seconds=CONNECT_SECONDS),
    )
    return OpenStore(store, (host, port))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; a fixed port may be held for a moment by the attempt before."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    began = time.monotonic()
    while True:
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not port:
                raise ConfigError(
                    f"cluster.collective_host: cannot listen at {host}:{port} on "
                    f"{socket.gethostname()} ({error.strerror})"
                ) from error
            if time.monotonic() - began > CONNECT_SECONDS:
                raise PeersLostError(
                    f"port {port} (cluster.collective_port) on {host} is taken by another program"
                ) from error
        time.sleep(0.1)


def bounded(
    function: Callable[[], Result], seat: Seat, seconds: float, wanted: Callable[[], bool]
) -> Result:
    """``function()`` on a thread of its own, which is left behind when it does not end.

    A question to a store whose process is stopped has no time limit, whatever was asked for.

    Raises
    ------
    PeersLostError
        After ``seconds``, or when the driver no longer wants this attempt.
    """
    ended: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((True, function()))
        except Exception as error:
            ended.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    began = time.monotonic()
    while True:
        try:
            well, value = ended.get(timeout=ASK_SECONDS)
        except queue.Empty:
            if time.monotonic() - began > seconds:
                raise PeersLostError(
                    f"rank {seat.rank} on worker {seat.worker} had no answer from rank 0's worker "
                    f"for {seconds:.0f} s"
                ) from None
            if not wanted():
                raise PeersLostError("the driver no longer wants this attempt") from None
            continue
        if well:
            return cast(Result, value)
        raise value


def connect(store: PrefixStore, seat: Seat) -> ProcessGroupGloo:
    """Connect with every other rank of the attempt; all must have come."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=listening_host(seat.network))]
    options._timeout = timedelta(seconds=CONNECT_SECONDS)
    options._threads = 1
    return ProcessGroupGloo(store, seat.rank, seat.world_size, options)


def count_in(
    store: PrefixStore, name: str, seat: Seat, seconds: float, wanted: Callable[[], bool]
) -> None:
    """Wait until every rank has counted itself in under ``name``.

    Polled, since a wait inside the store could neither be called off nor named who is missing.
    """
    began = asked = time.monotonic()

    def count(more: int) -> int:
        limit = min(seconds, seat.collective_seconds)
        return bounded(lambda: store.add(f"{name}/count", more), seat, limit, wanted)

    arrived = count(1)
    pause = 0.001
    while arrived < seat.world_size:
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
        arrived = count(0)
        now = time.monotonic()
        if now - began > seconds:
            # The store has just answered.
            missing = [r for r in range(seat.world_size) if not store.check([f"{name}/{r}"])]
            raise PeersLostError(
                f"rank {seat.rank} waited {seconds:.0f} s for rank(s) "
                f"{', '.join(map(str, missing))} of {seat.world_size}"
            )
        if now - asked >= ASK_SECONDS:
            asked = now
            if not wanted():
                raise PeersLostError(f"the driver no longer wants attempt {seat.attempt}")


def first_line(error: BaseException) -> str:
    """What torch says of an error, without its stack and its file's name."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].rpartition("] ")[2] if "] " in lines[0] else lines[0]
