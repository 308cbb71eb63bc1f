"""Folders that a run is given: nothing of anyone else's is ever removed, and no two runs meet."""

import os
import shutil
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from clam_dist import run
from clam_dist.cli import main
from clam_dist.config import load_config


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 2)) + 4 * (np.arange(300) % 3)[:, None]
    label = pa.array([None] * 300, pa.string())
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "y": label}), folder / "rows.parquet")
    return folder / "rows.parquet"


def config(tmp_path, uri, name="config", **sections) -> str:
    values = {
        "source": {"uri": str(uri)},
        "model": {"n_clusters": 3, "beta": 1.0, "objective": "unmasked", "steps": 3},
        "train": {"restarts": 1, "epochs": 1},
        "output": {"uri": str(tmp_path / "out")},
    }
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


@pytest.mark.parametrize("where", ["mine", "data", "out", ".", "linked"])
def test_a_work_folder_that_holds_other_things_keeps_them(tmp_path, data, where):
    work = tmp_path / where
    if where == "mine":
        work.mkdir()
        (work / "thesis.txt").write_text("mine")
        (work / "manifests").mkdir()
    if where == "linked":
        (tmp_path / "disk").mkdir()
        work.symlink_to(tmp_path / "disk")
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    settings = config(tmp_path, data, work={"uri": str(work)})
    for force in ([], ["--force"]):
        assert main(["run", settings, *force]) == 0
        assert all(path.exists() for path in before)
        assert (tmp_path / "out" / "labels" / "rows.parquet").exists()
        left = [p.name for p in work.iterdir() if p.name.startswith("clam_dist-")]
        assert left == []


@pytest.mark.parametrize("name", ["labels", "model/deep"])
def test_a_work_folder_in_the_results_is_refused(tmp_path, data, capfd, name):
    settings = config(tmp_path, data, work={"uri": str(tmp_path / "out" / name)})
    assert main(["run", settings]) == 2
    assert "work.uri" in capfd.readouterr().err


def test_two_outputs_may_share_a_work_folder(tmp_path, data):
    shared = {"uri": str(tmp_path / "scratch")}
    alone = config(tmp_path, data, "alone", output={"uri": str(tmp_path / "alone")})
    assert main(["run", alone, "--set", "seed=1"]) == 0
    codes = {}

    def one(seed):
        out = {"uri": str(tmp_path / f"out-{seed}")}
        settings = config(tmp_path, data, f"config-{seed}", output=out, work=shared)
        run(load_config(settings, [f"seed={seed}"]))
        codes[seed] = 0

    threads = [threading.Thread(target=one, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == {1: 0, 2: 0}
    together = pq.read_table(tmp_path / "out-1" / "labels" / "rows.parquet")
    assert together.equals(pq.read_table(tmp_path / "alone" / "labels" / "rows.parquet"))


def test_a_failed_run_leaves_an_empty_output_folder_as_it_was(tmp_path, capfd):
    (tmp_path / "out").mkdir()
    assert main(["run", config(tmp_path, tmp_path / "nowhere.parquet")]) == 3
    assert os.listdir(tmp_path / "out") == []
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").rmdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert main(["run", config(tmp_path, tmp_path / "nowhere.parquet")]) == 3
    assert "nowhere.parquet" in capfd.readouterr().err


def test_an_output_in_the_source_folder_is_refused(tmp_path, data, capfd):
    settings = config(tmp_path, data.parent, output={"uri": str(data.parent / "out")})
    assert main(["run", settings]) == 2
    assert "lies in the source folder" in capfd.readouterr().err
    assert os.listdir(data.parent) == ["rows.parquet"]


@pytest.mark.parametrize("lost", ["labels", "model", "metrics.json", "run.json", "report.html"])
def test_a_finished_run_that_lost_results_is_told_and_made_again(tmp_path, data, capfd, lost):
    settings = config(tmp_path, data)
    assert main(["run", settings]) == 0
    path = tmp_path / "out" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["run", settings]) == 2
    said = capfd.readouterr().err
    assert lost in said
    assert "--force" in said
    assert main(["run", settings, "--force"]) == 0
    assert path.exists()


def test_a_source_that_changed_after_the_labels_is_noticed(tmp_path, data, capfd):
    def stop(event):
        if event.get("stage") == "evaluate" and event.get("status") == "started":
            raise KeyboardInterrupt

    settings = config(tmp_path, data)
    with pytest.raises(KeyboardInterrupt):
        run(load_config(settings, []), on_event=stop)
    table = pq.read_table(data)
    pq.write_table(table.slice(0, 200), data)
    assert main(["run", settings]) == 0
    assert "'rows.parquet'; the run starts over" in capfd.readouterr().err
    assert pq.read_table(tmp_path / "out/labels/rows.parquet").num_rows == 200


def test_a_killed_run_takes_files_that_came_since(tmp_path, data, capfd):
    def stop(event):
        if event.get("stage") == "evaluate" and event.get("status") == "started":
            raise KeyboardInterrupt

    folder = tmp_path / "folder"
    folder.mkdir()
    table = pq.read_table(data)
    pq.write_table(table, folder / "a.parquet")
    pq.write_table(table, folder / "b.parquet")
    settings = config(tmp_path, folder)
    with pytest.raises(KeyboardInterrupt):
        run(load_config(settings, []), on_event=stop)
    (folder / "b.parquet").rename(folder / "c.parquet")
    assert main(["run", settings]) == 0
    assert "'b.parquet' and 1 more; the run starts over" in capfd.readouterr().err
    names = sorted(path.name for path in (tmp_path / "out/labels").iterdir())
    assert names == ["a.parquet", "c.parquet"]


def test_a_label_column_of_nulls_agrees_with_nothing(tmp_path, data):
    metrics = run(load_config(config(tmp_path, data), ["source.label=y"]))
    assert metrics["nmi"] is None
    assert metrics["ari"] is None


def test_passwords_in_addresses_are_never_shown(tmp_path, data, capfd):
    settings = config(tmp_path, data)
    code = main(["run", settings, "--set", "source.uri=s3://me:hunter2@bucket/rows.parquet"])
    assert code != 0
    assert main(["inspect", str(data), "--set", "model.secret=hunter2"]) == 2
    said = capfd.readouterr()
    assert "hunter2" not in said.err + said.out
