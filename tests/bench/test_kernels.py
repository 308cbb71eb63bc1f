"""The benchmark of the kernels runs, so that it cannot rot."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def kernels() -> Iterator[ModuleType]:
    path = Path(__file__).with_name("kernels.py")
    spec = importlib.util.spec_from_file_location("bench_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


TINY = ["--seconds", "0", "--rows", "70", "--group-rows", "16", "--shape", "5,3,2"]


def test_json(kernels: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main([*TINY, "--json"])
    entries = json.loads(capsys.readouterr().out)
    found = {(entry["objective"], entry["form"]) for entry in entries}
    forms = ("kspace", "direct", "differences", "lloyd")
    assert found >= {(o, form) for o in ("masked", "unmasked") for form in forms}
    for entry in entries:
        assert entry["shape"] == [5, 3, 2]
        assert entry["threads"] == 1
        assert entry["ns_per_row"] > 0


def test_table(kernels: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main([*TINY, "--members", "3"])
    text = capsys.readouterr().out
    assert "kspace" in text
    assert "(5, 3, 2)" in text


def test_every_baseline_computes_what_it_says(kernels: ModuleType) -> None:
    """Lloyd's forms agree on the sums; the forms by products and by differences on the loss."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator)
    prototypes = torch.randn(3, 5, generator=generator)
    nearest = torch.cdist(x, prototypes).argmin(1)
    sums = torch.stack([x[nearest == j].sum(0) for j in range(3)])
    for form in (*kernels.LLOYD, *kernels.TUNED):
        totals, counts = form(x, prototypes)
        torch.testing.assert_close(totals, sums, rtol=1e-4, atol=1e-5)
        assert counts.tolist() == nearest.bincount(minlength=3).tolist()
    hidden = (torch.rand(40, 5, generator=generator) < 0.3).float()
    for mask in (None, hidden):
        covered = None if mask is None else mask > 0
        product = kernels.products_loss(x, prototypes, 0.4, 0.5, 2, mask)
        plain = kernels.direct_loss(
            x, None, prototypes, 0.4, 0.5, 2, hidden=covered, scored=covered, value=torch.zeros(5)
        )
        torch.testing.assert_close(product, plain)
