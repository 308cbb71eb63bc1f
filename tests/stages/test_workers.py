"""The same config on this process and on Dask workers, in the command and in the flow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from clam_dist.demo import write_demo
from clam_dist.models.bundle import load_bundle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "vowels.parquet"
    # Enough rows for batches of several micro-batches.
    write_demo("vowels", path, rows=530_000)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("prefect")


def config(folder: Path, data: Path, **changes) -> Path:
    values = {
        "name": "same",
        "source": {"uri": str(data), "label": "label"},
        "model": {"n_clusters": 9, "beta": [1.0, 4.0], "objective": "unmasked"},
        "train": {"restarts": 4, "epochs": 3},
        "output": {"uri": str(folder / "out")},
    }
    for section, keys in changes.items():
        values[section] = {**values.get(section, {}), **keys}
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def command(module: str, path: Path, *options: str) -> list[str]:
    verb = ["run"] if module == "clam_dist.cli" else []
    return [sys.executable, "-m", module, *verb, str(path), *options]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PREFECT_HOME": str(home)}


def ours(mark: str) -> list[psutil.Process]:
    """Processes whose environment carries ``mark``, this one apart."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get("CLAM_TEST_MARK") == mark
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def results(out: Path):
    labels = pq.read_table(out / "labels" / "vowels.parquet")
    return labels, load_bundle(out / "model").dataset["prototypes"].values


def test_serial_one_two_and_three_workers_command_and_flow_give_the_same_bits(tmp_path, data, home):
    reference = None
    for name, module, options in [
        ("serial", "clam_dist.cli", []),
        ("one", "clam_dist.cli", ["--set", "cluster.kind=local", "--set", "cluster.workers=1"]),
        ("two", "clam_dist.cli", ["--set", "cluster.workers=2"]),
        ("three", "clam_dist.cli", ["--set", "cluster.workers=3"]),
        ("flow", "pipelines.cluster", []),
        ("flow-two", "pipelines.cluster", ["--set", "cluster.workers=2"]),
    ]:
        path = config(tmp_path / name, data)
        done = subprocess.run(
            command(module, path, *options),
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        labels, prototypes = results(tmp_path / name / "out")
        if reference is None:
            reference = labels, prototypes
        assert labels.equals(reference[0]), name
        assert np.array_equal(prototypes, reference[1]), name


def test_a_flow_killed_in_training_leaves_nothing_running_and_goes_on(tmp_path, data, home):
    whole = config(tmp_path / "whole", data)
    subprocess.run(command("clam_dist.cli", whole), check=True, capture_output=True)

    path = config(tmp_path / "killed", data)
    out = tmp_path / "killed" / "out"
    mark = f"{os.getpid()}-{time.time()}"
    flow = subprocess.Popen(
        command("pipelines.cluster", path, "--set", "cluster.workers=2"),
        env={**environment(home), "CLAM_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    current = out / "_work" / "train" / "current.json"
    limit = time.monotonic() + 120
    while not current.exists():
        assert time.monotonic() < limit
        assert flow.poll() is None
        time.sleep(0.02)
    assert len(ours(mark)) >= 4  # the flow, Prefect's server, two workers
    shards = {p.name: p.stat().st_mtime_ns for p in (out / "_work" / "shards").iterdir()}
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    killed = time.monotonic()
    while ours(mark):
        assert time.monotonic() - killed < 10, ours(mark)
        time.sleep(0.1)

    again = subprocess.run(
        command("pipelines.cluster", path, "--set", "work.keep=true"),
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = again.stdout + again.stderr
    assert again.returncode == 0, said
    assert said.count("Reused") >= 2  # profile and shards
    assert "goes on from its checkpoint" in said
    assert shards == {p.name: p.stat().st_mtime_ns for p in (out / "_work" / "shards").iterdir()}
    assert results(out)[0].equals(results(tmp_path / "whole" / "out")[0])


def peaks(out: Path) -> dict[str, int]:
    return json.loads((out / "metrics.json").read_text())["peak_rss_bytes"]


def test_memory_of_workers_does_not_grow_with_rows(tmp_path):
    measured = []
    for rows in (200_000, 2_000_000):
        data = tmp_path / f"vowels-{rows}" / "vowels.parquet"
        write_demo("vowels", data, rows=rows)
        path = config(
            tmp_path / f"run-{rows}", data, cluster={"workers": 2, "memory_limit": "1GiB"}
        )
        subprocess.run(command("clam_dist.cli", path), check=True, capture_output=True)
        found = peaks(tmp_path / f"run-{rows}" / "out")
        measured.append(max(size for name, size in found.items() if name != "driver"))
    assert measured[1] < 1.15 * measured[0]
    assert measured[1] < 2**30
