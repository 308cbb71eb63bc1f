"""How a command ends: an exit code, one message on stderr, a traceback only in a log file.

0 done, 2 the command or config is wrong, 3 the data is wrong, 4 the run failed, 130 and 143 stopped
by ctrl-C or SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from clam_dist.errors import ClamDistError, Interrupted, RunError


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised in the main thread just as ctrl-C is: no ``except Exception`` stops it."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into `Terminated` within the block, so that what was started is stopped."""

    def terminate(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def results_on_stdout() -> Iterator[None]:
    """Print results within the block: whoever reads them (head, less) may leave before the end."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python must not flush into the closed pipe again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code_of(caught: BaseException) -> int:
    """Say on stderr what happened, and return the exit code for it.

    Parameters
    ----------
    caught : BaseException
        What ended the command.

    Raises
    ------
    BaseException
        ``caught`` itself where it already is an exit.
    """
    if isinstance(caught, (SystemExit, GeneratorExit)):
        raise caught
    error = _as_error(caught)
    label = "" if error.exit_code >= 128 else "error: "
    print(f"clam-dist: {label}{error}", file=sys.stderr, flush=True)
    return error.exit_code


def _as_error(caught: BaseException) -> ClamDistError:
    """The error to show: itself, a stop, or a failure whose traceback is in a file."""
    if isinstance(caught, Terminated):
        return Interrupted("stopped by SIGTERM; run the same again to go on from here", 15)
    if isinstance(caught, KeyboardInterrupt):
        return Interrupted("stopped by ctrl-C; run the same again to go on from here", 2)
    if isinstance(caught, ClamDistError) and caught.exit_code != RunError.exit_code:
        return caught
    path = _write_log(caught)
    if isinstance(caught, ClamDistError):
        return RunError(f"{caught} (traceback in {path})")
    if isinstance(caught, MemoryError):
        return RunError(f"out of memory; close other programs, or use smaller rows (log in {path})")
    first = str(caught).strip().split("\n")[0]
    return RunError(f"unexpected {type(caught).__name__}: {first} (traceback in {path})")


def _write_log(caught: BaseException) -> str:
    handle, path = tempfile.mkstemp(prefix="clam-dist-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(caught)))
    return path
