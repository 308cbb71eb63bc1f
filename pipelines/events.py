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
Show = Callable[[Event, str], None]
"""Takes an event and the line that says it."""

QUIET_SECONDS = {"epoch": 1.0, "progress": 10.0}
"""Least time between two lines of a kind that can come many times a second."""


def describe(event: Event) -> tuple[int, str] | None:
    """The log level and line that say an event, or None where Prefect shows it already.

    Parameters
    ----------
    event : mapping
        With the key ``event``: ``stage``, ``progress``, ``epoch``, ``checkpoint``, ``cluster``,
        ``log`` or ``warning``. One of another kind is written out as it is.
    """
    kind = event.get("event")
    if kind == "stage":  # the task's own state says it
        return None
    if kind == "checkpoint":
        return logging.DEBUG, f"checkpoint {event['name']}"
    if kind == "warning":
        return logging.WARNING, str(event["message"])
    if kind == "note":
        return logging.INFO, str(event["message"])
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
        workers = event["workers"]
        return logging.INFO, f"{workers} worker{'' if workers == 1 else 's'}; {at}"
    return logging.INFO, str(dict(event))


def _epoch_line(event: Event) -> str:
    members = int(event.get("members", 1))
    at = f"{event['phase']}: epoch {event['epoch']} of {event['epochs']}"
    if "step" in event:
        at += f", step {event['step']} of {event['steps']}"
    numbers = (
        ("loss {:.6g}", event.get("loss")),
        ("{:,.0f} rows/s", event.get("rows_per_second")),
        ("learning rate {:.3g}", event.get("learning_rate")),
        ("{} candidates side by side", members if members > 1 else None),
    )
    return ", ".join([at, *(text.format(value) for text, value in numbers if value is not None)])


def _progress_line(event: Event) -> str:
    done, total = int(event["done"]), int(event["total"])
    share = f" ({100 * done / total:.0f} %)" if total else ""
    return f"{event['stage']}: {done:,} of {total:,} {event['unit']}{share}"


class EventRelay:
    """Writes events to a logger that can change; pass one as a run's ``on_event``.

    Epoch and progress lines are thinned out, for a run may report many a second. The last line
    of a training phase or of a stage always shows.

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
        self._show: Show | None = None
        self._lock = threading.RLock()
        self._phase: dict[str, str] = {}
        self._due: dict[str, float] = {}
        self._held: dict[str, tuple[int, str]] = {}

    @contextlib.contextmanager
    def to(self, log: Log, show: Show | None = None) -> Iterator[None]:
        """Write to ``log`` for as long as the context lasts, and give every event to ``show``."""
        before, self._log = self._log, log
        shown, self._show = self._show, show
        try:
            yield
        finally:
            with self._lock:
                for kind in tuple(self._phase):
                    self._end_phase(kind)
            self._log, self._show = before, shown

    def __call__(self, event: Event) -> None:
        line = describe(event)
        if line is None:
            return
        show = self._show
        if show is not None:
            show(event, line[1])
        kind = str(event["event"])
        with self._lock:
            if kind not in QUIET_SECONDS:
                if kind == "note":  # says what comes after the epochs so far
                    self._write_held("epoch")
                self._log.log(*line)
                return
            phase = str(event.get("phase", event["stage"]))
            if self._phase.get(kind) != phase:
                self._end_phase(kind)
                self._phase[kind] = phase
            now = self._clock()
            if now < self._due.get(kind, now):
                self._held[kind] = line
                return
            self._held.pop(kind, None)
            self._due[kind] = now + QUIET_SECONDS[kind]
            self._log.log(*line)

    def _end_phase(self, kind: str) -> None:
        """Write the line held back, and let the next one through."""
        self._phase.pop(kind, None)
        self._due.pop(kind, None)
        self._write_held(kind)

    def _write_held(self, kind: str) -> None:
        if kind in self._held:
            self._log.log(*self._held.pop(kind))
