from __future__ import annotations

import contextlib
import threading
from uuid import uuid4

import pytest

from pipelines import cancelling
from pipelines.cancelling import stopped_when_cancelled


@pytest.fixture(autouse=True)
def no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client asks for a server, and Prefect would start one."""
    import prefect.client.orchestration as orchestration

    monkeypatch.setattr(orchestration, "get_client", lambda **_: contextlib.nullcontext())


def test_stops_once_and_only_when_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True, True, True])
    monkeypatch.setattr(cancelling, "_is_cancelled", lambda *_: next(answers))
    stopped: list[int] = []
    done = threading.Event()

    def stop() -> None:
        stopped.append(len(list(answers)))
        done.set()

    with stopped_when_cancelled(uuid4(), stop, seconds=0.01):
        assert done.wait(10)
    assert stopped == [2]  # at the third look, and no look after it


def test_looks_no_more_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    monkeypatch.setattr(cancelling, "_is_cancelled", lambda *_: bool(looked.set()))
    with stopped_when_cancelled(uuid4(), lambda: None, seconds=0.01):
        assert looked.wait(10)
        [thread] = [t for t in threading.enumerate() if t.name == "clam_dist-cancelling"]
    thread.join(10)
    assert not thread.is_alive()


def test_a_server_that_is_away_stops_nothing() -> None:
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient("http://127.0.0.1:9/api") as client:
        assert not cancelling._is_cancelled(client, uuid4())
