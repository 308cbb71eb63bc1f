import json
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.data.features import (
    Feature,
    FeatureSchema,
    encode,
    encode_weights,
    read_encoded,
    rows_per_batch,
)
from clam_dist.data.parquet import open_parquet
from clam_dist.data.source import kind_of, list_width, plan_fragments
from clam_dist.errors import DataError

NAN = math.nan
CATEGORY = pa.dictionary(pa.int8(), pa.string())


def schema_of(batch: pa.RecordBatch, categories: tuple[str, ...] = (), width: int = 0):
    features = []
    for field in batch.schema:
        kind = kind_of(field.type)
        wide = {"category": len(categories), "embedding": list_width(field.type) or width}
        known = categories if kind == "category" else ()
        features.append(Feature(field.name, kind, str(field.type), wide.get(kind, 1), known))
    return FeatureSchema(tuple(features))


def encoded(batch: pa.RecordBatch, schema: FeatureSchema) -> np.ndarray:
    x = encode(batch, schema, where="file 'f', row group 3", first_row=100)
    assert x.dtype == np.float64
    assert x.shape == (batch.num_rows, schema.width)
    return x


@pytest.mark.parametrize(
    "data_type",
    [
        *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(7, 2)),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    ],
    ids=str,
)
def test_numbers_of_every_width(data_type):
    exact = Decimal if pa.types.is_decimal(data_type) else lambda v: v
    for values in ([1, 0, 7], [1, None, 7]):
        numbers = [None if v is None else exact(v) for v in values]
        if pa.types.is_float16(data_type):
            numbers = [None if v is None else np.float16(v) for v in values]
        batch = pa.record_batch({"x": pa.array(numbers, data_type)})
        expected = [[NAN if v is None else v] for v in values]
        np.testing.assert_array_equal(encoded(batch, schema_of(batch)), expected)
        # a slice, whose offset into the buffers is not 0
        part = batch.slice(1)
        np.testing.assert_array_equal(encoded(part, schema_of(part)), expected[1:])


def test_booleans_nan_and_columns_side_by_side():
    batch = pa.record_batch(
        {
            "b": pa.array([True, None, False]),
            "unused": pa.array(["a", "b", "c"]),
            "x": pa.array([NAN, 2.5, None]),
        }
    )
    schema = FeatureSchema(
        (Feature("x", "numeric", "double", 1), Feature("b", "boolean", "bool", 1))
    )
    expected = [[NAN, 1], [2.5, NAN], [NAN, 0]]
    np.testing.assert_array_equal(encoded(batch, schema), expected)
    assert schema.names == ("x", "b")
    assert schema.columns == ("x", "b")


def test_categories_are_one_hot_and_what_is_not_known_is_missing():
    values = pa.DictionaryArray.from_arrays(
        pa.array([2, 0, None, 1, 3, 2], pa.int8()), pa.array(["red", "blue", "green", None])
    )
    batch = pa.record_batch({"c": values})
    schema = schema_of(batch, ("blue", "green"))
    expected = [[0, 1], [NAN, NAN], [NAN, NAN], [1, 0], [NAN, NAN], [0, 1]]
    np.testing.assert_array_equal(encoded(batch, schema), expected)
    assert schema.names == ("c=blue", "c=green")


def test_categories_that_are_integers():
    values = pa.array([20, 3, None]).dictionary_encode()
    batch = pa.record_batch({"c": values})
    expected = [[0, 1], [1, 0], [NAN, NAN]]
    np.testing.assert_array_equal(encoded(batch, schema_of(batch, ("3", "20"))), expected)


ROWS = [[1.0, 2.0], [3.0, None], [5.0, 6.0]]


@pytest.mark.parametrize(
    "data_type",
    [
        pa.list_(pa.float64()),
        pa.list_(pa.float16()),
        pa.large_list(pa.float32()),
        pa.list_(pa.float32(), 2),
        pa.list_(pa.uint8(), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("beside", [False, True])
def test_embeddings(data_type, beside):
    batch = pa.record_batch({"e": pa.array(ROWS, data_type)})
    expected = np.array(ROWS, dtype=np.float64)
    if beside:
        batch = batch.append_column("x", pa.array([7, 8, 9]))
        expected = np.column_stack([expected, [7, 8, 9]])
    schema = schema_of(batch, width=2)
    np.testing.assert_array_equal(encoded(batch, schema), expected)
    np.testing.assert_array_equal(encoded(batch.slice(1, 1), schema), expected[1:2])
    np.testing.assert_array_equal(encoded(batch.slice(0, 0), schema), expected[:0])
    assert schema.names[:2] == ("e[0]", "e[1]")


def test_embedding_is_a_view_of_arrows_memory():
    values = pa.array(np.arange(12.0))
    batch = pa.record_batch({"e": pa.FixedSizeListArray.from_arrays(values, 4)})
    assert np.shares_memory(encoded(batch, schema_of(batch)), values.to_numpy())


def test_tensor_extension_type():
    values = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6.0).reshape(3, 2))
    batch = pa.record_batch({"e": values})
    np.testing.assert_array_equal(encoded(batch, schema_of(batch)), np.arange(6.0).reshape(3, 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([[1.0, 2.0], None]), "is null"),
        (pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)), "is null"),
        (pa.array([[1.0, 2.0], [1.0]]), "has 1 numbers"),
        (pa.array([[1.0, 2.0], []]), "has 0 numbers"),
        (pa.array([[1.0, 2.0], [1.0, 2.0, 3.0]]), "has 3 numbers"),
    ],
)
def test_embedding_that_is_null_or_of_another_length(values, message):
    batch = pa.record_batch({"e": values})
    schema = FeatureSchema((Feature("e", "embedding", str(values.type), 2),))
    with pytest.raises(
        DataError,
        match=rf"file 'f', row group 3, row 101: embedding column 'e' {message}, but every row "
        r"must have a list of 2 numbers.*source\.exclude",
    ):
        encoded(batch, schema)


def test_fixed_lists_of_another_width_than_the_schema():
    batch = pa.record_batch({"e": pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float64(), 3))})
    schema = FeatureSchema((Feature("e", "embedding", "", 2),))
    with pytest.raises(DataError, match="row 100: embedding column 'e' has 3 numbers"):
        encoded(batch, schema)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0.0, None, -math.inf]),
        pa.array([0.0, NAN, -math.inf], pa.float32()),
        pa.array([[0.0, 1.0], [2.0, None], [3.0, -math.inf]]),
    ],
)
def test_infinities(values):
    batch = pa.record_batch({"v": values})
    message = (
        r"file 'f', row group 3, row 102: column 'v' is -inf\. Replace infinite values by null"
    )
    with pytest.raises(DataError, match=message):
        encoded(batch, schema_of(batch, width=2))


def test_weights():
    batch = pa.record_batch({"w": pa.array([0, 2, 1])})
    np.testing.assert_array_equal(encode_weights(batch, "w", where="f", first_row=0), [0, 2, 1])


@pytest.mark.parametrize("value", [None, NAN, math.inf, -0.5])
def test_weights_that_are_no_weights(value):
    batch = pa.record_batch({"w": pa.array([1.0, value])})
    with pytest.raises(DataError, match=r"place 8: weight column 'w' is .*finite and not negative"):
        encode_weights(batch, "w", where=lambda row: f"place {row}", first_row=7)


def test_schema_json_round_trip():
    schema = FeatureSchema(
        (Feature("c", "category", str(CATEGORY), 2, ("a", "b")), Feature("e", "embedding", "", 3)),
        skipped=(("s", "of type string"),),
    )
    assert FeatureSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema.width == 5
    assert schema.names == ("c=a", "c=b", "e[0]", "e[1]", "e[2]")


@pytest.mark.parametrize(("width", "rows"), [(0, 65536), (14, 65536), (2048, 1024), (10**8, 1)])
def test_rows_per_batch(width, rows):
    assert rows_per_batch(width) == rows


@given(st.integers(1, 13), st.integers(1, 9), st.integers(1, 9))
def test_reading_does_not_depend_on_chunking(tmp_path_factory, batch_rows, group, max_rows):
    folder = tmp_path_factory.mktemp("data")
    x = np.arange(26.0).reshape(13, 2)
    labels = [f"label {i}" for i in range(13)]
    for name, part in (("a", slice(0, 5)), ("b", slice(5, 13))):
        columns = {"y": x[part, 1], "label": labels[part], "x": x[part, 0]}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=group)
    source = open_parquet(str(folder))
    schema = FeatureSchema(tuple(Feature(name, "numeric", "double", 1) for name in ("x", "y")))
    parts = [
        part
        for fragment in plan_fragments(source, max_rows)
        for part in read_encoded(
            source, fragment, schema, columns=["label", "x"], batch_rows=batch_rows
        )
    ]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in parts]), x)
    assert [v for batch, _ in parts for v in batch.column("label").to_pylist()] == labels


def test_reading_names_the_row_inside_its_row_group(tmp_path):
    pq.write_table(pa.table({"x": [0.0] * 10}), tmp_path / "a.parquet", row_group_size=4)
    values = [0.0] * 6 + [math.inf, 0.0]
    pq.write_table(pa.table({"x": values}), tmp_path / "b.parquet", row_group_size=4)
    source = open_parquet(str(tmp_path))
    schema = FeatureSchema((Feature("x", "numeric", "double", 1),))
    second = plan_fragments(source, 100)[1]
    with pytest.raises(DataError, match=r"file 'b\.parquet', row group 1, row 2: column 'x' is"):
        list(read_encoded(source, second, schema))
