"""Labels files hold what was given, in the source's row groups, or are not there at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clam_dist.data import files
from clam_dist.data.writer import LabelsWriter, labels_schema, merge_parts
from clam_dist.errors import RunError

KEPT = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False, metadata={"unit": "1"}),
        pa.field("name", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("group", pa.dictionary(pa.int8(), pa.string())),
    ],
    metadata={"pandas": "{}"},
)


def kept_rows(n: int) -> pa.Table:
    values = np.arange(n)
    return pa.table(
        [
            pa.array(values),
            pa.array([None if i % 3 == 0 else f"row {i}" for i in range(n)], pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * n, dtype=np.float32)), 2),
            pa.array(values, pa.timestamp("us", tz="UTC")),
            pa.array([["a", "b", None][i % 3] for i in range(n)], pa.string())
            .dictionary_encode()
            .cast(pa.dictionary(pa.int8(), pa.string())),
        ],
        schema=KEPT,
    )


def labels(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every fifth row without a label, every other with a silhouette."""
    rows = np.arange(n)
    cluster = np.where(rows % 5 == 4, -1, rows % 7)
    silhouette = np.where(rows % 2 == 0, rows / 10, np.nan).astype(np.float32)
    return cluster, (rows / 4).astype(np.float32), silhouette


def write(path: Path, row_groups: list[int], batch: int, kept: pa.Schema = KEPT) -> None:
    n = sum(row_groups)
    table, arrays = kept_rows(n), labels(n)
    with LabelsWriter(str(path), kept, row_groups) as writer:
        for start in range(0, n, batch):
            (rows,) = table.slice(start, batch).combine_chunks().to_batches()
            writer.write(rows, *(values[start : start + batch] for values in arrays))


def row_groups_of(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(row_groups=st.lists(st.integers(0, 30), max_size=5), batch=st.integers(1, 40))
def test_rows_types_and_row_groups_are_kept(
    tmp_path: Path, row_groups: list[int], batch: int
) -> None:
    path = tmp_path / "year=2020" / "a.parquet"
    write(path, row_groups, batch)
    assert row_groups_of(path) == row_groups
    n = sum(row_groups)
    table = pq.read_table(path, partitioning=None)
    assert table.schema.equals(labels_schema(KEPT), check_metadata=False)
    assert table.schema.field("key").metadata[b"unit"] == b"1"
    assert b"pandas" not in (table.schema.metadata or {})
    assert table.select(KEPT.names).to_pydict() == kept_rows(n).to_pydict()
    for i, row in enumerate(table.to_pylist()):
        assert row["cluster"] == (None if i % 5 == 4 else i % 7)
        assert row["distance"] == (None if i % 5 == 4 else np.float32(i / 4))
        seen = i % 2 == 0 and i % 5 != 4
        assert row["silhouette"] == (np.float32(i / 10) if seen else None)


def test_no_kept_column_and_no_silhouette(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    nothing = pa.RecordBatch.from_arrays([], names=[])
    with LabelsWriter(str(path), pa.schema([]), [2, 1]) as writer:
        writer.write(nothing, np.array([0, 1, 2]), np.array([0.5, np.nan, 1.0]))
    assert pq.read_table(path).to_pydict() == {
        "cluster": [0, 1, 2],
        "distance": [0.5, None, 1.0],
        "silhouette": [None, None, None],
    }
    assert row_groups_of(path) == [2, 1]


def test_types_of_the_label_columns() -> None:
    schema = labels_schema(pa.schema([]))
    assert [(f.name, f.type) for f in schema] == [
        ("cluster", pa.int32()),
        ("distance", pa.float32()),
        ("silhouette", pa.float32()),
    ]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(row_groups=st.lists(st.integers(0, 30), max_size=5), batch=st.integers(1, 40))
def test_further_columns_are_numbers_or_lists_of_one_length(
    tmp_path: Path, row_groups: list[int], batch: int
) -> None:
    n = sum(row_groups)
    cluster, distance, silhouette = labels(n)
    energy = np.where(np.arange(n) % 4 == 1, np.nan, np.arange(n)).astype(np.float32)
    shares = np.arange(3 * n, dtype=np.float64).reshape(n, 3)
    shares[::6, 1] = np.nan
    added = [pa.field("energy", pa.float32()), pa.field("shares", pa.list_(pa.float32(), 3))]
    arrays = (cluster, distance, silhouette, energy, shares)
    table = kept_rows(n)
    parts = [str(tmp_path / "one.parquet"), str(tmp_path / "two.parquet")]
    for part in parts:
        with LabelsWriter(part, KEPT, row_groups, added) as writer:
            for start in range(0, n, batch):
                (rows,) = table.slice(start, batch).combine_chunks().to_batches()
                c, d, s, *more = (values[start : start + batch] for values in arrays)
                writer.write(rows, c, d, s, more)
    merge_parts(parts, str(tmp_path / "both.parquet"))
    found = pq.read_table(tmp_path / "both.parquet")
    assert found.schema.equals(labels_schema(KEPT, added), check_metadata=False)
    assert row_groups_of(tmp_path / "both.parquet") == 2 * row_groups
    for place, row in enumerate(found.to_pylist()):
        i = place % n
        if i % 5 == 4:
            assert row["energy"] is row["shares"] is None
        else:
            assert row["energy"] == (None if i % 4 == 1 else i)
            second = None if i % 6 == 0 else 3.0 * i + 1
            assert row["shares"] == [3.0 * i, second, 3.0 * i + 2]


def test_further_columns_need_their_values(tmp_path: Path) -> None:
    added = [pa.field("energy", pa.float32())]
    nothing = pa.RecordBatch.from_arrays([], names=[])
    with (
        pytest.raises(ValueError, match="zip"),
        LabelsWriter(str(tmp_path / "a.parquet"), pa.schema([]), [2], added) as writer,
    ):
        writer.write(nothing, np.array([0, 1]), np.zeros(2))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_there_before_the_end_nor_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with LabelsWriter(str(path), KEPT, []):
        assert not path.exists()
        assert all(p.name.startswith(".") for p in tmp_path.iterdir())
    assert path.exists()
    path.unlink()
    with pytest.raises(KeyboardInterrupt), LabelsWriter(str(path), KEPT, [1]):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("row_groups", "distances", "text"),
    [
        ([1, 2, 5], 2, "1 of 2 rows of row group 1 of 3"),
        ([1], 2, "more than the 1 rows"),
        ([2], 1, "2 labels and 1 distances"),
    ],
)
def test_wrong_numbers_of_rows_leave_nothing(
    tmp_path: Path, row_groups: list[int], distances: int, text: str
) -> None:
    def write_two() -> None:
        with LabelsWriter(str(tmp_path / "a.parquet"), pa.schema([]), row_groups) as writer:
            nothing = pa.RecordBatch.from_arrays([], names=[])
            writer.write(nothing, np.zeros(2, int), np.zeros(distances))

    with pytest.raises(ValueError, match=text):
        write_two()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("split", [1, 2, 3])
def test_parts_merge_into_the_file_written_at_once(tmp_path: Path, split: int) -> None:
    row_groups = [10, 0, 25, 7]
    write(tmp_path / "whole.parquet", row_groups, 9)
    table, arrays = kept_rows(42), labels(42)
    parts, start = [], 0
    for i, groups in enumerate((row_groups[:split], row_groups[split:])):
        stop = start + sum(groups)
        parts.append(str(tmp_path / "parts" / f"{i}.parquet"))
        with LabelsWriter(parts[-1], KEPT, groups) as writer:
            (rows,) = table.slice(start, stop - start).combine_chunks().to_batches()
            writer.write(rows, *(values[start:stop] for values in arrays))
        start = stop
    target = tmp_path / "out" / "a.parquet"
    size = merge_parts(parts, str(target))
    assert size == target.stat().st_size
    assert row_groups_of(target) == row_groups
    whole = pq.read_table(tmp_path / "whole.parquet")
    merged = pq.read_table(target)
    assert merged.equals(whole)
    assert merged.schema.equals(whole.schema, check_metadata=True)
    assert [p.name for p in target.parent.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_broken_part_is_named(tmp_path: Path, damage: str) -> None:
    paths = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for path in paths:
        write(path, [10], 10)
    if damage == "gone":
        paths[1].unlink()
    else:
        paths[1].write_bytes(paths[1].read_bytes()[:-50])
    with pytest.raises(RunError, match=r"work file .*1\.parquet.*run again"):
        merge_parts([str(p) for p in paths], str(tmp_path / "out" / "a.parquet"))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "00000000")
    (tmp_path / ".a.parquet.00000000.tmp").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"a\.parquet: .*No space left.*work\.uri"):
        write(tmp_path / "a.parquet", [1000], 100)
    assert list(tmp_path.iterdir()) == []
