"""The image's names: one place for each way to run it, and no two that disagree."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, ROOT, documents, kubernetes_files, mappings, python_requirement

VARIANTS = {"cpu": "cpu", "gpu": "cuda"}
README = (DEPLOY / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def loaded(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def in_registry(kind: str) -> str:
    """The image that kustomize puts into the manifests of a kind of cluster."""
    [image] = loaded(f"kubernetes/{kind}/kustomization.yaml")["images"]
    assert image["name"] == "clam-dist"
    return f"{image['newName']}:{image['newTag']}"


def job_variables(name: str) -> dict[str, Any]:
    [found] = [each for each in loaded("prefect.yaml")["deployments"] if each["name"] == name]
    return dict(found["work_pool"]["job_variables"])


def images_of_manifests() -> set[str]:
    return {
        node["image"]
        for path in kubernetes_files()
        for document in documents(path)
        for node in mappings(document)
        if isinstance(node.get("image"), str)
    }


def test_manifests_leave_the_registry_to_kustomize():
    prefect = f"prefecthq/prefect:{python_requirement('prefect')}-python3.11-kubernetes"
    assert images_of_manifests() == {"clam-dist", prefect}


@pytest.mark.parametrize(("kind", "variant"), VARIANTS.items())
def test_tags_name_the_version_and_the_variant(kind, variant):
    """A tag that stays while the image changes is not pulled again by nodes that have it."""
    assert in_registry(kind).endswith(f"/clam-dist:{PROJECT['version']}-{variant}")


def test_jobs_run_the_image_of_their_cluster():
    assert job_variables("kubernetes")["image"] == in_registry("cpu")


def test_the_docker_pool_runs_what_the_readme_builds():
    assert job_variables("docker")["image"] == "clam-dist:cpu"
    image = loaded("compose.yaml")["x-clam"]["image"]
    assert image == "clam-dist:${CLAM_DIST_VARIANT:-cpu}"
    for variant in VARIANTS.values():
        assert f"-t clam-dist:{variant}" in README


@pytest.mark.parametrize("kind", VARIANTS)
def test_the_readme_pushes_to_where_kustomize_pulls_from(kind):
    assert f"docker push {in_registry(kind)}" in README
    assert f"docker tag clam-dist:{VARIANTS[kind]} {in_registry(kind)}" in README


def test_the_readme_names_each_place_of_the_registry():
    for place in ("cpu/kustomization.yaml", "gpu/kustomization.yaml", "`image` of `kubernetes`"):
        assert place in " ".join(README.split())


def test_other_images_have_versions():
    compose = [s["image"] for s in loaded("compose.yaml")["services"].values() if "build" not in s]
    assert compose
    for image in (*compose, *images_of_manifests() - {"clam-dist"}):
        assert re.search(r":v?\d+\.\d+(\.\d+)?", image), image
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert ":latest" not in path.read_text(encoding="utf-8"), path
