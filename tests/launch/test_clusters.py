"""Clusters that someone else starts, or that a class makes: late workers, TLS, addresses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from distributed import LocalCluster

from clam_dist.errors import ConfigError, RunError
from clam_dist.executor import Collective
from clam_dist.launch import dask, make_executor
from clam_dist.launch.gang import Patience
from clam_dist.launch.rendezvous import listening_host, open_store
from clam_dist.launch.seat import Network, PeersLostError
from clam_dist.launch.workers import DaskExecutor

sys.path.insert(0, str(Path(__file__).parent))
from by_hand import HandCluster, end_group, hand_cluster
from test_choose import Settings

PATIENCE = Patience(wait=60.0, settle=5.0, grace=5.0, rendezvous=60.0, max_restarts=2)


class SmallCluster(LocalCluster):
    """As a package would offer one: it takes what it is told and scales."""

    def __init__(self, size: str, **options: Any) -> None:
        assert size == "small"
        super().__init__(
            n_workers=0,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            **options,
        )


def whereabouts(collective: Collective, payload: Any) -> list[Any]:
    collective.barrier()
    return [collective.rank, collective.world_size, payload]


# -- cluster_class --------------------------------------------------------------------------------


def test_a_cluster_class_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "somebody_s_package", module)
    settings = Settings(
        kind="class",
        workers=2,
        wait=60.0,
        cluster_class="somebody_s_package.SmallCluster",
        cluster_kwargs={"size": "small"},
    )
    events: list[Any] = []
    executor = make_executor(
        settings, decoded_bytes=0, n_shards=1, work_folder=str(tmp_path), on_event=events.append
    )
    try:
        assert list(executor.map(abs, [-1, 2, -3])) == [1, 2, 3]
        assert executor.gang(whereabouts, "x") == [[0, 2, "x"], [1, 2, "x"]]
        assert events[-1]["workers"] == 2
    finally:
        executor.close()


PACKAGE = '''
from distributed import LocalCluster

class TwoCluster(LocalCluster):
    """Processes of its own, scaled after it was made, as job queues are."""

    def __init__(self, memory):
        super().__init__(n_workers=0, threads_per_worker=1, memory_limit=memory,
                         dashboard_address=":0")
'''


def run_config(folder: Path, cluster: dict[str, Any], **environment: str) -> Any:
    """``clam-dist run`` on the demo digits, and how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "digits.parquet"
    if not data.exists():
        from clam_dist.demo import write_demo

        write_demo("digits", data)
    config = {
        "source": {"uri": str(data), "label": "label"},
        "model": {"n_clusters": 10, "beta": 1.0, "objective": "unmasked"},
        "train": {"restarts": 1, "epochs": 2},
        "cluster": cluster,
        "output": {"uri": str(folder / f"out-{len(list(folder.iterdir()))}")},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "clam_dist.cli", "run", str(path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done, Path(config["output"]["uri"])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_whole_run_on_a_cluster_class(tmp_path: Path) -> None:
    (tmp_path / "two_cluster.py").write_text(PACKAGE)
    cluster = {
        "kind": "class",
        "workers": 2,
        "cluster_class": "two_cluster.TwoCluster",
        "cluster_kwargs": {"memory": "2GiB"},
    }
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done, out = run_config(tmp_path / "run", cluster, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert set(json.loads((out / "metrics.json").read_text())["peak_rss_bytes"]) == {
        "driver",
        "worker-0",
        "worker-1",
    }


def test_a_class_without_workers_of_its_own_says_what_to_set() -> None:
    settings = Settings(
        kind="class",
        wait=0.5,
        cluster_class=f"{__name__}.SmallCluster",
        cluster_kwargs={"size": "small"},
    )
    sys.modules.setdefault(__name__, sys.modules[SmallCluster.__module__])
    with pytest.raises(Exception, match=r"0 of 1 workers came within .* set cluster\.workers"):
        make_executor(settings, decoded_bytes=0, n_shards=1)


# -- workers that come and go ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    with hand_cluster(tmp_path_factory.mktemp("hand"), 1) as cluster:
        yield cluster


def patient_rank(collective: Collective, payload: dict[str, Any]) -> list[int]:
    """Goes on until the wanted number of ranks is there; rank 0 tells of each attempt."""
    folder = Path(payload["folder"])
    number = len(list(folder.glob("attempt-*")))
    collective.barrier()
    if collective.rank == 0:
        (folder / f"attempt-{number}").write_text(str(collective.world_size))
    began = time.monotonic()
    while collective.world_size < payload["ranks"] and time.monotonic() - began < 60:
        if (folder / "die").exists() and collective.rank == 0:
            (folder / "die").unlink()
            os.kill(os.getpid(), 9)
        collective.report({"event": "checkpoint", "name": "c"})
        collective.barrier()
        time.sleep(0.05)
    return [collective.rank, collective.world_size]


@pytest.mark.parametrize("lost", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_worker_that_joins_late(by_hand: HandCluster, tmp_path: Path, lost: bool) -> None:
    """From the next attempt on; and from a checkpoint of an attempt that has run for a while."""
    said: list[Any] = []
    patience = Patience(wait=60.0, settle=20.0, grace=5.0, grow=1000.0 if lost else 0.5)
    executor = DaskExecutor(
        dask.connected(by_hand.address, 60.0), patience=patience, on_event=said.append
    )
    added = []
    try:
        executor.wait_for_workers(1)
        executor.preflight(str(tmp_path))
        before = len(executor._link.workers())
        events: list[Any] = []

        def on_event(event: Any) -> None:
            events.append(event)
            if not added:
                added.extend(by_hand.add_worker() for _ in range(2 if lost else 1))
            if lost and len(events) == 20:
                while len(executor._link.workers()) < before + 2:
                    time.sleep(0.05)
                (tmp_path / "die").touch()

        payload = {"folder": str(tmp_path), "ranks": before + 1}
        results = executor.gang(patient_rank, payload, on_event=on_event)
        assert results == [[rank, before + 1] for rank in range(before + 1)]
        told = [event["message"] for event in said]
        assert (tmp_path / "attempt-1").read_text() == str(before + 1)
        if lost:
            assert "was lost" in told[0]
        else:
            assert told == ["1 more worker(s) joined: going on with them from here"]
    finally:
        executor.close()
        for process in added:
            end_group(process)
        while len(by_hand_workers(by_hand)) > 1:
            time.sleep(0.1)
        if not by_hand_workers(by_hand):
            by_hand.add_worker()


def by_hand_workers(cluster: HandCluster) -> list[str]:
    link = dask.connected(cluster.address, 60.0)
    try:
        return list(link.workers())
    finally:
        link.close()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_late_worker_that_is_not_fit_is_not_used(by_hand: HandCluster, tmp_path: Path) -> None:
    """It runs other software: it is named once, and the run goes on without it."""
    said: list[Any] = []
    patience = Patience(wait=60.0, settle=1.0, grace=5.0, grow=0.2)
    executor = DaskExecutor(
        dask.connected(by_hand.address, 60.0), patience=patience, on_event=said.append
    )
    broken = tmp_path / "elsewhere"
    (broken / "clam_dist").mkdir(parents=True)
    (broken / "clam_dist" / "__init__.py").write_text("raise ImportError('another version')")
    added = []
    try:
        executor.wait_for_workers(1)
        executor.preflight(str(tmp_path))
        before = len(executor._link.workers())
        other = HandCluster(by_hand.folder, address=by_hand.address)
        other.environment = {"PYTHONPATH": os.pathsep.join([str(broken), *filter(None, sys.path)])}
        other.processes = list(by_hand.processes)

        added.append(other.add_worker())
        assert executor.gang(long_rank, 12.0) == [before] * before
        told = [event["message"] for event in said]
        assert len(told) == 1
        assert "a worker that joined is not used: worker tcp://" in told[0]
        assert "another version" in told[0]
    finally:
        executor.close()
        for process in added:
            end_group(process)


def long_rank(collective: Collective, seconds: float) -> int:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        collective.report({"event": "checkpoint", "name": "c"})
        collective.barrier()
        time.sleep(0.1)
    return collective.world_size


def square(item: int) -> int:
    time.sleep(0.3)
    return item * item


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_worker_of_someone_else_that_is_stopped_in_a_map(tmp_path: Path) -> None:
    """Dask itself would give its tasks to others after five minutes."""
    said: list[Any] = []
    with hand_cluster(tmp_path, 2) as cluster:
        executor = DaskExecutor(
            dask.connected(cluster.address, 60.0),
            patience=replace(PATIENCE, silent=4.0),
            on_event=said.append,
        )
        executor.wait_for_workers(2)
        results = executor.map(square, range(12))
        assert next(results) == 0
        began = time.monotonic()
        cluster.workers[1].send_signal(signal.SIGSTOP)
        assert list(results) == [item * item for item in range(1, 12)]
        assert "with a worker that fell silent: sent again" in said[-1]["message"]
        # What is sent from now on does not go there
        assert list(executor.map(square, range(4))) == [0, 1, 4, 9]
        assert time.monotonic() - began < 60
        executor.close()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_scheduler_that_is_lost(tmp_path: Path) -> None:
    """One clear error from whatever is called, and an end of the executor that hides nothing."""
    with hand_cluster(tmp_path, 1) as cluster:
        executor = DaskExecutor(dask.connected(cluster.address, 60.0), patience=PATIENCE)
        try:
            executor.wait_for_workers(1)

            def on_event(_: Any) -> None:
                cluster.processes[0].kill()

            with pytest.raises(RunError, match="connection to the Dask scheduler was lost"):
                executor.gang(long_rank, 60.0, on_event=on_event)
            assert set(executor.peak_rss_bytes()) == {"driver"}
        finally:
            executor.close()


def dies_once(collective: Collective, folder: str) -> int:
    import logging

    logging.getLogger("clam_dist.train").warning("about to take rank %d's worker", collective.rank)
    collective.report({"event": "epoch", "loss": 0.25})
    collective.barrier()
    mark = Path(folder) / "died"
    if not mark.exists() and collective.rank == 1:
        mark.touch()
        time.sleep(0.3)
        os.kill(os.getpid(), 9)
    collective.barrier()
    return collective.world_size


def test_the_last_lines_of_a_failed_attempt_are_kept(link: dask.Link, tmp_path: Path) -> None:
    said: list[Any] = []
    logs = tmp_path / "logs"
    for attempt in (1, 2):
        executor = DaskExecutor(link, patience=PATIENCE, on_event=said.append, logs=logs)
        executor.wait_for_workers(2)
        (tmp_path / "died").unlink(missing_ok=True)
        assert executor.gang(dies_once, str(tmp_path)) == [2, 2]
        told = [
            event["message"] for event in said if "starting all ranks again" in event["message"]
        ]
        assert f"(logs: {logs}/attempt-{attempt}-*.log)" in told[-1]
    assert sorted(path.name for path in logs.iterdir()) == [
        f"attempt-{attempt}-worker-{number}.log" for attempt in (1, 2) for number in (0, 1)
    ]
    text = (logs / "attempt-1-worker-1.log").read_text()
    assert "WARNING about to take rank 1's worker" in text
    assert 'reported {"event": "epoch", "loss": 0.25}' in text
    assert "was killed by signal 9" in text.splitlines()[-1]


# -- where ranks listen ---------------------------------------------------------------------------


def test_where_a_rank_listens() -> None:
    assert listening_host(Network("somewhere")) == "somewhere"
    assert listening_host(Network("127.0.0.0/8")) == "127.0.0.1"
    assert listening_host(Network(interface="lo")) in ("127.0.0.1", "::1")
    assert Network().at("10.0.0.7") == Network("10.0.0.7")
    assert Network(interface="lo", port=5).at("10.0.0.7") == Network(interface="lo", port=5)
    with pytest.raises(ConfigError, match=r"collective_interface: nope0 has no address on .* lo"):
        listening_host(Network(interface="nope0"))
    with pytest.raises(
        ConfigError, match=r"collective_host: .* has no address in 203\.0\.113\.0/24"
    ):
        listening_host(Network("203.0.113.0/24"))


def test_a_fixed_port_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(Network("127.0.0.1"))
    port = first.address[1]
    monkeypatch.setattr("clam_dist.launch.rendezvous.CONNECT_SECONDS", 0.3)
    with pytest.raises(PeersLostError, match=rf"port {port} \(cluster\.collective_port\) on 127"):
        open_store(Network("127.0.0.1", port=port))
    del first
    monkeypatch.undo()
    assert open_store(Network("127.0.0.1", port=port)).address == ("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"collective_host: cannot listen at 203\.0\.113\.1"):
        open_store(Network("203.0.113.1"))


def test_ranks_on_an_interface_that_is_not_there(link: dask.Link) -> None:
    executor = DaskExecutor(link, patience=PATIENCE, network=Network(interface="nope0"))
    executor.wait_for_workers(2)
    with pytest.raises(ConfigError, match="collective_interface: nope0 has no address"):
        executor.gang(whereabouts, 1)


def test_ranks_on_an_interface_and_port(link: dask.Link) -> None:
    port = open_store(Network("127.0.0.1")).address[1]
    network = Network(interface="lo", port=port)
    executor = DaskExecutor(link, patience=PATIENCE, network=network)
    executor.wait_for_workers(2)
    for turn in range(3):  # the port is free again at once
        assert executor.gang(whereabouts, turn) == [[0, 2, turn], [1, 2, turn]]


# -- TLS ------------------------------------------------------------------------------------------


def certificates(folder: Path) -> dict[str, str]:
    """A certificate authority and one certificate for all of a cluster, made by openssl."""
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\n")
    new = ["req", "-newkey", "rsa:2048", "-nodes", "-subj"]
    for command in (
        [*new, "/CN=ca", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2"],
        [*new, "/CN=dask", "-keyout", "key.pem", "-out", "request.pem"],
        [
            *["x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-days"],
            *["2", "-CAcreateserial", "-extfile", "extensions", "-out", "cert.pem"],
        ],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_cluster_with_tls(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    options = ["--tls-ca-file", files["ca"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    trusted = {
        f"{tls}CA_FILE": files["ca"],
        f"{tls}CLIENT__CERT": files["cert"],
        f"{tls}CLIENT__KEY": files["key"],
    }
    with hand_cluster(tmp_path / "hand", 2, "--protocol", "tls", *options) as cluster:
        assert cluster.address.startswith("tls://")
        settings: dict[str, Any] = {"address": cluster.address, "workers": 2, "wait": 20}
        done, out = run_config(tmp_path / "run", settings, **trusted)
        assert done.returncode == 0, done.stderr
        assert (out / "_SUCCESS").exists()
        said = done.stdout + done.stderr
        assert said.count("those between ranks are not") == 1

        (tmp_path / "other").mkdir()
        other = certificates(tmp_path / "other")
        untrusted = {
            f"{tls}CA_FILE": other["ca"],
            f"{tls}CLIENT__CERT": other["cert"],
            f"{tls}CLIENT__KEY": other["key"],
        }
        missing = trusted | {f"{tls}CLIENT__KEY": str(tmp_path / "nowhere.pem")}
        for environment in ({}, untrusted, missing):
            began = time.monotonic()
            refused, _ = run_config(tmp_path / "run", {**settings, "wait": 5}, **environment)
            assert refused.returncode == 2, refused.stderr
            errors = [line for line in refused.stderr.splitlines() if "profile  " not in line]
            assert len(errors) == 1, refused.stderr
            assert "cluster.address: no Dask scheduler took our connection to tls://" in errors[0]
            assert "distributed.comm.tls" in errors[0]
            assert time.monotonic() - began < 60

        security = {
            "tls_ca_file": files["ca"],
            "tls_client_cert": files["cert"],
            "tls_client_key": files["key"],
        }
        given = {**settings, "cluster_kwargs": {"security": security}}
        done, out = run_config(tmp_path / "run", given)
        assert done.returncode == 0, done.stderr

        # Without encryption, at the same port
        plain = {**settings, "address": cluster.address.replace("tls://", "tcp://"), "wait": 5}
        refused, _ = run_config(tmp_path / "run", plain)
        assert refused.returncode == 2, refused.stderr
        assert "tls://" in refused.stderr
