from __future__ import annotations

import threading
from typing import Any

import pytest

from pipelines.progress import Progress, percentage

EPOCH = {"event": "epoch", "epoch": 3, "epochs": 20}


@pytest.mark.parametrize(
    ("event", "share"),
    [
        (EPOCH, 15.0),
        (EPOCH | {"epoch": 20}, 100.0),
        (EPOCH | {"step": 10, "steps": 40}, 11.2),  # (2 + 1/4) of 20
        (EPOCH | {"epoch": 1, "step": 0, "steps": 0}, 0.0),
        (EPOCH | {"epochs": 0}, 100.0),
    ],
)
def test_the_share_that_is_done(event: dict[str, Any], share: float) -> None:
    assert percentage(event) == share


def test_a_slow_server_sees_the_first_and_the_last() -> None:
    posted: list[tuple[float, str]] = []
    first, free = threading.Event(), threading.Event()

    def post(done: float, line: str) -> None:
        posted.append((done, line))
        first.set()
        assert free.wait(10)

    progress = Progress(post, seconds=0.0)
    progress(EPOCH | {"epoch": 1}, "one")
    assert first.wait(10)
    for epoch in range(2, 20):  # nobody waits for the server
        progress(EPOCH | {"epoch": epoch}, f"epoch {epoch}")
    free.set()
    progress.close()
    assert posted == [(5.0, "one"), (95.0, "epoch 19")]


def test_a_server_that_fails_costs_nothing() -> None:
    tried: list[float] = []

    def post(done: float, line: str) -> None:
        tried.append(done)
        raise OSError(line)

    progress = Progress(post, seconds=60.0)
    progress(EPOCH, "a line")
    progress.close()
    assert tried == [15.0]


def test_without_an_epoch_nothing_is_posted() -> None:
    progress = Progress(lambda *_: pytest.fail("posted"))
    progress({"event": "progress", "done": 1, "total": 2}, "a line")
    progress.close()
