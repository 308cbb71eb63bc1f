"""How a run or a task ends: one message for the person, one state for Prefect, one exit code."""

from __future__ import annotations

import os
import tempfile
import traceback
from typing import TYPE_CHECKING

from clam_dist.cli_errors import Terminated
from clam_dist.errors import ClamDistError, Interrupted, RunError

if TYPE_CHECKING:
    from prefect.states import State


def ending_state(caught: BaseException, *, of_task: bool = False) -> State:
    """The state of a run or task that ended with an exception: one message, no stack of frames.

    The state's data are the exception that the run is to end with.

    Parameters
    ----------
    caught
        What ended it.
    of_task
        It is a task's state. Only the run itself lets a signal through.

    Raises
    ------
    BaseException
        ``caught`` itself, where the process is to end with it.
    """
    from prefect import runtime
    from prefect.exceptions import TerminationSignal
    from prefect.states import Cancelled, Failed

    # A worker that ends a deployed run expects to see its signal.
    deployed = runtime.deployment.id is not None
    stop = isinstance(caught, TerminationSignal)
    signalled = stop and deployed
    if (signalled and not of_task) or not (
        stop or isinstance(caught, (Exception, KeyboardInterrupt))
    ):
        raise caught
    error = as_error(caught)
    state = Cancelled if error.exit_code >= 128 else Failed
    return state(message=str(error), data=caught if signalled else error)


def as_error(caught: BaseException) -> ClamDistError:
    """The error to show for an exception: itself, a stop, or a bug whose traceback is in a file."""
    if isinstance(caught, ClamDistError):
        return caught
    # Prefect's own signal is known by name: a wrong config is told without importing Prefect.
    if isinstance(caught, Terminated) or type(caught).__name__ == "TerminationSignal":
        return Interrupted(
            "cancelled, or stopped by SIGTERM; run the same again to go on from here", 15
        )
    if isinstance(caught, KeyboardInterrupt):
        return Interrupted("stopped by ctrl-C; run the same again to go on from here", 2)
    text = "".join(traceback.format_exception(caught))
    handle, path = tempfile.mkstemp(prefix="clam-dist-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    first = str(caught).strip().split("\n")[0]
    return RunError(f"unexpected {type(caught).__name__}: {first} (traceback in {path})")
