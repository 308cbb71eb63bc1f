"""A model on another source: the same rows get the same labels, and a misfit is told."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clam_dist
from clam_dist.cli import main
from clam_dist.config import config_from_dict


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
