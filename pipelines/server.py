"""Our own Prefect server, for a machine on which none is configured.

Prefect's built-in temporary server has no UI and outlives a flow that is killed. This one is a
child process with its UI on a free port of 127.0.0.1. It ends with its parent, however that
ends: the kernel signals it (Linux), and a thread of it waits for the end of a pipe that the
parent holds open (everywhere). A record in Prefect's home lets the next start remove a server
that was left all the same.

This file is also what the child runs (``python -P server.py --token TOKEN``), so its top level
imports the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clam_dist.errors import RunError

STARTUP_TIMEOUT = 120.0
"""Seconds to wait for the server; the first start on a new home migrates a database."""

_GRACE = 5.0
"""Seconds the server may take to end after its parent is gone."""

_DATABASE_SETTINGS = (
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "PREFECT_API_DATABASE_CONNECTION_URL",
)

# A server that lives as long as one run schedules nothing: what deployments need is left off.
_IDLE_SERVICES = ("SCHEDULER", "LATE_RUNS", "FOREMAN", "TRIGGERS", "PAUSE_EXPIRATIONS", "DB_VACUUM")


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

    Attributes
    ----------
    address : str
        Of the UI, such as ``http://127.0.0.1:40123``; known once ``start()`` has returned.
    api_url : str
        Of the API, for ``PREFECT_API_URL``.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.address = ""
        self._token = secrets.token_hex(8)
        self._folder = home / "clam_dist"
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

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
        RunError
            Where the process ends before it names its port.
        """
        from filelock import FileLock

        self._folder.mkdir(parents=True, exist_ok=True)
        # One at a time until it answers: two servers must not migrate one database together.
        self._starting = FileLock(self._folder / "start.lock", timeout=STARTUP_TIMEOUT)
        self._starting.acquire()
        remove_orphans(self.home)
        # A session of its own: ctrl-C in the terminal must reach the run alone, which still has
        # to tell the server how it ended.
        command = [sys.executable, "-P", str(Path(__file__).resolve())]
        command += ["--token", self._token, "--parent", str(os.getpid())]
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
        self.address = f"http://127.0.0.1:{self._line(STARTUP_TIMEOUT)}"

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

    def stop(self) -> None:
        """End the server, wait until it has, and remove its record."""
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
        self._starting.release()  # where it failed to start; does nothing otherwise

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
        from clam_dist.errors import RunError

        tail = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        said = "\n  ".join(tail) if tail else "(it printed nothing)"
        self.stop()
        return RunError(
            f"our own Prefect server {what}. Its last lines:\n  {said}\n"
            f"Remedy: try again; or move {self.home} away; or start one with"
            " `prefect server start` and set PREFECT_API_URL to its address."
        )


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


def configured_api(environ: Mapping[str, str], folder: Path) -> tuple[str | None, Path]:
    """The API address that the user configured, and Prefect's home.

    Parameters
    ----------
    environ : mapping
        The environment, such as ``os.environ``.
    folder : Path
        The current folder, where Prefect looks for ``.env``, ``prefect.toml`` and
        ``pyproject.toml``.

    Returns
    -------
    api_url : str or None
        None where the environment, those files and the active profile name none.
    home : Path
        Prefect's home folder.

    Notes
    -----
    Prefect takes a second to import, during which our own server could already be starting, so
    it is asked only where a file exists that may say something.
    """
    home = Path(environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    if environ.get("PREFECT_API_URL"):
        return environ["PREFECT_API_URL"], home
    profiles = Path(environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()
    hints = {
        profiles: "prefect_api_url",
        folder / ".env": "prefect",
        folder / "prefect.toml": "",
        folder / "pyproject.toml": "tool.prefect",
    }
    for path, hint in hints.items():
        if path.is_file() and hint in path.read_text(errors="replace").lower():
            import prefect.settings
            from prefect.context import refresh_global_settings_context

            refresh_global_settings_context()
            settings = prefect.settings.get_current_settings()
            return settings.api.url, settings.home
    return None, home


def is_first_start(home: Path, environ: Mapping[str, str]) -> bool:
    """True where the server will have to make its database."""
    elsewhere = any(environ.get(name) for name in _DATABASE_SETTINGS)
    return not elsewhere and not (home / "prefect.db").exists()


def client_environment(environ: Mapping[str, str], api_url: str | None) -> dict[str, str]:
    """Variables for the process that runs the flow.

    Nothing is sent to Prefect's makers. Where the server is our own (``api_url``), it is reached
    directly even where the environment names a proxy.
    """
    variables = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    if api_url is not None:
        variables["PREFECT_API_URL"] = api_url
        for name in ("NO_PROXY", "no_proxy"):
            hosts = [host for host in environ.get(name, "").split(",") if host]
            variables[name] = ",".join([*hosts, "127.0.0.1"])
    return variables


@contextlib.contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for as long as the context lasts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# What follows runs in the child.


def _die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent's thread that started us ends (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we asked
        raise SystemExit(1)


def _end_with_parent() -> None:
    """Block until the parent closes its end of our stdin or is gone, then end, by force if slow."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)  # at once while starting; uvicorn's own way later
    time.sleep(_GRACE)
    os._exit(1)


def _server_settings(port: int) -> dict[str, str]:
    """Settings of a server that lives as long as one run."""
    settings = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _IDLE_SERVICES}
    return settings | {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "true",
        "PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api",
    }


def serve(token: str, parent: int) -> None:
    """Serve Prefect's API and UI until the parent is gone; names port and readiness on stdout."""
    del token  # only to be seen in the command line
    _die_with_parent(parent)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # from here on stdout is the parent's to read, and prints go to the log
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    lines.write(f"{port}\n")
    os.environ.update(_server_settings(port))

    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                lines.write("ready\n")

    import prefect
    from prefect.server.api.server import create_app

    static = Path(prefect.__file__).parent / "server"
    if not os.access(static, os.W_OK):  # an installation shared by many: the UI needs a copy
        os.environ.setdefault("PREFECT_UI_STATIC_DIRECTORY", os.environ["PREFECT_HOME"] + "/ui")
    app = create_app(final=True)
    server = Server(
        uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
    )
    server.run(sockets=[listener])


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--token", required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    serve(arguments.token, arguments.parent)


if __name__ == "__main__":
    _main()
