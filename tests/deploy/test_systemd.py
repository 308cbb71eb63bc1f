"""The systemd unit: systemd's own check, and the command that it starts."""

from __future__ import annotations

import configparser
import re
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, accepts, check_command, check_variable

UNIT = DEPLOY / "systemd" / "clam-dist@.service"


class Repeated(dict[str, Any]):
    """Keys that may come several times, such as Environment=."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(key), list):
            value = self[key] + value
        super().__setitem__(key, value)


def service() -> dict[str, list[str]]:
    parser = configparser.RawConfigParser(dict_type=Repeated, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return {key: value.split("\n") for key, value in parser["Service"].items()}


def environment() -> dict[str, str]:
    return dict(
        word.split("=", 1) for line in service()["Environment"] for word in shlex.split(line)
    )


def test_systemd_finds_nothing_wrong(tmp_path):
    """The program is put where this one is: systemd looks whether it is there."""
    program = tmp_path / "clam-dist"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "clam-dist@night.service"
    text = UNIT.read_text(encoding="utf-8")
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={program}", text, flags=re.MULTILINE))
    said = accepts("systemd-analyze", "verify", "--man=no", unit)
    assert said == ""


def test_it_is_as_closed_as_its_work_allows(tmp_path):
    unit = tmp_path / "clam-dist@night.service"
    unit.write_text(UNIT.read_text(encoding="utf-8"))
    accepts("systemd-analyze", "security", "--offline=true", "--threshold=40", unit)


def test_its_command_exists():
    (line,) = service()["ExecStart"]
    text = line.replace("${CRON}", shlex.quote(environment()["CRON"])).replace("%i", "night")
    check_command(shlex.split(text))


def test_its_schedule_is_a_cron_expression():
    from cronsim import CronSim

    CronSim(environment()["CRON"], datetime(2026, 1, 1))


def test_its_variables_are_read_by_someone():
    for name, value in environment().items():
        check_variable(name, value)


def test_homes_are_in_the_folder_that_it_may_write():
    (state,) = service()["StateDirectory"]
    for name in ("HOME", "PREFECT_HOME"):
        assert environment()[name].startswith(f"/var/lib/{state}")
    assert service()["WorkingDirectory"] == [f"/var/lib/{state}"]


def test_a_stopped_run_is_no_failure():
    """The exit codes that the command line names."""
    assert service()["SuccessExitStatus"] == ["130 143"]
    assert service()["RestartPreventExitStatus"] == ["2 3"]


@pytest.mark.parametrize("key", ["KillMode", "TimeoutStopSec"])
def test_a_run_is_given_time_to_end(key):
    assert service()[key] == {"KillMode": ["mixed"], "TimeoutStopSec": ["120"]}[key]
