"""The whole path on real files: contracts of the output, resuming, and what must not matter."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import (
    adjusted_rand_score,
    normalized_mutual_info_score,
    silhouette_score,
)

import clam_dist
from clam_dist import stages
from clam_dist.config import config_from_dict
from clam_dist.demo import write_demo

QUICK = {"restarts": 1, "epochs": 2}


def settings(uri, out, **sections):
    values = {
        "name": "test",
        "source": {"uri": str(uri)},
        "model": {"n_clusters": 3, "beta": 1.0, "objective": "unmasked", "steps": 5},
        "train": dict(QUICK),
        "output": {"uri": str(out)},
        "cluster": {"kind": "serial"},
    }
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    return config_from_dict(values)


def blobs(n=3000, seed=0, missing=0.0):
    """Three groups in five features, with their class and a key."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 3, n)
    centres = np.random.default_rng(99).normal(size=(3, 5)) * 3
    x = centres[truth] + generator.normal(size=(n, 5))
    x[generator.random(x.shape) < missing] = np.nan
    columns = {f"x{i}": pa.array(x[:, i], from_pandas=True) for i in range(5)}
    return pa.table(columns | {"label": truth, "id": np.arange(n)})


def read_all(out):
    files = sorted((out / "labels").rglob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def test_the_output_is_as_the_contract_says(tmp_path):
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    table = blobs()
    pq.write_table(table.slice(0, 1000), data / "b.parquet", row_group_size=300)
    pq.write_table(table.slice(1000, 1500), data / "a.parquet", row_group_size=700)
    pq.write_table(table.slice(2500), data / "deep" / "c.parquet")
    pq.write_table(table.slice(0, 5), data / "_hidden.parquet")
    out = tmp_path / "out"
    events = []
    config = settings(data, out, source={"uri": str(data), "keep": ["id"], "label": "label"})
    metrics = clam_dist.run(config, on_event=events.append)

    for name in ("a.parquet", "b.parquet", "deep/c.parquet"):
        source, labels = pq.ParquetFile(data / name), pq.ParquetFile(out / "labels" / name)
        assert labels.schema_arrow.names == ["id", "cluster", "distance", "silhouette"]
        assert [str(t) for t in labels.schema_arrow.types] == ["int64", "int32", "float", "float"]
        groups = [source.metadata.row_group(i).num_rows for i in range(source.num_row_groups)]
        assert groups == [
            labels.metadata.row_group(i).num_rows for i in range(labels.num_row_groups)
        ]
        assert source.read(["id"]).equals(labels.read(["id"]))
    assert not (out / "labels" / "_hidden.parquet").exists()

    labels = read_all(out).sort_by("id")
    clusters, truth = labels["cluster"].to_numpy(), table["label"].to_numpy()
    assert metrics["n_rows"] == 3000
    assert metrics["n_features"] == 5
    assert metrics["n_clusters"] == metrics["n_used"] == 3
    assert metrics["cluster_sizes"] == np.bincount(clusters, minlength=3).tolist()
    assert metrics["nmi"] == pytest.approx(normalized_mutual_info_score(truth, clusters))
    assert metrics["ari"] == pytest.approx(adjusted_rand_score(truth, clusters))
    x = np.stack([table[f"x{i}"].to_numpy() for i in range(5)], axis=1)
    scaled = (x - x.mean(0)) / x.std(0)
    # 3000 rows are few enough to be measured exactly.
    exact = silhouette_score(scaled, clusters)
    assert metrics["silhouette"]["value"] == pytest.approx(exact, abs=1e-5)
    assert metrics["silhouette"]["references"] == "all"
    means = np.stack([scaled[clusters == c].mean(0) for c in range(3)])
    inertia = ((scaled - means[clusters]) ** 2).sum()
    assert metrics["inertia"] == pytest.approx(inertia, rel=1e-6)
    assert set(metrics["seconds"]) == {*stages.STAGE_NAMES, "total"}
    assert metrics["peak_rss_bytes"]["driver"] > 1e7

    model = clam_dist.load_model(out / "model")
    predicted, distance = model.predict(x)
    assert np.array_equal(predicted, clusters)
    assert np.allclose(distance, labels["distance"].to_numpy(), atol=1e-5)
    assert np.allclose(model.dataset["cluster_means"].values, means * x.std(0) + x.mean(0))

    assert json.loads((out / "metrics.json").read_text()) == metrics
    record = json.loads((out / "run.json").read_text())
    assert record["resolved"]["train.batch_rows"] == 32
    assert {f["name"] for f in record["source"]["files"]} == {
        "a.parquet",
        "b.parquet",
        "deep/c.parquet",
    }
    assert "<html" in (out / "report.html").read_text()
    assert (out / "_SUCCESS").exists()
    assert not (out / "_work").exists()
    statuses = [(e["stage"], e["status"]) for e in events if e["event"] == "stage"]
    assert statuses == [(s, w) for s in stages.STAGE_NAMES for w in ("started", "finished")]


def labels_of(tmp_path, name, config_of):
    out = tmp_path / name
    clam_dist.run(config_of(out))
    return read_all(out)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_labels_do_not_depend_on_how_rows_are_cut(tmp_path, monkeypatch, missing):
    table = blobs(missing=missing)
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, row_group_size=170)
    keep = {"uri": str(path), "keep": ["id"], "exclude": ["label"]}
    whole = labels_of(tmp_path, "whole", lambda out: settings(path, out, source=keep))
    monkeypatch.setattr("clam_dist.stages.profile.FRAGMENT_ROWS", 400)
    monkeypatch.setattr("clam_dist.data.features.BATCH_ROWS", 97)
    cut = labels_of(tmp_path, "cut", lambda out: settings(path, out, source=keep))
    assert cut["id"].equals(whole["id"])
    # Statistics are merged in another order, so the last bit of the scaling may differ.
    assert np.mean(cut["cluster"].to_numpy() == whole["cluster"].to_numpy()) > 0.995
    assert pq.ParquetFile(tmp_path / "cut/labels/data.parquet").num_row_groups == 18


def test_rows_without_any_value_have_null_labels(tmp_path):
    table = blobs(400).to_pydict()
    for i in range(5):
        table[f"x{i}"][7] = None
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table(table), path)
    out = tmp_path / "out"
    source = {"uri": str(path), "exclude": ["label", "id"]}
    metrics = clam_dist.run(settings(path, out, source=source))
    labels = read_all(out)
    assert labels["cluster"].null_count == labels["distance"].null_count == 1
    assert labels["cluster"][7].as_py() is None
    assert metrics["unlabelled_rows"] == 1
    assert sum(metrics["cluster_sizes"]) == 399


def test_weights_change_the_answer_and_zero_weight_rows_are_labelled(tmp_path):
    table = blobs(600)
    weight = np.ones(600)
    weight[:50] = 0.0
    path = tmp_path / "data.parquet"
    pq.write_table(table.append_column("w", pa.array(weight)), path)
    source = {"uri": str(path), "exclude": ["label", "id"], "weight": "w"}
    metrics = clam_dist.run(settings(path, tmp_path / "out", source=source))
    assert sum(metrics["cluster_sizes"]) == 600
    assert metrics["n_features"] == 5


def test_hive_partitions_and_embeddings(tmp_path):
    generator = np.random.default_rng(0)
    for year in (2020, 2021):
        folder = tmp_path / "data" / f"year={year}"
        folder.mkdir(parents=True)
        vectors = generator.normal(size=(200, 4)) + 5 * (np.arange(200) % 3)[:, None]
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), 4)
        pq.write_table(pa.table({"e": column, "k": np.arange(200)}), folder / "part.parquet")
    out = tmp_path / "out"
    source = {"uri": str(tmp_path / "data"), "keep": ["year", "k"]}
    metrics = clam_dist.run(settings(tmp_path / "data", out, source=source))
    assert metrics["n_features"] == 4
    table = pq.read_table(out / "labels" / "year=2020" / "part.parquet", partitioning=None)
    assert set(table["year"].to_pylist()) == {2020}
    assert table["k"].to_pylist() == list(range(200))


def test_silhouettes_are_written_beside_the_rows_they_are_of(tmp_path):
    table = blobs(2000)
    path = tmp_path / "data.parquet"
    pq.write_table(table, path)
    keep = {"uri": str(path), "keep": ["id"], "exclude": ["label"]}
    out = tmp_path / "out"
    config = settings(
        path, out, source=keep, evaluate={"silhouette_rows": 150, "references": "all"}
    )
    metrics = clam_dist.run(config)
    labels = read_all(out)
    values = np.array(labels["silhouette"].to_pylist(), dtype=object)
    scored = np.flatnonzero([value is not None for value in values])
    assert len(scored) == metrics["silhouette"]["rows"] == 150
    assert metrics["silhouette"]["value"] == pytest.approx(
        np.mean(values[scored].astype(float)), abs=1e-6
    )
    written = pq.read_table(out / "evaluation" / "silhouette.parquet")
    assert written["row"].to_pylist() == scored.tolist()


def test_stratified_references_are_near_the_exact_score(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(blobs(4000), path)
    keep = {"uri": str(path), "exclude": ["label", "id"]}
    exact = clam_dist.run(settings(path, tmp_path / "exact", source=keep))["silhouette"]
    config = settings(path, tmp_path / "near", source=keep, evaluate={"references": 100})
    near = clam_dist.run(config)["silhouette"]
    assert near["references"] == 100
    assert abs(near["value"] - exact["value"]) < max(4 * near["standard_error"], 0.002)


def stop_in(stage):
    def on_event(event):
        if event["event"] == "stage" and event["stage"] == stage and event["status"] == "started":
            raise KeyboardInterrupt

    return on_event


@pytest.mark.parametrize("stage", ["shards", "train", "assign", "evaluate", "report"])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, stage):
    path = tmp_path / "data.parquet"
    pq.write_table(blobs(), path)
    source = {"uri": str(path), "exclude": ["label", "id"]}
    clam_dist.run(settings(path, tmp_path / "whole", source=source))
    config = settings(path, tmp_path / "out", source=source)
    with pytest.raises(KeyboardInterrupt):
        clam_dist.run(config, on_event=stop_in(stage))
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    events = []
    clam_dist.run(config, on_event=events.append)
    reused = [e["stage"] for e in events if e["event"] == "stage" and e["status"] == "reused"]
    assert reused == list(stages.STAGE_NAMES[: stages.STAGE_NAMES.index(stage)])
    assert read_all(tmp_path / "out").equals(read_all(tmp_path / "whole"))


@pytest.mark.slow
def test_sorted_rows_train_as_well_as_shuffled_ones(tmp_path):
    write_demo("vowels", tmp_path / "shuffled.parquet", rows=20_000)
    table = pq.read_table(tmp_path / "shuffled.parquet")
    pq.write_table(table.sort_by("label"), tmp_path / "sorted.parquet")
    values = []
    for name in ("shuffled", "sorted"):
        path = tmp_path / f"{name}.parquet"
        config = settings(
            path,
            tmp_path / name,
            source={"uri": str(path), "label": "label"},
            model={"n_clusters": 9, "beta": [1.0, 3.0]},
            train={"restarts": 4, "epochs": 3},
        )
        values.append(clam_dist.run(config)["silhouette"]["value"])
    assert abs(values[0] - values[1]) < 0.01  # each known to about .001 and of other optima


def test_digits_end_to_end_is_not_below_k_means(tmp_path):
    from sklearn.cluster import KMeans

    write_demo("digits", tmp_path / "digits.parquet")
    path = tmp_path / "digits.parquet"
    config = config_from_dict(
        {
            "source": {"uri": str(path), "label": "label"},
            "model": {"n_clusters": 10, "beta": [0.3, 1.0]},
            "train": {"restarts": 2},
            "output": {"uri": str(tmp_path / "out")},
        }
    )
    metrics = clam_dist.run(config)
    x = load_digits().data
    scaled = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    means = KMeans(10, n_init=3, random_state=0).fit(scaled)
    assert metrics["n_used"] == 10
    assert metrics["silhouette"]["value"] > silhouette_score(scaled, means.labels_) - 0.015


def test_train_rows_trains_on_a_sample_and_labels_all(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(blobs(3000), path)
    source = {"uri": str(path), "exclude": ["label", "id"]}
    events = []
    config = settings(
        path, tmp_path / "out", source=source, train={"rows": 500}, work={"keep": True}
    )
    metrics = clam_dist.run(config, on_event=events.append)
    assert any("500 of 3,000 rows" in event.get("message", "") for event in events)
    assert sum(metrics["cluster_sizes"]) == 3000
    assert np.load(tmp_path / "out/_work/shards/train.x.npy").shape == (500, 5)
    whole = clam_dist.run(settings(path, tmp_path / "whole", source=source))
    assert metrics["silhouette"]["value"] > whole["silhouette"]["value"] - 0.01


def test_storage_options_are_never_written(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(blobs(300), path)
    source = {"uri": str(path), "storage_options": {"auto_mkdir": True, "secret": "hunter2"}}
    events = []
    config = settings(path, tmp_path / "out", source=source, work={"keep": True})
    clam_dist.run(config, on_event=events.append)
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file():
            assert b"hunter2" not in file.read_bytes(), file
    assert "hunter2" not in repr(config) + str(events)
