"""Runs that were killed: Prefect shows them as Running for ever unless someone says otherwise.

A flow started directly has nobody who watches it, and a worker that is killed with its runs can
say nothing. So each of ours records its process, and the next start on that machine marks those
whose process is gone as Crashed. The record is a label of the run: what workers themselves write
down differs from one kind, and one version, to the next (a number alone, `host:pid`, a container).
"""

from __future__ import annotations

import argparse
import os
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

TAG = "clam_dist"
"""On every run of ours."""

_UNRECORDED = timedelta(minutes=1)
"""A run has recorded its process well within this time of its creation, or was killed before."""

_HANDED_OUT = timedelta(minutes=30)
"""A worker's run begins within this time of being handed out, or its worker was lost."""

LABEL = "clam_dist.process"
"""The run's label that holds its process."""

_CLOCK = 60.0
"""Seconds by which a process's start may seem to move when the machine's clock is set."""


def this_process() -> str:
    """``host:pid:start`` of this process; ``start`` in seconds since 1970."""
    import psutil

    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.0f}"


def record_process() -> None:
    """Write down, in the run's labels, which process it is in."""
    from prefect import runtime
    from prefect.client.orchestration import get_client

    run_id = runtime.flow_run.id
    if run_id is None:
        return
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(run_id, {LABEL: this_process()})


def is_gone(recorded: str) -> bool:
    """Whether the process that a run recorded is known to have ended.

    Parameters
    ----------
    recorded : str
        What `this_process` gave in it.

    Returns
    -------
    bool
        False where the process lives, is on another host, or is not one that we know to read.
    """
    import psutil

    host, _, rest = recorded.partition(":")
    numbers = rest.split(":")
    if host != socket.gethostname() or len(numbers) != 2 or not all(map(str.isdecimal, numbers)):
        return False
    try:
        process = psutil.Process(int(numbers[0]))
        if process.status() == psutil.STATUS_ZOMBIE:  # ended, and its parent has not asked how
            return True
        return abs(process.create_time() - int(numbers[1])) > _CLOCK
    except psutil.NoSuchProcess:
        return True


def is_unrecorded(created: datetime, now: datetime) -> bool:
    """Whether a run that no worker started is too old to have recorded no process, and live.

    Parameters
    ----------
    created, now : datetime
        When the run was made, and now; with time zones.
    """
    return now - created > _UNRECORDED


def mark_stale_runs(
    client: SyncPrefectClient, deployed: bool = False, retries: int = 0
) -> list[str]:
    """Mark unfinished runs of ours whose process is gone as Crashed, and their tasks.

    Parameters
    ----------
    client : SyncPrefectClient
    deployed : bool
        Of deployments, started by workers or `clam-dist serve` on this machine, rather than those
        started by hand. One that is marked gives back its deployment's concurrency slot.
    retries : int
        Deployed runs that were begun at most so many times are put back in their queue, and go on
        where they were: the same run, so that an output named by its date is the same, too.

    Returns
    -------
    list of str
        The names of the runs marked, with a word on those that are queued again.
    """
    from prefect.client.schemas.filters import FlowRunFilter

    wanted: dict[str, Any] = {
        "tags": {"all_": [TAG]},
        "deployment_id": {"is_null_": not deployed},
        "state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}},
    }
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    now = datetime.now(UTC)
    gone = [run for run in runs if _is_run_gone(run, deployed, now)]
    return [_mark(client, run, again=deployed and run.run_count <= retries) for run in gone]


def _is_run_gone(run: FlowRun, deployed: bool, now: datetime) -> bool:
    recorded = run.labels.get(LABEL)
    if recorded:
        return is_gone(str(recorded))
    if not deployed:
        return is_unrecorded(run.created or now, now)
    # A run that was handed out and has recorded nothing may wait for a machine, but not for ever.
    since = now if run.state is None else run.state.timestamp
    return run.state_type == "PENDING" and now - since > _HANDED_OUT


def mark_stale_siblings() -> list[str]:
    """`mark_stale_runs` of deployments, from within a run of one; elsewhere nothing."""
    from prefect import runtime
    from prefect.client.orchestration import get_client

    if runtime.deployment.id is None:
        return []
    with get_client(sync_client=True) as client:
        return mark_stale_runs(client, deployed=True)


def _mark(client: SyncPrefectClient, run: FlowRun, again: bool) -> str:
    """Mark a run and its tasks as crashed; where it is to go on, put it back in its queue."""
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
    from prefect.states import AwaitingRetry, Crashed

    message = "its process ended without a word; a run with the same config resumes it"
    unfinished: dict[str, Any] = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
    for task_run in client.read_task_runs(
        flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run.id]}}),
        task_run_filter=TaskRunFilter.model_validate(unfinished),
    ):
        client.set_task_run_state(task_run.id, Crashed(message=message), force=True)
    client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    cancelling = run.state is not None and run.state.is_cancelling()
    if not again or cancelling:
        return run.name
    # From Crashed, which gave its slot back; the queue hands it to whichever worker is there.
    client.set_flow_run_state(run.id, AwaitingRetry(message=message), force=True)
    return f"{run.name} (queued again)"


def main(argv: Sequence[str] | None = None) -> int:
    """Mark runs of deployments whose process on this machine is gone.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; default: the process's.

    Returns
    -------
    int
        0.
    """
    retries = _parser().parse_args(argv).retries

    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for name in mark_stale_runs(client, deployed=True, retries=retries):
            print(f"marked as crashed, its process is gone: {name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.stale",
        description="Mark runs of deployments that a killed worker left on this machine as"
        " crashed, which frees their slots; for before a worker starts, and after it ended.",
        epilog="example: python -m pipelines.stale --retries 2",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="put runs that were begun at most N times back in their queue (default: none)",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
