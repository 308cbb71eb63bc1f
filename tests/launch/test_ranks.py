"""A rank's end, told in a form that travels."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from clam_dist.errors import DataError, RunError
from clam_dist.launch.ranks import heard, portable, take_seat
from clam_dist.launch.seat import Network, PeersLostError, Seat

SEAT = Seat("attempt", 0, 1, "tcp://w", "", Network("127.0.0.1"), 2, 1.0, 1.0, 1.0)


class Unpicklable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def raise_it(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_travels_with_its_traceback() -> None:
    sent = pickle.loads(pickle.dumps(portable(raise_it(DataError("row 7")))))
    assert type(sent) is DataError
    assert str(sent) == "row 7"
    assert "in raise_it" in sent.__notes__[0]


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    sent = pickle.loads(pickle.dumps(portable(raise_it(Unpicklable("a", "b")))))
    assert type(sent) is RunError
    assert str(sent) == "Unpicklable: a and b"
    assert "in raise_it" in sent.__notes__[0]


def work(collective: Any, payload: str) -> int:
    collective.report({"event": "epoch", "loss": 0.5})
    if payload == "peers":
        try:
            raise PeersLostError("gone")
        except PeersLostError as error:
            raise ValueError("while stepping") from error
    if payload == "own":
        raise ValueError("own")
    threads: int = collective.threads
    return threads


@pytest.mark.parametrize(
    ("payload", "state", "value"),
    [("", "done", 2), ("own", "failed", None), ("peers", "peers", None)],
)
def test_how_a_rank_ended(payload: str, state: str, value: int | None) -> None:
    sent: list[dict[str, Any]] = []
    outcome = take_seat(SEAT, None, work, payload, send=sent.append, wanted=lambda: True)
    assert (outcome.seat, outcome.state, outcome.value) == (SEAT, state, value)
    assert outcome.peak_rss_bytes > 10**7
    assert [message["kind"] for message in sent] == ["begun", "report", "ended"]
    assert sent[1] == {
        "kind": "report",
        "attempt": "attempt",
        "rank": 0,
        "event": '{"event": "epoch", "loss": 0.5}',
    }


def test_only_what_is_logged_in_the_block_is_heard() -> None:
    sent: list[dict[str, Any]] = []

    def send(message: dict[str, Any]) -> None:
        logging.getLogger("clam_dist.deep").warning("sending")  # must not be sent in its turn
        sent.append(message)

    log = logging.getLogger("clam_dist.data")
    level = logging.getLogger("clam_dist").level
    with heard(send, "tcp://w"):
        log.info("read %d rows", 5)
        logging.getLogger("elsewhere").warning("not ours")
    log.warning("afterwards")
    assert sent == [
        {
            "kind": "log",
            "event": '{"event": "log", "level": "INFO", "message": "read 5 rows", '
            '"worker": "tcp://w"}',
        }
    ]
    assert logging.getLogger("clam_dist").level == level
