"""One suite over every executor: the serial one is the reference, the others equal it."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import Any

import pytest
import torch

from clam_dist.errors import DataError
from clam_dist.executor import Collective, Executor
from clam_dist.launch import SerialExecutor, dask
from clam_dist.launch.workers import DaskExecutor


@pytest.fixture(params=["serial", "dask"])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "serial":
        return SerialExecutor(threads=1)
    made: Executor = request.getfixturevalue("cluster")
    return made


def square(item: int) -> int:
    return item * item


def slow_if_even(item: int) -> int:
    time.sleep(0.02 if item % 2 == 0 else 0)
    return -item


def power(exponent: int, item: int) -> int:
    return item**exponent


def broken(item: int) -> int:
    if item == 3:
        raise DataError(f"file 'a.parquet', row group {item}: broken page")
    return item


def test_map_keeps_the_order(executor: Executor) -> None:
    assert list(executor.map(slow_if_even, range(12))) == [-i for i in range(12)]


def test_map_of_a_partial(executor: Executor) -> None:
    assert list(executor.map(partial(power, 3), [1, 2, 3])) == [1, 8, 27]


def test_map_of_nothing(executor: Executor) -> None:
    assert list(executor.map(square, [])) == []


def test_map_twice(executor: Executor) -> None:
    assert list(executor.map(square, [2, 2])) == list(executor.map(square, [2, 2])) == [4, 4]


def test_map_raises_unchanged_after_what_came_before(executor: Executor) -> None:
    results = executor.map(broken, [0, 1, 2, 3, 4, 5])
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match=r"^file 'a\.parquet', row group 3: broken page$") as caught:
        next(results)
    assert type(caught.value) is DataError
    assert caught.value.exit_code == 3


def test_map_in_flight_below_one(executor: Executor) -> None:
    with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
        list(executor.map(square, [1], in_flight=0))


def test_map_stopped_early_leaves_the_executor_usable(executor: Executor) -> None:
    results = executor.map(slow_if_even, range(50))
    assert next(results) == 0
    results_close = getattr(results, "close", None)
    if results_close is not None:
        results_close()
    assert list(executor.map(square, [5])) == [25]


def talk(collective: Collective, payload: dict[str, Any]) -> dict[str, Any]:
    """Every call of a collective once, on several dtypes and shapes."""
    import torch

    rank, world = collective.rank, collective.world_size
    matrix = torch.arange(6, dtype=torch.float64).reshape(2, 3) + 10 * rank
    gathered = collective.all_gather(matrix.t())  # not contiguous
    assert gathered.shape == (world, 3, 2)
    for other in range(world):
        assert torch.equal(gathered[other], matrix.t() + 10 * (other - rank))
    flags = collective.all_gather(torch.tensor(rank == 0))
    assert flags.tolist() == [other == 0 for other in range(world)]
    halves = collective.all_gather(torch.full((2,), rank, dtype=torch.bfloat16))
    assert halves.dtype == torch.bfloat16
    assert halves[:, 1].tolist() == list(range(world))
    empty = collective.all_gather(torch.empty(0, 4))
    assert empty.shape == (world, 0, 4)
    sent = torch.full((3,), rank, dtype=torch.int64)
    received = collective.broadcast(sent)
    assert received.tolist() == [0, 0, 0]
    received += 1
    assert sent.tolist() == [rank] * 3, "a broadcast gives a new tensor"
    told = collective.broadcast_object({"k": (1, 2), "x": None} if rank == 0 else "ignored")
    assert told == {"k": [1, 2], "x": None}
    collective.barrier()
    collective.report({"event": "epoch", "rank": rank, "shape": (2, 3)})
    for step in range(50):
        collective.report({"event": "step", "rank": rank, "step": step})
    assert collective.threads >= 1
    assert collective.device.startswith(payload.get("device", ""))
    return {"rank": rank, "world": world, "payload": payload["k"], "pid": os.getpid()}


def test_gang(executor: Executor) -> None:
    events: list[Any] = []
    results = executor.gang(talk, {"k": 9, "device": executor.device}, on_event=events.append)
    world = executor.workers
    assert [result["rank"] for result in results] == list(range(world))
    assert {result["world"] for result in results} == {world}
    assert {result["payload"] for result in results} == {9}
    assert len({result["pid"] for result in results}) == world
    for rank in range(world):
        mine = [event for event in events if event["rank"] == rank]
        assert mine[0] == {"event": "epoch", "rank": rank, "shape": [2, 3]}
        assert [event["step"] for event in mine[1:]] == list(range(50))


def test_gang_of_one(executor: Executor) -> None:
    results = executor.gang(talk, {"k": 1}, world_size=1)
    assert [(result["rank"], result["world"]) for result in results] == [(0, 1)]


def test_gang_of_more_than_there_are(executor: Executor) -> None:
    assert len(executor.gang(talk, {"k": 1}, world_size=64)) == executor.workers


def test_gang_of_none(executor: Executor) -> None:
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        executor.gang(talk, {"k": 1}, world_size=0)


def test_gang_twice(executor: Executor) -> None:
    first, second = executor.gang(talk, {"k": 1}), executor.gang(talk, {"k": 2})
    assert [r["payload"] for r in first + second] == [1] * len(first) + [2] * len(second)


def raising(collective: Collective, payload: int) -> int:
    import torch

    collective.all_gather(torch.zeros(2))
    if collective.rank == payload:
        raise DataError("column 'x': infinite in row 7")
    collective.all_gather(torch.zeros(2))
    return 0


def test_gang_raises_what_a_rank_raises(executor: Executor) -> None:
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        executor.gang(raising, executor.workers - 1)
    assert str(caught.value) == "column 'x': infinite in row 7"
    if executor.workers == 2:
        assert "rank 1 on worker tcp://" in caught.value.__notes__[-1]
    assert time.monotonic() - began < 30, "peers are woken, not left to their time limit"
    assert len(executor.gang(talk, {"k": 3})) == executor.workers


def test_peaks_have_names(executor: Executor) -> None:
    peaks = executor.peak_rss_bytes()
    expected = ["driver", "worker-0", "worker-1"] if executor.workers == 2 else ["driver"]
    assert list(peaks) == expected
    assert all(10 * 2**20 < peak < 2**40 for peak in peaks.values())


def logging_item(item: int) -> int:
    logging.getLogger("clam_dist.data").warning("file %d is odd", item)
    return item


def test_logs_of_workers_reach_the_driver(link: dask.Link) -> None:
    events: list[Any] = []
    executor = DaskExecutor(link, on_event=events.append)
    assert list(executor.map(logging_item, range(3))) == [0, 1, 2]
    told = sorted((event["message"], event["level"]) for event in events)
    assert told == [(f"file {item} is odd", "WARNING") for item in range(3)]
    assert {event["worker"] for event in events} <= set(link.workers())
    executor.gang(log_in_rank, "begins")
    assert {event["message"] for event in events[3:]} == {"rank 0 begins", "rank 1 begins"}


def log_in_rank(collective: Collective, payload: str) -> None:
    logging.getLogger("clam_dist.train").info("rank %d %s", collective.rank, payload)


@pytest.fixture(scope="module")
def gathered() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(64, 7, generator=generator, dtype=torch.float64)


def sum_of_lanes(collective: Collective, lanes: torch.Tensor) -> list[float]:
    """Sums in the order of lanes, whichever rank holds them."""
    import torch

    world = collective.world_size
    mine = torch.zeros(-(-len(lanes) // world), lanes.shape[1], dtype=torch.float64)
    for slot, lane in enumerate(range(collective.rank, len(lanes), world)):
        mine[slot] = lanes[lane]
    rows = collective.all_gather(mine)
    total = torch.zeros(lanes.shape[1], dtype=torch.float64)
    for lane in range(len(lanes)):
        total += rows[lane % world, lane // world]
    values: list[float] = total.tolist()
    return values


def test_sums_are_the_same_bits_on_every_executor(
    executor: Executor, gathered: torch.Tensor
) -> None:
    expected = SerialExecutor(threads=1).gang(sum_of_lanes, gathered)[0]
    assert executor.gang(sum_of_lanes, gathered) == [expected] * executor.workers
