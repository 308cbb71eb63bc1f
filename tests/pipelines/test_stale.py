from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from pipelines.stale import is_gone, is_unrecorded, this_process

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOST = socket.gethostname()
START = round(psutil.Process().create_time())


@pytest.mark.parametrize(
    ("recorded", "gone"),
    [
        (f"{HOST}:{os.getpid()}:{START}", False),
        (f"{HOST}:{os.getpid()}:{START + 30}", False),  # the clock was set
        (f"{HOST}:{os.getpid()}:{START - 3600}", True),  # another process has its number now
        (f"{HOST}:{2**22 + 1}:{START}", True),
        (f"elsewhere:{2**22 + 1}:{START}", False),  # cannot be seen from here
        (f"{HOST}:{2**22 + 1}", False),  # not of our writing
        (str(2**22 + 1), False),
        ("container-id", False),
    ],
)
def test_a_run_is_gone_with_its_process(recorded: str, gone: bool) -> None:
    assert is_gone(recorded) is gone


def test_this_process_is_not_gone() -> None:
    assert not is_gone(this_process())


def test_a_process_that_nobody_waited_for_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert is_gone(f"{HOST}:{process.pid}:{START}")
    process.communicate()


def test_a_run_without_a_record_is_gone_after_a_minute() -> None:
    assert not is_unrecorded(NOW - timedelta(seconds=59), NOW)
    assert is_unrecorded(NOW - timedelta(seconds=61), NOW)
