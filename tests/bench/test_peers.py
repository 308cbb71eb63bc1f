"""The peers bench measures what it says, runs on few rows, and says what is not installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).with_name("peers.py")
    spec = importlib.util.spec_from_file_location("bench_peers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_memory_and_processor_seconds_are_of_the_process_and_its_children(
    peers: ModuleType, tmp_path: Path
) -> None:
    mib = 2**20
    child = f"held = bytearray({100 * mib}); held[::4096] = b'x' * len(held[::4096]); import time;"
    spin = "began = time.process_time()\nwhile time.process_time() - began < 0.4: pass"
    script = (
        "import subprocess, sys\n"
        f"held = bytearray({60 * mib}); held[::4096] = b'x' * len(held[::4096])\n"
        f"subprocess.run([sys.executable, '-c', {child + spin!r}], check=True)\n"
        "import time; time.sleep(0.2)\n"
        "print('said'); sys.exit(7)\n"
    )
    row = peers.watched([sys.executable, "-c", script], tmp_path)
    assert row["exit"] == 7
    assert row["stdout"] == "said\n"
    assert 160 * mib < row["peak_bytes"] < 260 * mib
    assert sum(row["peak_bytes_by_process"].values()) == row["peak_bytes"]
    assert 0.2 < row["processor_seconds"] < 5
    assert row["seconds"] > 0.4


def test_a_copy_that_runs_no_program_yet_is_not_counted_again(
    peers: ModuleType, tmp_path: Path
) -> None:
    script = (
        "import os, time\n"
        f"held = bytearray({60 * 2**20}); held[::4096] = b'x' * len(held[::4096])\n"
        "child = os.fork()\n"
        "time.sleep(0.5)\n"
        "if child: os.waitpid(child, 0)\n"
    )
    row = peers.watched([sys.executable, "-c", script], tmp_path)
    assert row["exit"] == 0
    assert 60 * 2**20 < row["peak_bytes"] < 100 * 2**20


def test_parts_sum_to_the_total(peers: ModuleType) -> None:
    steps = {"import": 1.0, "read": 2.0, "scale": 3.0, "fit": 4.0, "silhouette": 5.0, "write": 6.0}
    parts = peers.in_parts("KMeans", steps, 22.5)
    assert parts == {"start": 2.5, "prepare": 5.0, "fit": 4.0, "finish": 11.0}


def test_verdicts(peers: ModuleType) -> None:
    found = {
        "ours": {"seconds": 30.0, "silhouette": 0.1213},
        "KMeans": {"seconds": 20.0, "silhouette": 0.11},
        "faiss": {"seconds": 1.0, "silhouette": 0.125},
        "spark": {"seconds": 50.0, "silhouette": 0.12},
        "spark-once": {"exit": 1, "seconds": 1.0, "error": "lost"},
    }
    kmeans, spark, silhouette = peers.verdicts(found)
    assert (kmeans["value"], kmeans["met"]) == (1.5, True)
    assert (spark["value"], spark["met"]) == (0.6, False)
    assert "faiss" in silhouette["what"]
    assert silhouette["value"] == pytest.approx(0.0037)
    assert not silhouette["met"]
    assert peers.verdicts({"ours": found["ours"]}) == []


def test_what_is_not_installed_is_named_with_its_remedy(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _name: None)
    row = peers.contender("faiss", tmp_path / "none.parquet", tmp_path / "faiss")
    assert row == {"missing": "pip install faiss-cpu"}
    assert "pip install faiss-cpu" in peers.line("faiss", row)
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _name: object())
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(peers.shutil, "which", lambda _name: None)
    assert "Java 17" in peers.missing("spark")
    assert peers.missing("faiss") is None


def test_a_contender_that_fails_is_a_row(peers: ModuleType, tmp_path: Path) -> None:
    row = peers.contender("KMeans", tmp_path / "absent.parquet", tmp_path / "KMeans")
    assert row["exit"] == 1
    assert "absent.parquet" in row["error"]
    shown = peers.line("KMeans", row)
    assert "exit 1: FileNotFoundError" in shown
    assert "\n" not in shown


@pytest.mark.slow
def test_the_benchmark_runs_tiny(
    peers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["ours", "MiniBatchKMeans", "faiss", "spark-once"]
    chosen = [part for name in names for part in ("--only", name)]
    options = ["--rows", "2000", "--json", "--folder", str(tmp_path)]
    assert peers.main([*options, *chosen]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["rows"] == 2000
    assert list(record["contenders"]) == names
    ran = {name: row for name, row in record["contenders"].items() if "missing" not in row}
    assert {"ours", "MiniBatchKMeans"} <= set(ran)
    for name, row in ran.items():
        assert row["exit"] == 0
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"])
        assert min(row["parts"].values()) > 0
        # Rows out of order would score about nothing.
        assert row["silhouette"] > 0.05, name
        assert 2 <= row["clusters"] <= 9
        assert row["peak_bytes"] > 30 * 2**20
    if "spark-once" in ran:
        assert "java" in ran["spark-once"]["peak_bytes_by_process"]
    assert len(record["verdicts"]) == 1 + ("spark-once" in ran)
    peers.show(record)
    table = capsys.readouterr().out
    assert all(name in table for name in names)
