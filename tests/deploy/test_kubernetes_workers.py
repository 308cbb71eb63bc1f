"""Prefect's workers in Kubernetes, and the ends of pods: kills, drained nodes, secrets, rights."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, documents, kubernetes_object


def test_what_a_killed_worker_left_is_marked_before_the_next_takes_runs():
    """By the host's name, which must not change from pod to pod, so there is one pod at a time."""
    deployment = kubernetes_object("Deployment", "prefect-worker")["spec"]
    pod = deployment["template"]["spec"]
    assert pod["hostname"] == "prefect-worker"
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    [before] = pod["initContainers"]
    assert before["args"] == ["python", "-m", "pipelines.stale", "--retries", "2"]
    assert before["envFrom"] == [{"secretRef": {"name": "clam-dist-prefect"}}]
    assert before["image"] == pod["containers"][0]["image"]


def test_drained_nodes_take_workers_one_at_a_time():
    budget = kubernetes_object("PodDisruptionBudget", "dask-workers")["spec"]
    assert budget["maxUnavailable"] == 1
    policy = kubernetes_object("NetworkPolicy", "to-dask-workers")["spec"]
    assert budget["selector"] == policy["podSelector"]


def test_jobs_name_the_password_instead_of_holding_it():
    """What the worker is told, so that no manifest of a run has it in clear."""
    [worker] = kubernetes_object("Deployment", "prefect-worker-jobs")["spec"]["template"]["spec"][
        "containers"
    ]
    told = {variable["name"]: variable["value"] for variable in worker["env"]}
    prefix = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_"
    for setting, key in {"API_AUTH_STRING": "AUTH_STRING", "API_KEY": "KEY"}.items():
        assert told[f"{prefix}{setting}_SECRET_NAME"] == "clam-dist-prefect"
        assert told[f"{prefix}{setting}_SECRET_KEY"] == f"PREFECT_API_{key}"
    [secret] = [
        each["stringData"]
        for each in documents(DEPLOY / "kubernetes" / "secret.example.yaml")
        if each["metadata"]["name"] == "clam-dist-prefect"
    ]
    assert "PREFECT_API_AUTH_STRING" in secret


def test_the_jobs_worker_runs_as_the_account_that_has_its_rights():
    spec = kubernetes_object("Deployment", "prefect-worker-jobs")["spec"]["template"]["spec"]
    binding = kubernetes_object("RoleBinding", "prefect-worker")
    assert spec["serviceAccountName"] == binding["subjects"][0]["name"]
    kubernetes_object("ServiceAccount", binding["subjects"][0]["name"])
    kubernetes_object("Role", binding["roleRef"]["name"])
