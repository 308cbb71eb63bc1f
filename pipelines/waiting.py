"""Runs of a deployment that wait, or were stopped: at most one of its schedule's waits at a time.

A schedule whose runs take longer than the time between two would otherwise queue them without end,
and each would do again what the one before it did.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

_WAITING = ("Scheduled", "Late", "AwaitingConcurrencySlot")
"""Names of states of runs that have not begun. One that goes on (AwaitingRetry) is none of them."""


def outdated(runs: Iterable[FlowRun], keep: int) -> Sequence[FlowRun]:
    """Of runs that wait, those that a schedule made, but for the last ``keep`` to have been due.

    Parameters
    ----------
    runs
        Of one deployment.
    keep
        0 or more.
    """
    waiting = [run for run in runs if run.auto_scheduled and run.state_name in _WAITING]
    waiting.sort(key=lambda run: run.expected_start_time or datetime.min.replace(tzinfo=UTC))
    return waiting[: len(waiting) - keep] if keep else waiting


def skip_outdated(client: SyncPrefectClient, deployment: UUID, keep: int = 1) -> list[str]:
    """Cancel runs that were due and have not begun, but for the last ``keep``.

    Parameters
    ----------
    client : SyncPrefectClient
    deployment : UUID
    keep : int
        0 where the schedule that made them is no more.

    Returns
    -------
    list of str
        The names of the runs cancelled.
    """
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Cancelled

    wanted: dict[str, Any] = {
        "deployment_id": {"any_": [deployment]},
        "state": {"type": {"any_": ["SCHEDULED"]}},
        "expected_start_time": {"before_": datetime.now(UTC)},
    }
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    skipped = outdated(runs, keep)
    message = "skipped: it was due, and had not begun when a later run took its place"
    for run in skipped:
        client.set_flow_run_state(run.id, Cancelled(message=message), force=True)
    return [run.name for run in skipped]


def resume_stopped(client: SyncPrefectClient, deployment: UUID) -> str | None:
    """Queue the deployment's last run again where it was stopped with its process.

    One that somebody cancelled, in the pages or by a command, was Cancelling first and stays so.

    Returns
    -------
    str or None
        The run's name; None where its last run was not stopped.
    """
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.states import AwaitingRetry

    begun: dict[str, Any] = {
        "deployment_id": {"any_": [deployment]},
        "start_time": {"is_null_": False},
    }
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(begun),
        sort=FlowRunSort.START_TIME_DESC,
        limit=1,
    )
    if not runs or runs[0].state_type != StateType.CANCELLED:
        return None
    [last] = runs
    if any(s.type == StateType.CANCELLING for s in client.read_flow_run_states(last.id)):
        return None
    message = "stopped with its process, and goes on where it was"
    client.set_flow_run_state(last.id, AwaitingRetry(message=message), force=True)
    return last.name
