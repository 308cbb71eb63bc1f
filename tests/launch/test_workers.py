"""Workers killed, stopped, busy and left behind, on a real cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from dask import config
from dask.utils import parse_timedelta

from clam_dist.errors import ConfigError, RunError
from clam_dist.executor import Collective
from clam_dist.launch import dask, embedded, make_executor
from clam_dist.launch.gang import Patience
from clam_dist.launch.workers import DaskExecutor

PATIENCE = Patience(
    wait=60.0,
    settle=30.0,
    grace=3.0,
    rendezvous=60.0,
    collective=3.0,
    silent=10.0,
    max_restarts=2,
)


def die_once(folder: str, item: int) -> int:
    """Item 2 takes its worker with it the first time."""
    mark = Path(folder) / "died"
    if item == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_worker_killed_in_a_map(cluster: DaskExecutor, tmp_path: Path) -> None:
    assert list(cluster.map(partial(die_once, str(tmp_path)), range(8))) == list(range(8))
    assert (tmp_path / "died").exists()


def stop_once(folder: str, item: int) -> int:
    mark = Path(folder) / "stopped"
    if item == 2 and not mark.exists():
        mark.touch()
        end("stopped")
    return item


@pytest.mark.slow
def test_a_worker_stopped_in_a_map(link: dask.Link, tmp_path: Path) -> None:
    executor = DaskExecutor(link, patience=replace(PATIENCE, silent=3.0))
    executor.wait_for_workers(2)
    results = executor.map(partial(stop_once, str(tmp_path)), range(8))
    assert list(results) == list(range(8))
    assert (tmp_path / "stopped").exists()


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_worker_lost_twice_comes_back(link: dask.Link) -> None:
    """Dask's own timer would close its nanny if it found the worker gone at one instant."""
    assert parse_timedelta(config.get("distributed.deploy.lost-worker-timeout")) > 10**7
    before = dict(link.workers())
    for _ in range(2):
        embedded.kill(next(iter(link.client.run(os.getpid).values())))
        executor = DaskExecutor(link, patience=PATIENCE)
        while len(left := set(before) & set(link.workers())) > 1:
            time.sleep(0.05)
        executor.wait_for_workers(2)
        assert len(left) == 1
        before = dict(link.workers())


@pytest.mark.slow
def test_an_item_that_kills_every_worker() -> None:
    executor = DaskExecutor(dask.embedded(1, 2**30, 1), patience=PATIENCE)
    try:
        with pytest.raises(RunError, match=r"die-\w+-0: 4 workers died .* cluster\.memory_limit"):
            list(executor.map(die, [signal.SIGKILL]))
    finally:
        executor.close()


def end(fate: str) -> None:
    if fate == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fate == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)  # other threads are stopped first: this one would run on a little


def train(collective: Collective, payload: dict[str, Any]) -> tuple[int, int, int]:
    """Steps from the last mark on; what becomes of rank 1 at step 3 of the first attempt."""
    import torch

    marks = Path(payload["folder"])
    begun = len(list(marks.glob("attempt-*")))
    collective.barrier()
    if collective.rank == 0:
        (marks / f"attempt-{begun}").touch()
    for step in range(6):
        collective.all_gather(torch.full((4,), float(step)))
        collective.report({"event": "epoch", "rank": collective.rank, "step": step})
        if begun == 0 and step == 3 and collective.rank == payload["rank"]:
            end(payload["fate"])
    if begun == 0 and payload["fate"] == "stopped late" and collective.rank == payload["rank"]:
        end("stopped")
    return collective.rank, collective.world_size, begun


@pytest.mark.parametrize(
    ("fate", "rank"),
    [
        pytest.param("killed", 0, marks=pytest.mark.slow),
        ("killed", 1),
        pytest.param("stopped", 1, marks=pytest.mark.slow),
        pytest.param("stopped late", 1, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_lost(link: dask.Link, tmp_path: Path, fate: str, rank: int) -> None:
    said: list[Any] = []
    executor = DaskExecutor(link, patience=PATIENCE, on_event=said.append)
    executor.wait_for_workers(2)
    victim = list(link.workers())[rank]
    payload = {"folder": str(tmp_path), "fate": fate, "rank": rank}
    events: list[Any] = []
    results = executor.gang(train, payload, on_event=events.append)
    assert results == [(0, 2, 1), (1, 2, 1)]
    told = [event["message"] for event in said if event["level"] == "WARNING"]
    assert len(told) == (1 if fate == "killed" else 2)
    assert all(victim in line for line in told)
    assert ("was killed by signal 9" if fate == "killed" else "did not answer") in told[-1]
    # Rank 1 - rank was heard up to step 3 of the first attempt, then both to the end
    steps = [event["step"] for event in events if event["rank"] == 1 - rank]
    assert steps[-6:] == list(range(6))
    assert steps[:4] == list(range(4))


def die_always(collective: Collective, number: int) -> None:
    if collective.rank == 0:
        os.kill(os.getpid(), number)
    collective.barrier()


@pytest.mark.slow
def test_a_gang_that_dies_every_time(link: dask.Link) -> None:
    executor = DaskExecutor(link, patience=replace(PATIENCE, max_restarts=1))
    executor.wait_for_workers(2)
    with pytest.raises(RunError, match=r"gave up after 1 restarts .* was lost .* to resume"):
        executor.gang(die_always, signal.SIGKILL)


def busy_rank(collective: Collective, payload: str) -> tuple[int, str]:
    import torch

    for _ in range(40):
        collective.all_gather(torch.zeros(3))
        time.sleep(0.01)
    return collective.rank, payload


def test_two_runs_at_once_on_one_cluster(cluster: DaskExecutor, tmp_path: Path) -> None:
    """Each waits for the whole cluster; ranks of the two never interleave."""
    said: list[Any] = []
    settings = SimpleNamespace(
        kind="address",
        workers=2,
        memory_limit="auto",
        address=cluster._link.client.scheduler.address,
        cluster_class=None,
        cluster_kwargs={},
        wait=60.0,
        max_restarts=0,
        collective_interface=None,
        collective_host="127.0.0.0/8",
        collective_port=0,
    )
    results: dict[str, Any] = {}

    def one(name: str) -> None:
        executor = make_executor(
            settings,
            decoded_bytes=0,
            n_shards=1,
            work_folder=str(tmp_path),
            on_event=said.append,
        )
        try:
            for _ in range(3):
                results[name] = executor.gang(busy_rank, name)
        finally:
            executor.close()

    threads = [threading.Thread(target=one, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results == {name: [(0, name), (1, name)] for name in "ab"}
    assert [event for event in said if event["event"] == "log"] == []
    assert len(cluster._link.workers()) == 2, "leaving a cluster does not end it"
    assert list(tmp_path.iterdir()) == []


def test_a_greeting_that_does_not_come_alone(
    cluster: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen when two clients connect at the same moment: Dask's own assertion fails."""
    made: list[Any] = []
    real = dask.Client

    def client(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        if len(made) < 3:
            raise AssertionError
        return real(*arguments, **options)

    monkeypatch.setattr(dask, "Client", client)
    second = dask.connected(cluster._link.client.scheduler.address, 60.0)
    assert len(second.workers()) == 2
    second.close()
    assert len(made) == 3


def test_workers_that_see_another_folder(cluster: DaskExecutor, tmp_path: Path) -> None:
    cluster._link.client.run(_hide, str(tmp_path))
    try:
        with pytest.raises(ConfigError, match=r"work\.uri: 2 of 2 workers cannot read .*tcp://"):
            cluster.preflight(str(tmp_path))
    finally:
        cluster._link.client.run(_show)
    cluster.preflight(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def _hide(folder: str) -> None:
    """Make reads below ``folder`` fail in this process, as without shared storage."""
    import pathlib

    pathlib.Path._read_text = pathlib.Path.read_text  # type: ignore[attr-defined]

    def blind(self: Path, *arguments: Any, **options: Any) -> str:
        if str(self).startswith(folder):
            raise FileNotFoundError(2, "No such file or directory")
        return self._read_text(*arguments, **options)  # type: ignore[attr-defined,no-any-return]

    pathlib.Path.read_text = blind  # type: ignore[method-assign]


def _show() -> None:
    import pathlib

    pathlib.Path.read_text = pathlib.Path._read_text  # type: ignore[attr-defined,method-assign]


def test_too_few_workers(link: dask.Link) -> None:
    executor = DaskExecutor(link, patience=Patience(wait=0.3))
    with pytest.raises(RunError, match=r"2 of 5 workers came within 0 s \(cluster\.wait\)"):
        executor.wait_for_workers(5)


DRIVER = """
import sys, time
from types import SimpleNamespace
from clam_dist.launch import make_executor

def hold_the_interpreter(item):
    import ctypes
    ctypes.PyDLL(None).sleep(60)

if __name__ == "__main__":
    settings = SimpleNamespace(
        kind="local", workers=2, memory_limit="auto", address=None, cluster_class=None,
        cluster_kwargs={}, wait=60.0, max_restarts=0, collective_interface=None,
        collective_host=None, collective_port=0,
    )
    executor = make_executor(settings, decoded_bytes=0, n_shards=1, work_folder=sys.argv[1])
    nannies = executor._link.cluster.workers.values()
    print(*(nanny.pid for nanny in nannies), flush=True)
    if sys.argv[2] == "idle":
        print(executor.peak_rss_bytes()["worker-0"], flush=True)
        executor.close()
        print("closed", flush=True)
    else:
        try:
            list(executor.map(hold_the_interpreter, [1, 2]))
        finally:
            executor.close()
"""


def alive(pids: list[int]) -> list[int]:
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def start_driver(tmp_path: Path, what: str) -> tuple[subprocess.Popen[str], list[int]]:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "work"), what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    return driver, pids


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_nothing_is_left_of_a_driver_that_ends(tmp_path: Path, number: int) -> None:
    """Even of workers in the midst of a call that never gives the interpreter back."""
    driver, pids = start_driver(tmp_path, "busy")
    with driver:
        time.sleep(0.5)
        family = [child.pid for child in psutil.Process(driver.pid).children(recursive=True)]
        assert set(pids) <= set(family)
        driver.send_signal(number)
        began = time.monotonic()
        driver.wait(timeout=30)
        while alive(family) and time.monotonic() - began < 10:
            time.sleep(0.02)
        left = alive(family)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == []


def test_close_leaves_nothing_and_says_nothing(tmp_path: Path) -> None:
    driver, pids = start_driver(tmp_path, "idle")
    with driver:
        # Not communicate(): it would miss what readline() has buffered already.
        assert driver.stdout is not None
        assert driver.stderr is not None
        out, errors = driver.stdout.read(), driver.stderr.read()
    assert errors == ""
    assert out.splitlines()[-1] == "closed"
    assert alive(pids) == []
    bare = int(out.splitlines()[0])
    assert bare < 100 * 2**20, "a worker that has done nothing holds no torch, pandas or bokeh"
