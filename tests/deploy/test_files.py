"""Every file of deploy/: read by a linter of its kind, without secrets, told of in its README."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, ROOT, accepts, documents

FILES = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
YAML = [path for path in FILES if path.suffix == ".yaml"]


def test_there_is_no_python_here():
    assert not [path for path in FILES if path.suffix == ".py"]


def test_yamllint():
    accepts("yamllint", "--strict", "-c", DEPLOY / ".yamllint", *YAML)


def test_every_file_is_in_the_readme():
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for path in FILES:
        name = path.relative_to(DEPLOY)
        known = any(str(part) in text for part in (name, *name.parents[:-1]))
        assert known or path.name in (".gitignore", ".yamllint", "README.md"), name


def test_the_readme_names_files_that_exist():
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"\bdeploy/[\w./@-]*[\w]", text):
        assert (ROOT / name).exists() or name in made_by_the_user(), name


def made_by_the_user() -> set[str]:
    """Paths that .gitignore keeps out of the repository, for they hold secrets."""
    ignored = (DEPLOY / ".gitignore").read_text(encoding="utf-8").split()
    return {f"deploy/{name}" for name in ignored}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_no_secret_is_written_down(path):
    """What looks like a password, a token or a key is a placeholder or a variable."""
    text = path.read_text(encoding="utf-8")
    assert "PRIVATE KEY-----" not in text
    assert not re.search(r"\b(AKIA[0-9A-Z]{16}|pnu_[0-9a-zA-Z]{10,}|ghp_\w{20,})", text)
    for name, value in re.findall(
        r"^\s*-?\s*(\w*(?:PASSWORD|SECRET|AUTH_STRING|AUTH|API_KEY|TOKEN)\w*)\s*[:=]\s*(\S+)",
        text,
        re.MULTILINE,
    ):
        assert re.search(r"^\$\{|change-me$|=…", value), f"{name} is {value}"


@pytest.mark.parametrize("path", sorted((DEPLOY / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_example_configs_are_valid(path):
    from clam_dist.config import load_config

    loaded = load_config(path, environ={})
    assert loaded.source.uri.startswith("s3://")
    assert loaded.cluster.address is None  # said by the environment of each cluster
    assert documents(path)[0]["output"]["uri"].startswith("/work/")
