"""The benchmark of completion runs, so that it cannot rot."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).with_name("complete.py")
    spec = importlib.util.spec_from_file_location("bench_complete", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_json_and_table(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"n_clusters": 3, "objective": "masked", "beta": 0.3, "restarts": 1}
    monkeypatch.setitem(bench.METHODS, "ClAM(8)", bench.by_clam(**quick))
    methods = ["mean", "ClAM(8)", "KNNImputer"]
    bench.main(["--json", "--sets", "wine", "--methods", *methods])
    found = {entry["method"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(found) == methods
    # Standardised by what is seen, a mean misses by about one standard deviation.
    assert found["mean"]["rmse"] == pytest.approx(1.0, abs=0.1)
    assert found["ClAM(8)"]["rmse"] < 0.95 * found["mean"]["rmse"]
    bench.main(["--sets", "wine", "--methods", "mean"])
    assert "wine" in capsys.readouterr().out


def test_methods_fill_holes_alone(bench: ModuleType) -> None:
    x = np.random.default_rng(0).normal(size=(30, 4))
    x[3, 1] = np.nan
    filled = bench.METHODS["KNNImputer"](x)
    seen = ~np.isnan(x)
    np.testing.assert_allclose(filled[seen], x[seen])
    assert np.isfinite(filled).all()
