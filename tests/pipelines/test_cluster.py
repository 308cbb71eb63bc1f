from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from pipelines.cluster import main
from pipelines.server import EmbeddedServer

Start = Callable[..., subprocess.Popen[str]]
Ask = Callable[..., Any]


def last_run(ask: Ask) -> dict[str, Any]:
    run: dict[str, Any] = ask("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]
    return run


def task_runs(ask: Ask, run: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
    return sorted(found, key=lambda task_run: task_run["start_time"] or "later")


def task_states(ask: Ask, run: dict[str, Any]) -> dict[str, str]:
    return {task_run["name"]: task_run["state_name"] for task_run in task_runs(ask, run)}


def wait_for_sleep(process: subprocess.Popen[str]) -> None:
    """Until the fake train stage sleeps."""
    assert process.stdout is not None
    assert "sleeping in train" in process.stdout.readline()


def test_quickstart_makes_its_data_and_shows_what_it_does(
    server: EmbeddedServer, ask: Ask, start_flow: Start, tmp_path: Path
) -> None:
    flow = start_flow("quickstart", script={"reused": ["profile"]}, PREFECT_API_URL=server.api_url)
    _, said = flow.communicate(timeout=60)
    assert flow.returncode == 0, said
    assert pq.read_metadata(tmp_path / "data/quickstart.parquet").num_rows == 100_000
    assert "silhouette 0.2500 ± 0.0010, 3 of 3 clusters in use" in said.splitlines()[-1]

    run = last_run(ask)
    assert re.fullmatch(r"quickstart \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", run["name"])
    assert {"clam_dist", "quickstart"} <= set(run["tags"])
    assert run["state_type"] == "COMPLETED"
    assert task_states(ask, run) == {
        "make data/quickstart.parquet: 100,000 rows of vowels": "Completed",
        "profile data/quickstart.parquet": "Reused",
        "write shards of data/quickstart.parquet": "Completed",
        "train clam on data/quickstart.parquet": "Completed",
        "label data/quickstart.parquet into runs/quickstart/labels": "Completed",
        "score the labels in runs/quickstart": "Completed",
        "report to runs/quickstart/report.html": "Completed",
    }
    # A tag of a task is a slot that Prefect asks its server for, before each.
    assert [task["tags"] for task in task_runs(ask, run)] == [[]] * 7
    logs = ask("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}})
    in_tasks = [log["message"] for log in logs if log["task_run_id"]]
    assert any(line.startswith("train: epoch 3 of 3, loss 0.333") for line in in_tasks)
    assert "2 workers; Dask dashboard at http://dask:8787" in in_tasks
    found = ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    made = {artifact["type"]: artifact for artifact in found}
    assert sorted(made) == ["markdown", "progress", "table"]
    assert made["markdown"]["key"] == "clam-dist-quickstart"
    report = tmp_path / "runs/quickstart/report.html"
    assert made["markdown"]["data"].startswith(
        f"# three clusters\n[report.html]({report.as_uri()})"
    )
    assert made["table"]["key"] == "clam-dist-quickstart-clusters"
    assert [row["rows"] for row in json.loads(made["table"]["data"])] == [700, 300]
    assert made["progress"]["data"] == 100.0
    description = made["progress"]["description"]
    assert description.startswith("train: epoch 3 of 3")
    assert description.endswith("(train clam on data/quickstart.parquet)")
    training = [task for task in task_runs(ask, run) if task["name"].startswith("train")]
    assert [task["id"] for task in training] == [made["progress"]["task_run_id"]]
    assert training[0]["state"]["message"] == "0.1 s, 1,000 rows"


def test_a_failed_stage_shows_one_message(
    server: EmbeddedServer, ask: Ask, start_flow: Start
) -> None:
    message = "file 'x.parquet' is cut off"
    script = {"fail": {"shards": ["DataError", message]}, "force": True}
    flow = start_flow("tiny.yaml", "--force", script=script, PREFECT_API_URL=server.api_url)
    out, said = flow.communicate(timeout=60)
    assert flow.returncode == 3
    assert said.splitlines()[-1] == f"clam-dist-flow: error: {message}"
    assert "Traceback" not in said
    assert "closed" in out
    run = last_run(ask)
    assert (run["state_type"], run["state"]["message"]) == ("FAILED", message)
    assert list(task_states(ask, run).values()) == ["Completed", "Failed"]
    logs = ask("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}})
    assert not [log for log in logs if "Traceback" in log["message"] or 'File "' in log["message"]]
    told = [log for log in logs if message in log["message"]]
    assert len(told) == 2  # how the task ended, and how the run
    assert not [log for log in logs if "NoneType" in log["message"]]


@pytest.mark.slow
def test_sigterm_is_a_clean_stop(server: EmbeddedServer, ask: Ask, start_flow: Start) -> None:
    flow = start_flow("tiny.yaml", script={"sleep": {"train": 60}}, PREFECT_API_URL=server.api_url)
    wait_for_sleep(flow)
    flow.send_signal(signal.SIGTERM)
    out, said = flow.communicate(timeout=20)
    assert flow.returncode == 143
    assert "closed" in out
    assert said.splitlines()[-1] == (
        "clam-dist-flow: cancelled, or stopped by SIGTERM; run the same again to go on from here"
    )
    run = last_run(ask)
    assert run["state_type"] == "CANCELLED"
    assert list(task_states(ask, run).values()) == ["Completed", "Completed", "Cancelled"]


def test_cancel_in_the_pages_stops_a_run_that_no_worker_watches(
    server: EmbeddedServer, ask: Ask, start_flow: Start
) -> None:
    flow = start_flow("tiny.yaml", script={"sleep": {"train": 60}}, PREFECT_API_URL=server.api_url)
    wait_for_sleep(flow)
    run = last_run(ask)
    cancelling = {"type": "CANCELLING", "name": "Cancelling"}  # as the pages' button does
    ask(f"flow_runs/{run['id']}/set_state", state=cancelling)
    out, said = flow.communicate(timeout=30)
    assert flow.returncode == 143
    assert "closed" in out
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("clam-dist-flow: cancelled, or stopped by SIGTERM")
    run = last_run(ask)
    assert (run["state_type"], run["state_name"]) == ("CANCELLED", "Cancelled")
    assert list(task_states(ask, run).values()) == ["Completed", "Completed", "Cancelled"]


def test_ctrl_c_takes_our_own_server_along(ask: Ask, start_flow: Start) -> None:
    flow = start_flow("tiny.yaml", script={"sleep": {"train": 60}})
    wait_for_sleep(flow)
    [child] = psutil.Process(flow.pid).children(recursive=True)
    flow.send_signal(signal.SIGINT)
    _, said = flow.communicate(timeout=20)
    assert flow.returncode == 130
    assert not child.is_running()
    assert re.search(r"Prefect started in [\d.]+ s: http://127\.0\.0\.1:\d+", said)
    run = last_run(ask)  # another server on the same home
    assert run["state_type"] == "CANCELLED"
    assert list(task_states(ask, run).values()) == ["Completed", "Completed", "Cancelled"]


def test_kill_leaves_nothing_and_the_next_start_says_so(
    server: EmbeddedServer, ask: Ask, start_flow: Start
) -> None:
    flow = start_flow("tiny.yaml", script={"sleep": {"train": 60}}, CLAM_TEST_MARK="killed")
    wait_for_sleep(flow)
    ours = psutil.Process(flow.pid).children(recursive=True)
    assert len(ours) == 1
    # How tasks ended travels as events: those that a kill overtakes are never told.
    told = ["Completed", "Completed", "Running"]
    deadline = time.monotonic() + 30
    while list(task_states(ask, last_run(ask)).values()) != told:
        assert time.monotonic() < deadline, task_states(ask, last_run(ask))
        time.sleep(0.1)
    flow.kill()
    deadline = time.monotonic() + 10
    while any(is_marked(process, "killed") for process in ours) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [process for process in psutil.process_iter() if is_marked(process, "killed")]
    assert last_run(ask)["state_type"] == "RUNNING"  # nobody could tell

    again = start_flow("tiny.yaml", script={"already_done": True}, PREFECT_API_URL=server.api_url)
    _, said = again.communicate(timeout=60)
    assert again.returncode == 0
    assert "clam-dist-flow: already done: out/" in said.splitlines()[-1]
    found = ask("flow_runs/filter", sort="START_TIME_DESC", limit=2)
    assert [run["state_name"] for run in found] == ["AlreadyDone", "Crashed"]
    assert set(task_states(ask, found[1]).values()) == {"Completed", "Crashed"}


def is_marked(process: psutil.Process, mark: str) -> bool:
    """Whether a live process was started with the mark in its environment."""
    try:
        return process.environ().get("CLAM_TEST_MARK") == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def test_an_api_that_does_not_answer(start_flow: Start) -> None:
    flow = start_flow("tiny.yaml", PREFECT_API_URL="http://127.0.0.1:9/api")
    _, said = flow.communicate(timeout=60)
    assert flow.returncode == 4
    assert "error: Prefect's API at http://127.0.0.1:9/api does not answer" in said
    assert "prefect server start" in said


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["nowhere.yaml"], "config 'nowhere.yaml': no such file here"),
        (["quickstart", "--set", "model.bata=1"], "model.beta"),
    ],
)
def test_a_wrong_config_starts_nothing(
    arguments: list[str],
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(EmbeddedServer, "start", start)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert main(arguments) == 2
    assert shown in capsys.readouterr().err


def test_prefect_finds_the_flow_by_module_path(environ: dict[str, str]) -> None:
    code = """
import json, sys
import pipelines.cluster
heavy = {"prefect", "torch", "pydantic", "distributed"} & set(sys.modules)
assert not heavy, heavy  # every process that Dask spawns imports this module again
from prefect.flows import load_flow_from_entrypoint
flow = load_flow_from_entrypoint("pipelines.cluster.cluster")
print(json.dumps(flow.parameters.model_dump()["properties"]))
"""
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    form = json.loads(done.stdout)
    found = {name: (of["title"], of["type"], of["default"]) for name, of in form.items()}
    assert found == {
        "config": ("config", "string", "quickstart"),
        "overrides": ("overrides", "array", []),
        "force": ("force", "boolean", False),
    }
    assert all(of["description"] for of in form.values())
    assert form["config"]["minLength"] == 1
    pattern = re.compile(form["overrides"]["items"]["pattern"])
    assert [bool(pattern.search(text)) for text in ("a=1", "a.b_2=[x]", "=1", "a b=1", "a.b")] == [
        *[True, True, False, False, False]
    ]
