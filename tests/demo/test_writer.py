"""Demo files: whole or absent, bounded memory, never over what someone else wrote."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clam_dist.demo import vowels, write_demo
from clam_dist.demo import writer as demo_writer
from clam_dist.errors import ConfigError, RunError


def test_writes_the_rows_in_row_groups(tmp_path):
    rows = demo_writer.ROW_GROUP_ROWS + 1000
    done = write_demo("vowels", tmp_path / "new" / "v.parquet", rows=rows)
    assert done.written
    file = pq.ParquetFile(done.path)
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [demo_writer.ROW_GROUP_ROWS, 1000]
    x, _ = vowels.draw_block(0, 1)
    second = file.read(["frame"])["frame"].to_numpy()[vowels.BLOCK_ROWS : 2 * vowels.BLOCK_ROWS]
    assert np.array_equal(second, x[1])
    assert os.listdir(tmp_path / "new") == ["v.parquet"]


def test_default_rows_are_the_real_digits(tmp_path):
    assert write_demo("digits", tmp_path / "d.parquet").rows == 1797


def test_the_same_set_is_left_and_another_of_ours_replaced(tmp_path):
    path = tmp_path / "v.parquet"
    write_demo("vowels", path, rows=10)
    before = path.stat().st_mtime_ns
    assert not write_demo("vowels", path, rows=10).written
    assert path.stat().st_mtime_ns == before
    for change in ({"rows": 11}, {"rows": 11, "seed": 1}):
        assert write_demo("vowels", path, **change).written
        assert pq.ParquetFile(path).metadata.num_rows == 11
    assert write_demo("digits", path, rows=11).written


@pytest.mark.parametrize("kind", ["parquet", "text", "folder"])
def test_what_others_wrote_is_refused_untouched(tmp_path, kind):
    path = tmp_path / "mine.parquet"
    if kind == "parquet":
        pq.write_table(pa.table({"a": [1]}), path)
    elif kind == "text":
        path.write_text("not Parquet")
    else:
        path.mkdir()
    before = None if kind == "folder" else path.read_bytes()
    with pytest.raises(ConfigError, match=r"was not written by|is a folder"):
        write_demo("vowels", path, rows=10)
    assert kind == "folder" or path.read_bytes() == before
    assert os.listdir(tmp_path) == ["mine.parquet"]


def test_bad_names_and_rows(tmp_path):
    with pytest.raises(ConfigError, match="no demo data named 'vowel'; known are vowels, digits"):
        write_demo("vowel", tmp_path / "v.parquet")
    with pytest.raises(ConfigError, match="needs at least 1 row"):
        write_demo("vowels", tmp_path / "v.parquet", rows=0)


def test_too_small_a_disk_is_known_before_writing(tmp_path):
    with pytest.raises(RunError, match="bytes"):
        write_demo("vowels", tmp_path / "v.parquet", rows=10**15)
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_when_stopped(tmp_path, monkeypatch):
    whole = list(vowels.batches(10, 0))

    def stopped(*_):
        yield from whole
        raise KeyboardInterrupt

    monkeypatch.setattr(vowels, "batches", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_demo("vowels", tmp_path / "v.parquet", rows=10)
    assert os.listdir(tmp_path) == []


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Peak resident memory of a process writing 8 row groups and 2, measured by the kernel."""
    code = (
        "import sys; from clam_dist.demo import write_demo\n"
        "write_demo('vowels', sys.argv[1], rows=int(sys.argv[2]))\n"
        "print([l for l in open('/proc/self/status') if l.startswith('VmHWM')][0].split()[1])"
    )

    def peak_mib(groups: int) -> float:
        arguments = [str(tmp_path / f"{groups}.parquet"), str(groups * demo_writer.ROW_GROUP_ROWS)]
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        return int(run.stdout) / 1024

    # Eight groups are 58 MiB of numbers, six more than two: 44 MiB if any were kept.
    assert peak_mib(8) < peak_mib(2) + 22
