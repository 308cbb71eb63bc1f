from __future__ import annotations

import logging
from typing import Any

import pytest

from pipelines.events import EventRelay, describe

EPOCH = {
    "event": "epoch",
    "stage": "train",
    "phase": "search",
    "epoch": 3,
    "epochs": 20,
    "loss": 0.123456789,
    "rows_per_second": 1234567.8,
    "learning_rate": 0.0125,
    "members": 8,
}


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def log(self, level: int, line: str) -> None:
        self.lines.append((level, line))


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            EPOCH,
            (
                logging.INFO,
                "search: epoch 3 of 20, loss 0.123457, 1,234,568 rows/s, learning rate 0.0125,"
                " 8 candidates side by side",
            ),
        ),
        (
            EPOCH | {"loss": None, "step": 7, "steps": 40},
            (
                logging.INFO,
                "search: epoch 3 of 20, step 7 of 40, 1,234,568 rows/s, learning rate 0.0125,"
                " 8 candidates side by side",
            ),
        ),
        (
            {"event": "checkpoint", "name": "checkpoint-01", "epoch": 3, "step": 0},
            (logging.DEBUG, "checkpoint checkpoint-01"),
        ),
        (
            {"event": "progress", "stage": "assign", "done": 2500, "total": 10000, "unit": "rows"},
            (logging.INFO, "assign: 2,500 of 10,000 rows (25 %)"),
        ),
        (
            {"event": "cluster", "workers": 2, "dashboard": "http://127.0.0.1:8787/status"},
            (logging.INFO, "2 workers; Dask dashboard at http://127.0.0.1:8787/status"),
        ),
        (
            {"event": "cluster", "workers": 1, "dashboard": None},
            (logging.INFO, "1 worker; no Dask dashboard"),
        ),
        (
            {"event": "log", "level": "ERROR", "message": "lost 50 % of {x}", "worker": "worker-1"},
            (logging.ERROR, "[worker-1] lost 50 % of {x}"),
        ),
        (
            {"event": "log", "level": "INFO", "message": "hello", "worker": None},
            (logging.INFO, "hello"),
        ),
        (
            {"event": "warning", "message": "column id only rises"},
            (logging.WARNING, "column id only rises"),
        ),
        ({"event": "stage", "stage": "train", "status": "started"}, None),
    ],
)
def test_every_event_has_its_line(event: dict[str, Any], line: tuple[int, str] | None) -> None:
    assert describe(event) == line


def test_lines_are_thinned_out_but_the_last_shows() -> None:
    now = 0.0
    log = Lines()
    relay = EventRelay(Lines(), clock=lambda: now)  # type: ignore[arg-type]
    with relay.to(log):  # type: ignore[arg-type]
        for epoch in range(1, 81):  # training stops early, at 80 of 100
            now += 1 / 32
            relay(EPOCH | {"epoch": epoch, "epochs": 100})
    shown = [line.split(",")[0].split()[2] for _, line in log.lines]
    assert shown == ["1", "33", "65", "80"]


def test_a_new_phase_shows_at_once_after_the_last_line_of_the_old() -> None:
    log = Lines()
    relay = EventRelay(log, clock=lambda: 0.0)  # type: ignore[arg-type]
    for phase in ("search", "train"):
        for epoch in (1, 2, 3):
            relay(EPOCH | {"phase": phase, "epoch": epoch})
        relay({"event": "progress", "stage": phase, "done": 5, "total": 10, "unit": "rows"})
    shown = [line.split(",")[0] for _, line in log.lines]
    assert shown == [
        "search: epoch 1 of 20",
        "search: 5 of 10 rows (50 %)",
        "search: epoch 3 of 20",
        "train: epoch 1 of 20",
        "train: 5 of 10 rows (50 %)",
    ]


def test_a_note_comes_after_the_epochs_before_it() -> None:
    log = Lines()
    relay = EventRelay(log, clock=lambda: 0.0)  # type: ignore[arg-type]
    for epoch in (1, 2, 3):
        relay(EPOCH | {"epoch": epoch})
    relay({"event": "note", "message": "choosing the best of 8 candidates to go on with"})
    relay(EPOCH | {"phase": "train", "epoch": 1})
    assert [line.split(",")[0] for _, line in log.lines] == [
        "search: epoch 1 of 20",
        "search: epoch 3 of 20",
        "choosing the best of 8 candidates to go on with",
        "train: epoch 1 of 20",
    ]


def test_a_task_takes_the_lines_over_and_gives_them_back() -> None:
    flow, task = Lines(), Lines()
    relay = EventRelay(flow)  # type: ignore[arg-type]
    with relay.to(task):  # type: ignore[arg-type]
        relay({"event": "warning", "message": "in the task"})
    relay({"event": "warning", "message": "after it, 100 %s"})
    assert task.lines == [(logging.WARNING, "in the task")]
    assert flow.lines == [(logging.WARNING, "after it, 100 %s")]
