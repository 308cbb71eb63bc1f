"""The Kubernetes pool's template: the Job that comes of it, and what that names."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, accepts, check_command, check_variable, documents

FOLDER = DEPLOY / "kubernetes"
FILE = FOLDER / "jobs" / "base-job-template.json"
TEMPLATE: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
PROPERTIES = TEMPLATE["variables"]["properties"]
WORKER = next(
    each["spec"]["template"]["spec"]
    for each in documents(FOLDER / "base" / "prefect-worker.yaml")
    if each["kind"] == "Deployment"
)


def job_variables() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    [deployment] = [each for each in found if each["name"] == "kubernetes"]
    return dict(deployment["work_pool"]["job_variables"])


def configuration(**variables: Any) -> dict[str, Any]:
    """What Prefect makes of the template, the deployment's variables and its own of a run."""
    from prefect.utilities.templating import apply_values

    defaults = {name: known["default"] for name, known in PROPERTIES.items() if "default" in known}
    of_the_run = {
        "name": "night",
        "labels": {"prefect.io/flow-run-name": "night"},
        "env": {"A": "1"},
    }
    values = {**defaults, **job_variables(), **of_the_run, **variables}
    made: dict[str, Any] = apply_values(
        copy.deepcopy(TEMPLATE["job_configuration"]), values, remove_notset=True
    )
    return made


def manifest(**variables: Any) -> dict[str, Any]:
    """The Job as the worker sends it."""
    made: dict[str, Any] = configuration(**variables)["job_manifest"]
    [container] = made["spec"]["template"]["spec"]["containers"]
    container.setdefault("args", ["prefect", "flow-run", "execute"])
    return made


def pod(**variables: Any) -> dict[str, Any]:
    return dict(manifest(**variables)["spec"]["template"]["spec"])


def test_kubernetes_schema_of_the_job(tmp_path):
    made = manifest(cpu_limit="2")
    # Prefect demands these two here, where Kubernetes knows no such fields, and leaves them out.
    for field in ("parallelism", "completions"):
        assert made["spec"]["template"]["spec"].pop(field) == 1
    # kubernetes-validate wants the name that Kubernetes makes of this one.
    made["metadata"]["name"] = made["metadata"]["generateName"] + "x"
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(made))
    accepts("kubernetes-validate", "--strict", path)
    assert "{{" not in path.read_text()


def test_prefect_s_worker_takes_it():
    """By the class that the worker itself renders with, where that package is installed."""
    worker = pytest.importorskip("prefect_kubernetes.worker")
    made = worker.KubernetesWorkerJobConfiguration(**configuration())
    assert made.namespace == "clam-dist"
    made._populate_env_in_manifest()
    [container] = made.job_manifest["spec"]["template"]["spec"]["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert names == ["A", "CLAM_DIST_CLUSTER__ADDRESS", "CLAM_DIST_CLUSTER__COLLECTIVE_PORT"]


def test_the_deployment_s_variables_are_the_template_s():
    assert set(job_variables()) <= set(PROPERTIES)
    assert set(TEMPLATE["variables"]["required"]) <= set(job_variables())


def test_it_has_all_that_prefect_s_own_has():
    import prefect

    views = Path(prefect.__file__).parent / "server/api/collections_data/views"
    workers = json.loads((views / "aggregate-worker-metadata.json").read_text())
    own = workers["prefect-kubernetes"]["kubernetes"]["default_base_job_configuration"]
    assert set(own["variables"]["properties"]) == set(PROPERTIES)
    assert own["variables"]["definitions"] == TEMPLATE["variables"]["definitions"]
    assert set(own["job_configuration"]) == set(TEMPLATE["job_configuration"])
    ours, theirs = (json.dumps(each["job_configuration"]) for each in (TEMPLATE, own))
    for name in PROPERTIES:
        assert (f"{{{{ {name} }}}}" in ours) == (f"{{{{ {name} }}}}" in theirs), name


def test_the_variables_arrive():
    wanted = job_variables()
    made = manifest(memory_limit="6Gi", cpu_limit="2")
    [container] = pod(memory_limit="6Gi", cpu_limit="2")["containers"]
    assert container["image"] == wanted["image"]
    assert container["imagePullPolicy"] == wanted["image_pull_policy"]
    assert container["resources"] == {
        "requests": {"cpu": wanted["cpu_request"], "memory": wanted["memory_request"]},
        "limits": {"cpu": "2", "memory": "6Gi"},
    }
    assert made["spec"]["ttlSecondsAfterFinished"] == wanted["finished_job_ttl"]
    assert made["spec"]["backoffLimit"] == 0  # a run that ends is Prefect's to start again


def test_it_is_in_the_namespace_of_the_rest():
    namespace = documents(FOLDER / "base" / "namespace.yaml")[0]["metadata"]["name"]
    assert PROPERTIES["namespace"]["default"] == namespace
    assert manifest()["metadata"]["namespace"] == namespace
    for kind in ("base", "jobs"):
        assert documents(FOLDER / kind / "kustomization.yaml")[0]["namespace"] == namespace


def test_its_claim_config_map_secrets_and_mounts_are_the_other_worker_s():
    """A run finds the same things at the same places, whichever worker starts it."""
    [run], [other] = pod()["containers"], WORKER["containers"]
    assert pod()["volumes"] == WORKER["volumes"]
    assert run["volumeMounts"] == other["volumeMounts"]
    assert run["envFrom"] == other["envFrom"]
    assert run["env"] == other["env"]
    for variable in run["env"]:
        check_variable(variable["name"], variable["value"])
    secrets = {each["metadata"]["name"] for each in documents(FOLDER / "secret.example.yaml")}
    assert {source["secretRef"]["name"] for source in run["envFrom"]} == secrets
    [claim] = documents(FOLDER / "base" / "work.yaml")
    assert claim["metadata"]["name"] in json.dumps(pod()["volumes"])


def test_it_has_the_rights_of_the_other_worker_and_no_account_s():
    assert pod()["securityContext"] == WORKER["securityContext"]
    assert pod()["containers"][0]["securityContext"] == WORKER["containers"][0]["securityContext"]
    assert pod()["automountServiceAccountToken"] is False
    accounts = [each["metadata"]["name"] for each in documents(FOLDER / "jobs" / "rights.yaml")]
    assert pod()["serviceAccountName"] == "default"  # which every namespace has
    assert "default" not in accounts


def test_a_run_that_is_told_to_end_has_the_time():
    assert pod()["terminationGracePeriodSeconds"] == WORKER["terminationGracePeriodSeconds"]


def test_the_worker_s_command_exists_in_the_image():
    check_command(pod()["containers"][0]["args"])


def test_prefect_yaml_and_the_readme_say_how_the_pool_is_made():
    option = "--base-job-template deploy/kubernetes/jobs/base-job-template.json"
    for name in ("prefect.yaml", "README.md"):
        text = " ".join((DEPLOY / name).read_text().replace("\\\n", " ").replace("#", " ").split())
        assert f"prefect work-pool create clam-dist-kubernetes --type kubernetes {option}" in text
    check_command(
        f"prefect work-pool create clam-dist-kubernetes --type kubernetes {option}".split()
    )
