"""The bench of transfer runs, at a tiny size, on the domains that it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = Path(__file__).with_name("transfer.py")
    spec = importlib.util.spec_from_file_location("bench_transfer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def test_the_domains(transfer: ModuleType) -> None:
    data = transfer.load(50)
    assert [x.shape for x in data.sources] == [(50, 64)] * 3
    assert data.target.shape == (50, 64)
    assert data.target.dtype == np.float32
    assert data.pooled.mean() == pytest.approx(0.0, abs=1e-6)
    assert data.pooled.std() == pytest.approx(1.0, rel=1e-4)
    # One number scales all pixels of all domains, so that the first is the digits but for that.
    digits = load_digits(return_X_y=True)[0][:50]
    differences = (digits[1:] - digits[:-1]).ravel()
    scaled = (data.sources[0][1:] - data.sources[0][:-1]).ravel()
    moved = differences != 0
    ratios = scaled[moved] / differences[moved]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-3)
    # Each domain is further from the first than the one before it.
    away = [float(np.square(x - data.sources[0]).mean()) for x in (*data.sources, data.target)]
    assert away == sorted(away)


def test_json(
    transfer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transfer, "PRETRAIN_EPOCHS", 2)
    monkeypatch.setattr(transfer, "MIXED_EPOCHS", 2)
    transfer.main(["--seeds", "1", "--laps", "1", "--rows", "80", "--json"])
    lines = json.loads(capsys.readouterr().out)
    assert [line["method"] for line in lines] == [
        "k-means carried",
        "TDCM carried",
        "TDCM adapted",
        "TDCM mixed",
        "k-means fitted",
        "TDCM fitted",
    ]
    for line in lines:
        assert 0 < line["nmi"] <= 1
        assert -1 <= line["ari"] <= 1
        assert line["nmi_deviation"] == 0  # of one seed
        assert 1 <= line["used"] <= 10
