"""Blocks written equal ``numpy.load``; positioned reads equal slices; damage is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clam_dist.data import files, npy
from clam_dist.data.npy import OpenNpyFiles, npy_layout, row_blocks, write_npy
from clam_dist.errors import RunError


def write(path: Path, values: np.ndarray) -> int:
    return write_npy(str(path), values.shape, values.dtype, row_blocks(values))


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (1000, 7), (1000,), (5, 0)])
def test_written_file_is_what_numpy_loads(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape)
    size = write(tmp_path / "a.npy", values)
    assert size == os.path.getsize(tmp_path / "a.npy")
    loaded = np.load(tmp_path / "a.npy")
    np.testing.assert_array_equal(loaded, values)
    assert loaded.shape == shape


def test_blocks_are_bounded_and_in_the_order_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "_BLOCK_BYTES", 100)
    values = np.arange(60.0).reshape(20, 3)  # 24 bytes a row: 4 rows a block
    order = np.random.default_rng(0).permutation(20)
    blocks = list(row_blocks(values, order))
    assert [len(block) for block in blocks] == [4] * 5
    np.testing.assert_array_equal(np.concatenate(blocks), values[order])


def test_positioned_reads_are_slices(tmp_path: Path) -> None:
    values = np.arange(70, dtype=np.float32).reshape(10, 7)
    write(tmp_path / "a.npy", values)
    opened = OpenNpyFiles(7, np.dtype(np.float32))
    for first, last in [(0, 10), (3, 4), (9, 10), (5, 5)]:
        out = np.empty((last - first, 7), np.float32)
        opened.read_into(str(tmp_path / "a.npy"), first, out)
        np.testing.assert_array_equal(out, values[first:last])
    with pytest.raises(RunError, match=r"a\.npy: ends before row 11.*delete the work folder"):
        opened.read_into(str(tmp_path / "a.npy"), 8, np.empty((3, 7), np.float32))
    opened.close()


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "_OPEN_FILES", 3)
    paths = [str(tmp_path / f"{i}.npy") for i in range(8)]
    for i, path in enumerate(paths):
        write(Path(path), np.full(4, float(i)))
    before = len(os.listdir("/proc/self/fd"))
    opened = OpenNpyFiles(None, np.dtype(np.float64))
    for turn in range(3):
        for i, path in enumerate(paths):
            out = np.empty(1)
            opened.read_into(path, turn, out)
            assert out[0] == i
            assert len(os.listdir("/proc/self/fd")) <= before + 3
    opened.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: p.unlink(), "No such file"),
        (lambda p: p.write_bytes(p.read_bytes()[:-4]), "404 bytes, not 408"),
        (lambda p: p.write_bytes(b""), "EOF"),
        (lambda p: p.write_bytes(b"PAR1" * 100), "magic"),
        (lambda p: write(p, np.zeros((10, 8), np.float32)), r"holds float32\(10, 8\)"),
        (lambda p: write(p, np.zeros((10, 7))), "holds float64"),
        (lambda p: write(p, np.zeros(10, np.float32)), r"\(10,\)"),
        (lambda p: np.save(p, np.zeros((10, 7), np.float32, order="F")), "holds float32"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], text: str) -> None:
    path = tmp_path / "a.npy"
    write(path, np.zeros((10, 7), np.float32))
    damage(path)
    with pytest.raises(RunError, match=rf"work file .*a\.npy: .*{text}.*run again"):
        npy_layout(str(path), 7, np.dtype(np.float32))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "00000000")
    (tmp_path / ".a.npy.00000000.tmp").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"a\.npy: No space left on device"):
        write(tmp_path / "a.npy", np.zeros((10, 7)))
    assert list(tmp_path.iterdir()) == []
