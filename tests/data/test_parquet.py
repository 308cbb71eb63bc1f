import os
import re
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clam_dist.data.parquet import check_unchanged, open_parquet, read_batches
from clam_dist.data.source import Source, plan_fragments
from clam_dist.errors import ConfigError, DataError


def write(path: Path, columns: dict, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)
    return path


def read_all(source: Source, columns: list[str], max_rows: int = 7, **options) -> pa.Table:
    batches = [
        batch
        for fragment in plan_fragments(source, max_rows)
        for batch in read_batches(source, fragment, columns, **options)
    ]
    return pa.Table.from_batches(batches)


def test_single_file(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": np.arange(10.0), "s": ["t"] * 10}, row_group_size=4)
    source = open_parquet(str(path))
    (file,) = source.files
    assert (file.name, file.address) == ("a.parquet", str(path))
    assert (file.size, file.modified) == (path.stat().st_size, str(path.stat().st_mtime_ns))
    assert file.row_groups == (4, 4, 2)
    assert source.base == str(tmp_path)
    assert [(c.name, c.kind) for c in source.columns] == [("x", "numeric"), ("s", "other")]
    assert read_all(source, ["x"])["x"].to_pylist() == list(range(10))


def test_a_file_named_with_an_underscore_is_read_if_it_is_the_address(tmp_path):
    path = write(tmp_path / "_a.parquet", {"x": [1.0]})
    assert open_parquet(str(path)).n_rows == 1


def test_folder_in_order_of_relative_name_without_hidden_and_foreign_files(tmp_path):
    for order, name in enumerate(["b/z.parquet", "a.parquet", "c", "b/a.PQ"]):
        write(tmp_path / name, {"x": [float(order)]})
    write(tmp_path / "_temporary/x.parquet", {"other": [1]})
    write(tmp_path / "b/.hidden.parquet", {"other": [1]})
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.txt").write_text("not data")
    source = open_parquet(str(tmp_path))
    assert [f.name for f in source.files] == ["a.parquet", "b/a.PQ", "b/z.parquet", "c"]
    assert read_all(source, ["x"])["x"].to_pylist() == [1, 3, 0, 2]


def test_glob_names_are_relative_to_the_part_without_a_wildcard(tmp_path, monkeypatch):
    write(tmp_path / "data/p=1/a.parquet", {"x": [1.0]})
    write(tmp_path / "data/p=2/b.parquet", {"x": [2.0]})
    monkeypatch.chdir(tmp_path)
    for uri in ("data/*/*.parquet", "data/p=*", "data/**/*.parquet", f"file://{tmp_path}/data/*/*"):
        source = open_parquet(uri)
        assert source.base == str(tmp_path / "data")
        assert [f.name for f in source.files] == ["p=1/a.parquet", "p=2/b.parquet"]
        assert read_all(source, ["p", "x"]).to_pydict() == {"p": [1, 2], "x": [1.0, 2.0]}


def test_hive_partition_columns(tmp_path):
    empty = "__HIVE_DEFAULT_PARTITION__"
    write(tmp_path / "year=2024/city=S%C3%A3o/a.parquet", {"x": [1.0, 2.0]})
    write(tmp_path / f"year={empty}/city=Bonn/a.parquet", {"x": [3.0]})
    source = open_parquet(str(tmp_path))
    assert [(c.name, c.type, c.partition) for c in source.columns] == [
        ("x", "double", False),
        ("year", "int64", True),
        ("city", "string", True),
    ]
    table = read_all(source, ["city", "x", "year"])
    assert table.to_pydict() == {
        "city": ["São", "São", "Bonn"],
        "x": [1.0, 2.0, 3.0],
        "year": [2024, 2024, None],
    }
    assert read_all(source, ["year"])["year"].to_pylist() == [2024, 2024, None]


def test_a_column_in_the_files_wins_over_the_folder_of_that_name(tmp_path):
    write(tmp_path / "x=7/a.parquet", {"x": [1.0]})
    source = open_parquet(str(tmp_path))
    assert read_all(source, ["x"])["x"].to_pylist() == [1.0]


def test_types_widen_over_files_and_keep_their_metadata(tmp_path):
    field = pa.field("x", pa.int32(), metadata={"unit": "m"})
    category = pa.array(["u", "v"]).dictionary_encode()
    write(
        tmp_path / "a.parquet",
        pa.table(
            [pa.array([1, 2], pa.int32()), pa.nulls(2), category],
            schema=pa.schema([field, pa.field("n", pa.null()), pa.field("c", category.type)]),
        ),
    )
    write(
        tmp_path / "b.parquet",
        {
            "n": pa.array([None, 4], pa.int64()),
            "c": category.cast(pa.dictionary(pa.int8(), pa.string())),
            "x": pa.array([0.5, None], pa.float64()),
        },
    )
    source = open_parquet(str(tmp_path))
    assert [c.type for c in source.columns[:2]] == ["double", "int64"]
    table = read_all(source, ["x", "n", "c"])
    assert table.to_pydict() == {
        "x": [1.0, 2.0, 0.5, None],
        "n": [None, None, None, 4],
        "c": ["u", "v", "u", "v"],
    }
    assert table.schema.field("x").metadata == {b"unit": b"m"}


def test_an_integer_that_the_widest_type_does_not_hold(tmp_path):
    write(tmp_path / "a.parquet", {"x": pa.array([2**53 + 1], pa.int64())})
    write(tmp_path / "b.parquet", {"x": pa.array([0.5])})
    source = open_parquet(str(tmp_path))
    with pytest.raises(DataError, match=r"file 'a\.parquet': column 'x' is int64 here but double"):
        read_all(source, ["x"])


def test_empty_files_are_files_too(tmp_path):
    write(tmp_path / "a.parquet", {"x": [1.0]})
    write(tmp_path / "b.parquet", {"x": pa.array([], pa.float64())})
    source = open_parquet(str(tmp_path))
    assert [f.n_rows for f in source.files] == [1, 0]
    assert list(read_batches(source, plan_fragments(source, 9)[1], ["x"])) == []


@pytest.mark.parametrize("batch_rows", [1, 3, 64])
def test_batches_come_in_order_and_bounded(tmp_path, batch_rows):
    path = write(
        tmp_path / "a.parquet", {"x": np.arange(20), "a.b": np.arange(20)}, row_group_size=6
    )
    source = open_parquet(str(path))
    fragment = plan_fragments(source, 12)[0]
    batches = list(read_batches(source, fragment, ["a.b", "x"], batch_rows=batch_rows))
    assert max(b.num_rows for b in batches) <= batch_rows
    table = pa.Table.from_batches(batches)
    assert table.column_names == ["a.b", "x"]
    assert table["x"].to_pylist() == list(range(12))


def test_object_store(tmp_path):
    content = write(tmp_path / "a.parquet", {"x": np.arange(9.0)}, row_group_size=4).read_bytes()
    memory = fsspec.filesystem("memory")
    memory.pipe({"/bucket/p=1/a.parquet": content, "/bucket/p=2/b.parquet": content})
    try:
        for uri in ("memory://bucket", "memory://bucket/*/*.parquet"):
            source = open_parquet(uri)
            assert [f.name for f in source.files] == ["p=1/a.parquet", "p=2/b.parquet"]
            assert source.base == "memory:///bucket"
            assert read_all(source, ["x", "p"])["x"].to_pylist() == [*range(9), *range(9)]
        memory.pipe("/bucket/p=2/b.parquet", content)
        with pytest.raises(DataError, match=r"'p=2/b\.parquet' changed"):
            check_unchanged(source, 1)
    finally:
        memory.rm("/bucket", recursive=True)


def test_no_such_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no such file or folder: 'a/b'.*working folder") as error:
        open_parquet("a/b")
    assert str(tmp_path) in str(error.value)


def test_empty_folder_and_glob(tmp_path):
    for uri in (str(tmp_path), f"{tmp_path}/*.parquet"):
        with pytest.raises(DataError, match="no files at"):
            open_parquet(uri)
    (tmp_path / "table.csv").write_text("x\n1\n")
    with pytest.raises(DataError, match=r"1 there, such as 'table\.csv'"):
        open_parquet(str(tmp_path))


@pytest.mark.parametrize("uri", ["nonsense://x/y"])
def test_unknown_kind_of_address(uri):
    with pytest.raises(ConfigError, match="nonsense://x/y"):
        open_parquet(uri)


def test_no_rows(tmp_path):
    write(tmp_path / "a.parquet", {"x": pa.array([], pa.float64())})
    with pytest.raises(DataError, match="has no rows"):
        open_parquet(str(tmp_path))


def damage(content: bytes, how: str) -> bytes:
    if how == "footer":
        return content[:-100] + bytes(80) + content[-20:]
    length = int.from_bytes(content[-8:-4], "little")
    return {
        "empty": b"",
        "foreign": b"x,y\n1,2\n" * 20,
        "cut": content[: len(content) // 2],
        "cut footer": b"PAR1" + content[-(length // 2) :],
        "encrypted": content[:-4] + b"PARE",
    }[how]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("empty", r"file 'b\.parquet' is empty \(0 bytes\)"),
        ("foreign", r"file 'b\.parquet' is not a Parquet file"),
        ("cut", r"file 'b\.parquet' is cut off: .*the footer"),
        (
            "cut footer",
            r"file 'b\.parquet' is cut off or damaged: its footer should have \d+ ",
        ),
        ("footer", r"file 'b\.parquet': its Parquet footer is damaged"),
        ("encrypted", r"file 'b\.parquet' is encrypted"),
    ],
)
def test_a_file_that_is_not_whole(tmp_path, how, message):
    write(tmp_path / "a.parquet", {"x": [1.0], "y": ["z"]})
    path = write(tmp_path / "b.parquet", {"x": [1.0], "y": ["z"]})
    path.write_bytes(damage(path.read_bytes(), how))
    with pytest.raises(DataError, match=message):
        open_parquet(str(tmp_path))


def test_a_footer_longer_than_the_first_read(tmp_path):
    columns = {f"column_{i}": [float(i)] for i in range(1500)}
    path = write(tmp_path / "a.parquet", columns)
    assert int.from_bytes(path.read_bytes()[-8:-4], "little") > 64 << 10
    assert len(open_parquet(str(path)).columns) == 1500


def test_a_broken_page_names_file_row_group_and_column(tmp_path):
    columns = {"x": np.arange(300) % 7, "y": np.arange(300.0)}
    path = write(tmp_path / "a.parquet", columns, row_group_size=100, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(1).column(1)
    content = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    content[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(content)
    source = open_parquet(str(path))
    with pytest.raises(DataError, match=r"'a\.parquet', row group 1, column 'y' cannot be read"):
        read_all(source, ["x", "y"], 300)
    assert read_all(source, ["x"], 300).num_rows == 300


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": [1.0]}, r"column 'y' is missing from file 'b\.parquet' but is in file 'a\.parquet'"),
        (
            {"x": [1.0], "y": [1], "z": [1]},
            r"column 'z' is missing from file 'a\.parquet' but is in file 'b\.parquet'",
        ),
        (
            {"x": [1.0], "y": ["text"]},
            r"column 'y' is string in file 'b\.parquet' but int64 in the files before it",
        ),
        ({"x": [1.0], "y": [True]}, "column 'y' is bool"),
        ({"x": [1.0], "y": [[1.0]]}, "column 'y' is list"),
    ],
)
def test_files_that_disagree(tmp_path, other, message):
    write(tmp_path / "a.parquet", {"x": [1.0], "y": [1]})
    write(tmp_path / "b.parquet", other)
    with pytest.raises(DataError, match=message):
        open_parquet(str(tmp_path))


def test_embeddings_of_two_widths(tmp_path):
    for name, width in (("a", 2), ("b", 3)):
        values = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(width)), width)
        write(tmp_path / f"{name}.parquet", {"e": values})
    with pytest.raises(DataError, match=r"'e' is fixed_size_list.*\[3\] in file 'b\.parquet'"):
        open_parquet(str(tmp_path))


def test_duplicate_column_names(tmp_path):
    table = pa.table([pa.array([1.0]), pa.array([2.0])], names=["x", "x"])
    write(tmp_path / "a.parquet", table)
    with pytest.raises(DataError, match=r"file 'a\.parquet' has 2 columns named 'x'"):
        open_parquet(str(tmp_path))


def test_partition_folders_that_disagree(tmp_path):
    write(tmp_path / "p=1/a.parquet", {"x": [1.0]})
    write(tmp_path / "q=1/a.parquet", {"x": [1.0]})
    with pytest.raises(DataError, match=r"file 'q=1/a\.parquet' is in partition folders \['q'\]"):
        open_parquet(str(tmp_path))


def changed_size(path: Path) -> None:
    write(path, {"x": np.arange(2000.0)})


def changed_time(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def changed_footer(path: Path) -> None:
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"parquet-cpp", b"parquet-cpq"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed_size, r"it had \d+ bytes and now has \d+"),
        (changed_time, "it was modified"),
        (changed_footer, "its footer is another"),
        (Path.unlink, "it is gone"),
    ],
)
def test_a_file_that_changed_since(tmp_path, change, message):
    path = write(tmp_path / "a.parquet", {"x": np.arange(10.0)})
    source = open_parquet(str(path))
    check_unchanged(source, 0)
    change(path)
    with pytest.raises(DataError, match=rf"file 'a\.parquet' changed since .*{message}"):
        read_all(source, ["x"])


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": np.arange(10.0)})
    source = open_parquet(str(path))
    batches = read_batches(source, plan_fragments(source, 10)[0], ["x"], batch_rows=5)
    next(batches)
    changed_time(path)
    with pytest.raises(DataError, match="changed"):
        list(batches)


MEASURE = """
import re, sys
from clam_dist.data.parquet import open_parquet, read_batches
from clam_dist.data.source import plan_fragments

def memory(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

source = open_parquet(sys.argv[1])
before = memory("VmRSS")
for batch in read_batches(source, plan_fragments(source, 1)[0], ["x", "y"]):
    pass
print(memory("VmHWM") - before)
"""


def test_memory_is_bounded_though_one_row_group_holds_all_rows(tmp_path):
    rows = 6_000_000
    table = pa.table({"x": np.arange(rows), "y": np.arange(rows, dtype=np.float64)})
    path = write(tmp_path / "a.parquet", table, row_group_size=rows, use_dictionary=False)
    assert table.nbytes > 90 << 20
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True
    ).stdout
    assert int(re.search(r"\d+", output)[0]) < 48 << 20
