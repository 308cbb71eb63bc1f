"""The image: what hadolint and a parser of Dockerfiles say, and what it is built of."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, ROOT, accepts, check_command, check_variable, python_requirement

DOCKERFILE = DEPLOY / "Dockerfile"
TEXT = re.sub(r"\\\n", " ", DOCKERFILE.read_text(encoding="utf-8"))
INSTRUCTIONS = [
    (line.split(None, 1)[0], line.split(None, 1)[1])
    for line in TEXT.splitlines()
    if re.match(r"[A-Z]+ ", line)
]


def of(kind: str) -> list[str]:
    return [value for name, value in INSTRUCTIONS if name == kind]


def last_stage() -> list[tuple[str, str]]:
    start = max(i for i, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM")
    return INSTRUCTIONS[start:]


def test_hadolint():
    accepts("hadolint", DOCKERFILE)


def test_what_is_copied_exists_and_is_let_through():
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line[1:] for line in allowed if line.startswith("!")]
    assert "*" in allowed
    for value in of("COPY"):
        if value.startswith("--from="):
            continue
        *sources, _ = value.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, line) for line in kept), source
    assert all((ROOT / line).exists() for line in kept)


def test_both_variants_have_a_stage():
    names = [value.rsplit(" AS ", 1)[-1] for value in of("FROM")]
    assert names == ["index-cpu", "index-cuda", "build", "run"]
    assert "VARIANT=cpu" in of("ARG")


def test_the_base_is_the_python_that_the_pins_were_made_with():
    base = next(value for value in of("ARG") if value.startswith("PYTHON_IMAGE="))
    assert re.match(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-bookworm$", base)


def test_versions_come_from_the_pins():
    installs = [value for value in of("RUN") if "pip --python /opt/venv install" in value]
    assert "-c constraints.txt" in installs[0]
    assert "--no-deps" in installs[1]
    for package in ("torch", "distributed", "prefect", "s3fs", "aiobotocore"):
        assert python_requirement(package)


def test_nobody_s_rights_and_no_cache():
    stage = last_stage()
    kinds = [name for name, _ in stage]
    user = [value for name, value in stage if name == "USER"]
    assert user == ["10001:10001"]
    assert all(name != "RUN" for name in kinds[kinds.index("USER") :])
    for value in of("RUN"):
        if "apt-get install" in value:
            assert "rm -rf /var/lib/apt/lists/*" in value
        for install in re.findall(r"pip (?:--python \S+ )?(?:install|wheel)[^&]*", value):
            assert "--no-cache-dir" in install, install


def test_process_1_hands_signals_on():
    assert of("ENTRYPOINT") == ['["tini", "--"]']
    assert of("STOPSIGNAL") == ["SIGTERM"]


def test_homes_are_there_and_writable():
    environment = dict(pair.split("=", 1) for pair in shlex.split(last_env()))
    made = next(value for value in of("RUN") if "useradd" in value)
    assert environment["HOME"] == "/home/clam"
    assert "--home-dir /home/clam" in made
    assert environment["PREFECT_HOME"] in made
    assert environment["PREFECT_SERVER_UI_STATIC_DIRECTORY"].startswith(environment["PREFECT_HOME"])
    for name, value in environment.items():
        check_variable(name, value)


def last_env() -> str:
    return [value for name, value in last_stage() if name == "ENV"][-1]


def test_its_default_command_exists():
    (command,) = of("CMD")
    check_command(re.findall(r'"([^"]+)"', command))


@pytest.mark.parametrize("extras", ["", "s3"])
def test_the_list_of_dependencies_is_made_of_the_project_s_own(extras):
    """The build's one line of Python, as it stands there."""
    line = next(value for value in of("RUN") if "tomllib" in value)
    code = re.search(r"python -c '([^']+)'", line)
    assert code is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    done = subprocess.run(
        [sys.executable, "-c", code[1], extras],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = list(project["dependencies"])
    expected += project["optional-dependencies"]["s3"] if extras else []
    assert done.stdout.split("\n")[:-1] == expected
