from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.bench.start import COMMANDS, end, memory, start


def test_memory_is_of_the_process_and_its_children() -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    process = subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    family = [psutil.Process(process.pid)]
    while len(family) == 1:
        family = [family[0], *family[0].children(recursive=True)]
    rss, pss, count = memory(process.pid)
    assert count == 2
    assert rss >= pss > 0
    end(process)
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_a_start_ends_where_the_first_stage_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import time\nprint('importing', flush=True)\nprint('first', flush=True)\n"
    (tmp_path / "a.py").write_text(script + "time.sleep(60)\n")
    (tmp_path / "b.py").write_text(script)
    monkeypatch.setitem(COMMANDS, "a", (["a.py"], "first"))
    monkeypatch.setitem(COMMANDS, "b", (["b.py"], "second"))
    found = start("a", tmp_path, dict(os.environ))
    assert 0 < found.seconds < 30
    assert found.processes == 1
    with pytest.raises(RuntimeError, match="b never began its first stage"):
        start("b", tmp_path, dict(os.environ))
