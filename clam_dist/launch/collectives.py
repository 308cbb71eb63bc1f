"""How ranks speak: alone, or through gloo over TCP between the workers of one gang.

Gloo's options carry private names and a store's quirks; both are dealt with in this file only.

Legend: W world size.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistError, PrefixStore, ProcessGroupGloo, TCPStore
from torch.distributed.distributed_c10d import AllgatherOptions, BroadcastOptions

from clam_dist.executor import Event
from clam_dist.launch.seat import PeersLostError, Seat

CONNECT_SECONDS = 10.0
"""Gloo tries a connection five times this long; between live peers one takes about 10 ms."""
ASK_SECONDS = 1.0
"""How often, at most, a rank asks whether the driver still wants it."""


class _Reports:
    """Events to the driver, as JSON text, so that every executor hands on the same values."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send

    def report(self, event: Event) -> None:
        """Send a JSON-serialisable event to the driver, in order, without waiting."""
        self._send(json.dumps(dict(event)))


class LocalCollective(_Reports):
    """The one rank of a world of one.

    Parameters
    ----------
    threads : int
        Compute threads the rank may use side by side.
    send : callable
        Takes each reported event as JSON text.
    """

    rank = 0
    world_size = 1

    def __init__(self, threads: int, send: Callable[[str], None]) -> None:
        super().__init__(send)
        self.threads = threads

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of ``tensor`` with shape ``(1, *tensor.shape)``."""
        return tensor.detach().clone()[None]

    def broadcast_object(self, value: Any) -> Any:
        """The value after a round trip through JSON, as on every other executor."""
        return json.loads(json.dumps(value))

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of ``tensor``."""
        return tensor.detach().clone()

    def barrier(self) -> None:
        """Return at once: there is nobody to wait for."""

    def close(self) -> None:
        """Do nothing: no connection was opened."""


@dataclass(frozen=True)
class OpenStore:
    """A TCP store that lives as long as this value; ``address`` is what the other ranks need."""

    store: TCPStore
    address: tuple[str, int]


def open_store(host: str, port: int = 0) -> OpenStore:
    """Serve a key-value store for one attempt, on this host's interface only.

    Parameters
    ----------
    host : str
        Address that the other workers reach this one by.
    port : int
        Port to listen on; 0 lets the system choose.
    """
    # TCPStore binds every interface; a listening socket made here binds the one that Dask uses.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
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


class GlooCollective(_Reports):
    """One rank of several, over gloo; tensors on a device travel through host memory.

    Made by `join`. Between two calls of ``all_gather`` no rank may take longer than
    ``seat.collective_seconds``; the other calls, before which rank 0 often works alone, wait
    ``seat.patient_seconds``.
    """

    def __init__(
        self,
        seat: Seat,
        group: ProcessGroupGloo,
        store: PrefixStore,
        send: Callable[[str], None],
        wanted: Callable[[], bool],
    ) -> None:
        super().__init__(send)
        self.rank = seat.rank
        self.world_size = seat.world_size
        self.threads = seat.threads
        self._seat = seat
        self._store = store
        self._wanted = wanted
        self._asked = time.monotonic()
        self._agreed: set[str] = set()
        # The only reference: dropping it closes the connections, which is what wakes the peers.
        self._group: ProcessGroupGloo | None = group

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor in rank order, ``(W, *tensor.shape)``, on the same device."""
        self._agree("all_gather", tensor)
        if not tensor.numel():
            return tensor.new_empty((self.world_size, *tensor.shape))
        mine = _as_bytes(tensor)
        # (W, bytes): gloo fills the rows in place; bytes, for it does not know every dtype
        gathered = torch.empty((self.world_size, mine.numel()), dtype=torch.uint8)
        self._gather("all_gather", gathered, mine, self._seat.collective_seconds)
        # (W, bytes) -> (W, values) -> (W, *shape)
        shaped = gathered.view(tensor.dtype).reshape(self.world_size, *tensor.shape)
        return shaped.to(tensor.device)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor on every rank, a new tensor on the same device."""
        self._agree("broadcast", tensor)
        if not tensor.numel():
            return tensor.detach().clone()
        copy = _as_bytes(tensor).clone()
        self._broadcast("broadcast", copy)
        return copy.view(tensor.dtype).reshape(tensor.shape).to(tensor.device)

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's JSON-serialisable value on every rank."""
        text = json.dumps(value).encode() if self.rank == 0 else b""
        size = torch.tensor([len(text)], dtype=torch.int64)
        self._broadcast("broadcast_object", size)
        buffer = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            buffer = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._broadcast("broadcast_object", buffer)
        return json.loads(buffer.numpy().tobytes())

    def barrier(self) -> None:
        """Return once every rank has called it."""
        # Nobody has everyone's byte before everyone has sent one.
        everyone = torch.empty((self.world_size, 1), dtype=torch.uint8)
        here = torch.zeros(1, dtype=torch.uint8)
        self._gather("barrier", everyone, here, self._seat.patient_seconds)

    def close(self) -> None:
        """Drop the connections; peers that wait for this rank get an error within milliseconds."""
        self._group = None

    def _gather(self, call: str, into: torch.Tensor, mine: torch.Tensor, seconds: float) -> None:
        options = AllgatherOptions()
        options.timeout = timedelta(seconds=seconds)
        self._wait(call, lambda group: group.allgather([list(into.unbind(0))], [mine], options))

    def _broadcast(self, call: str, tensor: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=self._seat.patient_seconds)
        self._wait(call, lambda group: group.broadcast([tensor], options))

    def _wait(self, call: str, start: Callable[[Any], Any]) -> None:
        self._ask()
        if self._group is None:
            raise PeersLostError(f"rank {self.rank} called {call} after its group was closed")
        try:
            start(self._group).wait()
        except RuntimeError as error:
            self.close()
            raise PeersLostError(
                f"rank {self.rank} of {self.world_size} lost its peers in {call}: "
                f"{_first_line(error)}"
            ) from error

    def _ask(self) -> None:
        """Stop when the driver is gone or has given up on this attempt."""
        now = time.monotonic()
        if now - self._asked >= ASK_SECONDS:
            self._asked = now
            if not self._wanted():
                self.close()
                raise PeersLostError(f"the driver no longer wants attempt {self._seat.attempt}")

    def _agree(self, call: str, tensor: torch.Tensor) -> None:
        """See that all ranks ask for the same, the first time that each kind of tensor is sent.

        Gloo ends the whole process without an exception when sizes differ between ranks.
        """
        kind = f"{call} of {tensor.dtype} {tuple(tensor.shape)}"
        if kind in self._agreed:
            return
        turn = f"kind/{len(self._agreed)}"
        try:
            self._store.set(f"{turn}/{self.rank}", kind)
            _count_in(self._store, turn, self._seat, self._seat.patient_seconds, self._wanted)
            kinds = [self._store.get(f"{turn}/{r}").decode() for r in range(self.world_size)]
        except DistError as error:
            self.close()
            raise PeersLostError(
                f"rank {self.rank} of {self.world_size} lost the store on rank 0 in {call}: "
                f"{_first_line(error)}"
            ) from error
        for rank, theirs in enumerate(kinds):
            if theirs != kind:
                raise RuntimeError(
                    f"ranks ask for different tensors: rank {self.rank} for {kind}, "
                    f"rank {rank} for {theirs}"
                )
        self._agreed.add(kind)


def join(
    seat: Seat,
    store: tuple[str, int],
    *,
    send: Callable[[str], None],
    wanted: Callable[[], bool],
) -> GlooCollective:
    """Take a seat: wait for all ranks of the attempt, then connect them.

    Parameters
    ----------
    seat : Seat
        Rank, world size, timeouts and the host to bind.
    store : (str, int)
        Host and port of the attempt's store.
    send : callable
        Takes each reported event as JSON text.
    wanted : callable
        Whether the driver still waits for this rank.

    Raises
    ------
    PeersLostError
        When the store cannot be reached, or a rank did not come within
        ``seat.rendezvous_seconds``, or the connections failed.
    """
    try:
        base = TCPStore(
            *store,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=seat.collective_seconds),
        )
        keys = PrefixStore(seat.attempt, base)
        keys.set(f"here/{seat.rank}", seat.worker)
        # All have come before anyone connects: gloo's own wait would count against a short limit.
        _count_in(keys, "here", seat, seat.rendezvous_seconds, wanted)
        group = _connect(keys, seat)
    except PeersLostError:
        raise
    except RuntimeError as error:
        raise PeersLostError(
            f"rank {seat.rank} on worker {seat.worker} could not join through the store at "
            f"{store[0]}:{store[1]}: {_first_line(error)}; workers must reach one another by TCP"
        ) from error
    return GlooCollective(seat, group, keys, send, wanted)


def _connect(store: PrefixStore, seat: Seat) -> ProcessGroupGloo:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=seat.host)]
    options._timeout = timedelta(seconds=CONNECT_SECONDS)
    options._threads = 1
    return ProcessGroupGloo(store, seat.rank, seat.world_size, options)


def _count_in(
    store: PrefixStore, name: str, seat: Seat, seconds: float, wanted: Callable[[], bool]
) -> None:
    """Wait until every rank has counted itself in under ``name``.

    Polled, since a wait inside the store could neither be called off nor named who is missing.
    """
    began = asked = time.monotonic()
    arrived = store.add(f"{name}/count", 1)
    pause = 0.001
    while arrived < seat.world_size:
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
        arrived = store.add(f"{name}/count", 0)
        now = time.monotonic()
        if now - began > seconds:
            missing = [r for r in range(seat.world_size) if not store.check([f"{name}/{r}"])]
            raise PeersLostError(
                f"rank {seat.rank} waited {seconds:.0f} s for rank(s) "
                f"{', '.join(map(str, missing))} of {seat.world_size}"
            )
        if now - asked >= ASK_SECONDS:
            asked = now
            if not wanted():
                raise PeersLostError(f"the driver no longer wants attempt {seat.attempt}")


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in C order on the host, ``(bytes,)``; a view where it can be one."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].rpartition("] ")[2] if "] " in lines[0] else lines[0]
