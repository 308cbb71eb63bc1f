import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clam_dist.data.parquet import open_parquet
from clam_dist.data.selection import resolve_widths, select_features
from clam_dist.data.source import Source
from clam_dist.errors import ConfigError, DataError


@pytest.fixture
def source(tmp_path) -> Source:
    folder = tmp_path / "part=3"
    folder.mkdir()
    table = pa.table(
        {
            "id": [1, 2],
            "height": [1.5, 2.5],
            "tall": [True, False],
            "colour": pa.array(["red", "blue"]).dictionary_encode(),
            "vector": pa.array([[1.0, 2.0]] * 2),
            "pixels": pa.array([[1, 2, 3]] * 2, pa.list_(pa.uint8(), 3)),
            "name": ["a", "b"],
            "cluster": [0, 1],
            "__index_level_0__": [7, 8],
        }
    )
    pq.write_table(table, folder / "a.parquet")
    return open_parquet(str(tmp_path))


def test_every_column_that_can_be_a_feature(source):
    schema = select_features(source, exclude=["cluster"], keep=["id"])
    assert [(f.column, f.kind, f.width) for f in schema.features] == [
        ("height", "numeric", 1),
        ("tall", "boolean", 1),
        ("colour", "category", 0),
        ("vector", "embedding", 0),
        ("pixels", "embedding", 3),
    ]
    assert dict(schema.skipped) == {
        "name": "of type string",
        "__index_level_0__": "a stored pandas index (name it in source.features to use it)",
        "part": "the value of a folder name (name it in source.features to use it)",
    }


def test_label_and_weight_are_no_features(source):
    schema = select_features(source, label="cluster", weight="height")
    assert schema.columns == ("id", "tall", "colour", "vector", "pixels")


@pytest.mark.parametrize("domain", ["name", "tall", "part"])
def test_the_domain_is_no_feature_but_may_be_kept_or_the_label(source, domain):
    schema = select_features(source, keep=[domain], label=domain, domain=domain)
    assert domain not in (*schema.columns, *dict(schema.skipped))


def test_named_features_in_their_order_even_if_kept(source):
    schema = select_features(source, features=["tall", "part", "id"], keep=["id"])
    assert schema.columns == ("tall", "part", "id")
    assert schema.skipped == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["hight"]}, r"source\.features: no column 'hight'; did you mean 'height'\?"),
        ({"exclude": ["Name"]}, r"source\.exclude: no column 'Name'; did you mean 'name'\?"),
        ({"keep": ["ids"]}, r"source\.keep: no column 'ids'; did you mean 'id'\?"),
        ({"label": "zzz"}, r"source\.label: no column 'zzz'; the columns are id, height, tall"),
        (
            {"features": ["zzz", "hight", "qqq"]},
            r"no column 'hight'; did you mean 'height'\?\n"
            r"source\.features: no column 'zzz', 'qqq'; the columns are id, height, [^\n]*$",
        ),
        ({"weight": "wheight"}, r"source\.weight: no column 'wheight'; did you mean 'height'"),
        ({"keep": ["cluster"]}, r"source\.keep: a kept column may not be called 'cluster'"),
        ({"keep": ["id", "id"]}, r"source\.keep: 'id' is listed twice"),
        ({"features": []}, r"source\.features: the list is empty"),
        ({"features": ["name"]}, r"source\.features: column 'name' is string, which cannot be"),
        (
            {"features": ["id"], "label": "id"},
            r"source\.features: 'id' is also named in source\.label",
        ),
        ({"domain": "nam"}, r"source\.domain: no column 'nam'; did you mean 'name'\?"),
        (
            {"features": ["id"], "domain": "id"},
            r"source\.features: 'id' is also named in source\.domain",
        ),
        ({"weight": "id", "domain": "id"}, r"source\.domain: 'id' is also source\.weight"),
        ({"features": ["x"], "keep": ["distance"]}, r"(?s)features: no column 'x'.*keep: no col"),
    ],
)
def test_names_that_are_wrong(source, options, message):
    with pytest.raises(ConfigError, match=message):
        select_features(source, **options)


def test_nothing_left_says_why_for_each_column(tmp_path):
    pq.write_table(pa.table({"name": ["a"], "x": [1.0], "y": [2.0]}), tmp_path / "a.parquet")
    source = open_parquet(str(tmp_path))
    with pytest.raises(
        DataError,
        match="can be a feature: 'name' is of type string; 'x' is excluded; 'y' is the label",
    ):
        select_features(source, exclude=["x"], label="y")


def test_width_of_lists_from_the_first_row(source):
    schema = resolve_widths(source, select_features(source, features=["vector", "pixels", "id"]))
    assert [f.width for f in schema.features] == [2, 3, 1]
    assert schema.names == ("vector[0]", "vector[1]", "pixels[0]", "pixels[1]", "pixels[2]", "id")


def test_width_where_the_first_file_and_the_first_row_are_empty(tmp_path):
    for name, rows in (("a", []), ("b", [None, [1.0, 2.0, 3.0]])):
        table = pa.table({"e": pa.array(rows, pa.list_(pa.float32()))})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    source = open_parquet(str(tmp_path))
    assert resolve_widths(source, select_features(source)).width == 3


@pytest.mark.parametrize("row", [None, []])
def test_lists_without_a_width(tmp_path, row):
    table = pa.table({"e": pa.array([row] * 3, pa.list_(pa.float32())), "x": np.arange(3.0)})
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_parquet(str(tmp_path))
    with pytest.raises(DataError, match=r"file 'a\.parquet': embedding column 'e' has no numbers"):
        resolve_widths(source, select_features(source))
