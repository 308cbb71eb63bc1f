"""Shards and samples on disk against the whole table encoded, scaled and hashed at once."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clam_dist.data.domains import Domains
from clam_dist.data.features import Feature, FeatureSchema
from clam_dist.data.parquet import open_parquet
from clam_dist.data.samples import SampleFile, merge_samples
from clam_dist.data.sampling import row_hash
from clam_dist.data.sharding import ShardTaskResult, write_shards
from clam_dist.data.shards import disk_needed, plan_shards
from clam_dist.data.source import Source
from clam_dist.data.statistics import Scaling
from clam_dist.errors import DataError, RunError

D = 3
CENTER, SCALE = np.array([1.0, -2.0, 0.5]), np.array([2.0, 0.5, 1.0])
SCHEMA = FeatureSchema(tuple(Feature(f"f{i}", "numeric", "double", 1) for i in range(D)))
SCALING = Scaling(CENTER, SCALE, "standard")


def table_of(n: int, holes: float = 0.0, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, D))
    x[rng.random((n, D)) < holes] = np.nan
    columns = {f"f{i}": pa.array(x[:, i], from_pandas=True) for i in range(D)}
    return pa.table({**columns, "weight": rng.random(n)})


def write_source(folder: Path, sizes: list[list[int]], holes: float = 0.0) -> Source:
    """Files ``0.parquet``, ... with row groups of the given sizes."""
    folder.mkdir(exist_ok=True)
    for i, groups in enumerate(sizes):
        table = table_of(sum(groups), holes, seed=i)
        with pq.ParquetWriter(folder / f"{i}.parquet", table.schema) as writer:
            start = 0
            for rows in groups:
                writer.write_table(table.slice(start, rows), max(1, rows))
                start += rows
    return open_parquet(str(folder))


def expected(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Scaled rows float32 (n, d) and weights (n,) of the whole source."""
    table = pa.concat_tables([pq.read_table(f.address) for f in source.files])
    x = np.stack([table[f"f{i}"].to_numpy() for i in range(D)], axis=1)
    return ((x - CENTER) / SCALE).astype(np.float32), table["weight"].to_numpy()


def shard(
    source: Source, folder: Path, shard_rows: int, samples: dict[str, int], **options: object
) -> tuple[list[ShardTaskResult], dict[str, SampleFile]]:
    options = {"seed": 7, "weight_column": "weight", **options}
    results = [
        write_shards(
            task,
            source=source,
            schema=SCHEMA,
            scaling=SCALING,
            folder=str(folder),
            samples=samples,
            **options,
        )
        for task in plan_shards(source, shard_rows)
    ]
    candidates = {
        name: [r.candidates[name] for r in results if name in r.candidates] for name in samples
    }
    return results, merge_samples(str(folder), candidates, samples)


def load(folder: Path, stem: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.load(folder / f"{stem}.{kind}.npy") for kind in ("x", "rows", "w"))


def test_shards_hold_every_row_once_scaled_and_shuffled(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[40, 0, 60], [7], [300]], holes=0.05)
    results, _ = shard(source, tmp_path / "out", 50, {})
    x, w = expected(source)
    shards = [s for r in results for s in r.shards]
    planned = [rows for task in plan_shards(source, 50) for rows in task.shard_rows]
    assert [s.rows for s in shards] == planned
    seen = []
    for i, entry in enumerate(shards):
        assert entry.path == f"shard-{i:05d}.x.npy"
        assert entry.first_row == sum(planned[:i])
        part, rows, weights = load(tmp_path / "out", f"shard-{i:05d}")
        assert part.dtype == np.float32
        assert part.flags.c_contiguous
        assert rows.dtype == np.int64
        assert weights.dtype == np.float64
        np.testing.assert_array_equal(part, x[rows])
        np.testing.assert_array_equal(weights, w[rows])
        assert sorted(rows) == list(range(entry.first_row, entry.first_row + entry.rows))
        assert (rows != np.sort(rows)).any()
        assert entry.has_missing == bool(np.isnan(part).any())
        assert entry.bytes == os.path.getsize(tmp_path / "out" / entry.path)
        seen.extend(rows)
    assert sorted(seen) == list(range(407))
    files = dict(pair for r in results for pair in r.files)
    assert files == {p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()}
    assert sum(r.skipped_rows for r in results) == 0


def test_same_files_when_run_again_and_others_for_another_seed(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[100]])
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        shard(source, tmp_path / name, 50, {"sample": 20}, seed=seed)
        shard(source, tmp_path / name, 50, {"sample": 20}, seed=seed)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    content = {
        name: {f: (tmp_path / name / f).read_bytes() for f in names} for name in ("a", "b", "c")
    }
    assert content["a"] == content["b"]
    assert all(content["a"][f] != content["c"][f] for f in names)


@pytest.mark.parametrize("m", [1, 30, 400, 1000])
def test_sample_is_the_rows_of_least_hash(tmp_path: Path, m: int) -> None:
    source = write_source(tmp_path / "in", [[150, 150], [107]])
    samples = {"sample": m, "queries": 10, "none": 0}
    _, merged = shard(source, tmp_path / "out", 60, samples)
    x, w = expected(source)
    for name in ("sample", "queries"):
        hashes = np.concatenate([row_hash(7, name, f.name, 0, f.n_rows) for f in source.files])
        rows = np.argsort(hashes)[: samples[name]]
        got_x, got_rows, got_w = load(tmp_path / "out", name)
        np.testing.assert_array_equal(got_rows, rows)
        np.testing.assert_array_equal(got_x, x[rows])
        np.testing.assert_array_equal(got_w, w[rows])
        assert merged[name].rows == len(rows)
        assert merged[name].path == f"{name}.x.npy"
        assert not merged[name].has_missing
        assert dict(merged[name].files) == {
            f"{name}.{kind}.npy": os.path.getsize(tmp_path / "out" / f"{name}.{kind}.npy")
            for kind in ("x", "rows", "w")
        }
        assert SampleFile.from_json(merged[name].to_json()) == merged[name]
    assert "none" not in merged
    assert not list((tmp_path / "out").glob("candidates*"))


def test_sample_does_not_depend_on_the_cut(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[50] * 6, [100]], holes=0.2)
    for name, shard_rows in (("a", 40), ("b", 1000)):
        shard(source, tmp_path / name, shard_rows, {"sample": 33})
    for kind in ("x", "rows", "w"):
        file = f"sample.{kind}.npy"
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_without_weights_there_is_no_weights_file(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[100]])
    shard(source, tmp_path / "out", 100, {"sample": 10}, weight_column=None)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "sample.rows.npy",
        "sample.x.npy",
        "shard-00000.rows.npy",
        "shard-00000.x.npy",
    ]


def test_rows_without_any_value_are_left_out(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[200]], holes=0.7)
    results, merged = shard(source, tmp_path / "out", 50, {"sample": 1000})
    x, _ = expected(source)
    empty = np.isnan(x).all(axis=1)
    assert empty.sum() > 20
    assert sum(r.skipped_rows for r in results) == empty.sum()
    kept = np.concatenate([load(tmp_path / "out", f"shard-{i:05d}")[1] for i in range(4)])
    assert sorted(kept) == np.flatnonzero(~empty).tolist()
    assert sum(s.rows for r in results for s in r.shards) == len(kept)
    assert merged["sample"].rows == len(kept)
    assert merged["sample"].has_missing


def test_a_source_without_any_value(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[20]], holes=1.0)
    with pytest.raises(DataError, match="all features are missing"):
        shard(source, tmp_path / "out", 50, {"sample": 10})


def test_missing_filled_with_the_mean(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[100]], holes=0.3)
    fill = np.array([3.0, -1.0, np.nan])
    shard(source, tmp_path / "out", 100, {}, missing="mean", fill=fill)
    x, rows, _ = load(tmp_path / "out", "shard-00000")
    whole, _ = expected(source)
    filled = np.where(np.isnan(whole), ((fill - CENTER) / SCALE).astype(np.float32), whole)
    np.testing.assert_array_equal(x, filled[rows])


def test_missing_is_an_error_if_so_asked(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[5, 5]])
    table = pq.read_table(source.files[0].address).to_pydict()
    table["f1"][7] = None
    with pq.ParquetWriter(source.files[0].address, pa.table(table).schema) as writer:
        writer.write_table(pa.table(table), 5)
    source = open_parquet(str(tmp_path / "in"))
    text = r"file '0\.parquet', row group 1, row 2: 'f1' is missing.*prepare\.missing"
    with pytest.raises(DataError, match=text):
        shard(source, tmp_path / "out", 100, {}, missing="error")


def test_bad_weight(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = table_of(10).set_column(D, "weight", pa.array([1.0] * 9 + [-1.0]))
    pq.write_table(table, tmp_path / "in" / "0.parquet")
    with pytest.raises(DataError, match=r"0\.parquet.*weight"):
        shard(open_parquet(str(tmp_path / "in")), tmp_path / "out", 100, {})


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_source(tmp_path / "in", [[100]])

    def full(descriptor: int, data: object) -> int:  # noqa: ARG001
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("clam_dist.data.npy.os.write", full)
    with pytest.raises(RunError, match=r"shard-00000\.x\.npy: No space left.*work\.uri"):
        shard(source, tmp_path / "out", 100, {})
    assert list((tmp_path / "out").iterdir()) == []


def domains_source(folder: Path) -> tuple[Source, Domains, np.ndarray]:
    """Rows of three domains in any order, with their codes (n,)."""
    folder.mkdir()
    codes = np.random.default_rng(4).choice(3, 407, p=[0.6, 0.3, 0.1])
    table = table_of(407, holes=0.3).append_column("site", pa.array(np.array([-1, 5, 9])[codes]))
    pq.write_table(table, folder / "0.parquet", row_group_size=100)
    domains = Domains("site", (-1, 5, 9), tuple(np.bincount(codes).tolist()))
    return open_parquet(str(folder)), domains, codes


def test_rows_of_a_shard_lie_sorted_by_domain_and_are_shuffled_within(tmp_path: Path) -> None:
    source, domains, codes = domains_source(tmp_path / "in")
    results, _ = shard(source, tmp_path / "out", 100, {}, domains=domains)
    shard(source, tmp_path / "plain", 100, {})
    x, w = expected(source)
    for entry in (s for r in results for s in r.shards):
        stem = entry.path.removesuffix(".x.npy")
        part, rows, weights = load(tmp_path / "out", stem)
        np.testing.assert_array_equal(part, x[rows])
        np.testing.assert_array_equal(weights, w[rows])
        assert (np.diff(codes[rows]) >= 0).all()
        assert entry.domain_rows == tuple(np.bincount(codes[rows], minlength=3).tolist())
        _, shuffled, _ = load(tmp_path / "plain", stem)
        for domain in range(3):  # in the order that they would have without domains
            np.testing.assert_array_equal(
                rows[codes[rows] == domain], shuffled[codes[shuffled] == domain]
            )
    files = dict(pair for r in results for pair in r.files)
    assert files == {p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()}


def test_a_sample_to_train_on_is_sorted_by_domain_and_others_are_not(tmp_path: Path) -> None:
    source, domains, codes = domains_source(tmp_path / "in")
    options = {"seed": 7, "source": source, "schema": SCHEMA, "scaling": SCALING}
    wanted = {"sample": 60, "train": 80}
    merged = {}
    for name, given in (("out", domains), ("plain", None)):
        folder = str(tmp_path / name)
        results = [
            write_shards(task, folder=folder, samples=wanted, domains=given, **options)
            for task in plan_shards(source, 100)
        ]
        candidates = {kind: [r.candidates[kind] for r in results] for kind in wanted}
        by_domain = {"train": 3} if given else None
        merged[name] = merge_samples(folder, candidates, wanted, by_domain)
    rows = {
        name: {kind: np.load(tmp_path / name / f"{kind}.rows.npy") for kind in wanted}
        for name in merged
    }
    np.testing.assert_array_equal(rows["out"]["sample"], rows["plain"]["sample"])
    order = np.argsort(codes[rows["plain"]["train"]], kind="stable")
    np.testing.assert_array_equal(rows["out"]["train"], rows["plain"]["train"][order])
    x, _ = expected(source)
    np.testing.assert_array_equal(np.load(tmp_path / "out/train.x.npy"), x[rows["out"]["train"]])
    sizes = np.bincount(codes[rows["out"]["train"]], minlength=3)
    assert merged["out"]["train"].domain_rows == tuple(sizes.tolist())
    assert merged["out"]["sample"] == merged["plain"]["sample"]
    assert not list((tmp_path / "out").glob("*domain*"))


def test_disk_needed_is_enough_and_not_far_off(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [[500, 500], [1000]])
    samples = {"sample": 100, "queries": 50}
    _, _ = shard(source, tmp_path / "out", 250, samples)
    used = sum(p.stat().st_size for p in (tmp_path / "out").iterdir())
    needed = disk_needed(plan_shards(source, 250), D, True, samples)
    assert used <= needed <= used + 40_000


PEAKS = """
import sys
import numpy as np
from clam_dist.data.features import Feature, FeatureSchema
from clam_dist.data.parquet import open_parquet
from clam_dist.data.sharding import write_shards
from clam_dist.data.shards import plan_shards
from clam_dist.data.statistics import Scaling

schema = FeatureSchema(tuple(Feature(f"f{i}", "numeric", "double", 1) for i in range(8)))
scaling = Scaling(np.zeros(8), np.ones(8), "standard")
for uri in sys.argv[2:]:
    source = open_parquet(uri)
    (task,) = plan_shards(source, 20_000)
    write_shards(
        task, source=source, schema=schema, scaling=scaling, seed=0, folder=sys.argv[1],
        samples={"sample": 1000},
    )
    status = open("/proc/self/status").read()
    print(status.split("VmHWM:")[1].split()[0])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads VmHWM from /proc")
def test_memory_does_not_grow_with_the_source(tmp_path: Path) -> None:
    """One row group of 300 000 rows, then one of 1 200 000 in the same process: 58 MB more."""
    uris = []
    for rows in (300_000, 1_200_000):
        x = np.random.default_rng(0).standard_normal((rows, 8))
        table = pa.table({f"f{i}": x[:, i] for i in range(8)})
        uris.append(str(tmp_path / f"{rows}.parquet"))
        pq.write_table(table, uris[-1], row_group_size=rows, use_dictionary=False)
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, str(tmp_path / "out"), *uris],
        check=True,
        capture_output=True,
        text=True,
    )
    small, large = (int(kib) * 1024 for kib in done.stdout.split())
    assert large - small < 24 * 2**20
