"""The last lines of every worker, kept for the case that it fails."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

LINES = 200
"""Of each worker, the last so many."""


class WorkerLogs:
    """What was heard of each worker, and the files of failed attempts.

    Parameters
    ----------
    folder : Path, optional
        Where files go; made when the first is written. None: nothing is written.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._lines: dict[str, deque[str]] = defaultdict(partial(deque, maxlen=LINES))
        self._attempt = 0

    def hear(self, worker: str, text: str) -> None:
        """Remember a line of a worker."""
        self._lines[worker].append(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def keep(self, workers: Sequence[tuple[str, str, str]]) -> str:
        """Write one file for each worker of a failed attempt.

        Parameters
        ----------
        workers : sequence of (address, label, end)
            Who, its short name, and how its rank ended.

        Returns
        -------
        str
            The files' common pattern, empty where nothing could be written.
        """
        if self.folder is None:
            return ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A run that was resumed goes on counting where the one before it stopped.
            taken = [path.name.split("-") for path in self.folder.glob("attempt-*-*.log")]
            known = [int(parts[1]) for parts in taken if parts[1].isdigit()]
            self._attempt = max([self._attempt, *known]) + 1
            for address, label, end in workers:
                path = self.folder / f"attempt-{self._attempt}-{label}.log"
                lines = [f"worker {address}", *self._lines.get(address, ()), f"end: {end}"]
                path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError:
            return ""  # a log that cannot be written must not hide what it would tell of
        return str(self.folder / f"attempt-{self._attempt}-*.log")
