"""The systemd units: systemd's own check, and the commands that they start."""

from __future__ import annotations

import configparser
import re
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, accepts, check_command, check_variable

FOLDER = DEPLOY / "systemd"
SCHEDULE, WORKER = "clam-dist@.service", "clam-dist-worker.service"
UNITS = [SCHEDULE, WORKER]
COMMANDS = ("ExecStartPre", "ExecStart", "ExecStopPost")
PROGRAM = re.compile(r"^(Exec\w+=-?)\S+/(\w[\w-]*)", re.MULTILINE)


class Repeated(dict[str, Any]):
    """Keys that may come several times, such as Environment=."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(key), list):
            value = self[key] + value
        super().__setitem__(key, value)


def section(unit: str, name: str = "Service") -> dict[str, list[str]]:
    parser = configparser.RawConfigParser(dict_type=Repeated, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FOLDER / unit)
    return {key: value.split("\n") for key, value in parser[name].items()}


def environment(unit: str) -> dict[str, str]:
    lines = section(unit)["Environment"]
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line))


def commands(unit: str) -> list[list[str]]:
    """The commands of a unit, with what systemd puts in."""
    filled = {"${CRON}": shlex.quote(environment(unit).get("CRON", "")), "%i": "night"}
    filled["%H"] = "host"
    found = []
    for line in (line for key in COMMANDS for line in section(unit).get(key, ())):
        for name, value in filled.items():
            line = line.replace(name, value)
        found.append(shlex.split(line.removeprefix("-")))
    return found


def as_installed(unit: str) -> str:
    return unit.replace("@", "@night")


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong(unit, tmp_path):
    """Programs are put where these units find them: systemd looks whether they are there."""
    for name in ("clam-dist", "python", "prefect"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    text = (FOLDER / unit).read_text(encoding="utf-8")
    path = tmp_path / as_installed(unit)
    path.write_text(PROGRAM.sub(rf"\g<1>{tmp_path}/\g<2>", text))
    assert accepts("systemd-analyze", "verify", "--man=no", path) == ""


@pytest.mark.parametrize("unit", UNITS)
def test_it_is_as_closed_as_its_work_allows(unit, tmp_path):
    path = tmp_path / as_installed(unit)
    path.write_text((FOLDER / unit).read_text(encoding="utf-8"))
    accepts("systemd-analyze", "security", "--offline=true", "--threshold=40", path)


@pytest.mark.parametrize("unit", UNITS)
def test_its_commands_exist(unit):
    found = commands(unit)
    assert len(found) == {SCHEDULE: 1, WORKER: 3}[unit]
    for command in found:
        check_command(command)
        assert Path(command[0]).parent == Path("/opt/clam-dist/.venv/bin")


def test_its_schedule_is_a_cron_expression():
    from cronsim import CronSim

    CronSim(environment(SCHEDULE)["CRON"], datetime(2026, 1, 1))


@pytest.mark.parametrize("unit", UNITS)
def test_its_variables_are_read_by_someone(unit):
    for name, value in environment(unit).items():
        check_variable(name, value)


@pytest.mark.parametrize("unit", UNITS)
def test_homes_are_in_the_folder_that_it_may_write(unit):
    (state,) = section(unit)["StateDirectory"]
    for name in ("HOME", "PREFECT_HOME"):
        assert environment(unit)[name].startswith(f"/var/lib/{state}")
    assert section(unit)["WorkingDirectory"] == [f"/var/lib/{state}"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_stopped_run_is_no_failure(unit):
    """The exit codes that the command line names."""
    assert section(unit)["SuccessExitStatus"] == ["130 143"]
    assert section(unit)["Restart"] == ["on-failure"]
    assert section(SCHEDULE)["RestartPreventExitStatus"] == ["2 3"]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("key", "value"), [("KillMode", "mixed"), ("TimeoutStopSec", "120")])
def test_a_run_is_given_time_to_end(unit, key, value):
    assert section(unit)[key] == [value]


@pytest.mark.parametrize("unit", UNITS)
def test_memory_is_limited_and_its_end_is_not_the_service_s(unit):
    assert section(unit)["MemoryMax"] == ["80%"]
    assert section(unit)["OOMPolicy"] == ["continue"]


def test_the_worker_puts_prefect_s_books_right_before_and_after():
    for key in ("ExecStartPre", "ExecStopPost"):
        [line] = section(WORKER)[key]
        assert line.removeprefix("-").endswith("/python -m pipelines.stale --retries 2")
    # A server that does not answer yet must not stop the tries.
    assert section(WORKER, "Unit")["StartLimitIntervalSec"] == ["0"]


def test_the_worker_serves_the_deployment_for_machines():
    found = yaml.safe_load((DEPLOY / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    [deployment] = [each for each in found if each["name"] == "process"]
    [start] = [command for command in commands(WORKER) if "worker" in command]
    pool = deployment["work_pool"]
    assert start[start.index("--pool") + 1] == pool["name"]
    assert [pool["job_variables"]["working_dir"]] == section(WORKER)["WorkingDirectory"]
    [step] = deployment["pull"]
    [settings] = step.values()
    assert [settings["directory"]] == section(WORKER)["WorkingDirectory"]
