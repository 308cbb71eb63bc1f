"""A model that the package has never heard of: one class, one entry, one name, and all the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xarray as xr
from torch import Tensor

from clam_dist import config_sections, load_model, run
from clam_dist.config import config_from_dict
from clam_dist.errors import ConfigError
from clam_dist.models import factory
from clam_dist.models.base import Equations, Parameters
from clam_dist.models.sums import Sums


class SoftKMeans(Equations):
    """The mean of distances weighted by how likely each prototype is, its gradient by autograd.

    ``Σ_i Σ_μ softmax_μ(-β ‖ρ_μ - x_i‖²) ‖ρ_μ - x_i‖²``.
    """

    def __init__(self, n_clusters: int) -> None:
        self.n_clusters = n_clusters

    def gradient_sums(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],
    ) -> Sums:
        del key  # draws nothing
        heavy = torch.ones(len(x)) if weight is None else weight
        with torch.enable_grad():
            prototypes = parameters["prototypes"].detach().requires_grad_()
            squared = distances(x, prototypes, observed)
            shares = torch.softmax(-beta[:, None, None] * squared, -1)
            loss = ((shares * squared).sum(-1) * heavy).sum(1)
            (gradient,) = torch.autograd.grad(loss.sum(), prototypes)
        return Sums(loss.detach().double(), heavy.double().sum(), {"prototypes": gradient})

    def predict(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        del beta  # the nearest is the likeliest at any
        squared, labels = distances(x, parameters["prototypes"], observed).min(-1)
        return labels, squared.sqrt()


def distances(x: Tensor, prototypes: Tensor, observed: Tensor | None) -> Tensor:
    """Squared, over the features seen: ``(...,B,k)`` from rows ``(B,d)``."""
    squares = (x[:, None] - prototypes[..., None, :, :]).square()
    return (squares if observed is None else squares * observed[:, None]).sum(-1)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All that it takes for the model to be there."""
    kind = factory.Kind(
        SoftKMeans, lambda _, member: SoftKMeans(int(member["n_clusters"])), ("soft",)
    )
    monkeypatch.setitem(factory.MODELS, "soft_kmeans", kind)
    config_sections.MODEL_KINDS.append("soft_kmeans")
    yield "soft_kmeans"
    config_sections.MODEL_KINDS.remove("soft_kmeans")


def table(missing: bool = False) -> pa.Table:
    """Three round groups of 200 rows, 10 deviations apart."""
    draws = np.random.default_rng(0)
    classes = np.repeat([0, 1, 2], 200)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = centres[classes] + draws.normal(size=(600, 2))
    if missing:
        x[::40, 1] = np.nan
    return pa.table({"a": x[:, 0], "b": pa.array(x[:, 1], from_pandas=True), "class": classes})


def config(folder: Path, **sections: dict[str, Any]) -> Any:
    values: dict[str, Any] = {
        "source": {"uri": str(folder / "rows.parquet"), "label": "class"},
        "model": {"kind": "soft_kmeans", "n_clusters": 3},
        "train": {"restarts": 1, "epochs": 5},
        "cluster": {"kind": "serial"},
        "work": {"uri": str(folder / "work")},
        "output": {"uri": str(folder / "out")},
    }
    for name, section in sections.items():
        values[name] = {**values[name], **section}
    return config_from_dict(values)


def test_from_rows_to_report(registered: str, tmp_path: Path) -> None:
    rows = table(missing=True)
    pq.write_table(rows, tmp_path / "rows.parquet")
    metrics = run(config(tmp_path))
    assert metrics["ari"] > 0.95
    assert 0.7 < metrics["silhouette"]["value"] < 0.9
    assert metrics["selected"]["objective"] == "soft"
    written = pq.read_table(tmp_path / "out" / "labels" / "rows.parquet")
    assert len(written) == 600
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert registered in report
    model = load_model(tmp_path / "out")
    labels, away = model.predict(rows)
    np.testing.assert_array_equal(labels, written["cluster"].to_numpy())
    np.testing.assert_array_equal(away, written["distance"].to_numpy())
    assert set(model.bundle.parameters) == {"prototypes"}


@pytest.mark.usefixtures("registered")
def test_lists_make_a_sweep(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "rows.parquet")
    lists = {"n_clusters": [2, 3, 4], "beta": [0.5, 4.0]}
    metrics = run(config(tmp_path, model=lists, train={"learning_rate": [0.01, 0.05]}))
    assert metrics["n_clusters"] == 3
    assert metrics["ari"] > 0.95
    with xr.open_dataset(tmp_path / "out" / "sweep.nc") as sweep:
        sizes = {name: sweep.sizes[name] for name in ("n_clusters", "beta", "learning_rate")}
        assert sizes == {"n_clusters": 3, "beta": 2, "learning_rate": 2}


def test_without_its_entry_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind.*expected one of"):
        config(tmp_path)
