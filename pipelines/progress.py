"""Training's progress as an artifact of its task: how far, and the last epoch's line beside it.

Prefect's API is asked from a thread of its own: a rank that reports an epoch never waits for a
server, and a server that fails costs the picture, not the run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

SECONDS = 2.0
"""Between two updates."""

_PATIENCE = 10.0
"""Seconds a task waits at its end for a server to take the last line."""

Post = Callable[[float, str], None]
"""Takes a percentage and a line that says what it is of."""


class Progress:
    """Keeps the latest epoch and posts it now and then, from a thread that starts with the first.

    Parameters
    ----------
    post : callable
        Takes the percentage (0 to 100) and the line; may be slow, may raise.
    seconds : float
        Between two posts.
    """

    def __init__(self, post: Post, seconds: float = SECONDS) -> None:
        self._post = post
        self._seconds = seconds
        self._lock = threading.Lock()
        self._latest: tuple[float, str] | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def __call__(self, event: Mapping[str, Any], line: str) -> None:
        """Take one event and the line that says it; those that are no epoch are left alone."""
        if event.get("event") != "epoch":
            return
        with self._lock:
            self._latest = (percentage(event), line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Post what is left and end the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            ended = self._ended.is_set()
            with self._lock:
                latest, self._latest = self._latest, None
            if latest is not None:
                with contextlib.suppress(Exception):  # the picture, not the run
                    self._post(*latest)
            if ended:
                return
            self._ended.wait(self._seconds)


def percentage(event: Mapping[str, Any]) -> float:
    """How much of its phase an epoch's event has behind it, from 0 to 100.

    An event within an epoch has ``step`` and ``steps`` too.
    """
    epochs = max(int(event["epochs"]), 1)
    done = float(event["epoch"])
    if "step" in event:
        done += float(event["step"]) / max(int(event["steps"]), 1) - 1.0
    return round(min(max(100.0 * done / epochs, 0.0), 100.0), 1)


@contextlib.contextmanager
def task_progress(title: str) -> Iterator[Progress]:
    """A `Progress` that is an artifact of the task at work, made with its first epoch.

    Parameters
    ----------
    title : str
        What the task does to what.
    """
    from prefect import runtime
    from prefect.client.orchestration import get_client

    flow_run_id, task_run_id = runtime.flow_run.id, runtime.task_run.id
    with contextlib.ExitStack() as stack:
        clients: list[SyncPrefectClient] = []
        made: list[UUID] = []

        def post(done: float, line: str) -> None:
            from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

            if not clients:
                clients.append(stack.enter_context(get_client(sync_client=True)))
            description = f"{line} ({title})"  # a card shows the beginning alone
            if made:
                clients[0].update_artifact(
                    made[0], ArtifactUpdate(data=done, description=description)
                )
                return
            artifact = clients[0].create_artifact(
                ArtifactCreate.model_validate(
                    {
                        "type": "progress",
                        "data": done,
                        "description": description,
                        "flow_run_id": flow_run_id,
                        "task_run_id": task_run_id,
                    }
                )
            )
            made.append(artifact.id)

        progress = Progress(post)
        try:
            yield progress
        finally:
            progress.close()
