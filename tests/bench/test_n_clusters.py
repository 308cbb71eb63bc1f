"""The benchmark of ``n_clusters='auto'`` runs and is right on well separated blobs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_benchmark_runs_tiny():
    script = Path(__file__).parent / "n_clusters.py"
    command = [sys.executable, str(script), "--seeds", "1", "--groups", "3,5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert [record["set"] for record in records] == ["3 blobs", "5 blobs", "iris", "digits"]
    assert [record["chosen"] for record in records[:2]] == [3, 5]
    for record in records:
        assert 2 <= record["chosen"] <= 20
