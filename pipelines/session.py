"""Prefect, ready for one run: the configured API, or our own server as long as the run lasts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clam_dist.errors import RunError
from pipelines import settings
from pipelines.server import EmbeddedServer, check_home
from pipelines.stale import mark_stale_runs

if TYPE_CHECKING:
    from uuid import UUID

_SETTLE_SECONDS = 5.0
"""Time given to our own server to write down how the last tasks ended."""


@contextlib.contextmanager
def prefect_session(say: Callable[[str], None], schedules: bool = False) -> Iterator[None]:
    """Make Prefect's API available; where it is our own server, end that with the context.

    Parameters
    ----------
    say : callable
        Told in one line what is going on: the address, the seconds it took.
    schedules : bool
        Our own server is to run what is due, too.

    Raises
    ------
    RunError
        Where our own server does not start, or the configured one does not answer.
    """
    began = time.monotonic()
    api_url, home = settings.configured_api(os.environ, Path.cwd())
    own = EmbeddedServer(home, schedules=schedules) if api_url is None else None
    with contextlib.ExitStack() as stack:
        if own is not None:
            check_home(home)
            if settings.is_first_start(home, os.environ):
                say(f"first run: preparing Prefect's database in {home}, once (some 20 s)")
            stack.callback(own.stop)
            own.start(os.environ)
        stack.callback(_reread_settings)  # once the variables are gone again
        variables = settings.client_environment(os.environ, own.api_url if own else None)
        stack.enter_context(settings.changed_environment(variables))
        _reread_settings()
        _import_meanwhile()
        if own is not None:
            own.wait_ready(
                on_wait=lambda seconds: say(f"still waiting for Prefect ({seconds:.0f} s)")
            )
            stack.callback(_hand_over_events)
        _check_api(say)
        took = f"{time.monotonic() - began:.1f} s"
        if own is not None:
            whom = "process" if schedules else "run"
            say(f"Prefect started in {took}: {own.address} (until this {whom} ends)")
        else:
            say(f"Prefect ready in {took}: {api_url}")
        yield


def _import_meanwhile() -> None:
    """Import what the flow needs, which takes seconds, while our server starts."""
    import prefect.flow_engine
    import prefect.main
    import prefect.task_engine  # noqa: F401

    from clam_dist import stages
    from pipelines.flow import flow

    flow()
    _ = stages.open_run  # imported on first use of a name; torch alone takes seconds


def _reread_settings() -> None:
    """Have Prefect read the environment again: it does so once, when first imported."""
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()


def _check_api(say: Callable[[str], None]) -> None:
    """Check that the API answers, and put right what killed runs left in it."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        problem = client.api_healthcheck()
        if problem is not None:
            address = str(client.api_url).rstrip("/")
            raise RunError(
                f"Prefect's API at {address} does not answer ({problem}). Remedy: start it with"
                " `prefect server start`, or unset PREFECT_API_URL (also in the active"
                " profile) to have one started for each run."
            )
        for name in mark_stale_runs(client):
            say(f"marked an earlier run as crashed, its process is gone: {name}")


def _hand_over_events() -> None:
    """Send what Prefect's client still holds, before the server it would send it to is stopped."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    EventsWorker.drain_all(timeout=_SETTLE_SECONDS)
    APILogWorker.drain_all(timeout=_SETTLE_SECONDS)


def wait_until_recorded(flow_run_id: UUID) -> None:
    """Return once the server knows how every task of a run ended, or after five seconds.

    Task states travel as events and are written a moment later; a server that is stopped at once
    would show the last of them as running for ever.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    run_filter: dict[str, Any] = {"id": {"any_": [flow_run_id]}}
    deadline = time.monotonic() + _SETTLE_SECONDS
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            task_runs = client.read_task_runs(
                flow_run_filter=FlowRunFilter.model_validate(run_filter)
            )
            if all(run.state is not None and run.state.is_final() for run in task_runs):
                return
            time.sleep(0.1)
