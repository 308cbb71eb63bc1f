"""The benchmark of the training stage runs, on few rows, and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_benchmark_runs_tiny(tmp_path):
    script = Path(__file__).parent / "training.py"
    command = [sys.executable, str(script), "--rows", "4000", "--json", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert set(record["fits"]) >= {"ours", "KMeans", "MiniBatchKMeans"}
    for one in record["fits"].values():
        assert one["seconds"] > 0
        assert -1 < one["silhouette"] < 1
    sweep = record["sweep"]
    assert sweep["one"]["members"] == 1
    assert sweep["many"]["members"] == 32
    # A sweep reads the rows once for all its members: 14 float32 values a row and epoch.
    expected = 4_000 * 14 * 4 * sweep["epochs"]
    assert sweep["one"]["bytes_read"] == sweep["many"]["bytes_read"] == expected
    assert sweep["ratio"] < 20
