"""Who owns an output folder: alive, dead, finished, foreign; in this process and after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from clam_dist import ownership
from clam_dist.errors import ConfigError, RunError
from clam_dist.owner_record import DEAD_AFTER_SECONDS, LOCK_FILE, OWNER_FILE
from clam_dist.ownership import claim

CONFIG = {"seed": 0, "model": {"n_clusters": 9, "beta": "auto"}}


def take(folder, run_id="run-1", digest="d1", config=CONFIG, force=False):
    return claim(folder, run_id=run_id, digest=digest, config_public=config, force=force)


def record(folder):
    return json.loads((folder / OWNER_FILE).read_text())


def finish(folder, **kwargs):
    with take(folder, **kwargs) as held:
        (folder / "metrics.json").write_text("{}")
        held.succeed()


def test_a_new_folder_says_who_writes_there(tmp_path):
    folder = tmp_path / "a" / "b"
    with take(folder) as held:
        said = record(folder)
        assert (said["owner"], said["pid"], said["run_id"]) == ("clam_dist", os.getpid(), "run-1")
        assert (said["digest"], said["config"], said["stopped"]) == ("d1", CONFIG, None)
        assert datetime.fromisoformat(said["heartbeat"]) <= datetime.now(UTC)
        assert not held.already_done
        assert not held.resumed
        assert held.previous is None
        (folder / "labels").mkdir()
    assert record(folder)["stopped"] is not None


def test_a_live_owner_is_named_and_left_alone(tmp_path):
    with take(tmp_path):
        before = record(tmp_path)
        with pytest.raises(
            ConfigError, match=rf"being written by run run-1 \(host .*, process {os.getpid()}"
        ):
            take(tmp_path, run_id="run-2", force=True)
        assert record(tmp_path)["run_id"] == before["run_id"]


def test_a_stopped_run_is_resumed_by_the_same_digest_only(tmp_path):
    with take(tmp_path):
        (tmp_path / "_work").mkdir()
    with take(tmp_path, run_id="run-2") as held:
        assert held.resumed
        assert held.previous is not None
        assert held.previous["run_id"] == "run-1"
    with take(tmp_path, digest="d2") as held:
        assert not held.resumed
        assert held.previous is not None


def test_a_run_that_failed_before_it_wrote_anything_leaves_nothing(tmp_path):
    folder = tmp_path / "out"
    work = folder / "_work" / "manifests"
    with pytest.raises(RuntimeError), take(folder):
        raise _after(work.mkdir, parents=True)
    assert not folder.exists()
    with pytest.raises(RuntimeError), take(folder):
        raise _after(lambda: (folder / "log.txt").write_text("something"))
    assert record(folder)["stopped"] is not None


def _after(action, **kwargs) -> RuntimeError:
    action(**kwargs)
    return RuntimeError("failed")


def test_finished_with_the_same_digest_is_already_done(tmp_path):
    finish(tmp_path)
    before = record(tmp_path)
    with take(tmp_path, run_id="run-2") as held:
        assert held.already_done
        assert not held.resumed
    assert record(tmp_path) == before
    assert (tmp_path / "_SUCCESS").exists()


def test_finished_with_another_digest_names_the_keys_that_differ(tmp_path):
    finish(tmp_path)
    other = {"seed": 0, "model": {"n_clusters": 4, "beta": "auto"}}
    with pytest.raises(ConfigError) as caught:
        take(tmp_path, digest="d2", config=other)
    said = str(caught.value)
    assert "model.n_clusters: 9 there, 4 here" in said
    assert "--force" in said
    assert "seed" not in said
    assert "beta" not in said
    assert (tmp_path / "_SUCCESS").exists()


@pytest.mark.parametrize("digest", ["d1", "d2"])
def test_force_removes_success_first(tmp_path, digest):
    finish(tmp_path)
    with take(tmp_path, digest=digest, force=True) as held:
        assert not held.already_done
        assert not (tmp_path / "_SUCCESS").exists()
        assert record(tmp_path)["digest"] == digest


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"owner": "someone"}', '{"owner": "clam_dist"}']
)
def test_a_folder_of_others_is_refused_untouched(tmp_path, text):
    (tmp_path / "thesis.tex").write_text("years of work")
    if text is not None:
        (tmp_path / OWNER_FILE).write_text(text)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ConfigError, match=r"not written by clam_dist \(it holds 'thesis\.tex'"):
        take(tmp_path, force=True)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        take(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"output\.uri: cannot write in"):
        take(tmp_path / "out" / "below")


def test_an_empty_folder_and_one_left_in_mid_claim_are_taken(tmp_path):
    (tmp_path / LOCK_FILE).touch()
    with take(tmp_path) as held:
        assert held.previous is None


def of_other_host(folder, age: float, **values):
    """Pretend that a run on another machine gave its last heartbeat ``age`` seconds ago."""
    heartbeat = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    said = {"owner": "clam_dist", "host": "elsewhere", "pid": 1, "run_id": "far", "digest": "d1"}
    said |= {"heartbeat": heartbeat, "stopped": None, "config": CONFIG, "started": heartbeat}
    (folder / OWNER_FILE).write_text(json.dumps(said | values))
    (folder / "labels").mkdir(exist_ok=True)


def test_another_host_is_alive_by_its_heartbeat(tmp_path):
    of_other_host(tmp_path, age=DEAD_AFTER_SECONDS - 10)
    with pytest.raises(ConfigError, match=r"run far \(host elsewhere, process 1"):
        take(tmp_path)


@pytest.mark.parametrize(
    ("age", "values"),
    [(DEAD_AFTER_SECONDS + 1, {}), (0, {"stopped": "2026-01-01T00:00:00+00:00"})],
)
def test_another_host_is_dead_without_a_heartbeat_or_once_stopped(tmp_path, age, values):
    of_other_host(tmp_path, age, **values)
    with take(tmp_path) as held:
        assert held.resumed


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_heartbeat_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "HEARTBEAT_SECONDS", 0.02)
    with take(tmp_path):
        written = (tmp_path / OWNER_FILE).stat().st_mtime_ns
        wait_until(lambda: (tmp_path / OWNER_FILE).stat().st_mtime_ns > written)


def test_a_run_that_lost_its_folder_stops_and_leaves_the_new_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "HEARTBEAT_SECONDS", 0.02)

    def lost(held):
        # Written again each time: a heartbeat under way may just have overwritten it.
        of_other_host(tmp_path, age=0)
        return held._lost is not None

    with take(tmp_path) as held:
        held.check()
        wait_until(lambda: lost(held))
        with pytest.raises(RunError, match="was taken by run far"):
            held.succeed()
    assert record(tmp_path)["run_id"] == "far"
    assert record(tmp_path)["stopped"] is None
    assert not (tmp_path / "_SUCCESS").exists()


def test_a_killed_run_is_dead_at_once(tmp_path):
    code = (
        "import sys, time; from clam_dist.ownership import claim\n"
        "with claim(sys.argv[1], run_id='killed', digest='d1', config_public={}):\n"
        "    open(sys.argv[1] + '/labels', 'w').close(); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"run killed .*process {process.pid}"):
            take(tmp_path)
        process.send_signal(signal.SIGKILL)
    with take(tmp_path) as held:
        assert held.resumed
