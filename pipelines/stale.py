"""Runs that were killed: Prefect shows them as Running for ever unless someone says otherwise.

A flow started directly, not by a worker, has nobody who watches it. Each of ours records its
process, and the next start marks those whose process is gone as Crashed.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

TAG = "clam_dist"
"""On every run of ours."""

_UNRECORDED = timedelta(minutes=1)
"""A run has recorded its process well within this time of its creation, or was killed before."""

_CLOCK = 60.0
"""Seconds by which a process's start may seem to move when the machine's clock is set."""


def this_process() -> str:
    """``host:pid:start`` of this process; ``start`` in seconds since 1970."""
    import psutil

    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.0f}"


def is_gone(recorded: str | None, created: datetime, now: datetime) -> bool:
    """Whether the process of a run is known to have ended.

    Parameters
    ----------
    recorded : str or None
        What `this_process` gave in it; None where it recorded nothing.
    created, now : datetime
        When the run was made, and now; with time zones.

    Returns
    -------
    bool
        False where the process lives, is on another host, or is not one that we recorded.
    """
    import psutil

    if not recorded:
        return now - created > _UNRECORDED
    host, *process = recorded.rsplit(":", 2)
    if host != socket.gethostname() or len(process) < 2 or not all(map(str.isdecimal, process)):
        return False
    pid, start = map(int, process)
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended, and its parent has not asked how
            return True
        return abs(process.create_time() - start) > _CLOCK
    except psutil.NoSuchProcess:
        return True


def mark_stale_runs(client: SyncPrefectClient) -> list[str]:
    """Mark unfinished runs of ours whose process is gone as Crashed, and their tasks.

    Parameters
    ----------
    client : SyncPrefectClient

    Returns
    -------
    list of str
        The names of the runs marked.
    """
    from prefect.client.schemas.filters import FlowRunFilter

    wanted: dict[str, Any] = {
        "tags": {"all_": [TAG]},
        "deployment_id": {"is_null_": True},
        "state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}},
    }
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    now = datetime.now(UTC)
    gone = [run for run in runs if is_gone(run.infrastructure_pid, run.created or now, now)]
    _mark_crashed(client, gone)
    return [run.name for run in gone]


def _mark_crashed(client: SyncPrefectClient, runs: Iterable[FlowRun]) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
    from prefect.states import Crashed

    message = "its process ended without a word; a run with the same config resumes it"
    for run in runs:
        unfinished: dict[str, Any] = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
        for task_run in client.read_task_runs(
            flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run.id]}}),
            task_run_filter=TaskRunFilter.model_validate(unfinished),
        ):
            client.set_task_run_state(task_run.id, Crashed(message=message), force=True)
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
