"""Gloo between threads of this process: what is gathered, and how failures show."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch

from clam_dist.launch.collectives import GlooCollective, join, open_store
from clam_dist.launch.seat import Network, PeersLostError, Seat


def run_ranks(
    world: int,
    function: Callable[[GlooCollective], Any],
    *,
    collective: float = 30.0,
    patient: float = 30.0,
    rendezvous: float = 30.0,
    present: int | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> list[Any]:
    """Results or exceptions of ``function`` on ``world`` ranks, of which ``present`` come."""
    store = open_store(Network("127.0.0.1"))
    attempt = uuid.uuid4().hex
    results: list[Any] = [None] * world

    def one(rank: int) -> None:
        seat = Seat(
            attempt=attempt,
            rank=rank,
            world_size=world,
            worker=f"worker {rank}",
            mark="",
            network=Network("127.0.0.1"),
            threads=1,
            rendezvous_seconds=rendezvous,
            collective_seconds=collective,
            patient_seconds=patient,
        )
        try:
            joined = join(seat, store.address, send=print, wanted=wanted)
        except Exception as error:
            results[rank] = error
            return
        try:
            results[rank] = function(joined)
        except Exception as error:
            results[rank] = error
        finally:
            joined.close()

    threads = [threading.Thread(target=one, args=(r,)) for r in range(present or world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("world", [2, 3])
def test_rank_order_and_bits(world: int) -> None:
    values = torch.randn(world, 5, 2, generator=torch.Generator().manual_seed(1))

    def gather(collective: GlooCollective) -> torch.Tensor:
        return collective.all_gather(values[collective.rank])

    for result in run_ranks(world, gather):
        assert torch.equal(result, values)


def test_rank_zero_alone_may_take_its_time_before_it_broadcasts() -> None:
    """The short limit is for all_gather; rank 0 may score or write before the others go on."""

    def late(collective: GlooCollective) -> Any:
        if collective.rank == 0:
            time.sleep(1.5)
        return collective.broadcast_object(["scored"])

    assert run_ranks(2, late, collective=0.5) == [["scored"], ["scored"]]


def test_a_peer_that_hangs_shows_after_the_limit() -> None:
    noticed = threading.Event()

    def hang(collective: GlooCollective) -> None:
        collective.all_gather(torch.zeros(1))
        if collective.rank == 1:
            noticed.wait(30)
        try:
            collective.all_gather(torch.zeros(1))
        finally:
            noticed.set()

    first, second = run_ranks(2, hang, collective=0.5)
    assert isinstance(first, PeersLostError)
    assert isinstance(second, PeersLostError)
    assert "rank 0 of 2 lost its peers in all_gather: " in str(first)
    assert str(first).endswith("; rank 1 on worker worker 1 did not come")


def test_a_peer_that_leaves_shows_at_once() -> None:
    ended: dict[int, float] = {}

    def leave(collective: GlooCollective) -> None:
        collective.all_gather(torch.zeros(1))
        if collective.rank == 1:
            time.sleep(0.2)
            ended[1] = time.monotonic()
            raise ValueError("my own fault")
        try:
            collective.all_gather(torch.zeros(1))
        finally:
            ended[0] = time.monotonic()

    lost, own = run_ranks(2, leave)
    assert isinstance(lost, PeersLostError)
    assert isinstance(own, ValueError)
    assert ended[0] - ended[1] < 10, "not left to the limit of 30 s"


@pytest.mark.parametrize(
    "other", [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(1, 2)]
)
def test_tensors_that_differ_between_ranks_are_told_apart(other: torch.Tensor) -> None:
    """Left to gloo, the whole process would end without an exception."""

    def differ(collective: GlooCollective) -> torch.Tensor:
        return collective.all_gather(other if collective.rank else torch.zeros(2))

    for result in run_ranks(2, differ):
        assert isinstance(result, RuntimeError)
        assert not isinstance(result, PeersLostError)
        assert "ranks ask for different tensors" in str(result)
        assert str(tuple(other.shape)) in str(result)


def test_a_rank_that_never_comes_is_named() -> None:
    results = run_ranks(3, GlooCollective.barrier, rendezvous=0.5, present=2)
    for result in results[:2]:
        assert isinstance(result, PeersLostError)
        assert "waited 0 s for rank(s) 2 of 3" in str(result)


def test_a_driver_that_gave_up_ends_a_rank_that_waits() -> None:
    began = time.monotonic()
    results = run_ranks(2, GlooCollective.barrier, present=1, wanted=lambda: False)
    assert "the driver no longer wants attempt" in str(results[0])
    assert time.monotonic() - began < 20


def test_a_driver_that_gave_up_ends_a_rank_that_works() -> None:
    """Ranks whose driver is gone would otherwise train on to the end together."""
    wanted = threading.Event()
    wanted.set()

    def work(collective: GlooCollective) -> None:
        began = time.monotonic()
        while time.monotonic() - began < 30:
            collective.all_gather(torch.zeros(1))
            time.sleep(0.01)
            if time.monotonic() - began > 0.3:
                wanted.clear()

    began = time.monotonic()
    for result in run_ranks(2, work, wanted=wanted.is_set):
        assert isinstance(result, PeersLostError)
    assert time.monotonic() - began < 20


def test_a_driver_that_gave_up_ends_a_rank_that_waits_for_another() -> None:
    """In the midst of a call with a long limit: its worker is needed for the next attempt."""
    wanted, over = threading.Event(), threading.Event()
    wanted.set()
    ended: dict[int, float] = {}

    def wait(collective: GlooCollective) -> None:
        collective.all_gather(torch.zeros(1))
        if collective.rank == 1:
            time.sleep(0.5)
            wanted.clear()
            began = time.monotonic()
            over.wait(20)
            ended[1] = time.monotonic() - began
            return
        try:
            collective.barrier()
        finally:
            over.set()

    first, _ = run_ranks(2, wait, patient=15.0, wanted=wanted.is_set)
    assert isinstance(first, PeersLostError)
    assert "the driver no longer wants this attempt" in str(first)
    assert ended[1] < 10


STOPPED_STORE = """
import time
from clam_dist.launch.collectives import open_store
from clam_dist.launch.seat import Network
store = open_store(Network("127.0.0.1"))
print(store.address[1], flush=True)
time.sleep(120)
"""


def test_a_store_whose_process_is_stopped() -> None:
    """Torch puts no limit on a question to it."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_STORE], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        server.send_signal(signal.SIGSTOP)
        seat = Seat("a", 1, 2, "worker 1", "", Network("127.0.0.1"), 1, 1.0, 1.0, 1.0)
        began = time.monotonic()
        with pytest.raises(PeersLostError, match=r"worker 1 "):
            join(seat, ("127.0.0.1", port), send=print, wanted=lambda: True)
        assert time.monotonic() - began < 30
        server.kill()


def test_a_store_that_nobody_serves() -> None:
    store = open_store(Network("127.0.0.1"))
    address = store.address
    del store
    seat = Seat("a", 1, 2, "worker 1", "", Network("127.0.0.1"), 1, 1.0, 1.0, 1.0)
    with pytest.raises(PeersLostError, match=rf"worker 1 .* 127\.0\.0\.1:{address[1]}"):
        join(seat, address, send=print, wanted=lambda: True)


def test_the_store_listens_on_the_given_interface_only() -> None:
    import psutil

    store = open_store(Network("127.0.0.1"))
    bound = {
        c.laddr.ip
        for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == store.address[1]
    }
    assert bound == {"127.0.0.1"}


def test_many_small_exchanges_of_different_shapes_ask_the_store_once_a_kind() -> None:
    """As in training: a few sums and their adjoints a step, then the sums of all parameters."""
    shapes = [(1,), (9,), (9, 14), (0,), (3, 9), (257,)]
    asked = []

    def exchange(collective: GlooCollective) -> float:
        bounded, rank = collective._bounded, collective.rank

        def counting(function: Callable[[], Any], seconds: float | None = None) -> Any:
            asked.append(rank)
            return bounded(function, seconds)

        collective._bounded = counting  # type: ignore[method-assign, assignment]
        total = torch.zeros((), dtype=torch.float64)
        for step in range(40):
            for number, shape in enumerate(shapes):
                mine = torch.full(shape, float(rank + step * number), dtype=torch.float64)
                gathered = collective.all_gather(mine)
                assert gathered.shape == (3, *shape)
                for other in range(3):
                    assert torch.equal(gathered[other], mine + (other - rank))
                total += gathered.sum()
        return float(total)

    first, second, third = run_ranks(3, exchange)
    assert first == second == third
    assert sorted(asked) == sorted([0, 1, 2] * len(shapes))
