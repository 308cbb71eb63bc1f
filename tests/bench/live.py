"""A real Prefect server and worker through a night's worth of mishaps, told line by line.

``python tests/bench/live.py [--postgres] [--folder DIR] [--keep]`` starts a server (on SQLite, or
on a PostgreSQL cluster of its own), a work pool and a worker, applies ``deploy/prefect.yaml`` and
checks: the form's refusals, a cron schedule that fires, a pause that outlives a redeployment, two
runs that collide, a cancelled run and its resumption, and a worker killed with all its children in
the middle of training, whose run the next one takes up. Exit code 0 where all of it held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from pipelines.stale import LABEL

ROOT = Path(__file__).parents[2]
DEPLOYMENT = "cluster/process"
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

# Long enough to be met in training, on a busy machine too; short enough to be waited for.
CONFIG = """
name: live
source: {uri: data/vowels.parquet, label: label}
model: {n_clusters: 9, beta: 1.0}
train: {restarts: 1, epochs: 400}
evaluate: {silhouette_rows: 500}
cluster: {kind: serial}
output: {uri: runs/live}
"""
SHORT = ["train.epochs=2", "output.uri=runs/{date}-{time}"]
TWO_RANKS = ["cluster.kind=local", "cluster.workers=2"]


def say(line: str) -> None:
    """One line with the clock."""
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def check(held: bool, what: str) -> None:
    """Say what held; end the bench where it did not."""
    say(f"{'ok  ' if held else 'FAIL'} {what}")
    if not held:
        raise SystemExit(1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def within(seconds: float, found: Callable[[], Any], what: str) -> Any:
    """What ``found`` returns once it is true; asked twice a second."""
    deadline = time.monotonic() + seconds
    while True:
        answer = found()
        if answer:
            return answer
        if time.monotonic() > deadline:
            check(False, f"{what} (not within {seconds:.0f} s)")
        time.sleep(0.5)


@dataclass
class Site:
    """One server, its folder, and the processes of both."""

    folder: Path
    environ: dict[str, str]
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def ask(self, path: str, method: str = "POST", **body: Any) -> Any:
        """What the API answers; an HTTPError where it refuses."""
        data = None if method == "GET" else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.api}/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def command(self, *arguments: str) -> str:
        """Run Prefect's command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=180,
        )
        if done.returncode:
            check(False, f"prefect {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process that stays, in a group of its own, its output in a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=self.folder,
                env=self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def deployment(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(f"deployments/name/{DEPLOYMENT}", "GET")
        return found

    def run(self, **body: Any) -> str:
        """Ask for a run; its id."""
        made = self.ask(f"deployments/{self.deployment()['id']}/create_flow_run", **body)
        return str(made["id"])

    def state(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(f"flow_runs/{run}", "GET")
        return found

    def is_in(self, run: str, *names: str) -> bool:
        state = self.state(run)
        return state["state_name"] in names or state["state_type"] in names

    def family(self, run: str) -> list[psutil.Process]:
        """The run's process, as the run recorded it, and all that it started."""
        process = psutil.Process(int(self.state(run)["labels"][LABEL].split(":")[1]))
        return [process, *process.children(recursive=True)]

    def tasks(self, run: str) -> dict[str, str]:
        """The run's tasks in their order, and the names of their states."""
        found = self.ask("task_runs/filter", flow_runs={"id": {"any_": [run]}})
        found = [task for task in found if task["start_time"]]
        found.sort(key=lambda task: task["start_time"])
        return {task["name"].split()[0]: task["state_name"] for task in found}

    def log(self, run: str) -> list[str]:
        """The run's lines, as its page shows them."""
        found = self.ask(
            "logs/filter", logs={"flow_run_id": {"any_": [run]}}, sort="TIMESTAMP_ASC", limit=200
        )
        return [line["message"] for line in found]

    def is_training(self, run: str) -> bool:
        return any("epoch" in line and "loss" in line for line in self.log(run))

    def worker(self, *stale: str) -> subprocess.Popen[bytes]:
        """A worker, after what a killed one left has been marked."""
        marked = subprocess.run(
            [sys.executable, "-m", "pipelines.stale", *stale],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        check(marked.returncode == 0, f"before a worker starts: {marked.stdout.strip() or 'none'}")
        return self.start(
            "worker", "prefect", "worker", "start", "--pool", "clam-dist", "--type", "process"
        )


def deploy(site: Site, cron: str) -> None:
    """Apply deploy/prefect.yaml, with this folder and this cron line for those in the file."""
    text = (ROOT / "deploy" / "prefect.yaml").read_text()
    changes = (
        ("/var/lib/clam-dist-worker", str(site.folder)),
        ("/etc/clam-dist/night.yaml", str(site.folder / "night.yaml")),
        ('"0 3 * * *"', json.dumps(cron)),
    )
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    assert DEPLOYMENT.split("/")[1] in [one["name"] for one in yaml.safe_load(text)["deployments"]]
    path = site.folder / "prefect.yaml"
    path.write_text(text)
    site.command("--no-prompt", "deploy", "--prefect-file", str(path), "-n", "process")


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL cluster of this bench's own, on a socket in ``folder``; its address."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        raise SystemExit("no PostgreSQL here; Debian's package: apt-get install postgresql")
    data, port = folder / "postgres", free_port()
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:  # which PostgreSQL refuses to be
        as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        folder.chmod(0o755)

    def program(name: str, *arguments: str) -> None:
        subprocess.run(
            [str(programs[-1] / name), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **as_user,
        )

    program("initdb", "-D", str(data), "-U", "prefect", "-A", "trust", "-E", "UTF8")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data}"
    program("pg_ctl", "-D", str(data), "-w", "-o", options, "-l", str(data / "log"), "start")
    try:
        program("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "prefect")
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect"
    finally:
        program("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


@contextlib.contextmanager
def site(folder: Path, database: str | None) -> Iterator[Site]:
    """A Prefect server that answers, with a work pool; ended with all that was started."""
    port = free_port()
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "CLAM_DIST"))}
    environ |= {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
    }
    if database is not None:
        environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database
    made = Site(folder, environ, port)
    try:
        began = time.monotonic()
        made.start("server", "prefect", "server", "start", "--port", str(port))
        within(180, lambda: answers(made), "the server answers")
        say(f"server on {(database or 'sqlite').split('+')[0]}: {time.monotonic() - began:.0f} s")
        made.command("work-pool", "create", "clam-dist", "--type", "process")
        yield made
    finally:
        for process in reversed(made.processes):
            kill_tree(process, signal.SIGKILL)


def answers(site: Site) -> bool:
    try:
        return site.ask("health", "GET") is True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def kill_tree(process: subprocess.Popen[bytes], sent: int) -> None:
    """Signal a process and all it started, as a machine that loses its power would."""
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sent)
        for child in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(sent)
    process.wait(30)


def live(site: Site) -> None:
    """Everything in its order."""
    subprocess.run(
        [sys.executable, "-m", "clam_dist.cli", "demo-data", "vowels", "--rows", "20000"],
        cwd=site.folder,
        env=site.environ,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (site.folder / "night.yaml").write_text(CONFIG)
    a_schedule_fires_and_keeps_its_pause(site)
    the_form_refuses(site)
    worker = runs_collide_and_one_is_cancelled(site)
    a_worker_is_killed(site, worker)


def a_schedule_fires_and_keeps_its_pause(site: Site) -> None:
    """Every minute, until paused in the pages; a redeployment changes the line, not the pause."""
    deploy(site, "* * * * *")
    found = site.deployment()
    [schedule] = found["schedules"]
    check(schedule["active"], f"deployed {found['entrypoint']}, {schedule['schedule']['cron']!r}")
    url = f"deployments/{found['id']}/schedules/{schedule['id']}"
    due = site.ask("flow_runs/filter", deployments={"id": {"any_": [found["id"]]}})
    say(f"     {len(due)} run(s) scheduled by now; waiting for one that the schedule made")
    site.ask(f"deployments/{found['id']}", "PATCH", parameters=parameters(SHORT))

    def scheduled() -> list[dict[str, Any]]:
        runs = site.ask("flow_runs/filter", sort="EXPECTED_START_TIME_ASC")
        return [run for run in runs if run["auto_scheduled"]]

    worker = site.worker()
    first = within(150, scheduled, "a scheduled run appears")[0]["id"]
    within(240, lambda: site.is_in(first, *ENDED), "the scheduled run ends")
    run = site.state(first)
    check(
        run["state_type"] == "COMPLETED",
        f"the schedule fired: {run['name']}: {run['state']['message']}",
    )
    late = run["start_time"], run["expected_start_time"]
    say(f"     due at {late[1][11:19]}, began at {late[0][11:19]}; tasks {site.tasks(first)}")
    site.ask(url, "PATCH", active=False)
    deploy(site, "*/2 * * * *")
    [schedule] = site.deployment()["schedules"]
    check(
        not schedule["active"] and schedule["schedule"]["cron"] == "*/2 * * * *",
        "paused in the pages, deployed again with another line: still paused",
    )
    within(
        240,
        lambda: all(site.is_in(r["id"], *ENDED, "SCHEDULED") for r in scheduled()),
        "what the schedule had begun ends",
    )
    kill_tree(worker, signal.SIGTERM)


def parameters(overrides: list[str]) -> dict[str, Any]:
    return {"config": "night.yaml", "overrides": overrides, "force": False}


def the_form_refuses(site: Site) -> None:
    """Parameters that are of the wrong kind never become a run."""
    wrong: list[Mapping[str, Any]] = [
        {"overrides": ["no equals sign"]},
        {"config": ""},
        {"force": "maybe"},
    ]
    for body in wrong:
        try:
            site.run(parameters=body)
        except urllib.error.HTTPError as refused:
            detail = json.loads(refused.read())["detail"]
            check(refused.code == 409, f"refused {dict(body)}: {detail[:110]}")
        else:
            check(False, f"refused {dict(body)}")


def runs_collide_and_one_is_cancelled(site: Site) -> subprocess.Popen[bytes]:
    """The second waits until the first, cancelled in training, has let go; it takes up the work."""
    worker = site.worker()
    first, second = [site.run(parameters=parameters(TWO_RANKS)) for _ in range(2)]
    within(120, lambda: site.is_training(first) or site.is_training(second), "one trains")
    if site.is_training(second):
        first, second = second, first
    within(60, lambda: site.is_in(second, "AwaitingConcurrencySlot"), "the second waits")
    check(site.is_in(first, "RUNNING"), "two runs collide: one runs, one awaits a slot")
    began = time.monotonic()
    family = site.family(first)
    check(len(family) > 3, f"its two ranks are processes of their own ({len(family)} in all)")
    state = {"type": "CANCELLING", "name": "Cancelling"}
    site.ask(f"flow_runs/{first}/set_state", state=state)
    within(90, lambda: site.is_in(first, "CANCELLED"), "the first is cancelled")
    check(not frames(site.log(first)), f"cancelled in {time.monotonic() - began:.0f} s, no frames")
    check(site.tasks(first)["train"] == "Cancelled", f"its tasks: {site.tasks(first)}")
    within(30, lambda: not any(map(is_alive, family)), "its ranks have ended")
    check(True, f"its processes have ended, {time.monotonic() - began:.0f} s after")
    within(120, lambda: site.is_training(second), "the second trains")
    done = site.tasks(second)
    check(
        done.get("profile") == done.get("write") == "Reused",
        f"the second went on from what the first had done: {done}",
    )
    site.ask(f"flow_runs/{second}/set_state", state=state)
    within(90, lambda: site.is_in(second, "CANCELLED"), "the second is cancelled")
    return worker


def a_worker_is_killed(site: Site, worker: subprocess.Popen[bytes]) -> None:
    """kill -9 of a worker and all it started, in training, twice: another run ends the work, or
    the same run, put back in its queue."""
    lost = site.run()
    within(120, lambda: site.is_training(lost), "a run trains")
    kill_tree(worker, signal.SIGKILL)
    check(site.is_in(lost, "RUNNING"), "worker and run killed -9; Prefect knows nothing of it yet")
    worker = site.worker()
    check(site.is_in(lost, "CRASHED"), f"the lost run: {site.state(lost)['state']['message']}")
    again = site.run()
    within(120, lambda: site.is_training(again), "the next run trains")
    kill_tree(worker, signal.SIGKILL)
    site.worker("--retries", "1")
    name = site.state(again)["state_name"]
    check(name != "Crashed", f"killed -9 once more, with --retries 1: {name}")
    within(400, lambda: site.is_in(again, *ENDED), "the next run ends")
    run = site.state(again)
    check(run["state_type"] == "COMPLETED", f"resumed: {run['state']['message']}")
    check(run["run_count"] == 2, "it is the same run, begun twice")
    resumed = [line for line in site.log(again) if "resum" in line or "checkpoint" in line]
    say(f"     tasks {site.tasks(again)}; {resumed[:1] or 'no line of a checkpoint'}")
    check(site.tasks(again).get("profile") == "Reused", "with what the lost run had done")
    found = site.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [again]}})
    kinds = sorted({f"{one['type']} {one['key'] or ''}".strip() for one in found})
    check(
        kinds == ["markdown clam-dist-live", "progress", "table clam-dist-live-clusters"],
        f"its artifacts: {', '.join(kinds)}",
    )


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs still, or has a number that another one has now."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def frames(lines: list[str]) -> list[str]:
    """Lines that hold a stack of frames."""
    return [line for line in lines if "Traceback" in line or 'File "' in line]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own")
    parser.add_argument("--folder", type=Path, help="where to work; default a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    arguments = parser.parse_args(argv)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="clam-dist-live-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            database = stack.enter_context(postgres(folder)) if arguments.postgres else None
            live(stack.enter_context(site(folder, database)))
    finally:
        if arguments.keep:
            say(f"left {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"all of it held, in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
