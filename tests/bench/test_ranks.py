"""The bench of ranks runs, on few rows, and its runs are the same bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_bench_runs_tiny(tmp_path):
    script = Path(__file__).parent / "ranks.py"
    command = [sys.executable, str(script), "--rows", "33000", "--scale", "16", "--json"]
    command += ["--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert list(record["bits"]) == ["serial", *(f"{n} ranks" for n in (1, 2, 3, 4, 7))]
    for name, one in record["bits"].items():
        assert one["same_labels"], name
        assert one["same_prototypes"], name
    assert record["bits"]["7 ranks"]["ranks"] == 7
    assert record["throughput"]["ratio"] > 0
    for one in record["exactness"].values():
        assert one["ratio"] > 0
    for one in record["share"].values():
        assert 0 < one["share_of_exchange"] < 1
    assert set(record["scale"]["gathers"]) == {"2", "4", "7"}
