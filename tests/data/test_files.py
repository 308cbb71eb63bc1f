"""Files appear whole or not at all; a full disk is told with both numbers and the remedy."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from clam_dist.data import files
from clam_dist.data.files import (
    check_disk,
    disk_errors,
    free_bytes,
    published,
    remove_temporaries,
    size_text,
)
from clam_dist.errors import RunError


def test_published_appears_on_success_only(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt"
    with published(str(target)) as temporary:
        Path(temporary).write_text("whole")
        assert not target.exists()
        assert Path(temporary).name.startswith(".")
    assert target.read_text() == "whole"

    def interrupted() -> None:
        with published(str(target)) as temporary:
            Path(temporary).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "whole"
    assert [p.name for p in target.parent.iterdir()] == ["a.txt"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    target = str(tmp_path / "a.txt")
    with published(target) as one, published(target) as two:
        assert one != two
        Path(one).write_text("one")
        Path(two).write_text("two")
    assert Path(target).read_text() == "one"  # the outer one is renamed last


def test_remove_temporaries_takes_only_ours(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in (".a.parquet.0123abcd.tmp", "sub/.b.npy.00000000.tmp"):
        (tmp_path / name).write_text("left by a killed writer")
    kept = [".hidden.tmp", "a.tmp", ".gitignore", ".a.xyz.tmp"]
    for name in kept:
        (tmp_path / name).write_text("theirs")
    assert remove_temporaries(str(tmp_path)) == 2
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted([*kept, "sub"])


def test_check_disk_names_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 3 * 2**20)
    check_disk(str(tmp_path), 3 * 2**20)
    with pytest.raises(RunError, match=r"4\.0 MiB \(4194304 bytes\) are needed.*3\.0 MiB"):
        check_disk(str(tmp_path), 4 * 2**20)
    with pytest.raises(RunError, match=r"work\.size_limit allows 1\.0 MiB"):
        check_disk(str(tmp_path), 2 * 2**20, limit=2**20)


def test_free_bytes_of_a_folder_not_made_yet(tmp_path: Path) -> None:
    assert free_bytes(str(tmp_path / "not" / "yet")) > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (2**40, "1.0 TiB"),
        (2**30, "1.0 GiB"),
    ],
)
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError("Error writing bytes. Detail: [errno 28] No space left on device"),
    ],
)
def test_full_disk(tmp_path: Path, error: OSError) -> None:
    path = str(tmp_path / "a.npy")
    with pytest.raises(RunError, match=r"a\.npy.*free some space.*work\.uri"), disk_errors(path):
        raise error


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with (
        pytest.raises(RunError, match=r"cannot write.*may be written to"),
        published(str(tmp_path / "file" / "a.npy")),
    ):
        pass
