"""How ranks speak: alone, or through gloo over TCP between the workers of one gang.

With a GPU for each rank, device tensors go over NCCL: see ``nccl``.

Legend: W world size.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistError, PrefixStore, ProcessGroupGloo, TCPStore
from torch.distributed.distributed_c10d import AllgatherOptions, BroadcastOptions

from clam_dist.executor import Event
from clam_dist.launch.rendezvous import (
    ASK_SECONDS,
    CONNECT_SECONDS,
    OpenStore,
    Result,
    bounded,
    connect,
    count_in,
    first_line,
    open_store,
)
from clam_dist.launch.seat import PeersLostError, Seat

__all__ = ["GlooCollective", "LocalCollective", "OpenStore", "join", "open_store"]

MISSING_SECONDS = 5.0
"""How long finding out who did not come may take, after a time limit has passed already."""


class _WithDriver:
    """What every rank has of the driver: it tells it things, and asks whether to go on.

    Events travel as JSON text, so that every executor hands on the same values.
    """

    def __init__(self, send: Callable[[str], None], wanted: Callable[[], bool] | None) -> None:
        self._send = send
        self._wanted = wanted or _always
        self._asked = time.monotonic()

    def report(self, event: Event) -> None:
        """Send a JSON-serialisable event to the driver, in order, without waiting."""
        self.ask()
        self._send(json.dumps(dict(event)))

    def ask(self) -> None:
        """Stop when the driver is gone or has given up on this attempt.

        Raises
        ------
        PeersLostError
            It is; whatever this rank still did would be done for nobody.
        """
        now = time.monotonic()
        if now - self._asked >= ASK_SECONDS:
            self._asked = now
            if not self._wanted():
                self.close()
                raise PeersLostError("the driver no longer wants this attempt")

    def close(self) -> None:
        """Do nothing: no connection was opened."""


def _always() -> bool:
    return True


class LocalCollective(_WithDriver):
    """The one rank of a world of one.

    Parameters
    ----------
    threads : int
        Compute threads the rank may use side by side.
    send : callable
        Takes each reported event as JSON text.
    wanted : callable, optional
        Whether the driver still waits for this rank.
    device : str
        Where the rank may compute.
    """

    rank = 0
    world_size = 1

    def __init__(
        self,
        threads: int,
        send: Callable[[str], None],
        wanted: Callable[[], bool] | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(send, wanted)
        self.threads = threads
        self.device = device

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
        self.ask()


class GlooCollective(_WithDriver):
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
        super().__init__(send, wanted)
        self.rank = seat.rank
        self.world_size = seat.world_size
        self.threads = seat.threads
        self.device = seat.device
        self._seat = seat
        self._store = store
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
        self.ask()
        if self._group is None:
            raise PeersLostError(f"rank {self.rank} called {call} after its group was closed")
        work = start(self._group)
        while True:
            try:
                work.wait(timedelta(seconds=ASK_SECONDS))
            except RuntimeError as error:
                if not work.is_completed():
                    self._ask_waiting()
                    continue
                missing = self._missing() if "imed out" in str(error) else ""
                self.close()
                raise PeersLostError(
                    f"rank {self.rank} of {self.world_size} lost its peers in {call}: "
                    f"{first_line(error)}{missing}"
                ) from error
            return

    def _missing(self) -> str:
        """After a time limit: who else does not wait, in words.

        Every rank that waits says so in the store, about when the others do.
        """

        def ask() -> list[str]:
            self._store.set(f"waits/{self.rank}", "")
            time.sleep(ASK_SECONDS)
            return [
                f"rank {rank} on worker {self._store.get(f'here/{rank}').decode()}"
                for rank in range(self.world_size)
                if not self._store.check([f"waits/{rank}"])
            ]

        try:
            missing = self._bounded(ask, MISSING_SECONDS)
        except RuntimeError:
            return "; rank 0's worker does not answer"
        return f"; {', '.join(missing)} did not come" if missing else ""

    def _bounded(self, function: Callable[[], Result], seconds: float | None = None) -> Result:
        limit = seconds or self._seat.collective_seconds
        return bounded(function, self._seat, limit, self._wanted)

    def _ask_waiting(self) -> None:
        """Ask whether to go on, in the midst of a call that a peer may never answer."""
        if not self._wanted():
            # The group's end waits for the call's; that must not be this rank's concern.
            group, self._group = self._group, None
            threading.Thread(target=_hold, args=(group,), daemon=True).start()
            raise PeersLostError("the driver no longer wants this attempt")

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
            count_in(self._store, turn, self._seat, self._seat.patient_seconds, self._wanted)
            kinds = self._bounded(
                lambda: [self._store.get(f"{turn}/{r}").decode() for r in range(self.world_size)]
            )
        except DistError as error:
            self.close()
            raise PeersLostError(
                f"rank {self.rank} of {self.world_size} lost the store on rank 0 in {call}: "
                f"{first_line(error)}"
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
        limit = seat.collective_seconds + CONNECT_SECONDS
        keys = bounded(lambda: _enter(seat, store), seat, limit, wanted)
        # All have come before anyone connects: gloo's own wait would count against a short limit.
        count_in(keys, "here", seat, seat.rendezvous_seconds, wanted)
        limit = 5 * CONNECT_SECONDS + seat.collective_seconds
        group = bounded(lambda: connect(keys, seat), seat, limit, wanted)
        if seat.backend == "nccl":
            from clam_dist.launch import nccl

            devices = nccl.connect_devices(keys, seat, wanted)
            return nccl.NcclCollective(seat, group, keys, send, wanted, devices)
    except PeersLostError:
        raise
    except RuntimeError as error:
        raise PeersLostError(
            f"rank {seat.rank} on worker {seat.worker} could not join through the store at "
            f"{store[0]}:{store[1]}: {first_line(error)}; workers must reach one another by TCP"
        ) from error
    return GlooCollective(seat, group, keys, send, wanted)


def _enter(seat: Seat, store: tuple[str, int]) -> PrefixStore:
    """The attempt's keys in the store, this rank's worker among them."""
    base = TCPStore(
        *store,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=seat.collective_seconds),
    )
    keys = PrefixStore(seat.attempt, base)
    keys.set(f"here/{seat.rank}", seat.worker)
    return keys


def _hold(group: ProcessGroupGloo | None) -> None:
    """Drop the last reference to a group, on a thread that may take its time."""
    del group


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in C order on the host, ``(bytes,)``; a view where it can be one."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
