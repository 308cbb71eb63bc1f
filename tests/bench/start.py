"""What it costs to be watched: from the command to the first stage, on a first and a warm home.

``python tests/bench/start.py [--trials N] [--json]`` starts, one after another,

* ``run``: ``clam-dist run``, which has no Prefect in it;
* ``flow``: ``clam-dist-flow``, which brings a server of its own, with its pages;
* ``prefect``: the same imports and one task in a flow that leaves it to Prefect to start its
  temporary server, which has no pages;

and stops each when its first stage begins. Seconds are of the clock from the process's start;
memory is what the process and its children hold then (RSS, and Linux's PSS, which counts a page
that several share once). ``first`` is a Prefect home that did not exist, ``warm`` the same again,
the median of N trials. Ratios mean more than seconds: the files may not be in memory at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
MIB = 2**20
PATIENCE = 180.0
"""Seconds for one start."""

CONFIG = """
name: start
source: {uri: data/vowels.parquet, label: label}
model: {n_clusters: 3}
output: {uri: runs/start}
"""

PLAIN = """
from prefect import flow, get_run_logger, task
from clam_dist import stages
stages.open_run

@task
def profile():
    get_run_logger().info("the first stage")
    import time
    time.sleep(60)

@flow
def cluster():
    profile()

if __name__ == "__main__":
    cluster()
"""

COMMANDS = {
    "run": (["-m", "clam_dist.cli", "run", "config.yaml"], "profile   reading"),
    "flow": (["-m", "pipelines.cluster", "config.yaml"], "Task run 'profile"),
    "prefect": (["plain.py"], "the first stage"),
}
"""What is started, and what its output holds when the first stage has begun."""


@dataclass(frozen=True)
class Start:
    """One start: seconds to the first stage, and bytes held at that moment.

    Parameters
    ----------
    seconds
        From the process's start to the first stage's line.
    rss, pss
        Bytes of the process and its children.
    processes
        How many they are.
    """

    seconds: float
    rss: int
    pss: int
    processes: int


def memory(pid: int) -> tuple[int, int, int]:
    """RSS and PSS of a process and all it started, in bytes, and how many they are."""
    parent = psutil.Process(pid)
    family = [parent, *parent.children(recursive=True)]
    full = [process.memory_full_info() for process in family]
    return sum(one.rss for one in full), sum(one.pss for one in full), len(full)


def start(name: str, folder: Path, environ: dict[str, str]) -> Start:
    """Start a command in ``folder`` and stop it where its first stage begins."""
    arguments, sign = COMMANDS[name]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    guard = threading.Timer(PATIENCE, process.kill)
    guard.start()
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if sign in line:
                return Start(time.perf_counter() - began, *memory(process.pid))
        raise RuntimeError(f"{name} never began its first stage:\n{''.join(lines)}")
    finally:
        guard.cancel()
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """End a process and all it started."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    for one in [process, *family]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.communicate()
    psutil.wait_procs(family, timeout=20)


def measure(folder: Path, trials: int) -> list[dict[str, Any]]:
    """Start each command on a first home, where it has one, and on a warm one."""
    data = ["-m", "clam_dist.cli", "demo-data", "vowels", "--rows", "20000"]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "CLAM_DIST"))}
    inherited["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    inherited |= {"PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true", "DO_NOT_TRACK": "1"}
    inherited |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}
    inherited |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    subprocess.run([sys.executable, *data], cwd=folder, env=inherited, check=True)
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "plain.py").write_text(PLAIN, encoding="utf-8")
    start("run", folder, inherited)  # brings what all of them import into memory
    rows = []
    for name in COMMANDS:
        environ = inherited | {"PREFECT_HOME": str(folder / f"home-{name}")}
        if name != "run":
            rows.append({"command": name, "home": "first"} | asdict(start(name, folder, environ)))
        warm = [start(name, folder, environ) for _ in range(trials)]
        middle = {
            field: statistics.median(getattr(one, field) for one in warm)
            for field in ("seconds", "rss", "pss", "processes")
        }
        rows.append({"command": name, "home": "warm"} | middle)
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=3, help="starts on a warm home")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), arguments.trials)
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{'command':10s} {'home':6s} {'seconds':>8s} {'RSS MiB':>8s} {'PSS MiB':>8s} processes")
    for row in rows:
        sizes = f"{row['rss'] / MIB:8.0f} {row['pss'] / MIB:8.0f} {row['processes']:9.0f}"
        print(f"{row['command']:10s} {row['home']:6s} {row['seconds']:8.1f} {sizes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
