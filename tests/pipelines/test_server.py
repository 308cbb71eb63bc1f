from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clam_dist.errors import ConfigError, RunError
from pipelines.server import EmbeddedServer, check_home, remove_orphans

SLEEP = "import time; time.sleep(60)"


def test_it_serves_api_and_pages(server: EmbeddedServer) -> None:
    with urllib.request.urlopen(f"{server.api_url}/health", timeout=10) as answer:
        assert json.load(answer) is True
    with urllib.request.urlopen(f"{server.address}/ui-settings", timeout=10) as answer:
        assert json.load(answer)["api_url"] == server.api_url
    page = urllib.request.Request(f"{server.address}/dashboard", headers={"Accept": "text/html"})
    with urllib.request.urlopen(page, timeout=10) as answer:
        assert b"<title>Prefect" in answer.read()


def test_it_is_recorded_while_it_runs(server: EmbeddedServer) -> None:
    [record] = [
        found
        for path in (server.home / "clam_dist").glob("server-*.json")
        if (found := json.loads(path.read_text()))["pid"] == server.pid
    ]
    assert record["parent"] == os.getpid()
    assert record["token"] in psutil.Process(server.pid).cmdline()
    assert remove_orphans(server.home) == []  # its run, this one, is alive
    assert psutil.pid_exists(server.pid)


def test_a_server_that_cannot_start_says_why(tmp_path: Path, environ: dict[str, str]) -> None:
    server = EmbeddedServer(tmp_path)
    url = f"sqlite+aiosqlite:///{tmp_path}/no/such/folder/prefect.db"
    server.start(environ | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url})
    with pytest.raises(RunError, match="ended while it was starting") as caught:
        server.wait_ready()
    assert "unable to open database file" in str(caught.value)
    assert "PREFECT_API_URL" in str(caught.value)
    assert not list(tmp_path.glob("clam_dist/server-*"))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SLEEP, "the-token"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("token", "parent", "host", "removed", "forgotten"),
    [
        ("the-token", 2**22 + 1, None, True, True),  # ours, and its run is gone
        ("another", 2**22 + 1, None, False, True),  # another process has its number now
        ("the-token", None, None, False, False),  # its run is alive
        ("the-token", 2**22 + 1, "another-host", False, False),  # not to be seen from here
    ],
)
def test_only_orphans_of_ours_are_removed(
    sleeper: subprocess.Popen[bytes],
    token: str,
    parent: int | None,
    host: str | None,
    removed: bool,
    forgotten: bool,
    tmp_path: Path,
) -> None:
    record = tmp_path / "clam_dist" / "server-x.json"
    record.parent.mkdir()
    record.write_text(
        json.dumps(
            {
                "pid": sleeper.pid,
                "parent": parent or os.getpid(),
                "host": host or socket.gethostname(),
                "token": token,
            }
        )
    )
    assert remove_orphans(tmp_path) == ([sleeper.pid] if removed else [])
    assert (sleeper.poll() is not None) == removed
    assert record.exists() != forgotten


def test_a_broken_record_is_left_alone(tmp_path: Path) -> None:
    record = tmp_path / "clam_dist" / "server-x.json"
    record.parent.mkdir()
    record.write_text('{"pid": 1')
    assert remove_orphans(tmp_path) == []
    assert record.exists()


def test_a_home_that_is_no_folder_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    with pytest.raises(ConfigError, match=r"PREFECT_HOME: .*home cannot be written to: ") as caught:
        check_home(home)
    assert "\n" not in str(caught.value)
    check_home(tmp_path / "new")
    assert list((tmp_path / "new").rglob("*")) == [tmp_path / "new" / "clam_dist"]
