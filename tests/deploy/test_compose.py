"""The compose files: the compose specification's own schema, commands and variables that exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dotenv import dotenv_values

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, accepts, check_command, check_variable

EXAMPLE = {k: v or "" for k, v in dotenv_values(DEPLOY / ".env.example").items()}
OURS = ("prefect-server", "prefect-worker", "deploy-flow", "dask-scheduler", "dask-worker")
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def as_written(name: str) -> dict[str, Any]:
    """A compose file before its variables are replaced."""
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return loaded


def filled(name: str, values: dict[str, str]) -> dict[str, Any]:
    """A compose file with its variables replaced, as compose does it."""

    def value(match: re.Match[str]) -> str:
        known = values.get(match[1], "")
        if not known and match[2] == "?":
            raise KeyError(f"{match[1]}: {match[3]}")
        return known or (match[3] if match[2] == "-" else "")

    def replaced(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: replaced(below) for key, below in node.items()}
        if isinstance(node, list):
            return [replaced(below) for below in node]
        return VARIABLE.sub(value, node) if isinstance(node, str) else node

    loaded: dict[str, Any] = replaced(as_written(name))
    return loaded


def variables(name: str) -> set[str]:
    """The variables that a compose file uses."""
    return {match[1] for match in VARIABLE.finditer(yaml.safe_dump(as_written(name), width=10**6))}


SERVICES = filled("compose.yaml", EXAMPLE)["services"]
GPU = filled("compose.gpu.yaml", EXAMPLE)["services"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_the_specification_s_schema(name, tmp_path):
    accepts("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / name)
    path = tmp_path / "filled.yaml"
    path.write_text(yaml.safe_dump(filled(name, EXAMPLE)))
    accepts("check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_every_variable_is_in_the_example(name):
    assert variables(name) <= set(EXAMPLE)


def test_every_variable_of_the_example_is_used():
    assert set(EXAMPLE) == variables("compose.yaml") | variables("compose.gpu.yaml")


@pytest.mark.parametrize("secret", ["POSTGRES_PASSWORD", "PREFECT_AUTH"])
def test_without_its_secrets_nothing_starts(secret):
    with pytest.raises(KeyError, match=secret):
        filled("compose.yaml", {**EXAMPLE, secret: ""})


@pytest.mark.parametrize("name", OURS)
def test_commands_exist(name):
    command = SERVICES[name]["command"]
    if command[0] == "sh":
        assert command[1] == "-euc"  # each line must succeed
        for line in command[2].splitlines():
            check_command(shlex.split(line.removeprefix("exec ")))
    else:
        check_command(command)


def test_the_demo_table_s_command_exists_and_is_what_the_example_config_reads():
    script = SERVICES["demo-table"]["command"][-1]
    check_command(shlex.split(script.splitlines()[0]))
    config = yaml.safe_load((DEPLOY / "configs" / "night.yaml").read_text(encoding="utf-8"))
    bucket, _, key = config["source"]["uri"].removeprefix("s3://").partition("/")
    assert f"'{bucket}/{key}'" in script


def test_the_gpu_workers_command_exists():
    check_command(GPU["dask-worker"]["command"])
    (device,) = GPU["dask-worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_environment_variables_are_read_by_someone():
    for service in SERVICES.values():
        for name, value in (service.get("environment") or {}).items():
            check_variable(name, str(value))


def test_dependencies_exist_and_can_be_met():
    ready = {"service_healthy": "healthcheck", "service_started": "command"}
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert ready[how["condition"]] in SERVICES[other], (name, other)


def test_services_find_one_another():
    worker = SERVICES["prefect-worker"]["environment"]
    address = worker["CLAM_DIST_CLUSTER__ADDRESS"]
    assert address == SERVICES["dask-worker"]["command"][2]
    assert address == GPU["dask-worker"]["command"][2]
    assert re.fullmatch(r"tcp://dask-scheduler:8786", address)
    assert SERVICES["dask-scheduler"]["command"][2:4] == ["--port", "8786"]
    assert worker["PREFECT_API_URL"] == "http://prefect-server:4200/api"
    server = SERVICES["prefect-server"]
    assert server["command"][-2:] == ["--port", "4200"]
    assert (
        server["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == worker["PREFECT_API_AUTH_STRING"]
    )
    for one in ("PASSWORD", "DB", "USER"):
        theirs = {"DB": "NAME"}.get(one, one)
        ours = server["environment"][f"PREFECT_SERVER_DATABASE_{theirs}"]
        assert SERVICES["postgres"]["environment"][f"POSTGRES_{one}"] == ours


def test_who_reads_the_source_has_its_keys():
    for name in ("prefect-worker", "dask-worker", "demo-table"):
        assert "AWS_SECRET_ACCESS_KEY" in SERVICES[name]["environment"]


def test_what_a_killed_worker_left_is_marked_before_the_next_takes_runs():
    """By the host's name, which a new container would otherwise have of its own."""
    worker = SERVICES["prefect-worker"]
    assert worker["hostname"] == "prefect-worker"
    first, last = worker["command"][-1].splitlines()
    assert first == "python -m pipelines.stale --retries 2"
    assert last.startswith("exec ")  # so that SIGTERM arrives at the worker, not at a shell


def test_memory_and_logs_are_limited():
    for name, service in SERVICES.items():
        assert "mem_limit" in service, name
        assert service["logging"] == {"driver": "local"}, name


def test_the_work_folder_is_shared():
    for name in ("prefect-worker", "dask-worker"):
        assert "work:/work" in SERVICES[name]["volumes"]


def test_pages_are_published_on_this_machine_only():
    for service in SERVICES.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_a_container_has_room_for_its_worker():
    from dask.utils import parse_bytes

    worker = parse_bytes(EXAMPLE["DASK_WORKER_MEMORY"])
    container = int(EXAMPLE["DASK_CONTAINER_MEMORY"].removesuffix("m")) * 2**20
    assert container - worker >= 300 * 2**20
