"""Columns on request: what is in them, who can give them, and labels files that hold them."""

# ruff: noqa: ARG002 - a model has arguments that a small one does not need

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import clam_dist
from clam_dist.assign import Assignment, Labeller
from clam_dist.config import config_from_dict
from clam_dist.errors import ConfigError
from clam_dist.models import factory
from clam_dist.models.base import Equations, Parameters
from clam_dist.stages.columns import COLUMNS, AddedColumns, check_columns

BETA = 0.6
MEMBER = {"n_clusters": 3, "steps": 4, "objective": "masked", "mask_rate": 0.2, "beta": BETA}


class Halving(Equations):
    """Latents are the first two features, reconstructions half of a row."""

    n_clusters = 3

    def predict(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One cluster for all."""
        return torch.zeros(len(x), dtype=torch.int64), torch.zeros(len(x))

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Two features."""
        return x[:, :2], None

    def reconstruct(self, parameters: Parameters, x: Tensor, observed: Tensor | None) -> Tensor:
        """Half of a row."""
        return 0.5 * x


def labeller(folder: Any, kind: str) -> Labeller:
    prototypes = torch.tensor([[0.0, 0, 0, 0], [1, 2, 0, 1], [-1, 0, 3, 1]])
    save_file({"prototypes": prototypes}, folder / "model.safetensors")
    settings = {"kind": kind, "step_size": None, "mask_value": [0.0] * 4, "seed": 0}
    return Labeller(Assignment(str(folder / "model.safetensors"), settings, MEMBER))


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)


def test_entropy_and_energy_are_those_of_the_equations(rows, tmp_path):
    model = labeller(tmp_path, "clam")
    added = AddedColumns(model, ("entropy", "energy"), 4)
    assert added.fields == (pa.field("entropy", pa.float32()), pa.field("energy", pa.float32()))
    entropy, energy = added.of(rows)
    squares = np.square(rows[:, None] - model.parameters["prototypes"]).sum(2).astype(np.float64)
    weights = np.exp(-BETA * squares)
    shares = weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(energy, -np.log(weights.sum(1)) / BETA, atol=1e-5)
    np.testing.assert_allclose(entropy, -(shares * np.log(shares)).sum(1), atol=1e-5)


def test_memberships_are_shares_of_which_the_greatest_is_the_label(rows, tmp_path):
    model = labeller(tmp_path, "clam")
    added = AddedColumns(model, ("memberships",), 4)
    assert added.fields == (pa.field("memberships", pa.list_(pa.float32(), 3)),)
    (shares,) = added.of(rows)
    np.testing.assert_allclose(shares.sum(1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(shares.argmax(1), model.label(rows)[0])


def test_latents_and_errors_of_reconstructions(rows, tmp_path, monkeypatch):
    kind = factory.Kind(Halving, lambda *_: Halving(), ())
    monkeypatch.setitem(factory.MODELS, "halving", kind)
    added = AddedColumns(labeller(tmp_path, "halving"), ("reconstruction", "latent"), 4)
    assert [field.type for field in added.fields] == [pa.float32(), pa.list_(pa.float32(), 2)]
    rows[1, 3] = np.nan
    error, latent = added.of(rows)
    np.testing.assert_array_equal(latent, rows[:, :2])
    np.testing.assert_allclose(error, 0.5 * np.sqrt(np.nanmean(rows**2, axis=1)), rtol=1e-6)


def test_a_model_gives_what_it_has_and_says_what_that_is():
    check_columns(Halving(), ("latent", "reconstruction"), "halving")
    with pytest.raises(
        ConfigError,
        match=r"evaluate\.columns: a halving model cannot give 'energy'; it can give latent, recon",
    ):
        check_columns(Halving(), ("latent", "energy"), "halving")
    with pytest.raises(ConfigError, match="cannot give 'colour'"):
        check_columns(Halving(), ("colour",), "halving")


def test_columns_do_not_depend_on_how_rows_are_cut(rows, tmp_path):
    names = ("entropy", "energy", "memberships", "latent")
    rows[::3, 1] = np.nan
    added = AddedColumns(labeller(tmp_path, "clam"), names, 4)
    whole = added.of(rows)
    parts = [added.of(rows[:7]), added.of(rows[7:])]
    for values, pair in zip(whole, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(values, np.concatenate(pair))


def test_a_run_writes_them_beside_the_labels(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 3)) + 6 * generator.integers(0, 2, (300, 1))
    x[generator.random(x.shape) < 0.1] = np.nan
    x[5] = np.nan
    table = pa.table({f"x{i}": pa.array(x[:, i], from_pandas=True) for i in range(3)})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=90)
    names = [name for name in COLUMNS if name != "reconstruction"]
    config = {
        "source": {"uri": str(tmp_path / "data.parquet")},
        "model": {"n_clusters": 2, "beta": 1.0, "objective": "masked"},
        "train": {"restarts": 1, "epochs": 2},
        "evaluate": {"columns": names},
        "output": {"uri": str(tmp_path / "out")},
        "cluster": {"kind": "serial"},
    }
    clam_dist.run(config_from_dict(config))
    labels = pq.read_table(tmp_path / "out" / "labels" / "data.parquet")
    assert labels.column_names == ["cluster", "distance", "silhouette", *names]
    found = labels.to_pylist()
    assert all(value is None for value in found[5].values())
    kept = [row for place, row in enumerate(found) if place != 5]
    shares = np.array([row["memberships"] for row in kept])
    np.testing.assert_array_equal(shares.argmax(1), [row["cluster"] for row in kept])
    model = clam_dist.load_model(tmp_path / "out")
    np.testing.assert_array_equal(model.predict_proba(table)[np.arange(300) != 5], shares)
    latent = np.array([row["latent"] for row in kept], np.float32)
    np.testing.assert_array_equal(model.transform(table)[np.arange(300) != 5], latent)

    config["evaluate"] = {"columns": ["reconstruction"]}
    config["output"] = {"uri": str(tmp_path / "other")}
    with pytest.raises(ConfigError, match="a clam model cannot give 'reconstruction'"):
        clam_dist.run(config_from_dict(config))
