"""The benchmark runs, on few rows, and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_benchmark_runs_tiny(tmp_path):
    script = Path(__file__).parent / "million.py"
    command = [sys.executable, str(script), "--rows", "3000", "--json", "--folder", str(tmp_path)]
    done = subprocess.run([*command, "--sorted"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["rows"] == 3000
    assert record["ratio"] == record["ours"]["wall"] / record["scikit-learn"]["wall"]
    assert set(record["scikit-learn"]["stages"]) >= {"read", "scale", "fit", "silhouette", "write"}
    for name in ("ours", "scikit-learn", "sorted"):
        assert -1 < record[name]["silhouette"] < 1
