"""The Kubernetes manifests: schemas of Kubernetes and Dask's operator, names, ports, commands."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deployed import (
    DEPLOY,
    accepts,
    check_command,
    check_variable,
    documents,
    kubernetes_files,
    kubernetes_object,
    mappings,
    tool,
)

FOLDER = DEPLOY / "kubernetes"
OBJECTS = [(path, each) for path in kubernetes_files() for each in documents(path)]
CLUSTERS = {
    path.parent.name: each["spec"] for path, each in OBJECTS if each["kind"] == "DaskCluster"
}


def pod_specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's specification, with a name for it."""
    for path, each in OBJECTS:
        for node in mappings(each.get("spec", {})):
            if "containers" in node:
                yield f"{path.parent.name}/{node['containers'][0]['name']}", dict(node)


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pod_specs():
        for container in all_of(pod):
            yield f"{name.split('/')[0]}/{container['name']}", container


def all_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def as_pod(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    slug = re.sub(r"[^a-z]+", "-", name)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": slug}, "spec": spec}


# -- schemas -------------------------------------------------------------------------------------


def test_objects_of_kubernetes_itself():
    paths = [path for path in kubernetes_files() if path.name != "dask-cluster.yaml"]
    accepts("kubernetes-validate", "--strict", *paths)


def test_pods_inside_dask_clusters(tmp_path):
    """Kubernetes' own schema for what the operator will make of them."""
    for kind, spec in CLUSTERS.items():
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "scheduler"},
            "spec": spec["scheduler"]["service"],
        }
        for name, made in {
            "scheduler": as_pod("scheduler", spec["scheduler"]["spec"]),
            "worker": as_pod("worker", spec["worker"]["spec"]),
            "service": service,
        }.items():
            path = tmp_path / f"{kind}-{name}.yaml"
            path.write_text(yaml.safe_dump(made))
            accepts("kubernetes-validate", "--strict", path)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_operator_s_schema_of_a_cluster(kind):
    """The CustomResourceDefinition as the operator's package brings it."""
    package = importlib.util.find_spec("dask_kubernetes")
    if package is None or package.origin is None:
        pytest.skip("dask-kubernetes is not installed")
    chart = Path(package.origin).parent / "operator/deployment/helm/dask-kubernetes-operator"
    (definition,) = documents(chart / "crds" / "daskcluster.yaml")
    (version,) = definition["spec"]["versions"]
    (cluster,) = documents(FOLDER / kind / "dask-cluster.yaml")
    assert cluster["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"
    jsonschema.validate(cluster, version["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("kind", ["cpu", "gpu", "jobs"])
def test_kustomize_builds_it(kind):
    program = tool("kubectl")
    done = subprocess.run(
        [program, "kustomize", FOLDER / kind], capture_output=True, text=True, timeout=60
    )
    if "kubectl" in done.stderr and "not" in done.stderr and not done.stdout:
        pytest.skip(f"kubectl does not run here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    assert {each["metadata"].get("namespace", "clam-dist") for each in made} == {"clam-dist"}
    images = re.findall(r"image: (\S+)", done.stdout)
    expected = {"cpu": "-cpu", "gpu": "-cuda", "jobs": "-kubernetes"}[kind]
    assert images
    assert all(image.endswith(expected) for image in images)


# -- what it names -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "container"), [pytest.param(*c, id=c[0]) for c in containers()])
def test_commands_and_variables_exist(name, container):
    check_command([word.replace("$(DASK_WORKER_NAME)", name) for word in container["args"]])
    for variable in container.get("env", ()):
        check_variable(variable["name"], variable["value"])


def test_variables_of_secrets_are_read_by_someone():
    for each in documents(FOLDER / "secret.example.yaml"):
        for name, value in each["stringData"].items():
            check_variable(name, value)


def test_secrets_config_maps_and_claims_are_those_that_are_made():
    made = {each["metadata"]["name"] for each in documents(FOLDER / "secret.example.yaml")}
    readme = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for _, container in containers():
        assert {source["secretRef"]["name"] for source in container.get("envFrom", ())} <= made
    for _, pod in pod_specs():
        for volume in pod["volumes"]:
            if "persistentVolumeClaim" in volume:
                kubernetes_object(
                    "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
                )
            if "configMap" in volume:
                assert f"create configmap {volume['configMap']['name']}" in readme


def test_volumes_that_are_mounted_exist():
    for name, pod in pod_specs():
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {m["name"] for container in all_of(pod) for m in container["volumeMounts"]}
        assert mounted == volumes, name


def test_workers_and_the_run_share_the_work_folder_in_one_place():
    claim = kubernetes_object("PersistentVolumeClaim", "clam-dist-work")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for name, pod in pod_specs():
        paths = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
        if name in ("base/worker", "cpu/worker", "gpu/worker"):
            assert paths["work"] == "/work"


# -- rights and limits ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pod"), [pytest.param(*p, id=p[0]) for p in pod_specs()])
def test_pods_are_restricted(name, pod):
    """What the namespace's standard (restricted) demands of every pod, and limits for all."""
    rights = pod["securityContext"]
    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] > 0
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in all_of(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]
        writable = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/home/clam", "/tmp"} <= writable
    uses_kubernetes = name == "jobs/worker"
    assert pod.get("automountServiceAccountToken", True) is uses_kubernetes


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_worker_s_limit_leaves_room_in_its_pod(kind):
    from dask.utils import parse_bytes

    (worker,) = CLUSTERS[kind]["worker"]["spec"]["containers"]
    limit = next(a for a in worker["args"] if a.startswith("--memory-limit="))
    asked = parse_bytes(limit.partition("=")[2])
    pod = parse_bytes(worker["resources"]["limits"]["memory"] + "B")
    assert 300 * 2**20 <= pod - asked <= 0.2 * pod


def test_gpu_workers_have_a_gpu_each():
    (worker,) = CLUSTERS["gpu"]["worker"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (other,) = CLUSTERS["cpu"]["worker"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in json.dumps(other)


# -- ports ---------------------------------------------------------------------------------------


def opened(policy: str, component: str | None = None) -> set[tuple[int, int]]:
    """Ports (first, last) that a policy opens, to pods of a component where one is named."""
    found = set()
    for rule in kubernetes_object("NetworkPolicy", policy)["spec"]["ingress"]:
        if component is None or component in json.dumps(rule["from"]):
            found |= {(port["port"], port.get("endPort", port["port"])) for port in rule["ports"]}
    return found


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_ports_that_are_opened_are_those_that_are_used(kind):
    (scheduler,) = CLUSTERS[kind]["scheduler"]["spec"]["containers"]
    listening = {int(n) for n in re.findall(r"[:=](\d+)\b", " ".join(scheduler["args"]))}
    assert {(port, port) for port in listening} == opened("to-dask-scheduler")
    (worker,) = CLUSTERS[kind]["worker"]["spec"]["containers"]
    arguments = " ".join(worker["args"])
    ports = {int(port) for port in re.findall(r"--(?:worker|nanny)-port=(\d+)", arguments)}
    assert len(ports) == 2
    assert opened("to-dask-workers", "scheduler") == {(port, port) for port in ports}
    driver = kubernetes_object("Deployment", "prefect-worker")["spec"]["template"]["spec"][
        "containers"
    ][0]
    environment = {variable["name"]: variable["value"] for variable in driver["env"]}
    store = int(environment["CLAM_DIST_CLUSTER__COLLECTIVE_PORT"])
    expected = {(port, port) for port in (*ports, store)} | {(32768, 60999)}
    assert opened("to-dask-workers", '"worker"') == expected
    named_ports = {port["containerPort"] for port in worker["ports"]}
    assert named_ports == {*ports, store}


def test_the_ephemeral_range_is_linux_s_own():
    """What gloo's and NCCL's connections listen on where nobody changed it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    if (first, last) != (32768, 60999):
        pytest.skip(f"this machine has another range, {first} to {last}")
    assert (first, last) in opened("to-dask-workers", '"worker"')


def test_all_else_is_refused():
    assert kubernetes_object("NetworkPolicy", "nothing-else")["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress"],
    }


def test_policies_and_services_choose_pods_that_the_operator_labels():
    """The operator labels pods with the cluster's name and their component."""
    for kind in ("cpu", "gpu"):
        (cluster,) = documents(FOLDER / kind / "dask-cluster.yaml")
        name = cluster["metadata"]["name"]
        scheduler = {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
        worker = {"dask.org/cluster-name": name, "dask.org/component": "worker"}
        assert CLUSTERS[kind]["scheduler"]["service"]["selector"] == scheduler
        for policy, labels in {"to-dask-scheduler": scheduler, "to-dask-workers": worker}.items():
            spec = kubernetes_object("NetworkPolicy", policy)["spec"]
            assert spec["podSelector"]["matchLabels"] == labels
    driver = kubernetes_object("Deployment", "prefect-worker")["spec"]["template"]["spec"][
        "containers"
    ][0]
    address = next(v["value"] for v in driver["env"] if v["name"] == "CLAM_DIST_CLUSTER__ADDRESS")
    assert address == "tcp://clam-dist-scheduler:8786"  # the service that the operator makes


def test_network_policy_choose_prefect_workers():
    chosen = kubernetes_object("NetworkPolicy", "to-prefect-worker")["spec"]["podSelector"][
        "matchLabels"
    ]
    for name in ("prefect-worker", "prefect-worker-jobs"):
        spec = kubernetes_object("Deployment", name)["spec"]
        assert chosen.items() <= spec["template"]["metadata"]["labels"].items()
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    selectors = [
        e["spec"]["selector"]["matchLabels"] for _, e in OBJECTS if e["kind"] == "Deployment"
    ]
    # One whose selector holds another's would take that one's pods for its own.
    assert not any(a.items() <= b.items() for a in selectors for b in selectors if a is not b)
