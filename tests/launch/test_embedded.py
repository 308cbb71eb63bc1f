"""What an embedded cluster must not leave behind, and what its nannies say."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from clam_dist.launch.embedded import NannyLog, environment_kept, kill


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAM_TEST_KEPT", "before")
    monkeypatch.setenv("CLAM_TEST_GONE", "before")
    before = dict(os.environ)
    with environment_kept():
        os.environ["CLAM_TEST_KEPT"] = "after"
        os.environ["CLAM_TEST_NEW"] = "after"
        del os.environ["CLAM_TEST_GONE"]
    assert dict(os.environ) == before


def test_the_last_words_about_a_worker() -> None:
    nannies = NannyLog()
    log = logging.getLogger("distributed.nanny.memory")
    logging.getLogger("distributed.nanny").setLevel(logging.INFO)
    try:
        assert nannies.last("tcp://a") == ""
        log.warning("Worker tcp://a (pid=7) exceeded 95%% memory budget. Restarting...")
        logging.getLogger("distributed.nanny").info("Worker process 9 was killed by signal 9")
        logging.getLogger("distributed.nanny").info("Closing Nanny gracefully")
        assert "memory budget" in nannies.last("tcp://a")
        assert nannies.last("tcp://b") == "Worker process 9 was killed by signal 9"
    finally:
        nannies.detach()
    log.warning("Worker tcp://a was killed by nobody")
    assert "memory budget" in nannies.last("tcp://a")


def test_killing_a_process_and_one_that_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        kill(child.pid)
        assert child.wait(20) == -9
    kill(child.pid)


def test_an_unguarded_script_is_told_what_to_do() -> None:
    """Workers import the main module; one that starts workers there would go on for ever."""
    script = (
        "import multiprocessing\n"
        "multiprocessing.current_process()._inheriting = True\n"
        "from clam_dist.launch import dask\n"
        "dask.embedded(1, 2**30, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ConfigError" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr
