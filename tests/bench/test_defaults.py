"""Untouched defaults reach k-means with 100 starts: what the package promises, on small sets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"


def measured(*options):
    script = Path(__file__).parent / "defaults.py"
    command = [sys.executable, str(script), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {record["set"]: record for record in json.loads(done.stdout)}


def test_bundled_sets_reach_k_means():
    records = measured("--set", "iris,wine,breast_cancer")
    assert list(records) == ["iris", "wine", "breast_cancer"]
    for record in records.values():
        assert record["enough"], record
        assert record["n_used"] == record["n_clusters"]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data sets are not here")
def test_further_sets_reach_k_means():
    names = "zoo,ecoli,movement_libras,segment,digits"
    records = measured("--data", str(DATA), "--set", names)
    for record in records.values():
        assert record["enough"], record
