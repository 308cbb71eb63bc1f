"""A model on another source: the same rows get the same labels, and a misfit is told."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import clam_dist
from clam_dist.cli import main
from clam_dist.config import config_from_dict
from clam_dist.errors import ConfigError
from clam_dist.models.bundle import load_bundle
from clam_dist.models.rows import to_tensors
from clam_dist.stages.apply import apply_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, 900)
    x = generator.normal(size=(900, 3)) + 5 * truth[:, None]
    x[generator.random(x.shape) < 0.1] = np.nan
    colours = pa.array(np.array(["red", "green", "blue"])[truth]).dictionary_encode()
    columns = {f"x{i}": pa.array(x[:, i], from_pandas=True) for i in range(3)}
    table = pa.table(columns | {"colour": colours, "id": np.arange(900), "truth": truth})
    pq.write_table(table, folder / "data.parquet")
    config = {
        "source": {"uri": str(folder / "data.parquet"), "keep": ["id"], "label": "truth"},
        "model": {"n_clusters": 3, "beta": 1.0, "objective": "masked"},
        "train": {"restarts": 1, "epochs": 3},
        "output": {"uri": str(folder / "out")},
    }
    metrics = clam_dist.run(config_from_dict(config))
    return folder, table, metrics


def assign(folder, source, output, *options):
    model = str(folder / "out" / "model")
    return main(
        ["assign", "--model", model, "--source", str(source), "--output", str(output), *options]
    )


def test_the_same_rows_get_the_same_labels_in_any_files(trained, tmp_path, capsys):
    folder, table, metrics = trained
    (tmp_path / "new").mkdir()
    pq.write_table(table.slice(500), tmp_path / "new" / "a.parquet")
    pq.write_table(table.slice(0, 500), tmp_path / "new" / "b.parquet", row_group_size=64)
    out = tmp_path / "out"
    keep = ["--set", "source.keep=[id]", "--set", "source.label=truth", "--json"]
    assert assign(folder, tmp_path / "new", out, *keep) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cluster_sizes"] == metrics["cluster_sizes"]
    assert said["nmi"] == pytest.approx(metrics["nmi"])
    first = pq.read_table(folder / "out" / "labels" / "data.parquet")
    parts = [pq.read_table(out / "labels" / name) for name in ("b.parquet", "a.parquet")]
    second = pa.concat_tables(parts)
    assert second["id"].equals(first["id"])
    assert second["cluster"].to_pylist() == first["cluster"].to_pylist()
    assert second["silhouette"].null_count == 900
    assert (out / "_SUCCESS").exists()
    assert not (out / "_work").exists()
    assert assign(folder, tmp_path / "new", out, *keep) == 0  # already done


def test_a_source_that_does_not_fit_is_told_by_column(trained, tmp_path, capfd):
    folder, table, _ = trained
    other = table.rename_columns(["x0", "x_1", "x2", "colour", "id", "truth"])
    other = other.set_column(2, "x2", pa.array([[1.0]] * 900, pa.list_(pa.float64())))
    pq.write_table(other, tmp_path / "other.parquet")
    assert assign(folder, tmp_path / "other.parquet", tmp_path / "out") == 3
    said = capfd.readouterr().err
    assert "'x1' is missing; the nearest is 'x_1'" in said
    assert "'x2' is embedding, not numeric" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--set", "model.n_clusters=4"], "only keys under source"),
        (["--model", "/nowhere"], "no model at '/nowhere'"),
    ],
)
def test_wrong_commands_end_with_2(trained, tmp_path, capfd, options, part):
    folder, _, _ = trained
    code = assign(folder, folder / "data.parquet", tmp_path / "out", *options)
    assert code == 2
    assert part in capfd.readouterr().err


@pytest.fixture(scope="module")
def transferable(tmp_path_factory):
    """A model that finds its centroids itself, from one source, and a shifted second source."""
    folder = tmp_path_factory.mktemp("transferable")
    generator = np.random.default_rng(3)
    for name, shift in (("old", 0.0), ("new", 1.5)):
        truth = generator.integers(0, 3, 700)
        x = 4 * np.eye(3, 4)[truth] + generator.normal(size=(700, 4)) + shift
        x[generator.random(x.shape) < 0.05] = np.nan
        x[11] = np.nan
        table = pa.table({f"x{i}": pa.array(x[:, i], from_pandas=True) for i in range(4)})
        weighted = table.append_column("w", pa.array(generator.uniform(0.5, 2.0, 700)))
        pq.write_table(weighted, folder / f"{name}.parquet", row_group_size=150)
    config = {
        "source": {"uri": str(folder / "old.parquet"), "exclude": ["w"]},
        "model": {"kind": "tdcm", "n_clusters": 3, "latent": 3, "pretrain_epochs": 1},
        "train": {"restarts": 1, "epochs": 1},
        "output": {"uri": str(folder / "out")},
        "cluster": {"kind": "serial"},
    }
    clam_dist.run(config_from_dict(config))
    return folder


def test_a_model_adapts_to_a_new_source_by_passes_over_all_of_its_rows(transferable, tmp_path):
    before = load_bundle(transferable / "out")
    source = {"uri": str(transferable / "new.parquet"), "weight": "w"}
    config = {
        "source": source,
        "model": {"n_clusters": 2},
        "evaluate": {"columns": ["latent"]},
        "output": {"uri": str(tmp_path / "out")},
        "cluster": {"kind": "serial"},
    }
    metrics = apply_model(transferable / "out", config_from_dict(config), adapt=True)
    table = pq.read_table(transferable / "new.parquet")
    x = clam_dist.load_model(transferable / "out").encode(table)
    known = ~np.isnan(x).all(axis=1)
    rows, observed = to_tensors(before.scale_rows(x[known]))
    weight = torch.from_numpy(table["w"].to_numpy()[known])
    stacked = {name: value[None] for name, value in before.parameters.items()}
    expected = before.model().adapt(stacked, lambda: [(rows, weight, observed)])
    after = load_bundle(tmp_path / "out")
    assert set(after.parameters) == set(before.parameters)
    for name, value in after.parameters.items():
        wanted = expected.get(name, stacked[name])[0]
        torch.testing.assert_close(value, wanted, atol=1e-5, rtol=1e-5)
    moved = (after.parameters["prototypes"] - before.parameters["prototypes"]).abs().max()
    assert moved > 1e-3
    labels = pq.read_table(tmp_path / "out" / "labels" / "new.parquet")
    assert labels["cluster"].to_pylist()[11] is None
    predicted, _ = clam_dist.load_model(tmp_path / "out").predict(table)
    np.testing.assert_array_equal(labels["cluster"].fill_null(-1).to_numpy(), predicted)
    assert metrics["cluster_sizes"] == after.dataset["cluster_sizes"].values.tolist()
    latent = clam_dist.load_model(tmp_path / "out").transform(table)[0]
    np.testing.assert_array_equal(labels["latent"].to_pylist()[0], latent)

    # Without adapting it is another result, not the one that is there already.
    with pytest.raises(ConfigError, match="--force"):
        apply_model(transferable / "out", config_from_dict(config))


def test_a_model_that_cannot_adapt_says_so_before_any_work(trained, tmp_path):
    folder, _, _ = trained
    config = {
        "source": {"uri": str(folder / "data.parquet")},
        "model": {"n_clusters": 2},
        "output": {"uri": str(tmp_path / "out")},
    }
    with pytest.raises(ConfigError, match="--adapt: the prototypes of a clam model are trained"):
        apply_model(folder / "out", config_from_dict(config), adapt=True)
    config["evaluate"] = {"columns": ["reconstruction"]}
    with pytest.raises(ConfigError, match="a clam model cannot give 'reconstruction'"):
        apply_model(folder / "out", config_from_dict(config))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_the_folder_of_a_training_run_is_refused(trained, capsys, options):
    folder, _, _ = trained
    before = (folder / "out" / "metrics.json").read_bytes()
    assert assign(folder, folder / "data.parquet", folder / "out", *options) == 2
    said = capsys.readouterr().err
    assert "holds the results of a training run" in said
    assert said.count("\n") == 1
    assert (folder / "out" / "metrics.json").read_bytes() == before
