"""The reader against whole arrays in memory: the plan's batches, in bounded memory."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clam_dist.data import reader
from clam_dist.data.batches import BatchPlan
from clam_dist.data.cursor import ALIGNED_ROWS
from clam_dist.data.npy import row_blocks, write_npy
from clam_dist.data.reader import ShardReader
from clam_dist.data.shards import ShardFile, virtual_shards
from clam_dist.errors import RunError

D = 3
Shards = tuple[list[ShardFile], list[np.ndarray], list[np.ndarray]]


def write(path: Path, values: np.ndarray) -> None:
    write_npy(str(path), values.shape, values.dtype, row_blocks(values))


def make_shards(folder: Path, rows: Sequence[int]) -> Shards:
    """Shards whose values tell shard and row: x (n, 3) = shard, row, their sum; w = row + 0.5."""
    files, xs, ws = [], [], []
    for s, n in enumerate(rows):
        row = np.arange(n, dtype=np.float32)
        x = np.stack([np.full(n, s, np.float32), row, row + s], axis=1)
        w = row.astype(np.float64) + 0.5
        write(folder / f"{s}.x.npy", x)
        write(folder / f"{s}.w.npy", w)
        files.append(ShardFile(f"{s}.x.npy", n))
        xs.append(x)
        ws.append(w)
    return files, xs, ws


def slow_batch(
    shards: Shards, lanes: int, batch_rows: int, seed: int, epoch: int, step: int, lane: int
) -> tuple[np.ndarray, np.ndarray]:
    """One micro-batch, row by row, from the plan and the whole arrays."""
    files, xs, ws = shards
    plan = BatchPlan([f.rows for f in files], lanes, batch_rows, seed)
    rotations = plan.rotations(epoch)
    x, w = [], []
    for s in range(lane, len(files), lanes):
        start, stop = (int(plan.bounds(t, np.array([s]))[0]) for t in (step, step + 1))
        for place in range(start, stop):
            row = (int(rotations[s]) + place) % files[s].rows
            x.append(xs[s][row])
            w.append(ws[s][row])
    return np.array(x, np.float32).reshape(-1, D), np.array(w)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.integers(0, 90), max_size=7),
    lanes=st.integers(1, 4),
    batch_rows=st.integers(1, 400),
    epoch=st.integers(0, 3),
    buffer_bytes=st.sampled_from([0, 2000, 10**6]),
    window_bytes=st.sampled_from([200, 1000, 10**6]),
)
def test_every_batch_is_the_plan_s(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[int],
    lanes: int,
    batch_rows: int,
    epoch: int,
    buffer_bytes: int,
    window_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    shards = make_shards(folder, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_WINDOW_BYTES", window_bytes)
        owned = range(lanes)
        with ShardReader(
            str(folder),
            shards[0],
            width=D,
            lanes=lanes,
            owned=owned,
            batch_rows=batch_rows,
            seed=3,
            weighted=True,
            buffer_bytes=buffer_bytes,
        ) as shard_reader:
            seen = []
            for expected_step, (step, batches) in enumerate(shard_reader.epoch(epoch)):
                assert step == expected_step
                assert [lane for lane, _, _ in batches] == list(owned)
                for lane, x, w in batches:
                    slow_x, slow_w = slow_batch(shards, lanes, batch_rows, 3, epoch, step, lane)
                    assert x.dtype == np.float32
                    assert x.flags.c_contiguous
                    np.testing.assert_array_equal(x, slow_x)
                    np.testing.assert_array_equal(w, slow_w)
                    seen.extend(map(tuple, x[:, :2].tolist()))
            assert step == shard_reader.steps - 1
    assert sorted(seen) == [(s, r) for s, n in enumerate(rows) for r in range(n)]


def collect(
    folder: Path,
    files: list[ShardFile],
    owned: Sequence[int],
    epoch: int,
    start: int = 0,
    **options: object,
) -> dict[tuple[int, int], np.ndarray]:
    """Copies of all micro-batches, by step and lane."""
    options = {"width": D, "lanes": 5, "batch_rows": 60, "seed": 1, **options}
    with ShardReader(str(folder), files, owned=owned, **options) as shard_reader:
        return {
            (step, lane): x.copy()
            for step, batches in shard_reader.epoch(epoch, start)
            for lane, x, w in batches
            if w is None
        }


@pytest.mark.parametrize(
    "owners", [[[0, 1, 2, 3, 4]], [[0, 3], [1, 2, 4]], [[0], [1], [2], [3], [4]]]
)
def test_batches_do_not_depend_on_who_owns_what(tmp_path: Path, owners: list[list[int]]) -> None:
    files, _, _ = make_shards(tmp_path, [50, 70, 0, 31, 90, 20, 110, 1])
    alone = collect(tmp_path, files, range(5), epoch=2)
    together: dict[tuple[int, int], np.ndarray] = {}
    for owned in owners:
        together |= collect(tmp_path, files, owned, epoch=2)
    assert together.keys() == alone.keys()
    for key, x in alone.items():
        np.testing.assert_array_equal(together[key], x)


def test_resume_in_mid_epoch_gives_the_same_batches(tmp_path: Path) -> None:
    files, _, _ = make_shards(tmp_path, [50, 70, 31, 90, 20])
    whole = collect(tmp_path, files, range(5), epoch=1)
    rest = collect(tmp_path, files, range(5), epoch=1, start=2)
    assert rest.keys() == {key for key in whole if key[0] >= 2}
    for key, x in rest.items():
        np.testing.assert_array_equal(x, whole[key])


def test_epochs_differ_and_repeat(tmp_path: Path) -> None:
    files, _, _ = make_shards(tmp_path, [100] * 5)
    first, second = (collect(tmp_path, files, range(5), epoch) for epoch in (0, 1))
    assert any((first[key] != second[key]).any() for key in first)
    options = {"width": D, "lanes": 5, "batch_rows": 60, "seed": 1}
    with ShardReader(str(tmp_path), files, owned=range(5), **options) as shard_reader:
        for epoch, expected in ((0, first), (1, second), (0, first)):  # one reader, reused
            for step, batches in shard_reader.epoch(epoch):
                for lane, x, _ in batches:
                    np.testing.assert_array_equal(x, expected[step, lane])


def test_one_file_as_virtual_shards(tmp_path: Path) -> None:
    _, (x,), _ = make_shards(tmp_path, [100])
    files = virtual_shards("0.x.npy", 100, 30)
    batches = collect(tmp_path, files, range(5), epoch=0)
    rows = np.concatenate(list(batches.values()))
    assert len(rows) == 100
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 1])], x)


def test_a_lane_without_rows_gives_empty_batches(tmp_path: Path) -> None:
    files, _, _ = make_shards(tmp_path, [40])
    batches = collect(tmp_path, files, [0, 4], epoch=0)
    assert batches[0, 4].shape == (0, D)
    assert len(batches[0, 0]) == 40
    nothing = collect(tmp_path, [], [0], epoch=0)
    assert {key: x.shape for key, x in nothing.items()} == {(0, 0): (0, D)}


def test_leaving_an_epoch_early_ends_its_thread(tmp_path: Path) -> None:
    files, _, _ = make_shards(tmp_path, [100] * 5)
    before = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    with ShardReader(
        str(tmp_path), files, width=D, lanes=1, owned=[0], batch_rows=10, seed=0
    ) as shard_reader:
        epoch = shard_reader.epoch(0)
        next(epoch)
        assert threading.active_count() == before + 1
        with pytest.raises(RuntimeError, match="still being read"):
            next(shard_reader.epoch(1))
        epoch.close()
        assert threading.active_count() == before
        assert sum(1 for _ in shard_reader.epoch(1)) == 50
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_broken_shard_is_named_and_the_thread_ends(tmp_path: Path, damage: str) -> None:
    files, _, _ = make_shards(tmp_path, [100] * 3)
    path = tmp_path / "1.x.npy"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-100])
    before = threading.active_count()
    with pytest.raises(RunError, match=r"work file .*1\.x\.npy: .*run again"):
        collect(tmp_path, files, range(5), epoch=0)
    assert threading.active_count() == before


@pytest.mark.parametrize("buffer_bytes", [64 * 2**10, 2**20])
def test_memory_is_bounded(tmp_path: Path, buffer_bytes: int) -> None:
    """4.8 MB of shards through 64 KiB and 1 MiB, and 256 KiB for the plan and open files."""
    files, _, _ = make_shards(tmp_path, [12_500] * 32)
    options = {"width": D, "lanes": 4, "owned": range(4), "batch_rows": 500, "seed": 0}
    for _ in range(2):  # the first round fills caches of imports and of the interpreter
        tracemalloc.start()
        with ShardReader(
            str(tmp_path), files, **options, buffer_bytes=buffer_bytes
        ) as shard_reader:
            total = sum(len(x) for _, bs in shard_reader.epoch(0) for _, x, _ in bs)
            allocated = shard_reader.allocated_bytes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == 400_000
    assert allocated <= buffer_bytes
    assert peak <= buffer_bytes + 256 * 2**10


def test_too_small_a_bound_takes_two_batches(tmp_path: Path) -> None:
    files, _, _ = make_shards(tmp_path, [100] * 4)
    shard_reader = ShardReader(
        str(tmp_path), files, width=D, lanes=1, owned=[0], batch_rows=40, seed=0, buffer_bytes=1
    )
    plan = BatchPlan([100] * 4, 1, 40, 0)
    rows = plan.most_rows(np.arange(4)) + ALIGNED_ROWS
    assert shard_reader.allocated_bytes == 2 * rows * 4 * D


@pytest.mark.parametrize("owned", [range(4), range(1, 3), range(3, 4)])
def test_a_lanes_rows_begin_at_a_cache_line_whatever_else_is_read(tmp_path: Path, owned) -> None:
    files, _, _ = make_shards(tmp_path, [103, 57, 211, 90, 33])
    reader = ShardReader(str(tmp_path), files, width=D, lanes=4, owned=owned, batch_rows=90, seed=3)
    with reader:
        for _, batches in reader.epoch(0):
            assert all(x.ctypes.data % 64 == 0 for _, x, _ in batches)


@pytest.mark.parametrize("owners", [[[0, 1, 2, 3, 4]], [[0, 3], [1, 2, 4]]])
def test_batches_of_one_domain_for_any_owner_and_from_any_step(
    tmp_path: Path, owners: list[list[int]]
) -> None:
    counts = [(30, 0, 40), (0, 0, 90), (7, 1, 2), (60, 0, 0)]
    files, _, _ = make_shards(tmp_path, [sum(c) for c in counts])
    files = [replace(f, domain_rows=c) for f, c in zip(files, counts, strict=True)]
    domain_of = {
        (s, row): domain
        for s, c in enumerate(counts)
        for row, domain in enumerate(np.repeat(np.arange(3), c))
    }
    together: dict[tuple[int, int], np.ndarray] = {}
    for owned in owners:
        together |= collect(tmp_path, files, owned, epoch=2)
    rest = collect(tmp_path, files, range(5), epoch=2, start=3)
    seen, came = [], []
    for step in range(7):  # of 97, 1 and 132 rows in batches of 60: 2, 1 and 3 steps, and no more
        parts = [together[step, lane] for lane in range(5) if (step, lane) in together]
        if step == 6:
            assert parts == []
            continue
        rows = [(int(s), int(row)) for part in parts for s, row in part[:, :2]]
        (domain,) = {domain_of[row] for row in rows}
        came.append(int(domain))
        seen += rows
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 6 or domain == 1
        if step >= 3:
            for lane, part in enumerate(parts):
                np.testing.assert_array_equal(rest[step, lane], part)
    assert sorted(seen) == sorted(domain_of)
    assert sorted(came) == [0, 0, 1, 2, 2, 2]
