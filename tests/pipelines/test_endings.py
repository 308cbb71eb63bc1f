from __future__ import annotations

from pathlib import Path

import pytest

from clam_dist.cli_errors import Terminated
from clam_dist.errors import ConfigError, DataError, Interrupted, RunError
from pipelines.endings import as_error, ending_state


@pytest.mark.parametrize("error", [ConfigError("a"), DataError("b"), RunError("c")])
def test_an_error_of_ours_stays_as_it_is(error: Exception) -> None:
    assert as_error(error) is error


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_a_stop_has_its_signals_code(stop: BaseException, code: int) -> None:
    error = as_error(stop)
    assert isinstance(error, Interrupted)
    assert error.exit_code == code


def test_a_bug_leaves_its_traceback_in_a_file() -> None:
    try:
        _ = 1 / 0
    except ZeroDivisionError as caught:
        error = as_error(caught)
    assert error.exit_code == 4
    assert str(error).startswith("unexpected ZeroDivisionError: division by zero (traceback in ")
    path = Path(str(error).rsplit(" ", 1)[1].rstrip(")"))
    assert "_ = 1 / 0" in path.read_text()
    path.unlink()


def test_a_workers_signal_ends_the_run_and_cancels_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect import runtime
    from prefect.exceptions import TerminationSignal

    signal = TerminationSignal(signal=15)
    by_hand = ending_state(signal)
    assert (by_hand.name, by_hand.data.exit_code) == ("Cancelled", 143)
    monkeypatch.setattr(runtime.deployment, "id", "of a deployment", raising=False)
    with pytest.raises(TerminationSignal):
        ending_state(signal)
    of_task = ending_state(signal, of_task=True)
    assert of_task.name == "Cancelled"
    assert "run the same again to go on" in str(of_task.message)
    assert of_task.data is signal  # which the run ends with
    assert ending_state(DataError("b"), of_task=True).name == "Failed"
