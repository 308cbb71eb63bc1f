"""deploy/prefect.yaml: what Prefect's own models make of it, and what a server says to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.server import EmbeddedServer
from pipelines.stale import TAG

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "prefect.yaml"
TEMPLATE = ROOT / "deploy" / "kubernetes" / "jobs" / "base-job-template.json"
NAMES = ["process", "compose", "docker", "kubernetes"]


@pytest.fixture(scope="module")
def deployments() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(FILE.read_text())["deployments"]
    return {deployment["name"]: deployment for deployment in found}


def test_prefects_own_models_take_it() -> None:
    from prefect.cli.deploy._models import PrefectYamlModel

    model = PrefectYamlModel.model_validate(yaml.safe_load(FILE.read_text()))
    assert [deployment.name for deployment in model.deployments] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_one_run_at_a_time_and_a_pause_that_lasts(
    deployments: dict[str, dict[str, Any]], name: str
) -> None:
    deployment = deployments[name]
    assert deployment["entrypoint"] == "pipelines.cluster.cluster"
    assert deployment["concurrency_limit"]["limit"] == 1
    assert deployment["concurrency_limit"]["collision_strategy"] == "ENQUEUE"
    [schedule] = deployment["schedules"]
    assert "active" not in schedule  # which would end a pause at the next deployment
    assert schedule["slug"]  # without which Prefect replaces the schedule, and ends it too
    assert TAG in deployment["tags"]  # by which runs that were killed are found
    [step] = deployment["pull"]
    assert Path(step["prefect.deployments.steps.set_working_directory"]["directory"]).is_absolute()


def test_the_parameters_are_the_flows(deployments: dict[str, dict[str, Any]]) -> None:
    import inspect

    from pipelines.flow import flow

    for deployment in deployments.values():
        assert set(deployment["parameters"]) == set(inspect.signature(flow().fn).parameters)
        flow().validate_parameters(deployment["parameters"])


@pytest.mark.slow
def test_a_server_takes_each_of_them(
    server: EmbeddedServer, environ: dict[str, str], tmp_path: Path, ask: Any
) -> None:
    """Pools of the three types check the job variables against their templates."""
    import prefect as prefect_package

    variables = environ | {"PREFECT_API_URL": server.api_url}
    types = {"clam-dist": "process", "clam-dist-docker": "docker"}

    def prefect(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            env=variables | {"PATH": os.environ["PATH"]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    views = Path(prefect_package.__file__).parent / "server/api/collections_data/views"
    templates = json.loads((views / "aggregate-worker-metadata.json").read_text())
    for pool, kind in types.items():
        [template] = [
            workers[kind]["default_base_job_configuration"]
            for workers in templates.values()
            if kind in workers
        ]
        ask("work_pools/", name=pool, type=kind, base_job_template=template)
    pool = "clam-dist-kubernetes"
    prefect(
        *("work-pool", "create", pool, "--type", "kubernetes", "--base-job-template", str(TEMPLATE))
    )
    [made] = [one for one in ask("work_pools/filter") if one["name"] == pool]
    assert made["base_job_template"] == json.loads(TEMPLATE.read_text())
    names = [argument for name in NAMES for argument in ("-n", name)]
    prefect("--no-prompt", "deploy", "--prefect-file", str(FILE), *names)
    found = {one["name"]: one for one in ask("deployments/filter")}
    assert set(NAMES) <= set(found)
    for name in NAMES:
        assert found[name]["global_concurrency_limit"]["limit"] == 1
        assert found[name]["parameter_openapi_schema"]["properties"]["config"]["type"] == "string"
        assert [schedule["active"] for schedule in found[name]["schedules"]] == [True]
