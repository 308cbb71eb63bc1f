"""What the machine offers, read from files made by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from clam_dist.launch import machine

MIB = 2**20


def test_cores_are_cut_to_the_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine.usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.usable_cores(tmp_path) == machine.usable_cores(tmp_path / "absent")


def test_memory_is_what_the_container_leaves_without_its_cache(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{70 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {20 * MIB}\nslab 3\n")
    assert machine.usable_memory(tmp_path) == 50 * MIB


def test_memory_of_an_old_cgroup(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{100 * MIB}")
    (folder / "memory.usage_in_bytes").write_text(f"{70 * MIB}")
    (folder / "memory.stat").write_text(f"total_inactive_file {30 * MIB}\n")
    assert machine.usable_memory(tmp_path) == 60 * MIB


def test_memory_without_a_limit_is_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    free = psutil.virtual_memory().available
    assert machine.usable_memory(tmp_path) == pytest.approx(free, rel=0.2)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_peak_is_the_process_own_and_stays() -> None:
    """A small child of a large parent is small; what it freed again still counts."""
    script = (
        "from clam_dist.launch.machine import peak_rss_bytes\n"
        "before = peak_rss_bytes()\n"
        "block = b'x' * 50_000_000\n"
        "del block\n"
        "print(before, peak_rss_bytes())\n"
    )
    ballast = b"x" * 200_000_000
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    before, after = map(int, told)
    assert before < len(ballast) / 2
    assert 45_000_000 < after - before < 70_000_000
