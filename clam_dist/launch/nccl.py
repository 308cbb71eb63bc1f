"""How ranks speak that have a GPU each: device tensors over NCCL, all else over gloo.

NCCL itself can neither say who is missing nor be called off, and by default ends the whole process
when it fails. So ranks meet over gloo before each call of it, the host waits for its end with a
time limit, and whatever goes wrong aborts the communicator, which frees the device.

Legend: W world size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo
from torch.distributed.distributed_c10d import BroadcastOptions

from clam_dist.launch.collectives import GlooCollective
from clam_dist.launch.embedded import environment_kept
from clam_dist.launch.rendezvous import ASK_SECONDS, CONNECT_SECONDS, bounded, first_line
from clam_dist.launch.seat import PeersLostError, Seat

POLL_SECONDS = 5e-5
"""Between two looks whether a call has ended; one takes about as long."""
SETTINGS = {
    # A failure is an error of the call, which is answered here, and not the end of the process.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Read by torch while a group is made."""


class NcclCollective(GlooCollective):
    """One rank of several, each with a GPU of its own.

    The host waits for the end of each call, as it does over gloo. The last call of a rank's
    function must be one without device tensors (``barrier``, ``broadcast_object``): it tells that
    every rank's device is done, before the first of them closes its communicator.

    Parameters
    ----------
    devices : ProcessGroupNCCL
        Connected, of the same ranks.
    """

    def __init__(
        self,
        seat: Seat,
        group: ProcessGroupGloo,
        store: PrefixStore,
        send: Callable[[str], None],
        wanted: Callable[[], bool],
        devices: Any,
    ) -> None:
        super().__init__(seat, group, store, send, wanted)
        self._devices: Any = devices

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor in rank order, ``(W, *tensor.shape)``, on the same device."""
        if not self._travels(tensor):
            return super().all_gather(tensor)
        self._agree("all_gather", tensor)
        mine = _as_bytes(tensor)
        # (W, bytes) -> (W, values) -> (W, *shape)
        gathered = torch.empty(
            (self.world_size, mine.numel()), dtype=torch.uint8, device=mine.device
        )
        seconds = self._seat.collective_seconds
        self._run("all_gather", seconds, lambda g: g.allgather([list(gathered.unbind(0))], [mine]))
        return gathered.view(tensor.dtype).reshape(self.world_size, *tensor.shape)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor on every rank, a new tensor on the same device."""
        if not self._travels(tensor):
            return super().broadcast(tensor)
        self._agree("broadcast", tensor)
        copy = _as_bytes(tensor).clone()
        options = BroadcastOptions()
        options.rootRank = 0
        seconds = self._seat.patient_seconds
        self._run("broadcast", seconds, lambda group: group.broadcast([copy], options))
        return copy.view(tensor.dtype).reshape(tensor.shape)

    def close(self) -> None:
        """Abort the communicator and drop the connections."""
        devices, self._devices = self._devices, None
        if devices is not None:
            devices.abort()
        super().close()

    def _travels(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor goes from device to device; the same on all ranks, as `_agree` sees."""
        return tensor.device.type == torch.device(self.device).type and tensor.numel() > 0

    def _run(self, call: str, seconds: float, start: Callable[[Any], Any]) -> None:
        """Start a call once all ranks are there for it, and wait for its end on the device."""
        everyone = torch.empty((self.world_size, 1), dtype=torch.uint8)
        self._gather(call, everyone, torch.zeros(1, dtype=torch.uint8), seconds)
        if self._devices is None:
            raise PeersLostError(f"rank {self.rank} called {call} after its group was closed")
        try:
            work = start(self._devices)
            finish(work, self._seat.collective_seconds, self._wanted)
        except RuntimeError as error:
            self.close()
            raise PeersLostError(
                f"rank {self.rank} of {self.world_size} lost its peers in {call}: "
                f"{first_line(error)}"
            ) from error


def finish(work: Any, seconds: float, wanted: Callable[[], bool]) -> None:
    """Wait on the host until a call has ended on the device.

    Raises
    ------
    PeersLostError
        After ``seconds``, or when the driver no longer wants this attempt.
    RuntimeError
        What went wrong on the device.
    """
    began = asked = time.monotonic()
    while not work.is_completed():
        now = time.monotonic()
        if now - began > seconds:
            raise PeersLostError(f"no end on the device within {seconds:.0f} s")
        if now - asked >= ASK_SECONDS:
            asked = now
            if not wanted():
                raise PeersLostError("the driver no longer wants this attempt")
        time.sleep(POLL_SECONDS)
    work.wait()


def connect_devices(store: PrefixStore, seat: Seat, wanted: Callable[[], bool]) -> Any:
    """A group over NCCL of all ranks of the attempt, whose devices have spoken once.

    Raises
    ------
    RuntimeError
        What NCCL says.
    PeersLostError
        When it has not connected within ``seat.collective_seconds``.
    """
    from torch.distributed import ProcessGroupNCCL

    def connect() -> Any:
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=seat.collective_seconds)
        keys = PrefixStore("nccl", store)
        group: Any = ProcessGroupNCCL(keys, seat.rank, seat.world_size, options)
        # The first call connects, and has no time limit of its own.
        with torch.cuda.device(seat.device):
            here = torch.zeros(1, dtype=torch.uint8, device=seat.device)
            everyone = [torch.zeros_like(here) for _ in range(seat.world_size)]
            finish(group.allgather([everyone], [here]), seat.collective_seconds, wanted)
        return group

    with environment_kept():
        os.environ.update(SETTINGS)
        if seat.network.interface:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", seat.network.interface)
        return bounded(connect, seat, seat.collective_seconds + CONNECT_SECONDS, wanted)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in C order where it is, ``(bytes,)``; a view where it can be one."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
