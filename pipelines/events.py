"""A run's events as lines in the log of the Prefect task that is at work.

Events come from any thread (Dask delivers rank events on its own), where Prefect knows of no run.
So the relay keeps the task's logger instead of asking for one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Event = Mapping[str, Any]
Log = logging.Logger | logging.LoggerAdapter[Any]

QUIET_SECONDS = 1.0
"""Least time between two epoch lines, or ten times it between two progress lines."""


def describe(event: Event) -> tuple[int, str] | None:
    """The log level and line that say an event, or None where Prefect shows it already.

    Parameters
    ----------
    event : mapping
        With the key ``event``: ``stage``, ``progress``, ``epoch``, ``cluster``, ``log`` or
        ``warning``; see the stages for the others. Of another kind, it is written out as it is.
    """
    kind = event.get("event")
    if kind == "stage":  # the task's own state says it
        return None
    if kind == "warning":
        return logging.WARNING, str(event["message"])
    if kind == "log":
        level = logging.getLevelNamesMapping().get(str(event.get("level", "INFO")), logging.INFO)
        worker = event.get("worker")
        return level, f"[{worker}] {event['message']}" if worker else str(event["message"])
    if kind == "epoch":
        return logging.INFO, _epoch_line(event)
    if kind == "progress":
        return logging.INFO, _progress_line(event)
    if kind == "cluster":
        dashboard = event.get("dashboard")
        at = f"Dask dashboard at {dashboard}" if dashboard else "no Dask dashboard"
        return logging.INFO, f"{event['workers']} workers; {at}"
    return logging.INFO, str(dict(event))


def _epoch_line(event: Event) -> str:
    members = int(event.get("members", 1))
    parts = [f"{event['phase']}: epoch {event['epoch']} of {event['epochs']}"]
    parts.append(f"loss {event['loss']:.6g}")
    parts.append(f"{event['rows_per_second']:,.0f} rows/s")
    parts.append(f"learning rate {event['learning_rate']:.3g}")
    if members > 1:
        parts.append(f"{members} members side by side")
    return ", ".join(parts)


def _progress_line(event: Event) -> str:
    done, total = int(event["done"]), int(event["total"])
    share = f" ({100 * done / total:.0f} %)" if total else ""
    return f"{event['stage']}: {done:,} of {total:,} {event['unit']}{share}"


class EventRelay:
    """Writes events to a logger that can change; pass one as a run's ``on_event``.

    Epoch and progress lines are thinned out (a run may report hundreds a second); the last of
    each always shows.

    Parameters
    ----------
    log : logger
        Where to write until a task takes over.
    clock : callable
        Seconds, rising.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._due: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def to(self, log: Log) -> Iterator[None]:
        """Write to ``log`` for as long as the context lasts."""
        before, self._log = self._log, log
        try:
            yield
        finally:
            self._log = before

    def __call__(self, event: Event) -> None:
        line = describe(event)
        if line is not None and self._is_due(event):
            self._log.log(*line)

    def _is_due(self, event: Event) -> bool:
        kind = event["event"]
        if kind == "epoch":
            key, last, pause = str(event["phase"]), event["epoch"] >= event["epochs"], QUIET_SECONDS
        elif kind == "progress":
            key, last, pause = str(event["stage"]), event["done"] >= event["total"], 10.0
        else:
            return True
        with self._lock:
            now = self._clock()
            if not last and now < self._due.get((kind, key), now):
                return False
            self._due[kind, key] = now + pause
            return True
