"""A run's progress in a terminal: a bar for the stage at work, a line for each that is done.

Takes the events that stages and ranks send. On a terminal the bar is redrawn in place; elsewhere
(a log file, a pipe) only lines are written, an epoch's at most every ten seconds. All goes to
standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from clam_dist.reporting import words

DOING = {
    "profile": "reading the source",
    "shards": "writing shards",
    "train": "training",
    "assign": "labelling",
    "evaluate": "scoring",
    "report": "writing the report",
}
QUIET_SECONDS = 10.0
LOUD = ("WARNING", "ERROR", "CRITICAL")


class ConsoleDisplay:
    """Shows a run's events; a context manager, and a callable that takes one event.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to write; standard error if absent.
    verbose : bool
        Also show log messages below warnings.

    Notes
    -----
    Events are mappings with the key ``event``: ``stage`` (``stage, status, seconds``),
    ``progress`` (``stage, done, total, unit``), ``epoch`` (``phase, epoch, epochs, loss,
    rows_per_second, members``), ``cluster`` (``workers, dashboard``), ``log`` (``level, message,
    worker``) and ``warning`` (``message``). Other events are left to other readers. May be called
    from any thread.
    """

    def __init__(self, console: Console | None = None, verbose: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.verbose = verbose
        self._lock = threading.Lock()
        self._task: TaskID | None = None
        self._said: set[str] = set()
        self._spoke = float("-inf")
        self._progress: Progress | None = None
        if self.console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                TextColumn("{task.fields[note]}", style="dim"),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            )

    def __enter__(self) -> ConsoleDisplay:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        show = {
            "stage": self._stage,
            "progress": self._advance,
            "epoch": self._epoch,
            "cluster": self._cluster,
            "log": self._log,
            "note": self._note,
            "warning": self._warning,
        }.get(str(event.get("event")))
        if show is not None:
            with self._lock:
                show(event)

    def _stage(self, event: Mapping[str, Any]) -> None:
        stage, status = str(event["stage"]), event["status"]
        if status == "started":
            self._spoke = float("-inf")
            if self._progress is None:
                self._print(f"{stage:<9} {DOING.get(stage, 'at work')}")
            else:
                self._drop()
                doing = f"{stage:<9} {DOING.get(stage, '')}"
                self._task = self._progress.add_task(doing, total=None, note="")
            return
        self._drop()
        if status == "reused":
            self._print(f"{stage:<9} done before, reused")
        else:
            self._print(f"{stage:<9} done in {words.seconds(event.get('seconds'))}")

    def _advance(self, event: Mapping[str, Any]) -> None:
        done, total = event["done"], event.get("total")
        of = f"{words.whole(done)} of {words.whole(total)}" if total else words.whole(done)
        self._show(f"{of} {event.get('unit', '')}".rstrip(), done, total)

    def _epoch(self, event: Mapping[str, Any]) -> None:
        epoch, epochs = event["epoch"], event.get("epochs")
        parts = [f"{event.get('phase', 'train')} epoch {epoch}" + (f"/{epochs}" if epochs else "")]
        for key in ("validation_loss", "loss"):
            if event.get(key) is not None:
                parts.append(f"loss {words.figure(event[key], 4)}")
                break
        if (event.get("members") or 1) > 1:
            parts.append(f"{event['members']} members")
        if event.get("rows_per_second"):
            parts.append(f"{words.whole(event['rows_per_second'])} rows/s")
        self._show(", ".join(parts), epoch, epochs)

    def _cluster(self, event: Mapping[str, Any]) -> None:
        workers = event["workers"]
        line = f"cluster   {workers} worker{'' if workers == 1 else 's'}"
        if event.get("dashboard"):
            line += f", dashboard {event['dashboard']}"
        self._print(line)

    def _log(self, event: Mapping[str, Any]) -> None:
        level = str(event.get("level", "INFO"))
        if self.verbose or level in LOUD:
            worker = f"{event['worker']}: " if event.get("worker") else ""
            self._print(
                f"{level.lower()}: {worker}{event['message']}", "dim" if level == "INFO" else ""
            )

    def _note(self, event: Mapping[str, Any]) -> None:
        self._print(f"{'':<9} {event['message']}")

    def _warning(self, event: Mapping[str, Any]) -> None:
        message = str(event["message"])
        if message not in self._said:
            self._said.add(message)
            self._print(f"warning: {message}", "yellow")

    def _show(self, note: str, done: float, total: float | None) -> None:
        if self._progress is not None:
            if self._task is not None:
                self._progress.update(self._task, completed=done, total=total, note=note)
            return
        now = time.monotonic()
        if now - self._spoke >= QUIET_SECONDS or done == total:
            self._spoke = now
            self._print(f"{'':<9} {note}")

    def _drop(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
        self._task = None

    def _print(self, line: str, style: str = "") -> None:
        self.console.print(escape(line), style=style or None, soft_wrap=True, highlight=False)
