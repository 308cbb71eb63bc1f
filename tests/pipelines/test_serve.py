from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clam_dist.cli import main
from clam_dist.errors import ConfigError
from pipelines.configs import load_named
from pipelines.serve import cron_schedule, is_one_folder, local_timezone


@pytest.mark.parametrize("cron", ["61 * * * *", "* * *", "noon", "H * * * *", "", "* * * * * *"])
def test_a_bad_cron_expression_is_one_message(cron: str) -> None:
    with pytest.raises(ConfigError, match="not a cron expression; give five fields") as caught:
        cron_schedule(cron, "Etc/UTC")
    assert str(caught.value).startswith(f"--cron {cron!r}: ")
    assert "\n" not in str(caught.value)


def test_a_timezone_that_is_none() -> None:
    for zone in ("Mars/Olympus", ""):
        with pytest.raises(ConfigError, match="no such timezone; give an IANA name"):
            cron_schedule("0 3 * * *", zone)
    assert cron_schedule("@daily", "Etc/UTC").cron == "@daily"


@pytest.mark.parametrize(
    ("uri", "one"),
    [("runs/a", True), ("runs/{name}-{digest}", True), ("runs/{date}", False), ("{time}", False)],
)
def test_a_folder_for_each_run_or_one_for_all(tmp_path: Path, uri: str, one: bool) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        f"source: {{uri: a.parquet}}\nmodel: {{n_clusters: 3}}\noutput: {{uri: '{uri}'}}"
    )
    assert is_one_folder(load_named(str(path), [])[0]) is one


def test_a_schedule_is_in_this_machines_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Vienna")
    schedule = cron_schedule("0 3 * * *", None)
    assert (schedule.cron, schedule.timezone) == ("0 3 * * *", "Europe/Vienna")
    monkeypatch.setenv("TZ", "no/such/place")
    assert "/" in local_timezone() or local_timezone() == "UTC"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["quickstart", "--cron", "61 * * * *"], "--cron '61 * * * *'"),
        (["nowhere.yaml", "--cron", "0 3 * * *"], "no such file here"),
        (["quickstart", "--cron", "0 3 * * *", "--set", "model.bata=1"], "model.beta"),
    ],
)
def test_what_is_wrong_starts_nothing(
    arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("clam-dist: error: ")
    assert said.count("\n") == 1
    assert shown in said


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert 'clam-dist serve night.yaml --cron "0 3 * * *"' in capsys.readouterr().out


@pytest.mark.exhaustive  # it waits for minutes of the clock, which a busy machine misses
@pytest.mark.slow
def test_runs_come_when_due_and_a_pause_outlives_a_restart(
    environ: dict[str, str], tmp_path: Path, start_flow: Callable[..., Any]
) -> None:
    """``start_flow`` writes tiny.yaml; everything here runs on its home."""
    del start_flow

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "clam_dist.cli", "serve", "tiny.yaml", "--cron", "* * * * *"],
            cwd=tmp_path,
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"Prefect started in .* (http://127\.0\.0\.1:\d+)", line):
                return process, f"{found[1]}/api"
        raise AssertionError("it ended")

    def ask(api: str, path: str, method: str = "POST", **body: Any) -> Any:
        data = None if method == "GET" else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{api}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def deployment(api: str) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                found: dict[str, Any] = ask(api, "deployments/name/cluster/Tiny run", "GET")
                return found
            except OSError:
                time.sleep(0.2)
        raise AssertionError("not deployed")

    def stop(process: subprocess.Popen[str], sent: int, code: int) -> None:
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
        assert process.returncode == code
        assert "Traceback" not in said
        assert "stopped by" in said

    process, api = start()
    try:
        found = deployment(api)
        assert found["global_concurrency_limit"]["limit"] == 1
        assert found["concurrency_options"]["collision_strategy"] == "ENQUEUE"
        [schedule] = found["schedules"]
        assert schedule["active"]
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            runs = ask(api, "flow_runs/filter", deployments={"id": {"any_": [found["id"]]}})
            ended = [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
            if ended:
                break
            time.sleep(1)
        assert "data/x.parquet" in ended[0]["state"]["message"]  # which nobody made
        ask(api, f"deployments/{found['id']}/schedules/{schedule['id']}", "PATCH", active=False)
        stop(process, signal.SIGTERM, 143)
        process, api = start()
        assert [one["active"] for one in deployment(api)["schedules"]] == [False]
        stop(process, signal.SIGINT, 130)
    finally:
        process.kill()
        process.communicate()
