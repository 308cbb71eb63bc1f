"""Several source domains from config to labels: each training batch is of one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import clam_dist
from clam_dist.config import config_from_dict
from clam_dist.errors import ConfigError, DataError
from clam_dist.launch.serial import SerialExecutor
from clam_dist.train import loop

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from thread_ranks import run_ranks

SHIFT = 40.0
"""Between domains, far more than a domain is wide: any row tells which it is of."""
TRAINED = 1000
"""More rows than a batch of the search has."""


def blobs(rows: int = 9000) -> pa.Table:
    """Three clusters in each of three shifted domains, in any order."""
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, rows)
    site = generator.choice(3, rows, p=[0.5, 0.3, 0.2])
    x = np.array([[0, 0, 0], [6, 0, 3], [0, 6, -3]])[truth] + generator.normal(size=(rows, 3))
    x[:, 2] += SHIFT * site
    columns = {f"x{i}": x[:, i] for i in range(3)}
    return pa.table(columns | {"label": truth, "site": np.array(["c", "a", "b"])[site]})


def config(folder: Path, name: str, kind: str = "tdcm", **sections: dict[str, Any]) -> Any:
    values: dict[str, Any] = {
        "source": {"uri": str(folder / "rows.parquet"), "label": "label", "domain": "site"},
        "prepare": {"scaling": "none"},
        "model": {"kind": kind, "n_clusters": 3},
        "train": {"epochs": 2, "batch_rows": 4096, "restarts": 1},
        "output": {"uri": str(folder / name)},
        "evaluate": {"silhouette_rows": 500, "references": 500},
        "work": {"keep": True},
        "cluster": {"kind": "serial"},
    }
    if kind == "tdcm":
        values["model"] |= {"pretrain_epochs": 2, "latent": 2}
    for section, keys in sections.items():
        values[section] = values[section] | keys
    return config_from_dict(values)


class TwoRanks(SerialExecutor):
    """Its gangs are two ranks, on threads."""

    def gang(self, function, payload, *, world_size=None, on_event=None):
        assert function is loop.train_rank
        assert world_size == 2
        return run_ranks(payload, 2, on_event)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("domains")
    pq.write_table(blobs(), path / "rows.parquet", row_group_size=1500)
    return path


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Sites of the rows of each batch of more rows than the search's, as trained on."""
    seen: list[np.ndarray] = []
    prefetch = loop.prefetch

    def watched(steps, device):
        for step, parts in prefetch(steps, device):
            rows = np.concatenate([np.asarray(x) for _, x, _ in parts])
            if len(rows) > TRAINED:
                seen.append(np.round(rows[:, 2] / SHIFT).astype(int))
            yield step, parts

    monkeypatch.setattr(loop, "prefetch", watched)
    return seen


def parameters(output: Path) -> dict[str, np.ndarray]:
    return load_file(output / "_work" / "train" / "model.safetensors")


def labels(output: Path) -> np.ndarray:
    return pq.read_table(output / "labels" / "rows.parquet")["cluster"].to_numpy()


def test_batches_of_one_domain_and_the_same_bits_on_two_ranks(
    folder: Path, batches: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = clam_dist.run(config(folder, "one"))
    assert metrics["n_rows"] == 9000
    # Sites of 4,500, 2,700 and 1,800 rows: 2, 1 and 1 steps an epoch, of pretraining and training.
    assert [np.unique(sites).size for sites in batches] == [1] * len(batches)
    assert len(batches) == 4 * 4
    sites = np.concatenate(batches[:4])
    assert np.bincount(sites).tolist() == np.bincount(np.concatenate(batches[-4:])).tolist()
    assert len(sites) == 9000
    text = (folder / "one/_work/manifests/profile.json").read_text(encoding="utf-8")
    found = json.loads(text)["data"]["domains"]
    counts = [blobs()["site"].to_pylist().count(site) for site in "abc"]
    assert found == {"column": "site", "values": ["a", "b", "c"], "rows": counts}
    record = json.loads((folder / "one/run.json").read_text(encoding="utf-8"))
    assert record["source"]["domains"] == found
    page = (folder / "one/report.html").read_text(encoding="utf-8")
    assert f"a ({counts[0]:,} rows), b ({counts[1]:,} rows), c ({counts[2]:,} rows)" in page

    monkeypatch.setattr("clam_dist.stages.pipeline.make_executor", lambda *_, **__: TwoRanks(1))
    clam_dist.run(config(folder, "two"))
    one, two = parameters(folder / "one"), parameters(folder / "two")
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)
    np.testing.assert_array_equal(labels(folder / "one"), labels(folder / "two"))


def test_without_the_key_batches_mix_the_domains(folder: Path, batches: list[np.ndarray]) -> None:
    source = {"domain": None, "exclude": ["site"]}
    clam_dist.run(config(folder, "mixed", "clam", source=source))
    assert [np.unique(sites).size for sites in batches] == [3] * len(batches)
    assert batches


@pytest.mark.parametrize("kind", ["clam", "minibatch_kmeans", "kmeans"])
def test_every_kind_of_model(folder: Path, batches: list[np.ndarray], kind: str) -> None:
    metrics = clam_dist.run(config(folder, kind, kind))
    assert metrics["n_used"] == 3
    assert metrics["unlabelled_rows"] == 0
    assert all(np.unique(sites).size == 1 for sites in batches)
    assert bool(batches) == (kind == "clam")


def test_a_sample_of_rows_to_train_on_keeps_its_domains(
    folder: Path, batches: list[np.ndarray]
) -> None:
    clam_dist.run(config(folder, "rows", "clam", train={"rows": 6000}))
    assert len(batches) == 2 * 3
    assert sum(map(len, batches)) == 2 * 6000
    assert all(np.unique(sites).size == 1 for sites in batches)


def test_one_domain_changes_nothing_and_is_told(tmp_path: Path) -> None:
    rows = blobs(600)
    one = rows.set_column(4, "site", pa.array(["a"] * 600))
    pq.write_table(one, tmp_path / "rows.parquet")
    events: list[Any] = []
    train = {"batch_rows": 64}
    clam_dist.run(config(tmp_path, "one", "clam", train=train), on_event=events.append)
    said = [event["message"] for event in events if event["event"] == "warning"]
    assert any("'site' holds one value only" in message for message in said)
    source = {"domain": None, "exclude": ["site"]}
    clam_dist.run(config(tmp_path, "none", "clam", train=train, source=source))
    for name, value in parameters(tmp_path / "one").items():
        np.testing.assert_array_equal(value, parameters(tmp_path / "none")[name], err_msg=name)
    np.testing.assert_array_equal(labels(tmp_path / "one"), labels(tmp_path / "none"))


def test_columns_that_cannot_be_domains(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.domain: column 'x0' is of type double; dom"):
        clam_dist.run(config(folder, "double", source={"domain": "x0"}))
    with pytest.raises(ConfigError, match=r"source\.domain: no column 'sit'; did you mean 'site'"):
        clam_dist.run(config(folder, "none", source={"domain": "sit"}))


def test_too_many_domains(tmp_path: Path) -> None:
    rows = blobs(600).set_column(4, "site", pa.array(np.arange(600) % 70))
    pq.write_table(rows, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"source\.domain: column 'site' has at least 70 distinct"):
        clam_dist.run(config(tmp_path, "many"))
