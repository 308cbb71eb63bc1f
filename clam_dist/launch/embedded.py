"""What keeps a cluster inside this process from outliving it, or from leaving traces in it.

Knows how Dask's nannies behave, without importing them.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def bind_to_parent(parent: int) -> None:
    """On a worker's main thread: end with the process ``parent``, and leave its console alone.

    Dask's own watch on its parent needs the interpreter's lock, so a worker inside a long call
    that holds it would outlive a killed driver; the kernel's signal needs nothing.
    """
    # Ctrl-C reaches the whole process group; the driver alone decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The driver is told of errors as values; on the console they would only be noise.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def kill(pid: int) -> None:
    """End a process whatever it does, even while it is stopped; it may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class NannyLog(logging.Handler):
    """Keeps the last words of this process's nannies: why a worker ended is known to them alone."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=20)
        logging.getLogger("distributed.nanny").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what speaks of an end."""
        line = record.getMessage()
        if "killed by" in line or "exited with" in line or "memory budget" in line:
            self._lines.append(line)

    def last(self, worker: str) -> str:
        """The last thing said, of this worker where it is named."""
        named = [line for line in self._lines if worker in line]
        return (named or list(self._lines) or [""])[-1]

    def detach(self) -> None:
        """Stop listening."""
        logging.getLogger("distributed.nanny").removeHandler(self)


@contextlib.contextmanager
def environment_kept() -> Iterator[None]:
    """Undo what starting a nanny leaves in this process's environment (``OMP_NUM_THREADS=1``…)."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
