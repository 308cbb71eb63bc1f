"""The bench of deep clustering runs, at a tiny size, and chooses what it says it chooses."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import silhouette_score

# Of a few epochs no candidate may be faithful.
pytestmark = pytest.mark.filterwarnings(
    "ignore:the chosen candidate:sklearn.exceptions.ConvergenceWarning"
)


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = Path(__file__).with_name("deep.py")
    monkeypatch.syspath_prepend(str(path.parent))  # as for a script: it imports its neighbour
    spec = importlib.util.spec_from_file_location("bench_deep", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


TINY = ["--restarts", "1", "--epochs", "3", "--rows", "150"]


def test_json(
    deep: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # ClAM's own search takes seconds on any rows.
    cheap = functools.partial(deep.ClAM, beta=0.05, epochs=1, restarts=1)
    monkeypatch.setattr(deep, "ClAM", cheap)
    deep.main([*TINY, "--network", "dense,convolutional", "--json"])
    lines = json.loads(capsys.readouterr().out)
    assert [(line["network"], line["method"]) for line in lines] == [
        ("none", "k-means"),
        ("none", "ClAM"),
        *[("dense", name) for name in ("DClAM", "k-means", "ClAM", "DEC", "IDEC")],
        *[("convolutional", name) for name in ("DClAM", "k-means", "ClAM", "DEC", "DCEC")],
    ]
    for line in lines:
        assert line["set"] == "digits"
        assert -1 <= line["before"] <= 1
        assert (line["after"] is None) == (line["method"] != "DClAM")
        assert (line["loss"] is None) == (line["method"] != "DClAM")
        assert (line["plain"] is None) == (line["network"] == "none")
        assert 1 <= line["used"] <= 10
        assert 0 < line["nmi"] <= 1


@pytest.mark.parametrize("network", ["residual", "transformer"])
def test_the_other_networks(
    deep: ModuleType, network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = deep.load("digits", None, 100)
    found = deep.run_dclam(data.x, 10, network, data.image_shape, 1, 2)
    labels, latents = found["labels"], found["latents"]
    assert latents.shape == found["recursed"].shape == (100, 10)
    assert labels.shape == (100,)
    module, error = found["pretrained"][0]
    with torch.no_grad():
        again = module(torch.from_numpy(data.x)) - torch.from_numpy(data.x)
    assert float(again.square().mean()) == pytest.approx(error, rel=1e-4)
    assert capsys.readouterr().out == ""


def test_sets_from_a_folder(deep: ModuleType, tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0, 255, (30, 16)).astype(np.float32)
    table = {f"f{i}": x[:, i] for i in range(16)} | {"label": np.arange(30) % 3}
    pq.write_table(pa.table(table), tmp_path / "usps.parquet")
    data = deep.load("usps", tmp_path, 20)
    assert (data.x.shape, data.k, data.image_shape) == ((20, 16), 3, (1, 4, 4))
    assert float(np.square(data.x).mean()) == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(data.x.mean(0), 0.0, atol=1e-6)
    with pytest.raises(SystemExit, match=r"usps: give --data DIR with usps\.parquet"):
        deep.load("usps", None, 20)


def test_the_choice(deep: ModuleType) -> None:
    space = np.repeat([[0.0], [1.0], [9.0]], 4, axis=0) + 0.01 * np.arange(12)[:, None]
    good, poor = np.repeat([0, 0, 1], 4), np.arange(12) % 2
    runs = {
        "one cluster": deep.Run(np.zeros(12, int), space, plain=1.0),
        "unfaithful": deep.Run(good, space, plain=1.2),
        "poor": deep.Run(poor, space, plain=1.0),
        "good": deep.Run(good, space, plain=1.09),
    }
    assert deep.silhouette(space, good) == pytest.approx(silhouette_score(space, good), abs=1e-6)
    for left_out in ([], ["good"], ["good", "poor"], ["good", "poor", "unfaithful"]):
        rest = [run for name, run in runs.items() if name not in left_out]
        expected = ["good", "poor", "unfaithful", "one cluster"][len(left_out)]
        assert deep.choose(rest, 2) is runs[expected]
