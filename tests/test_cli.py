"""The command: exit codes, one message on stderr and never a traceback, what goes to stdout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clam_dist import stages
from clam_dist.cli import main, summary
from clam_dist.errors import ConfigError, DataError, Interrupted, RunError

METRICS = {
    "n_rows": 1234,
    "n_features": 14,
    "n_clusters": 9,
    "n_used": 8,
    "silhouette": {
        "value": 0.1181,
        "standard_error": 0.001,
        "rows": 1000,
        "metric": "euclidean",
    },
    "loss": 0.5,
    "seconds": {"total": 12.34},
}


@pytest.fixture
def config(tmp_path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text("source: {uri: rows.parquet}\nmodel: {n_clusters: 9}\n")
    return str(path)


class FakeRun:
    """A run of one stage that does what it is told."""

    def __init__(self, act=lambda: None, already_done: bool = False) -> None:
        self.output, self.already_done = "runs/x", already_done
        self.act = act
        self.done: list[str] = []
        self.closed = False

    def stage(self, name: str) -> None:
        self.done.append(name)
        self.act()

    def finish(self) -> dict:
        return METRICS

    metrics = finish


@pytest.fixture
def opened(monkeypatch):
    """Replace the real run by a fake one; returns ``(set the fake, what open_run was given)``."""
    given: dict = {}

    def use(run: FakeRun) -> FakeRun:
        @contextlib.contextmanager
        def open_run(settings, *, force, on_event):
            given.update(config=settings, force=force, on_event=on_event)
            try:
                yield run
            finally:
                run.closed = True

        # Set in the dictionary: asking for the real one first would import all that it needs.
        monkeypatch.setitem(vars(stages), "open_run", open_run)
        return run

    return use, given


def test_run_does_all_stages_and_tells_where_things_are(config, opened, capsys):
    use, given = opened
    run = use(FakeRun())
    assert main(["run", config, "--set", "model.beta=0.5", "--set", "seed=3", "--force"]) == 0
    assert run.done == list(stages.STAGE_NAMES)
    assert (given["config"].model.beta, given["config"].seed, given["force"]) == (0.5, 3, True)
    said = capsys.readouterr().out
    assert "1,234 rows, 14 features, 8 of 9 clusters in use" in said
    assert "silhouette 0.1181 ± 0.0010 (euclidean, 1,000 rows sampled)" in said
    assert "runs/x/report.html" in said


def test_run_json_prints_the_metrics_alone(config, opened, capsys):
    opened[0](FakeRun())
    assert main(["run", config, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == METRICS


def test_run_that_is_already_done_does_nothing(config, opened, capsys):
    run = opened[0](FakeRun(already_done=True))
    assert main(["run", config]) == 0
    assert run.done == []
    assert capsys.readouterr().out.startswith("already done: runs/x\n")


def test_summary_without_a_silhouette():
    assert not any("silhouette" in line for line in summary(METRICS | {"silhouette": None}, "x"))


def raising(error: BaseException):
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("source.keep: no column 'x'"), 2, "error: source.keep: no column 'x'"),
        (DataError("file 'a': broken"), 3, "error: file 'a': broken"),
        (Interrupted("stopped", signal.SIGTERM), 143, "clam-dist: stopped"),
        (KeyboardInterrupt(), 130, "stopped by ctrl-C; run the same again"),
    ],
)
def test_errors_end_with_their_code_and_one_message(config, opened, capfd, error, code, said):
    run = opened[0](FakeRun(raising(error)))
    assert main(["run", config]) == code
    printed = capfd.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert run.closed


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RunError("disk full"), "error: disk full (traceback in "),
        (ZeroDivisionError("by zero"), "error: unexpected ZeroDivisionError: by zero (traceback"),
        (MemoryError(), "error: out of memory"),
        (BrokenPipeError("a worker hung up"), "unexpected BrokenPipeError: a worker hung up"),
    ],
)
def test_failures_leave_their_traceback_in_a_log(
    config, opened, capfd, monkeypatch, tmp_path, error, said
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened[0](FakeRun(raising(error)))
    assert main(["run", config]) == 4
    printed = capfd.readouterr().err
    assert said in printed
    assert "Traceback" not in printed
    (log,) = tmp_path.glob("clam-dist-*.log")
    assert str(log) in printed
    text = log.read_text()
    assert text.startswith("Traceback")
    assert type(error).__name__ in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_stop_a_run_cleanly(config, opened, capfd, number, code):
    before = signal.getsignal(signal.SIGTERM)
    run = opened[0](FakeRun(lambda: os.kill(os.getpid(), number)))
    assert main(["run", config]) == code
    assert run.closed
    assert run.done == ["profile"]
    assert "run the same again to go on from here" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "absent.yaml"], "config file absent.yaml: no such file"),
        (["run"], "Missing argument"),
        (["rnu"], "No such command 'rnu'"),
        (["run", "x.yaml", "--farce"], "No such option: --farce"),
        (["demo-data", "vowel"], "known are vowels, digits"),
        (["demo-data", "vowels", "--rows", "many"], "--rows"),
        (["demo-data", "vowels", "--rows", "0"], "needs at least 1 row"),
        (["inspect", "x", "--set", "model.beta=1"], "inspect takes only keys under source"),
        (["inspect", "x", "--set", "source.exlude=a"], "did you mean source.exclude?"),
    ],
)
def test_a_wrong_command_ends_with_2(arguments, said, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capfd.readouterr().err
    assert said in printed
    assert "Traceback" not in printed
    assert os.listdir(tmp_path) == []


def test_run_reports_a_wrong_config_before_anything_else(tmp_path, capfd):
    path = tmp_path / "config.yaml"
    path.write_text("source: {uri: a, exlude: [b]}\nmodel: {n_clusters: 1}\n")
    assert main(["run", str(path)]) == 2
    said = capfd.readouterr().err
    assert "2 problems" in said
    assert "did you mean source.exclude?" in said
    assert os.listdir(tmp_path) == ["config.yaml"]


def test_demo_data_writes_where_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo-data", "digits"]) == 0
    assert capsys.readouterr().out == "data/digits.parquet: 1,797 rows\n"
    assert pq.ParquetFile("data/digits.parquet").metadata.num_rows == 1797
    assert main(["demo-data", "digits"]) == 0
    assert "(there already)" in capsys.readouterr().out
    assert main(["demo-data", "vowels", "--rows", "7", "--output", "v", "--seed", "1"]) == 0
    assert pq.ParquetFile("v").metadata.num_rows == 7


@pytest.fixture
def table(tmp_path) -> Path:
    """Six rows: a number with one null, a constant, text, a two-number embedding."""
    vectors = pa.array([[i, 10.0 - i] for i in range(6)], pa.list_(pa.float32(), 2))
    columns = {
        "size": pa.array([1.0, 2, 3, 4, None, 6]),
        "same": pa.array(np.full(6, 7)),
        "name": list("abcdef"),
        "vector": vectors,
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=4)
    return path


def test_inspect_json(table, capsys):
    assert main(["inspect", str(table), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["files"], found["row_groups"]) == (6, 1, 2)
    size, same, vector = found["features"]
    assert (size["column"], size["missing"], size["mean"], size["minimum"], size["maximum"]) == (
        ("size", 1, 3.2, 1.0, 6.0)
    )
    assert size["deviation"] == pytest.approx(np.std([1, 2, 3, 4, 6]))
    assert same["deviation"] == 0
    assert (vector["dimensions"], vector["mean"], vector["minimum"], vector["maximum"]) == (
        (2, None, 0.0, 10.0)
    )
    assert "name" in found["skipped"]
    assert any("'same'" in warning for warning in found["warnings"])


def test_inspect_prints_a_table_and_takes_source_settings(table, capsys):
    assert main(["inspect", str(table), "--set", "source.exclude=[same]"]) == 0
    said = capsys.readouterr().out
    assert "6 rows in 1 file(s) and 2 row group(s)" in said
    assert "not a feature: name is of type" in said
    assert "same" not in said
    (line,) = [line.split() for line in said.splitlines() if line.startswith("size")]
    assert line == ["size", "double", "1", "1", "3.2", "1.72", "1", "6"]


@pytest.mark.parametrize("what", ["nothing there", "empty folder", "not Parquet", "no rows"])
def test_inspect_of_bad_data_ends_with_3(what, tmp_path, capfd):
    path = tmp_path / "bad"
    if what == "empty folder":
        path.mkdir()
    elif what == "not Parquet":
        path.write_text("plain text")
    elif what == "no rows":
        pq.write_table(pa.table({"a": pa.array([], pa.float64())}), path)
    assert main(["inspect", str(path)]) == 3
    said = capfd.readouterr().err
    assert "bad" in said
    assert len(said.strip().splitlines()) == 1


def test_whoever_reads_the_results_may_leave(table):
    """As in ``clam-dist inspect … | head -1``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "clam_dist.cli", "inspect", str(table)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def test_help_and_version_need_no_heavy_import():
    code = (
        "import sys; from clam_dist.cli import main; sys.argv = ['clam-dist', '--version']\n"
        "assert main() == 0\n"
        "print([m for m in ('torch', 'pyarrow', 'sklearn', 'dask', 'prefect') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, heavy = run.stdout.splitlines()
    assert version.startswith("clam-dist ")
    assert heavy == "[]"


def test_help_gives_examples(capsys):
    assert main(["run", "--help"]) == 0
    assert "clam-dist run config.yaml --set model.n_clusters=12" in capsys.readouterr().out
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(command in said for command in ("run", "demo-data", "inspect", "Exit codes"))
