"""One Prefect home and one server of ours for the session; flows run as processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pipelines.server import EmbeddedServer

FAKE = Path(__file__).with_name("flow_with_fake_stages.py")
ROOT = Path(__file__).parents[2]

CONFIG = """
name: Tiny run
source: {uri: data/x.parquet}
model: {n_clusters: 3}
output: {uri: "out/{date}"}
"""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A Prefect home whose database is migrated; made once and kept in pytest's cache."""
    folder = tmp_path_factory.mktemp("prefect")
    kept = request.config.cache.mkdir(f"prefect-{version('prefect')}") / "prefect.db"
    if not kept.exists():
        server = EmbeddedServer(folder)
        server.start(environment(folder))
        server.wait_ready()
        server.stop()
        shutil.copy(folder / "prefect.db", kept.with_suffix(".part"))
        kept.with_suffix(".part").rename(kept)
    shutil.copy(kept, folder / "prefect.db")
    return folder


@pytest.fixture(scope="session")
def server(home: Path) -> Iterator[EmbeddedServer]:
    """One server on that home for all tests that need none of their own."""
    server = EmbeddedServer(home)
    server.start(environment(home))
    server.wait_ready()
    yield server
    server.stop()


def environment(home: Path) -> dict[str, str]:
    """This environment without what it says of Prefect and clam_dist, on ``home``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "CLAM_DIST"))}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return kept | {"PREFECT_HOME": str(home), "PYTHONPATH": path}


@pytest.fixture(scope="session")
def environ(home: Path) -> dict[str, str]:
    """The environment of a process that finds only ``home`` configured."""
    return environment(home)


@pytest.fixture
def start_flow(
    environ: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start_flow(*arguments, script={}, **variables)``: the flow over fake stages, as a process.

    It runs in ``tmp_path``, where ``tiny.yaml`` is.
    """
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "tiny.yaml").write_text(CONFIG)

    def start(
        *arguments: str, script: dict[str, Any] | None = None, **more: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(FAKE), json.dumps(script or {}), *arguments],
            cwd=tmp_path,
            env=environ | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ask(server: EmbeddedServer) -> Callable[..., Any]:
    """``ask("flow_runs/filter", **body)``: what the session's server answers."""

    def ask(path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"{server.api_url}/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    return ask
