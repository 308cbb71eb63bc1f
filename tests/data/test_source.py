import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.data.source import (
    Column,
    Source,
    SourceFile,
    describe_row,
    kind_of,
    list_width,
    plan_fragments,
    serialize_schema,
)


def make_source(*row_groups: tuple[int, ...]) -> Source:
    files = tuple(
        SourceFile(f"part-{i}.parquet", f"/data/part-{i}.parquet", 100, "7", "ab", groups)
        for i, groups in enumerate(row_groups)
    )
    schema = serialize_schema(pa.schema([pa.field("x", pa.float64(), metadata={"unit": "m"})]))
    columns = (Column("x", "double", "numeric"),)
    return Source("/data", "/data", "parquet", files, columns, schema)


sources = st.lists(st.lists(st.integers(0, 9)), min_size=1, max_size=6).map(
    lambda files: make_source(*(tuple(groups) for groups in files))
)


def test_json_gives_the_same_source_back():
    source = make_source((3, 4), (), (5,))
    again = Source.from_json(json.loads(json.dumps(source.to_json())))
    assert again == source
    assert again.arrow_schema.field("x").metadata == {b"unit": b"m"}
    assert again.n_rows == 12
    assert again.first_rows == (0, 7, 7, 12)


def test_column_by_name():
    source = make_source((1,))
    assert source.column("x").kind == "numeric"
    with pytest.raises(KeyError):
        source.column("y")


def test_fragments_by_hand():
    source = make_source((4, 4, 4), (), (20, 1))
    plan = plan_fragments(source, 8)
    assert [(f.file, f.row_groups, f.first_row, f.file_row, f.n_rows) for f in plan] == [
        (0, (0, 2), 0, 0, 8),
        (0, (2, 3), 8, 8, 4),
        (1, (0, 0), 12, 0, 0),
        (2, (0, 1), 12, 0, 20),
        (2, (1, 2), 32, 20, 1),
    ]
    assert [f.index for f in plan] == [0, 1, 2, 3, 4]


@given(sources, st.integers(1, 30))
def test_fragments_hold_every_row_group_once_in_order(source: Source, max_rows: int):
    plan = plan_fragments(source, max_rows)
    found = [(f.file, g) for f in plan for g in range(*f.row_groups)]
    expected = [(i, g) for i, file in enumerate(source.files) for g in range(len(file.row_groups))]
    assert found == expected
    assert {f.file for f in plan} == set(range(len(source.files)))
    row = 0
    for f in plan:
        groups = source.files[f.file].row_groups
        assert f.first_row == row
        assert f.file_row == sum(groups[: f.row_groups[0]])
        assert f.n_rows == sum(groups[slice(*f.row_groups)])
        assert f.n_rows <= max_rows or f.row_groups[1] - f.row_groups[0] == 1
        row += f.n_rows


def test_fragments_refuse_no_rows():
    with pytest.raises(ValueError, match="max_rows must be at least 1, got 0"):
        plan_fragments(make_source((1,)), 0)


@given(sources)
def test_describe_row_against_a_list_of_all_rows(source: Source):
    texts = [
        f"file '{file.name}', row group {group}, row {row}"
        for file in source.files
        for group, rows in enumerate(file.row_groups)
        for row in range(rows)
    ]
    assert [describe_row(source, row) for row in range(source.n_rows)] == texts


@pytest.mark.parametrize(
    ("data_type", "kind", "width"),
    [
        (pa.int8(), "numeric", None),
        (pa.uint64(), "numeric", None),
        (pa.float16(), "numeric", None),
        (pa.decimal128(5, 2), "numeric", None),
        (pa.bool_(), "boolean", None),
        (pa.dictionary(pa.int8(), pa.string()), "category", None),
        (pa.dictionary(pa.int32(), pa.int64()), "category", None),
        (pa.dictionary(pa.int32(), pa.float64()), "other", None),
        (pa.list_(pa.float32()), "embedding", None),
        (pa.large_list(pa.float64()), "embedding", None),
        (pa.list_(pa.uint8(), 7), "embedding", 7),
        (pa.fixed_shape_tensor(pa.float32(), [4]), "embedding", 4),
        (pa.list_(pa.int64()), "other", None),
        (pa.list_(pa.string(), 2), "other", 2),
        (pa.string(), "other", None),
        (pa.timestamp("us"), "other", None),
        (pa.null(), "other", None),
    ],
)
def test_kind_of(data_type: pa.DataType, kind: str, width: int | None):
    assert kind_of(data_type) == kind
    assert list_width(data_type) == width
