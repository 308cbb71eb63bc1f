"""The Slurm script: what shellcheck says, what it starts and how it ends, with Slurm played by
scripts of a few lines; and once for real, a run on two workers that it started.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, accepts, check_command, check_variable

SCRIPT = DEPLOY / "slurm" / "clam-dist.sbatch"

# Starts --ntasks copies, as srun does on as many cores; its step's number is that of its start.
SRUN = """#!/usr/bin/env bash
tasks=1
while [[ "$1" == --* ]]; do
    case "$1" in --ntasks=*) tasks="${1#*=}" ;; esac
    shift
done
children=()
for ((i = 0; i < tasks; i++)); do "$@" & children+=("$!"); done
step=0
until (set -C; echo "${children[@]}" > "$PLAYED/step-$step") 2> /dev/null; do ((step += 1)); done
trap 'kill -TERM "${children[@]}"' TERM
wait
wait
"""
SCANCEL = """#!/usr/bin/env bash
kill -TERM $(cat "$PLAYED/step-${2#*.}")
"""
SCONTROL = """#!/usr/bin/env bash
echo "$*" >> "$PLAYED/scontrol"
"""
# Note how they were called; Dask's run until they are ended.
NOTE = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
seen = {{"argv": [{name!r}, *sys.argv[1:]], "environment": dict(os.environ)}}
kind = "-".join([{name!r}, *sys.argv[1:2]]) if {name!r} == "dask" else {name!r}
if "--scheduler-file" in sys.argv and "scheduler" in sys.argv:
    path = Path(sys.argv[sys.argv.index("--scheduler-file") + 1])
    path.write_text(json.dumps({{"address": "tcp://10.0.0.1:40001"}}))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
Path(os.environ["PLAYED"], f"{{kind}}-{{os.getpid()}}.json").write_text(json.dumps(seen))
time.sleep({seconds})
sys.exit({code})
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a virtual environment, a config, and Slurm's commands on the path."""
    commands = {"srun": SRUN, "scancel": SCANCEL, "scontrol": SCONTROL}
    for folder in ("slurm", "venv/bin", "played", "tmp"):
        (tmp_path / folder).mkdir(parents=True)
    for name, text in commands.items():
        program(tmp_path / "slurm" / name, text)
    for name in ("dask", "clam-dist", "clam-dist-flow"):
        note(tmp_path, name, seconds=60 if name == "dask" else 2)
    (tmp_path / "venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "night.yaml").write_text("name: night\n")
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def note(site: Path, name: str, seconds: float = 0, code: int = 0) -> None:
    text = NOTE.format(python=sys.executable, name=name, seconds=seconds, code=code)
    program(site / "venv/bin" / name, text)


def job(site: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """The script, as Slurm starts it on the first node of an allocation of two tasks."""
    environment = {
        "PATH": f"{site}/slurm:{os.environ['PATH']}",
        "PLAYED": str(site / "played"),
        "CLAM_DIST_VENV": str(site / "venv"),
        "DASK_CONFIG": str(DEPLOY / "dask.yaml"),
        "HOME": str(site),
        "TMPDIR": str(site / "tmp"),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "SLURM_MEM_PER_CPU": "2000",
        "SLURM_CPUS_PER_TASK": "1",
        **more,
    }
    process = subprocess.Popen(
        ["bash", SCRIPT, *arguments],
        cwd=site,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    STARTED.append(process)
    return process


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Whatever a test that failed has left running is ended with it."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def ends(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"still running: {process.communicate()[0]}") from None
    return process.returncode, said


def calls(site: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (site / "played").glob(f"{kind}-*.json")]


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)


def left(site: Path) -> list[str]:
    """Command lines of processes that were started with the site's folder for a mark."""
    mark = f"PLAYED={site / 'played'}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().decode())
        except OSError:  # gone, or another's
            continue
    return [line for line in found if line]


def test_shellcheck():
    accepts("shellcheck", SCRIPT)


def test_it_starts_what_exists(site):
    code, said = ends(job(site, "night.yaml", "--set", "model.n_clusters=3"))
    assert code == 0, said
    (scheduler,), workers = calls(site, "dask-scheduler"), calls(site, "dask-worker")
    (run,) = calls(site, "clam-dist")
    assert len(workers) == 2
    for call in (scheduler, *workers, run):
        check_command(call["argv"])
    assert run["argv"] == ["clam-dist", "run", "night.yaml", "--set", "model.n_clusters=3"]
    assert run["environment"]["CLAM_DIST_CLUSTER__ADDRESS"] == "tcp://10.0.0.1:40001"
    assert run["environment"]["CLAM_DIST_CLUSTER__WORKERS"] == "2"
    for name, value in run["environment"].items():
        check_variable(name, value)
    arguments = workers[0]["argv"]
    assert arguments[arguments.index("--memory-limit") + 1] == "1800MiB"
    assert arguments[arguments.index("--local-directory") + 1] == str(site / "tmp")
    assert not left(site)
    assert not list(site.glob(".clam-dist-*"))


def test_with_a_prefect_server_it_is_a_flow(site):
    code, said = ends(job(site, "night.yaml", PREFECT_API_URL="http://prefect:4200/api"))
    assert code == 0, said
    (run,) = calls(site, "clam-dist-flow")
    check_command(run["argv"])
    assert not calls(site, "clam-dist-[0-9]")


def test_an_interface_is_handed_on(site):
    code, said = ends(job(site, "night.yaml", CLAM_DIST_INTERFACE="ib0"))
    assert code == 0, said
    for call in (*calls(site, "dask-scheduler"), *calls(site, "dask-worker")):
        check_command(call["argv"])
        assert call["argv"][-2:] == ["--interface", "ib0"]


@pytest.mark.parametrize("exit_code", [2, 3, 4])
def test_it_ends_as_the_run_did(site, exit_code):
    note(site, "clam-dist", code=exit_code)
    code, said = ends(job(site, "night.yaml"))
    assert code == exit_code, said
    assert not (site / "played/scontrol").exists()
    assert not left(site)


def test_without_a_config_it_says_how():
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: sbatch clam-dist.sbatch CONFIG.yaml")


@pytest.mark.parametrize(
    ("sent", "queued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)], ids=["time", "cancelled"]
)
def test_a_run_is_stopped_and_only_for_time_queued_again(site, sent, queued):
    note(site, "clam-dist", seconds=60)
    process = job(site, "night.yaml")
    until(lambda: calls(site, "clam-dist") and len(calls(site, "dask-worker")) == 2)
    process.send_signal(sent)  # to the script alone, as --signal=B:USR1 says
    code, said = ends(process)
    assert code == 143, said
    assert (site / "played/scontrol").exists() is queued
    if queued:
        assert (site / "played/scontrol").read_text() == "requeue 7\n"
    assert not left(site)


def test_a_scheduler_that_does_not_start_is_told(site):
    program(site / "venv/bin/dask", "#!/bin/sh\necho no such interface >&2\nexit 1\n")
    code, said = ends(job(site, "night.yaml"))
    assert code == 4
    assert "the Dask scheduler did not start" in said
    assert not calls(site, "clam-dist")


def test_time_for_the_end_is_asked_for():
    """The signal comes to the script, with time for a checkpoint, and the log goes on."""
    options = re.findall(r"^#SBATCH (\S+)$", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    assert "--signal=B:USR1@180" in options
    assert {"--requeue", "--open-mode=append"} <= set(options)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_on_the_workers_that_it_starts(site):
    """Real Dask and a real run; only Slurm is played."""
    for name in ("dask", "clam-dist"):
        (site / "venv/bin" / name).unlink()
        (site / "venv/bin" / name).symlink_to(Path(sys.executable).parent / name)
    made = [sys.executable, "-m", "clam_dist.cli", "demo-data", "vowels", "--rows", "3000"]
    subprocess.run([*made, "--output", site / "vowels.parquet"], check=True, timeout=120)
    config = {
        "name": "night",
        "source": {"uri": "vowels.parquet", "label": "label"},
        "model": {"n_clusters": 9, "beta": 0.3, "objective": "masked"},
        "train": {"restarts": 1, "epochs": 2},
        "evaluate": {"silhouette_rows": 500},
        "output": {"uri": "runs/night"},
    }
    (site / "night.yaml").write_text(yaml.safe_dump(config))
    code, said = ends(job(site, "night.yaml"), 240)
    assert code == 0, said
    assert (site / "runs/night/_SUCCESS").exists()
    assert "2 workers" in said
    metrics = json.loads((site / "runs/night/metrics.json").read_text())
    assert len(metrics["peak_rss_bytes"]) == 3  # the driver and two workers
    assert not left(site)
