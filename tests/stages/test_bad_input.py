"""Bad input through the command: the exit code, one clear message, nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from clam_dist.cli import main

QUICK = {
    "model": {"n_clusters": 3, "beta": 1.0, "objective": "unmasked", "steps": 3},
    "train": {"restarts": 1, "epochs": 1},
}


def rows(n=300, seed=0):
    generator = np.random.default_rng(seed)
    return pa.table({"a": generator.normal(size=n), "b": generator.normal(size=n)})


def config(folder: Path, uri, **changes) -> str:
    values = {"source": {"uri": str(uri)}, "output": {"uri": str(folder / "out")}, **QUICK}
    for section, keys in changes.items():
        values[section] = {**values.get(section, {}), **keys}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def ends(capfd, arguments, code, *parts):
    """Run the command: this exit code, one message holding ``parts``, never a traceback."""
    assert main(arguments) == code
    error = capfd.readouterr().err
    for part in parts:
        assert part in error, error
    assert "Traceback" not in error
    assert error.count("error:") == 1
    return error


def nothing_half_written(folder: Path):
    out = folder / "out"
    assert not (out / "_SUCCESS").exists()
    assert not (out / "labels").exists() or not list((out / "labels").rglob("[!.]*.parquet"))
    assert not list(folder.rglob("*.tmp"))


def cut_off(folder):
    path = folder / "data.parquet"
    pq.write_table(rows(), path)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def broken_page(folder):
    path = folder / "data.parquet"
    pq.write_table(rows(5000), path, compression="snappy", row_group_size=2500)
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    content = bytearray(path.read_bytes())
    start = column.data_page_offset
    content[start : start + 200] = b"\xff" * 200
    path.write_bytes(content)
    return path


def missing_column(folder):
    pq.write_table(rows(), folder / "one.parquet")
    pq.write_table(rows().drop(["b"]), folder / "two.parquet")
    return folder


def other_type(folder):
    pq.write_table(rows(), folder / "one.parquet")
    table = rows().set_column(1, "b", pa.array(["x"] * 300))
    pq.write_table(table, folder / "two.parquet")
    return folder


def duplicate_columns(folder):
    table = rows()
    pq.write_table(
        pa.Table.from_arrays([table["a"], table["b"]], names=["a", "a"]), folder / "data.parquet"
    )
    return folder / "data.parquet"


def infinities(folder):
    values = np.random.default_rng(0).normal(size=300)
    values[123] = np.inf
    pq.write_table(rows().append_column("c", pa.array(values)), folder / "data.parquet")
    return folder / "data.parquet"


def empty_folder(folder):
    (folder / "data").mkdir()
    return folder / "data"


def zero_rows(folder):
    pq.write_table(rows().slice(0, 0), folder / "data.parquet")
    return folder / "data.parquet"


def not_parquet(folder):
    (folder / "data.parquet").write_text("a,b\n1,2\n" * 100)
    return folder / "data.parquet"


def no_feature(folder):
    pq.write_table(pa.table({"name": ["x", "y"] * 50}), folder / "data.parquet")
    return folder / "data.parquet"


def ragged_embedding(folder):
    values = [[1.0, 2.0]] * 100
    values[77] = [1.0]
    pq.write_table(pa.table({"e": pa.array(values, pa.list_(pa.float32()))}), folder / "d.parquet")
    return folder / "d.parquet"


def all_missing(folder):
    column = pa.array([None] * 50, pa.float64())
    pq.write_table(pa.table({"a": column, "b": column}), folder / "data.parquet")
    return folder / "data.parquet"


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda folder: folder / "nowhere.parquet", ["nowhere.parquet"]),
        (empty_folder, ["data"]),
        (zero_rows, ["data.parquet", "no rows"]),
        (not_parquet, ["data.parquet", "Parquet"]),
        (cut_off, ["data.parquet"]),
        (broken_page, ["data.parquet", "row group 1", "'b'"]),
        (missing_column, ["two.parquet", "'b'"]),
        (other_type, ["two.parquet", "'b'"]),
        (duplicate_columns, ["data.parquet", "'a'"]),
        (no_feature, ["name"]),
        (infinities, ["data.parquet", "row group 0", "'c'", "123"]),
        (ragged_embedding, ["d.parquet", "row group 0", "77"]),
        (all_missing, ["missing"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_bad_data_ends_with_3(tmp_path, capfd, make, parts):
    uri = make(tmp_path)
    work = tmp_path / "run"
    work.mkdir()
    ends(capfd, ["run", config(work, uri)], 3, *parts)
    nothing_half_written(work)


def test_kept_column_with_a_reserved_name(tmp_path, capfd):
    path = tmp_path / "data.parquet"
    pq.write_table(rows().append_column("cluster", pa.array(range(300))), path)
    settings = config(tmp_path, path, source={"uri": str(path), "keep": ["cluster"]})
    ends(capfd, ["run", settings], 2, "source.keep", "'cluster'")


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (np.arange(5.0), ["7 clusters", "5 rows"]),
        (np.repeat([1.0, 2.0, 3.0], 20), ["7 clusters", "3 distinct"]),
    ],
    ids=["rows", "distinct rows"],
)
def test_more_clusters_than_there_can_be(tmp_path, capfd, values, parts):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"a": values}), path)
    ends(capfd, ["run", config(tmp_path, path, model={"n_clusters": 7})], 3, *parts)
    nothing_half_written(tmp_path)


def test_more_clusters_than_distinct_rows_of_a_sample_warns_and_runs(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("clam_dist.stages.shards.SAMPLE_ROWS", 256)
    path = tmp_path / "data.parquet"
    # 256 sampled rows of 20 000 hold none or few of the rare values.
    values = np.zeros(20_000)
    values[:3] = [1, 2, 3]
    pq.write_table(pa.table({"a": values, "b": values}), path)
    assert main(["run", config(tmp_path, path)]) == 0
    assert "distinct" in capfd.readouterr().err


def test_constant_and_all_null_features_are_warned_of_and_harmless(tmp_path, capfd):
    path = tmp_path / "data.parquet"
    table = rows().append_column("same", pa.array([7] * 300))
    table = table.append_column("void", pa.array([None] * 300, pa.float64()))
    pq.write_table(table, path)
    assert main(["run", config(tmp_path, path)]) == 0
    said = capfd.readouterr().err
    assert "'same'" in said
    assert "'void'" in said
    first = pq.read_table(tmp_path / "out" / "labels" / "data.parquet")
    assert first["cluster"].null_count == 0
    # The same rows without those columns get the same clusters.
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(rows(), other / "data.parquet")
    assert main(["run", config(other, other / "data.parquet")]) == 0
    second = pq.read_table(other / "out" / "labels" / "data.parquet")
    agree = np.mean(first["cluster"].to_numpy() == second["cluster"].to_numpy())
    assert agree > 0.98


def test_an_output_that_is_not_ours_is_refused(tmp_path, capfd):
    path = tmp_path / "data.parquet"
    pq.write_table(rows(), path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    ends(capfd, ["run", config(tmp_path, path)], 2, "out", "thesis.txt")
    assert os.listdir(tmp_path / "out") == ["thesis.txt"]


def test_a_finished_output_is_done_and_another_config_is_refused_without_force(tmp_path, capfd):
    path = tmp_path / "data.parquet"
    pq.write_table(rows(), path)
    settings = config(tmp_path, path)
    assert main(["run", settings]) == 0
    stamp = (tmp_path / "out" / "labels" / "data.parquet").stat().st_mtime_ns
    assert main(["run", settings]) == 0
    assert (tmp_path / "out" / "labels" / "data.parquet").stat().st_mtime_ns == stamp
    capfd.readouterr()
    ends(capfd, ["run", settings, "--set", "seed=1"], 2, "seed", "--force")
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert main(["run", settings, "--set", "seed=1", "--force"]) == 0


def test_a_finished_output_of_other_data_is_refused(tmp_path, capfd):
    path = tmp_path / "data.parquet"
    pq.write_table(rows(), path)
    settings = config(tmp_path, path)
    assert main(["run", settings]) == 0
    capfd.readouterr()
    pq.write_table(rows(400, seed=1), path)
    ends(capfd, ["run", settings], 2, "data.parquet", "--force")


COMMAND = [sys.executable, "-m", "clam_dist.cli", "run"]
SLOW = {"train": {"restarts": 4, "epochs": 100_000}, "model": {"beta": "auto"}}


def wait_for(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "did not come to pass"
        time.sleep(0.05)


@pytest.fixture
def training(tmp_path):
    """A run in its own process, in its training; killed at the end."""
    path = tmp_path / "data.parquet"
    pq.write_table(rows(3000), path)
    settings = config(tmp_path, path, **SLOW)
    process = subprocess.Popen(
        [*COMMAND, settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: (tmp_path / "out/_work/train/current.json").exists() or process.poll())
    yield process, settings, path
    process.kill()
    process.communicate()


def test_an_output_whose_owner_lives_is_refused(training, capfd):
    process, settings, _ = training
    ends(capfd, ["run", settings], 2, str(process.pid))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-C", "SIGTERM"]
)
def test_a_stop_is_clean_and_resumable(training, tmp_path, number, code):
    process, _, path = training
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in error
    nothing_half_written(tmp_path)
    assert (tmp_path / "out/_work/train/current.json").exists()
    # It goes on from there; with few epochs left to do it ends.
    assert main(["run", config(tmp_path, path)]) == 0


def test_a_killed_run_starts_over_where_its_source_has_changed(training, tmp_path, capfd):
    process, _, path = training
    process.kill()
    process.communicate()
    pq.write_table(rows(3000, seed=9), path)
    assert main(["run", config(tmp_path, path)]) == 0
    said = capfd.readouterr().err
    assert "changed since this unfinished run profiled it: 'data.parquet'; the run starts" in said
    assert pq.read_metadata(tmp_path / "out/labels/data.parquet").num_rows == 3000


def test_a_full_disk_ends_with_4_and_leaves_nothing(tmp_path, capfd):
    path = tmp_path / "data.parquet"
    pq.write_table(rows(), path)
    settings = config(tmp_path, path)
    ends(capfd, ["run", settings, "--set", "work.size_limit=1KiB"], 4, "work.size_limit")
    nothing_half_written(tmp_path)


def test_a_disk_that_fills_while_labels_are_written(tmp_path, capfd, monkeypatch):
    path = tmp_path / "data.parquet"
    pq.write_table(rows(), path)
    settings = config(tmp_path, path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clam_dist.data.writer._ParquetFile.write_row_group", full)
    ends(capfd, ["run", settings], 4, "No space left", "free")
    nothing_half_written(tmp_path)
    monkeypatch.undo()
    assert main(["run", settings]) == 0
