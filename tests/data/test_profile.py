import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clam_dist.data.domains import Domains
from clam_dist.data.features import encode
from clam_dist.data.parquet import open_parquet
from clam_dist.data.profile import Profile, merge_profiles, profile_fragment
from clam_dist.data.selection import resolve_widths, select_features
from clam_dist.data.source import Source, plan_fragments
from clam_dist.data.statistics import Statistics, fit_scaling
from clam_dist.errors import DataError


def profile(source: Source, max_rows: int = 40, **options) -> Profile:
    schema = resolve_widths(source, select_features(source, **options))
    parts = (profile_fragment(source, schema, f) for f in plan_fragments(source, max_rows))
    # as they would come back from other processes
    return merge_profiles(schema, (pickle.loads(pickle.dumps(part)) for part in parts))


def table(rows: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    colours = pa.array(random.choice(["red", "blue", "green"], rows)).dictionary_encode()
    return pa.table(
        {
            "id": np.arange(seed * 1000, seed * 1000 + rows),
            "x": pa.array(random.normal(5, 2, rows), mask=random.random(rows) < 0.2),
            "colour": pa.compute.if_else(random.random(rows) < 0.1, None, colours),
            "vector": pa.array(random.normal(size=(rows, 2)).tolist()),
            "count": random.integers(0, 50, rows),
            "flag": random.random(rows) < 0.5,
        }
    )


def write(folder, *tables: pa.Table, row_group_size: int = 30) -> Source:
    for index, part in enumerate(tables):
        pq.write_table(part, folder / f"{index}.parquet", row_group_size=row_group_size)
    return open_parquet(str(folder))


def test_a_weight_column_is_the_row_as_many_times(tmp_path):
    rows = table(90)
    weight = np.random.default_rng(1).integers(0, 4, 90)
    (tmp_path / "weighted").mkdir()
    (tmp_path / "repeated").mkdir()
    weighted = rows.append_column("w", pa.array(weight, pa.float64()))
    source = write(tmp_path / "weighted", weighted.slice(0, 50), weighted.slice(50))
    schema = resolve_widths(source, select_features(source, weight="w"))
    parts = [profile_fragment(source, schema, f, None, "w") for f in plan_fragments(source, 40)]
    found = merge_profiles(schema, parts).statistics
    expected = profile(write(tmp_path / "repeated", rows.take(np.repeat(np.arange(90), weight))))
    assert found.rows == np.count_nonzero(weight)
    np.testing.assert_array_equal(found.weight, expected.statistics.count)
    np.testing.assert_allclose(found.mean, expected.statistics.mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, expected.statistics.variance, rtol=1e-12)
    np.testing.assert_array_equal(found.minimum, expected.statistics.minimum)
    np.testing.assert_array_equal(found.maximum, expected.statistics.maximum)


def test_equals_statistics_of_all_rows_encoded_at_once(tmp_path):
    tables = [table(100, 0), table(0, 1), table(70, 2)]
    found = profile(write(tmp_path, *tables))
    whole = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    (batch,) = whole.combine_chunks().to_batches()
    expected = Statistics.of(encode(batch, found.schema, where="all", first_row=0))
    assert found.schema.names == (
        "id", "x", "colour=blue", "colour=green", "colour=red", "vector[0]", "vector[1]",
        "count", "flag",
    )  # fmt: skip
    assert found.statistics.rows == 170
    np.testing.assert_array_equal(found.statistics.count, expected.count)
    np.testing.assert_array_equal(found.statistics.minimum, expected.minimum)
    np.testing.assert_array_equal(found.statistics.maximum, expected.maximum)
    np.testing.assert_allclose(found.statistics.mean, expected.mean, rtol=1e-13)
    np.testing.assert_allclose(found.statistics.m2, expected.m2, rtol=1e-12)


def test_fragments_change_nothing_but_rounding(tmp_path):
    source = write(tmp_path, table(100, 0), table(70, 2))
    one, many = profile(source, 1000), profile(source, 1)
    assert one.schema == many.schema
    assert one.keys == many.keys == ("id",)
    np.testing.assert_array_equal(one.statistics.count, many.statistics.count)
    np.testing.assert_allclose(one.statistics.m2, many.statistics.m2, rtol=1e-12)


def test_json_round_trip(tmp_path):
    found = profile(write(tmp_path, table(50)))
    again = Profile.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert again.to_json() == found.to_json()
    assert again.schema == found.schema


def test_decoded_size_is_that_of_the_features(tmp_path):
    source = write(tmp_path, pa.table({"x": np.zeros(80), "y": np.zeros(80), "z": np.zeros(80)}))
    size = profile(source, features=["x", "y"]).bytes
    assert 2 * 80 * 8 <= size <= 2 * 80 * 8 + 2 * 80


def test_keys_are_named(tmp_path):
    rows = np.arange(60)
    columns = {
        "rising": rows * 3,
        "shuffled": np.random.default_rng(0).permutation(rows),
        "half": rows / 2,
        "again": rows % 59,
        "x": np.sin(rows),
    }
    found = profile(write(tmp_path, pa.table(columns)))
    assert found.keys == ("rising", "shuffled")
    assert "Column 'shuffled' looks like a key" in found.warnings()[1]
    assert "source.keep" in found.warnings()[1]
    assert profile(write(tmp_path, pa.table(columns)), keep=["rising", "shuffled"]).keys == ()


def test_constant_and_empty_features_are_warned_of_and_harmless(tmp_path):
    columns = {
        "constant": np.full(30, 0.1),
        "empty": pa.nulls(30, pa.float64()),
        "one": pa.array(["only"] * 30).dictionary_encode(),
        "x": np.linspace(0, 1, 30),
    }
    found = profile(write(tmp_path, pa.table(columns)))
    assert found.warnings() == [
        "Constant, so of no effect: 'constant', 'one=only'.",
        "Missing in every row, so of no effect: 'empty'.",
    ]
    scaling = fit_scaling(found.statistics, "standard", found.schema.names)
    scaled = scaling.apply(np.array([[0.1, np.nan, 1.0, 0.5]]))
    np.testing.assert_array_equal(scaled[0, :3], [0, np.nan, 0])


def test_only_categories_that_occur_count(tmp_path):
    dictionary = pa.array([f"value {i}" for i in range(1000)])
    values = pa.DictionaryArray.from_arrays(pa.array([999, 3, 3, None], pa.int16()), dictionary)
    found = profile(write(tmp_path, pa.table({"c": values})))
    assert found.schema.names == ("c=value 3", "c=value 999")
    np.testing.assert_allclose(found.statistics.mean, [2 / 3, 1 / 3])


@pytest.mark.parametrize("files", [1, 3])
def test_too_many_categories(tmp_path, files):
    parts = np.array_split([f"value {i}" for i in range(257)], files)
    source = write(tmp_path, *(pa.table({"c": pa.array(p).dictionary_encode()}) for p in parts))
    with pytest.raises(
        DataError, match=r"category column 'c' has more than 256 distinct.*Add 'c' to source\.excl"
    ):
        profile(source)


def test_as_many_categories_as_may_be(tmp_path):
    values = pa.array([f"value {i}" for i in range(256)]).dictionary_encode()
    assert profile(write(tmp_path, pa.table({"c": values}))).schema.width == 256


def test_nothing_but_categories_that_are_missing(tmp_path):
    values = pa.nulls(3, pa.dictionary(pa.int8(), pa.string()))
    source = write(tmp_path, pa.table({"c": values}))
    with pytest.raises(DataError, match="no usable feature: 'c' are categories, missing in every"):
        profile(source)


def test_infinities_stop_the_pass(tmp_path):
    source = write(tmp_path, pa.table({"x": [0.0] * 40 + [np.inf]}))
    with pytest.raises(DataError, match=r"file '0\.parquet', row group 1, row 10: column 'x' is"):
        profile(source)


def test_domains_are_counted_the_same_for_any_cut(tmp_path):
    first, second = table(90), table(40, seed=1)
    sites = np.random.default_rng(2).choice(["b", "a", "c"], 130)
    source = write(
        tmp_path,
        first.append_column("site", pa.array(sites[:90], mask=np.arange(90) < 7)),
        second.append_column("site", pa.array(sites[90:])),
    )
    schema = resolve_widths(source, select_features(source, domain="site"))
    counts = [int((sites[7:] == site).sum()) for site in "abc"]
    for max_rows in (1, 40, 1000):
        parts = [
            profile_fragment(source, schema, f, domain_column="site")
            for f in plan_fragments(source, max_rows)
        ]
        found = merge_profiles(schema, parts)
        assert found.domains == Domains("site", ("a", "b", "c", None), (*counts, 7))
        assert any("missing in 7 of 130 rows" in warning for warning in found.warnings())
        assert Profile.from_json(json.loads(json.dumps(found.to_json()))).domains == found.domains
