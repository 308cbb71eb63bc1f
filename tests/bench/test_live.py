from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.bench.live import frames, kill_tree, main


@pytest.mark.slow
def test_a_server_a_worker_and_all_their_mishaps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schedule that fires, a pause, a collision, a cancelled run, a killed worker: on SQLite."""
    assert main(["--folder", str(tmp_path / "site")]) == 0
    said = capsys.readouterr().out
    assert "FAIL" not in said
    for held in ("the schedule fired", "still paused", "one awaits a slot", "resumed:"):
        assert held in said
    assert not (tmp_path / "site").exists()


def test_a_tree_is_killed_with_its_children() -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    process = subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    parent = psutil.Process(process.pid)
    while not (started := parent.children(recursive=True)):
        assert process.poll() is None
    kill_tree(process, 9)
    gone, alive = psutil.wait_procs(started, timeout=10)
    assert gone == started
    assert not alive
    process.communicate()


def test_frames_are_found_wherever_they_are() -> None:
    assert frames(["all is well", 'at\n  File "x.py", line 1', "Traceback (most"]) != []
    assert frames(["epoch 1 of 3, loss 0.2", "file x.parquet is cut off"]) == []
