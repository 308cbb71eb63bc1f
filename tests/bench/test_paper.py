"""The benchmark of the paper's table runs, on few rows, and chooses what it says it chooses."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location(
        "bench_paper", Path(__file__).with_name("paper.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """A folder with ``zoo.parquet``: 90 rows of three groups, one feature constant."""
    generator = np.random.default_rng(0)
    classes = np.arange(90) % 3
    x = generator.normal(size=(90, 4)) + 6.0 * np.eye(3, 4)[classes]
    x[:, 3] = 2.0
    table = {f"x{column}": x[:, column] for column in range(4)}
    pq.write_table(pa.table(table | {"label": classes.astype(str)}), tmp_path / "zoo.parquet")
    return tmp_path


def test_json(paper: ModuleType, blobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper.main(["--data", str(blobs), "--set", "zoo", "--budget", "tiny", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["guard"]) for row in rows] == [
        ("k-means", ""),
        ("spectral", ""),
        ("agglomerative", ""),
        ("ClAM", "off"),
        ("ClAM", "on"),
        ("ClAM (8)", "off"),
        ("ClAM (8)", "on"),
        ("weighted ClAM", "off"),
        ("weighted ClAM", "on"),
        ("either", "off"),
        ("either", "on"),
    ]
    for choice, either in (("off", rows[-2]), ("on", rows[-1])):
        both = [row for row in rows if row["method"][:4] == "ClAM" and row["guard"] == choice]
        assert either["silhouette"] == max(row["silhouette"] for row in both)
    assert rows[0]["nmi"] == 1.0
    assert rows[0]["paper"] == 0.374
    for row in rows:
        assert row["silhouette"] <= 1.0
        assert row["standard_error"] is None
        if row["guard"] == "on":
            assert row["n_used"] == row["k"] == 3
            # k-means itself is among the candidates.
            assert row["silhouette"] >= rows[0]["silhouette"] - 1e-6
        if row["guard"] == "off":
            assert row["candidates"] >= 2 * len(paper.TINY.scales) * paper.TINY.restarts


def test_table(paper: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    paper.main(["--set", "iris", "--budget", "tiny", "--rows", "60", "--methods", "k-means,ClAM"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        ["iris", "k-means"],
        ["iris", "ClAM"],
        ["iris", "ClAM"],
    ]
    assert "T 3" in lines[-1]


def test_scores_are_those_of_scikit_learn(paper: ModuleType) -> None:
    data = paper.load("iris", None, None)
    labels = np.arange(len(data.x)) % 3
    row = paper.scored(data, "ClAM", paper.Clustering(labels, {}, 1), 0.0)
    assert row["silhouette"] == pytest.approx(silhouette_score(data.x, labels), abs=1e-5)
    assert row["nmi"] == pytest.approx(normalized_mutual_info_score(data.classes, labels))
    assert row["ari"] == pytest.approx(adjusted_rand_score(data.classes, labels))


def test_each_choice_is_the_greatest_of_its_candidates(paper: ModuleType) -> None:
    """What is kept labels the rows as when it was scored; without the guard never less."""
    data = paper.load("wine", None, None)
    scored: list[tuple[float, int]] = []
    recorder_score = paper.Recorder.score

    class Watched(paper.Recorder):
        def score(self, x, labelings, clusters, *others, **named):  # type: ignore[no-untyped-def]
            scores = recorder_score(self, x, labelings, clusters, *others, **named)
            used = [len(np.unique(labels)) for labels in labelings]
            scored.extend((value, n) for (value, _), n in zip(scores, used, strict=True))
            return scores

    paper.Recorder = Watched
    budget = replace(paper.TINY, scales=(0.05, 64.0), updates=40, learning_rates=(0.03, 0.3))
    found = paper.clam(data, "ClAM", budget, 5.0, 0.2, 1)
    values = {one.choice: paper.silhouette(data, one.labels)[0] for one in found}
    assert found[0].candidates == len(scored)
    greatest = max(value for value, _ in scored if value == value)
    assert values["off"] == pytest.approx(greatest, abs=1e-4)
    assert values["off"] >= values["on"]
    assert {round(one.settings["beta"] * 5.0, 6) for one in found} <= {0.05, 64.0}


def test_large_sets_leave_out_what_needs_a_matrix_of_n_by_n(paper: ModuleType) -> None:
    data = paper.load("iris", None, None)
    paper.SQUARE_ROWS, paper.EXACT_ROWS = 100, 80
    rows = list(paper.measure(data, paper.TINY, ("k-means", "spectral", "ClAM")))
    assert "150 rows" in rows[1]["skipped"]
    assert "150 rows" in paper.line(rows[1])
    assert rows[0]["standard_error"] > 0


def test_a_set_that_is_not_there_says_so(paper: ModuleType) -> None:
    with pytest.raises(SystemExit, match="zoo: give --data"):
        paper.main(["--set", "zoo", "--budget", "tiny"])


@pytest.mark.skipif(
    not (SHARED / "ecoli.parquet").exists(),
    reason=f"needs the data sets that are not shipped with the project, in {SHARED.name}",
)
def test_ecoli_beats_kmeans(paper: ModuleType) -> None:
    """Even a tiny search: .331 against .262 in the paper."""
    data = paper.load("ecoli", SHARED, None)
    assert (data.x.shape, data.k) == ((336, 7), 8)
    budget = replace(paper.TINY, starts=20, scales=(1.5, 5.0), restarts=4, updates=200)
    rows = list(paper.measure(data, budget, ("k-means", "ClAM")))
    assert rows[0]["silhouette"] == pytest.approx(0.262, abs=0.02)
    assert rows[1]["silhouette"] > rows[0]["silhouette"] + 0.03
