"""What runs on a worker: one rank of a gang, and the driver's ear for its log."""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clam_dist.errors import RunError
from clam_dist.launch import machine
from clam_dist.launch.seat import Outcome, PeersLostError, Seat


def take_seat(
    seat: Seat,
    store: tuple[str, int] | None,
    function: Callable[[Any, Any], Any],
    payload: Any,
    *,
    send: Callable[[dict[str, Any]], None],
    wanted: Callable[[], bool],
) -> Outcome:
    """Join the others, run ``function(collective, payload)``, and tell how it ended.

    Never raises for what the function does: the outcome carries the exception.

    Parameters
    ----------
    seat : Seat
        This rank's place.
    store : (str, int), optional
        Where the attempt's store listens; None for rank 0, which opens it.
    function, payload : callable, object
        The rank's work.
    send : callable
        Sends a message to the driver, in order, without waiting.
    wanted : callable
        Whether the driver still waits for this rank.
    """
    # Only a rank needs torch: workers that just map stay at 65 MiB instead of 250.
    from clam_dist.launch import collectives

    me = {"attempt": seat.attempt, "rank": seat.rank}
    send({"kind": "begun", **me, "pid": os.getpid()})

    def report(text: str) -> None:
        send({"kind": "report", **me, "event": text})

    collective: Any = None
    opened = None
    try:
        if seat.world_size == 1:
            collective = collectives.LocalCollective(seat.threads, report, wanted, seat.device)
        else:
            if store is None:
                opened = collectives.open_store(seat.network)
                store = opened.address
                send({"kind": "store", **me, "address": list(store)})
            collective = collectives.join(seat, store, send=report, wanted=wanted)
        value = function(collective, payload)
    except Exception as error:
        # First of all: as long as this rank's connections stand, its peers wait for it.
        if collective is not None:
            collective.close()
        outcome = Outcome(
            seat,
            "peers" if _because_of_peers(error) else "failed",
            error=portable(error),
            peak_rss_bytes=machine.peak_rss_bytes(),
        )
    else:
        collective.close()
        outcome = Outcome(seat, "done", value, peak_rss_bytes=machine.peak_rss_bytes())
    del opened
    # A driver that gave up on this rank no longer takes its outcome, but may use its worker again.
    send({"kind": "ended", **me})
    return outcome


def portable(error: BaseException) -> BaseException:
    """The error with its traceback as a note, in a form that can travel between processes."""
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # Whatever goes wrong there, the text is what the user needs.
        replacement = RunError(f"{type(error).__name__}: {error}")
        replacement.__notes__ = error.__notes__
        return replacement
    return error


def _because_of_peers(error: BaseException) -> bool:
    """Whether a lost peer stands anywhere in the chain of causes."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, PeersLostError):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False


@contextmanager
def heard(send: Callable[[dict[str, Any]], None], worker: str) -> Iterator[None]:
    """Send what is logged under ``clam_dist`` by this task to the driver while the block runs."""
    log = logging.getLogger("clam_dist")
    handler = _ToDriver(send, worker)
    level = log.level
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _ToDriver(logging.Handler):
    """Sends each record as a ``log`` event."""

    def __init__(self, send: Callable[[dict[str, Any]], None], worker: str) -> None:
        super().__init__()
        self._send_message = send
        self._worker = worker
        self._busy = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        # Sending may itself log; that must not be sent again.
        if getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            message = self.format(record)
            event = {"event": "log", "level": record.levelname, "message": message}
            self._send_message(
                {"kind": "log", "event": json.dumps(event | {"worker": self._worker})}
            )
        finally:
            self._busy.now = False
