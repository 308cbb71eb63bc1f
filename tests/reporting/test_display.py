"""The display: lines on a pipe, bars on a terminal, the same news in both."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from clam_dist.reporting.display import ConsoleDisplay


def shown(events: list[dict], terminal: bool = False, **options) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, highlight=False)
    with ConsoleDisplay(console, **options) as display:
        for event in events:
            display(event)
    return out.getvalue()


RUN = [
    {"event": "stage", "stage": "profile", "status": "reused", "seconds": 0.0},
    {"event": "cluster", "workers": 2, "dashboard": "http://127.0.0.1:8787/status"},
    {"event": "stage", "stage": "train", "status": "started"},
    {
        "event": "epoch",
        "stage": "train",
        "phase": "search",
        "epoch": 1,
        "epochs": 4,
        "loss": 0.5321,
        "rows_per_second": 1_250_000.0,
        "members": 64,
    },
    {"event": "stage", "stage": "train", "status": "finished", "seconds": 12.4},
]


def test_lines_of_a_run_on_a_pipe() -> None:
    assert shown(RUN).splitlines() == [
        "profile   done before, reused",
        "cluster   2 workers, dashboard http://127.0.0.1:8787/status",
        "train     training",
        "          search epoch 1/4, loss 0.5321, 64 members, 1,250,000 rows/s",
        "train     done in 12 s",
    ]


def test_a_terminal_shows_the_same_news() -> None:
    text = shown(RUN, terminal=True)
    for expected in ("done before, reused", "2 workers", "done in 12 s"):
        assert expected in text


def test_a_pipe_hears_of_progress_seldom_but_of_its_end() -> None:
    events = [{"event": "stage", "stage": "assign", "status": "started"}]
    events += [
        {"event": "progress", "stage": "assign", "done": i * 1000, "total": 50_000, "unit": "rows"}
        for i in range(1, 51)
    ]
    assert shown(events).splitlines() == [
        "assign    labelling",
        "          1,000 of 50,000 rows",
        "          50,000 of 50,000 rows",
    ]


def test_warnings_are_said_once_and_small_talk_not_at_all() -> None:
    events = [
        {"event": "warning", "message": "column [id] only rises"},
        {"event": "warning", "message": "column [id] only rises"},
        {"event": "log", "level": "INFO", "message": "shard read", "worker": "w1"},
        {"event": "log", "level": "WARNING", "message": "slow disk", "worker": "w1"},
        {"event": "checkpoint", "name": "x"},
    ]
    assert shown(events).splitlines() == [
        "warning: column [id] only rises",
        "warning: w1: slow disk",
    ]
    assert "info: w1: shard read" in shown(events, verbose=True)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_without_a_stage_or_a_total_is_harmless(terminal: bool) -> None:
    shown([{"event": "progress", "stage": "assign", "done": 5, "total": None}], terminal)
    shown([{"event": "epoch", "epoch": 1, "loss": None}], terminal)


def test_events_may_come_from_many_threads() -> None:
    out = io.StringIO()
    display = ConsoleDisplay(Console(file=out, width=100))

    def speak(name: int) -> None:
        for i in range(50):
            display({"event": "warning", "message": f"{name}-{i}"})

    threads = [threading.Thread(target=speak, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = out.getvalue().splitlines()
    assert sorted(lines) == sorted(f"warning: {n}-{i}" for n in range(4) for i in range(50))
