"""Our own Prefect server, for a machine on which none is configured.

Prefect's built-in temporary server has no UI and outlives a flow that is killed. This one is a
child process (``server_process.py``) with its UI on a free port of 127.0.0.1, and ends with its
parent, however that ends. A record in Prefect's home lets the next start remove a server that was
left all the same.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from clam_dist.errors import ConfigError, RunError

STARTUP_TIMEOUT = 120.0
"""Seconds to wait for the server; the first start on a new home migrates a database."""

_GRACE = 5.0
"""Seconds the server may take to end, of which it knows too."""


@dataclass(frozen=True)
class ServerRecord:
    """What the next start needs to find a server that was left behind.

    Attributes
    ----------
    pid, parent : int
        Process ids of the server and of the run that started it.
    host : str
        The machine they are on; a home may be shared between machines.
    token : str
        Random text in the server's command line, which tells it from a later process of its pid.
    """

    pid: int
    parent: int
    host: str
    token: str


class EmbeddedServer:
    """A Prefect server of our own, from ``start()`` to ``stop()``.

    Parameters
    ----------
    home : Path
        Prefect's home folder, where the database is.
    schedules : bool
        It is to start what is due, and to be found at Prefect's usual port where that is free.

    Attributes
    ----------
    address : str
        Of the UI, such as ``http://127.0.0.1:40123``; known once ``start()`` has returned.
    api_url : str
        Of the API, for ``PREFECT_API_URL``.
    """

    def __init__(self, home: Path, schedules: bool = False) -> None:
        from filelock import FileLock

        self.home = home
        self._schedules = schedules
        self.address = ""
        self._token = secrets.token_hex(8)
        self._folder = home / "clam_dist"
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._starting = FileLock(self._folder / "start.lock", timeout=STARTUP_TIMEOUT)

    @property
    def api_url(self) -> str:
        return f"{self.address}/api"

    @property
    def pid(self) -> int:
        """Process id of the server; 0 where it does not run."""
        return self._process.pid if self._process else 0

    @property
    def _log(self) -> Path:
        return self._folder / f"server-{self._token}.log"

    @property
    def _record(self) -> Path:
        return self._folder / f"server-{self._token}.json"

    def start(self, environ: Mapping[str, str]) -> None:
        """Start the server and return as soon as its port is known, seconds before it answers.

        Raises
        ------
        ConfigError
            Where Prefect's home is no folder that can be written to.
        RunError
            Where the process ends before it names its port.
        """
        check_home(self.home)
        self._take_turn()
        remove_orphans(self.home)
        # A session of its own: ctrl-C in the terminal must reach the run alone, which still has
        # to tell the server how it ended.
        command = [
            sys.executable,
            "-P",
            str(Path(__file__).with_name("server_process.py").resolve()),
        ]
        command += ["--token", self._token, "--parent", str(os.getpid())]
        command += ["--schedules"] if self._schedules else []
        variables = {**environ, "PREFECT_HOME": str(self.home)}
        variables.pop("PREFECT_API_URL", None)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                start_new_session=True,
            )
        record = ServerRecord(self._process.pid, os.getpid(), socket.gethostname(), self._token)
        self._record.write_text(json.dumps(asdict(record)))
        threading.Thread(target=self._read_lines, args=(self._process,), daemon=True).start()
        try:
            self.address = f"http://127.0.0.1:{self._line(STARTUP_TIMEOUT)}"
        except TimeoutError:
            raise self._failure(f"did not name its port in {STARTUP_TIMEOUT:.0f} s") from None

    def wait_ready(
        self, timeout: float = STARTUP_TIMEOUT, on_wait: Callable[[float], None] | None = None
    ) -> None:
        """Return once the server answers.

        Parameters
        ----------
        timeout : float
            Seconds to wait from now.
        on_wait : callable, optional
            Called with the seconds waited so far, every ten seconds.

        Raises
        ------
        RunError
            Where it ends or does not answer in time; quotes the end of its log.
        """
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            try:
                self._line(min(10.0, max(0.0, timeout - waited)))
            except TimeoutError:
                waited = time.monotonic() - began
                if waited >= timeout:
                    raise self._failure(f"did not answer within {timeout:.0f} s") from None
                if on_wait is not None:
                    on_wait(waited)
            else:
                self._starting.release()
                return

    def _take_turn(self) -> None:
        """One start at a time on a home: two servers must not migrate one database together."""
        from filelock import Timeout

        try:
            self._starting.acquire()
        except Timeout:
            raise RunError(
                f"another run has been starting Prefect in {self.home} for more than"
                f" {STARTUP_TIMEOUT:.0f} s ({self._starting.lock_file} is locked). Remedy: end"
                " that run, or set PREFECT_HOME to another folder."
            ) from None

    def stop(self) -> None:
        """End the server, wait until it has, and remove its record."""
        self._starting.release()  # where it failed to start; does nothing otherwise
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin is not None
        process.stdin.close()  # what it waits for
        try:
            process.wait(_GRACE + 2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._record.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)

    def _read_lines(self, process: subprocess.Popen[bytes]) -> None:
        """Queue the child's lines; an empty one at its end."""
        assert process.stdout is not None
        with process.stdout as stdout:
            for line in stdout:
                self._lines.put(line.decode().strip())
        self._lines.put("")

    def _line(self, timeout: float) -> str:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if not line:
            raise self._failure("ended while it was starting")
        return line

    def _failure(self, what: str) -> RunError:
        tail = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        said = "\n  ".join(tail) if tail else "(it printed nothing)"
        self.stop()
        return RunError(
            f"our own Prefect server {what}. Its last lines:\n  {said}\n"
            f"Remedy: try again; or move {self.home} away; or start one with"
            " `prefect server start` and set PREFECT_API_URL to its address."
        )


def check_home(home: Path) -> None:
    """Make sure that Prefect's home is there and can be written to.

    Raises
    ------
    ConfigError
        Names it, what is wrong with it and the remedy.
    """
    folder = home / "clam_dist"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise ConfigError(
            f"PREFECT_HOME: {home} cannot be written to: {error.strerror}; set PREFECT_HOME to a"
            " folder that can, or PREFECT_API_URL to a server that runs"
        ) from error


def remove_orphans(home: Path) -> list[int]:
    """End servers of ours whose run is gone, and drop the records of those that ended.

    Returns
    -------
    list of int
        The process ids ended.

    Notes
    -----
    A process is ours where its command line holds the recorded token, which no other process has,
    and an orphan where its parent is no longer the recorded one.
    """
    import psutil

    ended = []
    for path in sorted((home / "clam_dist").glob("server-*.json")):
        try:
            record = ServerRecord(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # being written, or another version's: not ours to judge
        if record.host != socket.gethostname():
            continue
        try:
            process = psutil.Process(record.pid)
            ours = record.token in process.cmdline()
            parent = process.parent()
            if ours and parent is not None and parent.pid == record.parent:
                continue  # another run's, alive
            if ours:
                process.kill()
                process.wait(_GRACE)
                ended.append(record.pid)
        except psutil.NoSuchProcess:
            pass
        path.unlink(missing_ok=True)
        path.with_suffix(".log").unlink(missing_ok=True)
    return ended
