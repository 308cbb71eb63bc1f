"""The trials of survival run, few and on few rows, and every run ends as it should."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_trials_run_tiny(tmp_path):
    script = Path(__file__).parent / "survival.py"
    command = [sys.executable, str(script), "--rows", "40000", "--trials", "5", "--json"]
    command += ["--folder", str(tmp_path)]
    for name in ("kills", "raises", "gone", "scheduler"):
        command += ["--only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["kills"]["same_labels"] == 5
    assert {trial["stage"] for trial in record["kills"]["trials"]} >= {"profile", "train", "assign"}
    assert record["raises"]["exit_code"] in (3, 4)
    assert "on worker tcp://" in record["raises"]["told"][0]
    assert record["gone"]["exit_code"] == 4
    assert record["gone"]["seconds"] < record["gone"]["wait"] + 30
    assert record["gone"]["reused"] == ["profile", "shards"]
    assert "cluster.wait" in record["gone"]["message"]
    assert record["scheduler"]["exit_code"] == 4
    assert "scheduler" in record["scheduler"]["message"]
