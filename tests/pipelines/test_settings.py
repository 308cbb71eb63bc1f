from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.settings import (
    changed_environment,
    client_environment,
    configured_api,
    is_first_start,
)


def test_nothing_configured_is_known_without_prefect(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'prefect-user'\n")
    (tmp_path / ".env").write_text("AWS_REGION=eu-west-1\n")
    found = configured_api({"PREFECT_HOME": str(tmp_path / "home")}, tmp_path)
    assert found == (None, tmp_path / "home")
    assert configured_api({}, tmp_path / "empty")[1] == Path.home() / ".prefect"


def test_the_environment_names_the_api(tmp_path: Path) -> None:
    environ = {"PREFECT_API_URL": "http://prefect:4200/api", "PREFECT_HOME": str(tmp_path)}
    assert configured_api(environ, tmp_path) == ("http://prefect:4200/api", tmp_path)


FILES = {
    "active": (
        "home/profiles.toml",
        'active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://work:4200/api"\n'
        '[profiles.other]\nPREFECT_API_URL = "http://other:4200/api"\n',
        "http://work:4200/api",
    ),
    "inactive": (
        "home/profiles.toml",
        'active = "none"\n[profiles.none]\n'
        '[profiles.other]\nPREFECT_API_URL = "http://other:4200/api"\n',
        None,
    ),
    "toml": ("prefect.toml", '[api]\nurl = "http://file:4200/api"\n', "http://file:4200/api"),
    "dotenv": (".env", "PREFECT_API_URL=http://dotenv:4200/api\n", "http://dotenv:4200/api"),
}

ASK = """
import json, os, sys
from pathlib import Path
from pipelines.settings import configured_api
for folder in sys.argv[1:]:
    os.chdir(folder)
    os.environ["PREFECT_HOME"] = folder + "/home"
    print(json.dumps([Path(folder).name, configured_api(os.environ, Path.cwd())[0]]))
"""


def test_prefect_is_asked_where_a_file_may_say(tmp_path: Path, environ: dict[str, str]) -> None:
    for name, (file, text, _) in FILES.items():
        (tmp_path / name / "home").mkdir(parents=True)
        (tmp_path / name / file).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", ASK, *(str(tmp_path / name) for name in FILES)],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert found == {name: api_url for name, (_, _, api_url) in FILES.items()}


def test_our_own_server_is_reached_past_a_proxy() -> None:
    variables = client_environment({"no_proxy": "localhost,.corp"}, "http://127.0.0.1:1/api")
    assert variables["PREFECT_API_URL"] == "http://127.0.0.1:1/api"
    assert variables["no_proxy"] == "localhost,.corp,127.0.0.1"
    assert variables["NO_PROXY"] == "127.0.0.1"
    for configured in (variables, client_environment({}, None)):
        assert configured["DO_NOT_TRACK"] == "1"
        assert configured["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert "PREFECT_API_URL" not in client_environment({}, None)


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAM_TEST_A", "before")
    monkeypatch.delenv("CLAM_TEST_B", raising=False)
    with changed_environment({"CLAM_TEST_A": "x", "CLAM_TEST_B": "y"}):
        assert (os.environ["CLAM_TEST_A"], os.environ["CLAM_TEST_B"]) == ("x", "y")
    assert os.environ["CLAM_TEST_A"] == "before"
    assert "CLAM_TEST_B" not in os.environ


def test_a_first_start_is_one_without_a_database(tmp_path: Path) -> None:
    assert is_first_start(tmp_path, {})
    url = "postgresql+asyncpg://db/prefect"
    assert not is_first_start(tmp_path, {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url})
    (tmp_path / "prefect.db").touch()
    assert not is_first_start(tmp_path, {})


@pytest.mark.parametrize(
    "profiles",
    [
        b'active = "a"\n[profiles.a\nPREFECT_API_URL = "http://127.0.0.1:1/api"\n',
        b'active = "a"\n[profiles.a]\nPREFECT_API_URL = 5\n',
        b'# \xff\xfe\nactive = "a"\n[profiles.a]\nPREFECT_API_URL = "http://127.0.0.1:1/api"\n',
    ],
)
def test_settings_that_prefect_cannot_read_are_named(
    environ: dict[str, str], tmp_path: Path, profiles: bytes
) -> None:
    (tmp_path / "profiles.toml").write_bytes(profiles)
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cluster", "quickstart"],
        env=environ | {"PREFECT_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last.startswith("clam-dist-flow: error: ")) == (2, True), done.stderr
    assert str(tmp_path / "profiles.toml") in last
    assert "mend the file or move it away" in last
    assert "Traceback" not in done.stderr
