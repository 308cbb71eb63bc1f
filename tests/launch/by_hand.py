"""A Dask cluster started as a person would: `dask scheduler` and `dask worker`, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class HandCluster:
    """Processes of a cluster; ``folder`` holds their logs and files."""

    folder: Path
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    address: str = ""

    def start(self, workers: int, *options: str) -> HandCluster:
        """Start a scheduler and so many workers."""
        file = self.folder / "scheduler.json"
        host = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        self._run("dask_scheduler", *host, "--scheduler-file", str(file))
        began = time.monotonic()
        while not file.exists() or not file.read_text().strip():
            assert self.processes[0].poll() is None, self.log()
            assert time.monotonic() - began < 60, self.log()
            time.sleep(0.05)
        self.address = json.loads(file.read_text())["address"]
        for _ in range(workers):
            self.add_worker(*options)
        return self

    def add_worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start one more worker of one thread, by default without a nanny."""
        nanny = [] if "--nanny" in options else ["--no-nanny"]
        common = ["--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
        process = self._run("dask_worker", self.address, *common, *nanny, *options)
        self.workers.append(process)
        return process

    def _run(self, command: str, *options: str) -> subprocess.Popen[bytes]:
        code = f"from distributed.cli.{command} import main; main()"
        log = open(self.folder / f"{command}-{len(self.processes)}.log", "wb")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-c", code, *options, *self.options],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            | dict(self.environment),
            start_new_session=True,
        )
        log.close()
        self.processes.append(process)
        return process

    def log(self) -> str:
        """What all of them said."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("dask_*.log")))

    def stop(self) -> None:
        """End every process that was started, and the children of each."""
        for process in self.processes:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children (a nanny's worker)."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


@contextmanager
def hand_cluster(
    folder: Path,
    workers: int,
    *options: str,
    environment: Mapping[str, str] | None = None,
    worker_options: Sequence[str] = (),
) -> Iterator[HandCluster]:
    """A scheduler and workers that end with the block; ``options`` are given to each of them."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = HandCluster(folder, options, environment or {})
    try:
        yield cluster.start(workers, *worker_options)
    finally:
        cluster.stop()
