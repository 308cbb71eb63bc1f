"""What this machine offers a run: cores, memory, and how much memory a process has used."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores this process may use: its affinity, cut to a container's quota, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _read(cgroup / "cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores or 1, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores or 1)


def usable_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory free for use now, cut to what a container's limit leaves."""
    free = psutil.virtual_memory().available
    limits = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    )
    for limit, used, cache in limits:
        bound, taken = _read(cgroup / limit), _read(cgroup / used)
        if bound.isdigit() and taken.isdigit():
            # Cached file pages count as used, yet are given back on demand.
            statistics = _read((cgroup / used).parent / "memory.stat")
            cached = re.search(rf"^{cache} (\d+)$", statistics, re.MULTILINE)
            taken_now = int(taken) - (int(cached[1]) if cached else 0)
            free = min(free, max(0, int(bound) - max(0, taken_now)))
    return free


def peak_rss_bytes() -> int:
    """Peak resident memory of this process in bytes.

    ``VmHWM`` of ``/proc/self/status``: ``ru_maxrss`` is inherited from the parent, so a small
    child of a large parent would be charged for it. Where there is no ``/proc``, what is resident
    now.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", _read(Path("/proc/self/status")), re.MULTILINE)
    return int(found[1]) * 1024 if found else int(psutil.Process().memory_info().rss)


def _read(path: Path) -> str:
    """The text of a small system file, or nothing where the system has no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
