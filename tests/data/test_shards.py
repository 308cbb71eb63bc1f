"""Shard plans: every row group once, sizes bounded, nothing but footers decides."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.data.shards import (
    ShardFile,
    ShardTask,
    disk_needed,
    plan_shard_rows,
    plan_shards,
    virtual_shards,
)
from clam_dist.data.source import Fragment, Source, SourceFile


def source_of(*files: tuple[int, ...]) -> Source:
    """A source of which only the row groups of each file matter."""
    entries = tuple(
        SourceFile(f"{i}.parquet", f"/{i}.parquet", 1, "", "", groups)
        for i, groups in enumerate(files)
    )
    return Source("/", "/", "parquet", entries, (), "")


def test_plan_by_hand() -> None:
    source = source_of((5, 0, 5), (), (3,), (30, 1))
    tasks = plan_shards(source, 8)
    assert tasks == [
        # two groups with an empty one between them: 10 rows in 2 shards
        ShardTask(0, (Fragment(0, 0, (0, 3), 0, 0, 10),), 0, (5, 5)),
        # 3 rows are not enough, so the next file's first group joins them: 33 rows in 5 shards
        ShardTask(
            1,
            (Fragment(1, 2, (0, 1), 10, 0, 3), Fragment(2, 3, (0, 1), 13, 0, 30)),
            2,
            (6, 7, 6, 7, 7),
        ),
        ShardTask(2, (Fragment(3, 3, (1, 2), 43, 30, 1),), 7, (1,)),
    ]


@settings(max_examples=200, deadline=None)
@given(
    files=st.lists(st.lists(st.integers(0, 40), max_size=6).map(tuple), min_size=1, max_size=6),
    shard_rows=st.integers(1, 50),
)
def test_plan_covers_each_row_group_once(files: list[tuple[int, ...]], shard_rows: int) -> None:
    source = source_of(*files)
    tasks = plan_shards(source, shard_rows)
    pieces = [piece for task in tasks for piece in task.pieces]
    filled = [(f, g) for f, groups in enumerate(files) for g, rows in enumerate(groups) if rows > 0]
    planned = [(p.file, g) for p in pieces for g in range(*p.row_groups) if files[p.file][g] > 0]
    assert planned == filled
    row = 0
    for index, piece in enumerate(pieces):
        assert piece.index == index
        assert piece.n_rows == sum(files[piece.file][slice(*piece.row_groups)])
        assert piece.first_row == row
        assert piece.file_row == sum(files[piece.file][: piece.row_groups[0]])
        row += piece.n_rows
    assert row == source.n_rows
    shard = 0
    for index, task in enumerate(tasks):
        assert (task.index, task.first_shard) == (index, shard)
        shard += len(task.shard_rows)
        assert task.n_rows == sum(piece.n_rows for piece in task.pieces)
        assert 1 <= min(task.shard_rows) <= max(task.shard_rows) <= shard_rows
        assert max(task.shard_rows) - min(task.shard_rows) <= 1
        assert task.n_rows >= shard_rows or index == len(tasks) - 1
        assert len({piece.file for piece in task.pieces}) == len(task.pieces)


@pytest.mark.parametrize(
    ("n_rows", "width", "rows"),
    [
        (0, 14, 256),
        (1797, 64, 256),
        (1_000_000, 14, 15_625),
        (10**9, 14, 16 * 2**20 // 56),
        (10**6, 10_000, 16 * 2**20 // 40_000),
        (10, 10**7, 1),
    ],
)
def test_shard_rows(n_rows: int, width: int, rows: int) -> None:
    assert plan_shard_rows(n_rows, width) == rows


def test_wrong_shard_rows() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_shards(source_of((1,)), 0)


@pytest.mark.parametrize(("rows", "shard_rows"), [(1000, 256), (256, 256), (1, 256), (0, 256)])
def test_virtual_shards_cut_one_file(rows: int, shard_rows: int) -> None:
    shards = virtual_shards("sample.x.npy", rows, shard_rows, has_missing=True)
    assert len(shards) == max(1, math.ceil(rows / shard_rows))
    assert [s.offset for s in shards] == [
        sum(s.rows for s in shards[:i]) for i in range(len(shards))
    ]
    assert sum(s.rows for s in shards) == rows
    assert all(s.path == "sample.x.npy" and s.has_missing for s in shards)


def test_shard_file_round_trip() -> None:
    shard = ShardFile("shard-00001.x.npy", 5, 0, 17, 300, True)
    assert ShardFile.from_json(json.loads(json.dumps(shard.to_json()))) == shard
    assert shard.sibling("rows") == "shard-00001.rows.npy"
    assert shard.sibling("w") == "shard-00001.w.npy"


def test_disk_needed_by_hand() -> None:
    tasks = plan_shards(source_of((100, 100)), 100)
    # 200 rows of 3 float32 and one int64, 2 shards of 2 files
    assert disk_needed(tasks, 3, False, {}) == 200 * 20 + 2 * 2 * 128
    # with weights 8 bytes more and a third file
    assert disk_needed(tasks, 3, True, {}) == 200 * 28 + 2 * 3 * 128
    one_sample = disk_needed(tasks, 3, False, {"a": 100})
    # a byte for each of the 100 + 6 * 10 + 64 candidates, and a header for each of two tasks
    assert disk_needed(tasks, 3, False, {"a": 100}, domains=True) == one_sample + 224 + 2 * 128
