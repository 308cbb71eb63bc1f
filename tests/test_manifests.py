"""Manifests: trusted only while whole, of the digest asked for, with their files in place."""

from __future__ import annotations

import errno
import os

import pytest

from clam_dist.errors import RunError
from clam_dist.manifests import (
    describe_files,
    read_manifest,
    stage_digest,
    write_json,
    write_manifest,
)


@pytest.fixture
def work(tmp_path):
    """A work folder with two shards, described in a manifest."""
    folder = tmp_path / "work"
    (folder / "shards" / "deep").mkdir(parents=True)
    (folder / "shards" / "a.npy").write_bytes(b"12345")
    (folder / "shards" / "deep" / "b.npy").write_bytes(b"1")
    files = describe_files(folder, [folder / "shards"])
    write_manifest(folder, "shards", {"files": files, "data": {"rows": 3}, "seconds": 0.5}, "d1")
    return folder


def test_round_trip(work):
    assert read_manifest(work, "shards", "d1") == {
        "stage": "shards",
        "digest": "d1",
        "files": [
            {"path": "shards/a.npy", "bytes": 5},
            {"path": "shards/deep/b.npy", "bytes": 1},
        ],
        "data": {"rows": 3},
        "seconds": 0.5,
    }


def test_write_returns_what_read_gives(tmp_path):
    written = write_manifest(tmp_path, "report", {}, "d")
    assert written == read_manifest(tmp_path, "report", "d")


def test_none_without_a_manifest_or_of_another_digest_or_stage(work):
    assert read_manifest(work, "train", "d1") is None
    assert read_manifest(work, "shards", "d2") is None
    assert read_manifest(work / "absent", "shards", "d1") is None


@pytest.mark.parametrize("damage", ["missing", "shorter", "folder gone"])
def test_none_when_a_listed_file_is_not_as_it_was(work, damage):
    if damage == "missing":
        (work / "shards" / "a.npy").unlink()
    elif damage == "shorter":
        (work / "shards" / "a.npy").write_bytes(b"1234")
    else:
        (work / "shards" / "deep" / "b.npy").unlink()
        (work / "shards" / "deep").rmdir()
        (work / "shards" / "deep").write_bytes(b"a file now")
    assert read_manifest(work, "shards", "d1") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"stage": "shards"}'])
def test_none_when_not_whole(work, text):
    (work / "manifests" / "shards.json").write_text(text)
    assert read_manifest(work, "shards", "d1") is None


def test_files_outside_the_work_folder_are_found(work, tmp_path):
    label = tmp_path / "labels.parquet"
    label.write_bytes(b"123")
    files = describe_files(work, [label])
    assert files == [{"path": "../labels.parquet", "bytes": 3}]
    write_manifest(work, "assign", {"files": files}, "d")
    assert read_manifest(work, "assign", "d") is not None
    label.unlink()
    assert read_manifest(work, "assign", "d") is None


def test_a_run_moved_as_a_whole_stays_valid(work, tmp_path):
    moved = tmp_path / "moved"
    work.rename(moved)
    assert read_manifest(moved, "shards", "d1") is not None


def test_stage_digest_depends_on_every_part_and_its_order():
    digests = [
        stage_digest("a"),
        stage_digest("a", "b"),
        stage_digest("b", "a"),
        stage_digest("ab"),
        stage_digest("a", "b", "c"),
    ]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 for digest in digests)


def test_a_full_disk_keeps_the_old_file_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"disk full: 14 bytes of .*x\.json did not fit"):
        write_json(path, {"new": 2})
    assert path.read_text() == '{\n "old": 1\n}\n'
    assert os.listdir(tmp_path) == ["x.json"]


def test_json_refuses_what_json_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert not (tmp_path / "x.json").exists()
