"""Silhouettes of a run are measured where prototypes live: directions, or latents of a network."""

# ruff: noqa: ARG002 - a model has arguments that a small one does not need

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import silhouette_samples, silhouette_score
from torch import Tensor

import clam_dist
from clam_dist.config import config_from_dict
from clam_dist.evaluation import references
from clam_dist.models import factory
from clam_dist.models.base import Parameters
from clam_dist.models.clam import ClAM

WIDTH = 5


def table(n: int, missing: float = 0.0) -> pa.Table:
    """Three bundles of directions, at any distance from the origin."""
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 3, n)
    x = np.eye(3, WIDTH)[truth] * 3 + generator.normal(size=(n, WIDTH))
    x *= generator.uniform(0.2, 3.0, n)[:, None]
    x[generator.random(x.shape) < missing] = np.nan
    weight = generator.integers(1, 3, n)
    columns = {f"x{i}": pa.array(x[:, i], from_pandas=True) for i in range(WIDTH)}
    return pa.table(columns | {"w": weight, "id": np.arange(n)})


def run(folder, rows: pa.Table, **sections: dict[str, Any]) -> tuple[dict[str, Any], pa.Table, Any]:
    """Metrics, labels by key, and events."""
    pq.write_table(rows, folder / "data.parquet", row_group_size=400)
    config: dict[str, Any] = {
        "source": {"uri": str(folder / "data.parquet"), "keep": ["id"], "exclude": ["w"]},
        "model": {"n_clusters": 3, "beta": 4.0, "objective": "unmasked", "steps": 5},
        "train": {"restarts": 1, "epochs": 2},
        "output": {"uri": str(folder / "out")},
        "cluster": {"kind": "serial"},
    }
    for name, keys in sections.items():
        config[name] = config.get(name, {}) | keys
    events: list[Any] = []
    metrics = clam_dist.run(config_from_dict(config), on_event=events.append)
    return metrics, pq.read_table(folder / "out" / "labels" / "data.parquet"), events


def features(rows: pa.Table) -> np.ndarray:
    return np.stack([rows[f"x{i}"].to_numpy() for i in range(WIDTH)], axis=1)


SPHERICAL = {"prepare": {"scaling": "none"}, "model": {"geometry": "spherical"}}


def test_on_the_sphere_it_is_the_cosine_silhouette(tmp_path):
    rows = table(1500)
    metrics, labels, events = run(tmp_path, rows, **SPHERICAL)
    cluster = labels["cluster"].to_numpy()
    exact = silhouette_samples(features(rows), cluster, metric="cosine")
    assert metrics["silhouette"] == {
        "value": pytest.approx(exact.mean(), abs=1e-5),
        "standard_error": 0.0,
        "rows": 1500,
        "references": "all",
        "seed": 0,
        "metric": "cosine",
        "form": "pairwise",
    }
    np.testing.assert_allclose(labels["silhouette"].to_numpy(), exact, atol=1e-5)
    assert "silhouette_recursed" not in metrics
    assert not [event for event in events if event["event"] == "warning"]
    # Sizes and inertia stay those of the rows themselves.
    x = features(rows)
    inertia = sum(((x[cluster == c] - x[cluster == c].mean(0)) ** 2).sum() for c in range(3))
    assert metrics["inertia"] == pytest.approx(inertia, rel=1e-5)
    model = clam_dist.load_model(tmp_path / "out")
    predicted, distance = model.predict(rows)
    np.testing.assert_array_equal(predicted, cluster)
    np.testing.assert_allclose(distance, labels["distance"].to_numpy(), atol=1e-6)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(model.transform(rows), x / lengths, atol=1e-6)


def test_sampled_cosines_are_measured_against_all_rows_with_weights(tmp_path):
    rows = table(1500)
    metrics, labels, _ = run(
        tmp_path,
        rows,
        source={"exclude": [], "weight": "w"},
        evaluate={"silhouette_rows": 200, "references": "all"},
        **SPHERICAL,
    )
    cluster, weight = labels["cluster"].to_numpy(), rows["w"].to_numpy()
    twice = np.repeat(np.arange(1500), weight)
    exact = silhouette_samples(features(rows)[twice], cluster[twice], metric="cosine")
    exact = exact[np.flatnonzero(np.append(True, np.diff(twice)))]
    found = labels["silhouette"].to_numpy(zero_copy_only=False)
    sampled = np.flatnonzero(~np.isnan(found))
    assert len(sampled) == metrics["silhouette"]["rows"] == 200
    np.testing.assert_allclose(found[sampled], exact[sampled], atol=1e-5)
    value = np.average(exact[sampled], weights=weight[sampled])
    assert metrics["silhouette"]["value"] == pytest.approx(value, abs=1e-5)
    assert 0 < metrics["silhouette"]["standard_error"] < 0.05
    saved = pq.read_table(tmp_path / "out" / "evaluation" / "silhouette.parquet")
    np.testing.assert_array_equal(saved["row"].to_numpy(), sampled)


def test_rows_without_a_direction_have_no_cluster_and_are_counted(tmp_path):
    rows = table(600, missing=0.1)
    nothing = {f"x{i}": np.zeros(4) for i in range(WIDTH)}
    empty = {f"x{i}": pa.nulls(2, pa.float64()) for i in range(WIDTH)}
    more = [
        pa.table(values | {"w": np.ones(n, np.int64), "id": np.arange(n)})
        for values, n in ((nothing, 4), (empty, 2))
    ]
    rows = pa.concat_tables([rows, *more])
    metrics, labels, events = run(tmp_path, rows, **SPHERICAL)
    assert labels["cluster"].null_count == metrics["unlabelled_rows"] == 6 + lost(rows)
    assert labels["cluster"].to_pylist()[600:] == [None] * 6
    said = [event["message"] for event in events if event["event"] == "warning"]
    assert any("4 of 606 rows have no cluster" in message for message in said)
    cluster = labels["cluster"].to_numpy(zero_copy_only=False)
    kept = np.flatnonzero(~np.isnan(cluster))
    x = np.nan_to_num(features(rows))[kept]
    exact = silhouette_score(x, cluster[kept], metric="cosine")
    assert metrics["silhouette"]["value"] == pytest.approx(exact, abs=1e-5)


def lost(rows: pa.Table) -> int:
    """Rows of the first 600 that the draw left without any value."""
    return int(np.isnan(features(rows)[:600]).all(axis=1).sum())


class Flat(ClAM):
    """ClAM whose rows are seen in two dimensions, by a map that the parameters do not hold."""

    map = torch.linspace(-1.0, 1.0, 2 * WIDTH).reshape(WIDTH, 2).square()

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The image of what is seen."""
        return x @ self.map, None

    def placed(self, parameters: Parameters) -> Tensor:
        """The images of the prototypes."""
        return parameters["prototypes"] @ self.map

    def recursed(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """Half of the way to the image of the prototype."""
        labels = self.predict(parameters, beta, x, observed)[0]
        return 0.5 * (x + parameters["prototypes"][labels]) @ self.map


@pytest.fixture
def flat(monkeypatch) -> None:
    def build(settings: Any, member: Any) -> Flat:
        model = Flat(3, int(member["steps"]), None, "unmasked", mask_value=settings["mask_value"])
        model.own_space, model.reseeds = True, False
        return model

    kind = replace(factory.MODELS["clam"], build=build)
    monkeypatch.setitem(factory.MODELS, "clam", kind)


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize("few", [False, True])
def test_latents_are_measured_where_they_are(tmp_path, monkeypatch, few):
    rows = table(1500, missing=0.05)
    if few:  # as in a large data set: references of each cluster, and queries among them
        for name in ("TOTAL_REFERENCES", "MOST_A_CLUSTER"):
            monkeypatch.setattr(references, name, 600)
        monkeypatch.setattr("clam_dist.stages.scoring.RECURSED_ROWS", 300)
    metrics, labels, _ = run(tmp_path, rows)
    model = clam_dist.load_model(tmp_path / "out")
    cluster = labels["cluster"].to_numpy()
    z = model.transform(rows)
    assert z.shape == (1500, 2)
    exact = silhouette_samples(z, cluster)
    found = metrics["silhouette"]
    assert found["space"] == "latent"
    assert found["metric"] == "euclidean"
    assert found["references"] == (200 if few else "all")
    assert found["value"] == pytest.approx(exact.mean(), abs=0.01 if few else 1e-5)
    np.testing.assert_allclose(labels["silhouette"].to_numpy(), exact, atol=0.1 if few else 1e-5)
    after = metrics["silhouette_recursed"]
    prototypes = model.dataset["prototypes"].values
    drawn = 0.5 * (z + prototypes[cluster] @ Flat.map.numpy())
    expected = silhouette_score(drawn, cluster)
    assert after["value"] == pytest.approx(expected, abs=3 * after["standard_error"] + 1e-5)
    assert after["value"] > found["value"]  # it flatters
    assert after["rows"] == (300 if few else 1500)
    assert after["references"] == ("queries" if few else "all")
    assert (after["standard_error"] > 0) == few
