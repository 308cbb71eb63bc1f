"""The check before any work: what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from clam_dist.errors import ConfigError
from clam_dist.launch import preflight
from clam_dist.launch.preflight import Probe

VERSIONS = {
    "python": "3.11.7",
    "clam_dist": "0.1.0",
    "torch": "2.13.0+cpu",
    "pyarrow": "26.0.0",
    "distributed": "2026.8.0",
}


def answer(nonce: str | None = "n", problem: str = "", **versions: str) -> Probe:
    return Probe("node-7", {**VERSIONS, **versions}, nonce, problem)


def test_a_worker_that_reads_the_nonce_and_has_the_same_versions_passes() -> None:
    workers = {"tcp://a:1": answer(python="3.11.2", torch="2.13.0+cu126")}
    preflight.check(answer(), workers, folder="/w", nonce="n")


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        (answer(None, "No such file or directory"), "1 of 2 workers cannot read /w .*tcp://b:2"),
        (answer("other"), "another file of that name"),
        (answer("n", "not writable"), "tcp://b:2 may not write to /w"),
        (answer(torch="2.12.1"), "1 of 2 workers run other versions"),
        (answer(python="3.12.0"), "other versions"),
        (answer(clam_dist="missing"), "other versions"),
        (ModuleNotFoundError("No module", name="clam_dist"), "cannot import clam_dist; install"),
        (ValueError("odd"), "tcp://b:2 failed the preflight check: ValueError: odd"),
    ],
)
def test_what_is_refused(worker: Probe | Exception, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        preflight.check(
            answer(), {"tcp://a:1": answer(), "tcp://b:2": worker}, folder="/w", nonce="n"
        )
    assert caught.value.exit_code == 2
    assert "tcp://b:2" in str(caught.value)
    if "read" in words or "write" in words:
        assert "work.uri" in str(caught.value)


def test_no_folder_to_share_is_no_reason_to_refuse() -> None:
    preflight.check(answer(None), {"tcp://a:1": answer(None)}, folder="", nonce=None)


def test_the_table_marks_the_worker_that_differs() -> None:
    workers = {"tcp://a:1": answer(), "tcp://b:2": answer(pyarrow="19.0.1")}
    table = preflight.version_table(answer(), workers).splitlines()
    assert table[0].split() == ["python", "clam_dist", "torch", "pyarrow", "distributed"]
    assert table[1].split() == ["driver", *VERSIONS.values()]
    assert [line.endswith("<-") for line in table] == [False, False, False, True]
    assert "19.0.1" in table[3]


def test_a_nonce_is_read_back(tmp_path: Path) -> None:
    path, nonce = preflight.write_nonce(tmp_path / "new")
    told = preflight.probe(str(path))
    assert told.nonce == nonce
    assert told.problem == ""
    assert set(told.versions) == set(VERSIONS)
    assert path.name.startswith("_")


def test_a_nonce_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    told = preflight.probe(str(tmp_path / "absent"))
    assert told.nonce is None
    assert told.problem == "No such file or directory"


def test_a_folder_the_driver_cannot_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"work\.uri: cannot write to .*file"):
        preflight.write_nonce(tmp_path / "file")
