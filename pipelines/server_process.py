"""The process of our own Prefect server, started by ``server.py`` as a file of its own.

It ends with its parent, however that ends: the kernel signals it (Linux), and a thread waits for
the end of the pipe on its stdin, whose other end the parent holds open (everywhere). Its stdout
names the port, then says ``ready``.

The top level imports the standard library alone: the port is known before Prefect is imported.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

_GRACE = 5.0
"""Seconds from the parent's end to ours, by force."""

_PORT = 4200
"""Prefect's usual one: a server that stays is looked for there."""

# A server that lives as long as one run schedules nothing: what deployments need is left off.
_SCHEDULING = ("SCHEDULER", "LATE_RUNS", "DB_VACUUM")
_EVER_IDLE = ("FOREMAN", "TRIGGERS", "PAUSE_EXPIRATIONS")


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


def _server_settings(port: int, schedules: bool) -> dict[str, str]:
    """Settings of a server that lives as long as its parent."""
    idle = _EVER_IDLE if schedules else (*_EVER_IDLE, *_SCHEDULING)
    settings = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in idle}
    return settings | {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "true",
        "PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api",
    }


def _bound(port: int) -> socket.socket:
    """A socket at a port of this machine alone; at any free one where that is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.bind(("127.0.0.1", 0))
    return listener


def serve(token: str, parent: int, schedules: bool) -> None:
    """Serve Prefect's API and UI until the parent is gone; names port and readiness on stdout."""
    del token  # only to be seen in the command line
    _die_with_parent(parent)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # from here on stdout is the parent's to read, and prints go to the log
    listener = _bound(_PORT if schedules else 0)
    port = listener.getsockname()[1]
    lines.write(f"{port}\n")
    os.environ.update(_server_settings(port, schedules))

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
    parser.add_argument("--schedules", action="store_true")
    arguments = parser.parse_args()
    serve(arguments.token, arguments.parent, arguments.schedules)


if __name__ == "__main__":
    _main()
