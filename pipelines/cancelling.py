"""Cancel, pressed in Prefect's pages for a run that no worker watches: it watches itself.

A worker ends the runs that it started; of one started by hand Prefect's server knows no process,
and its pages would show it as Cancelling for ever while it goes on.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

SECONDS = 3.0
"""Between two looks at the run's state."""


@contextlib.contextmanager
def stopped_when_cancelled(
    run_id: UUID, stop: Callable[[], None] | None = None, seconds: float = SECONDS
) -> Iterator[None]:
    """Stop this process as SIGTERM does once the run's state is Cancelling or Cancelled.

    Parameters
    ----------
    run_id
        Of the flow run within whose block this process works.
    stop
        Called once, from a thread; default: SIGTERM for the main thread, which ends what it waits
        for and leaves the run resumable.
    seconds
        Between two looks.
    """
    ended = threading.Event()

    def watch() -> None:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            while not ended.wait(seconds):
                if _is_cancelled(client, run_id):
                    (stop or _terminate)()
                    return

    thread = threading.Thread(target=watch, name="clam_dist-cancelling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _is_cancelled(client: SyncPrefectClient, run_id: UUID) -> bool:
    import httpx
    from prefect.client.schemas.objects import StateType
    from prefect.exceptions import ObjectNotFound

    try:
        state = client.read_flow_run(run_id).state
    except (httpx.HTTPError, ObjectNotFound):
        return False  # a server that is away for a while, or a run deleted: the work goes on
    return state is not None and state.type in {StateType.CANCELLING, StateType.CANCELLED}


def _terminate() -> None:
    """SIGTERM for the main thread: sent to the process, another could take it and wake no one."""
    if hasattr(signal, "pthread_kill"):
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        signal.raise_signal(signal.SIGTERM)
