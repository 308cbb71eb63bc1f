"""The collective over two groups, gloo in the place of NCCL: who waits where, how failures show.

What needs a GPU is `connect_devices` alone.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from clam_dist.launch.collectives import open_store
from clam_dist.launch.nccl import NcclCollective, finish
from clam_dist.launch.rendezvous import connect
from clam_dist.launch.seat import Network, PeersLostError, Seat


class Devices:
    """A group in the place of NCCL's: counts its calls, and can be deaf."""

    def __init__(self, group: ProcessGroupGloo) -> None:
        self.group, self.calls, self.aborted, self.deaf = group, 0, False, False

    def allgather(self, *arguments: Any) -> Any:
        self.calls += 1
        return NeverDone() if self.deaf else self.group.allgather(*arguments)

    def broadcast(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.group.broadcast(*arguments)

    def abort(self) -> None:
        self.aborted = True


class NeverDone:
    def is_completed(self) -> bool:
        return False


class Broken:
    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        raise RuntimeError("NCCL error: remote process exited\nand a long stack")


def run_ranks(
    world: int, function: Callable[[NcclCollective], Any], *, limit: float = 20.0
) -> list[Any]:
    """Results or exceptions of ``function`` on each of ``world`` threads."""
    store = open_store(Network("127.0.0.1"))
    attempt = uuid.uuid4().hex
    results: list[Any] = [None] * world

    def one(rank: int) -> None:
        seat = Seat(attempt, rank, world, f"w{rank}", "", Network("127.0.0.1"), 1, 20, limit, 20)
        keys = PrefixStore(attempt, TCPStore(*store.address, is_master=False))
        keys.set(f"here/{rank}", seat.worker)
        devices = Devices(connect(PrefixStore("devices", keys), seat))
        # An error holds this frame: no other reference to the group, or its end wakes nobody.
        joined = NcclCollective(seat, connect(keys, seat), keys, print, lambda: True, devices)
        try:
            results[rank] = function(joined)
        except Exception as error:
            results[rank] = error
        finally:
            joined.close()
            assert devices.aborted

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("world", [2, 3])
def test_device_tensors_go_over_the_devices_group(world: int) -> None:
    def talk(collective: NcclCollective) -> int:
        rank = collective.rank
        for dtype in (torch.float64, torch.float32, torch.bool, torch.bfloat16):
            mine = (torch.arange(6).reshape(2, 3) + rank).to(dtype).t()
            gathered = collective.all_gather(mine)
            assert gathered.dtype == dtype
            assert gathered.shape == (world, 3, 2)
            for other in range(world):
                expected = (torch.arange(6).reshape(2, 3) + other).to(dtype).t()
                assert torch.equal(gathered[other], expected)
        sent = torch.full((3,), rank)
        received = collective.broadcast(sent)
        assert received.tolist() == [0, 0, 0]
        assert sent.tolist() == [rank] * 3, "a broadcast gives a new tensor"
        calls: int = collective._devices.calls
        assert collective.all_gather(torch.empty(0, 2)).shape == (world, 0, 2)
        assert collective.broadcast(torch.empty(0)).shape == (0,)
        assert collective.broadcast_object({"a": rank}) == {"a": 0}
        collective.barrier()
        assert collective._devices.calls == calls, "all else goes over gloo"
        return calls

    assert run_ranks(world, talk) == [5] * world


def test_a_tensor_elsewhere_than_on_the_device_goes_over_gloo() -> None:
    def talk(collective: NcclCollective) -> list[list[int]]:
        collective.device = "meta"
        gathered: list[list[int]] = collective.all_gather(torch.tensor([collective.rank])).tolist()
        assert collective.broadcast(torch.tensor([collective.rank])).tolist() == [0]
        assert collective._devices.calls == 0
        return gathered

    assert run_ranks(2, talk) == [[[0], [1]]] * 2


def test_a_peer_that_leaves_shows_before_the_device_is_asked() -> None:
    left = threading.Event()

    def leave(collective: NcclCollective) -> None:
        collective.all_gather(torch.zeros(1))
        if collective.rank == 1:
            left.set()
            raise ValueError("my own fault")
        left.wait(20)
        try:
            collective.all_gather(torch.zeros(1))
        finally:
            assert collective._devices is None, "aborted as soon as it fails"

    lost, own = run_ranks(2, leave)
    assert isinstance(own, ValueError)
    assert isinstance(lost, PeersLostError)
    assert "lost its peers in all_gather" in str(lost)


def test_a_device_that_never_ends_shows_after_the_limit_and_is_aborted() -> None:
    def deaf(collective: NcclCollective) -> None:
        devices = collective._devices
        collective.all_gather(torch.zeros(1))
        devices.deaf = True
        try:
            collective.all_gather(torch.zeros(1))
        finally:
            assert devices.aborted
        raise AssertionError("not reached")

    for result in run_ranks(2, deaf, limit=0.5):
        assert isinstance(result, PeersLostError)
        assert "no end on the device within 0 s" in str(result)


def test_a_call_after_the_end() -> None:
    def late(collective: NcclCollective) -> None:
        collective.barrier()
        collective.close()
        collective.all_gather(torch.zeros(1))

    for result in run_ranks(2, late):
        assert isinstance(result, Exception)


def test_what_goes_wrong_on_the_device_is_raised() -> None:
    with pytest.raises(RuntimeError, match="remote process exited"):
        finish(Broken(), 1.0, lambda: True)


def test_a_driver_that_gave_up_ends_the_wait_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clam_dist.launch.nccl.ASK_SECONDS", 0.05)
    began = time.monotonic()
    with pytest.raises(PeersLostError, match="no longer wants"):
        finish(NeverDone(), 60.0, lambda: False)
    assert time.monotonic() - began < 10


def test_tensors_that_differ_between_ranks_never_reach_the_device() -> None:
    """One rank's is on the host, say: one would wait in gloo, the other on its device."""

    def differ(collective: NcclCollective) -> torch.Tensor:
        return collective.all_gather(torch.zeros(2 + collective.rank))

    for result in run_ranks(2, differ):
        assert "ranks ask for different tensors" in str(result)
