"""Against a real server: which runs are skipped, which go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Cancelling, Completed, Running

from pipelines.server import EmbeddedServer
from pipelines.waiting import resume_stopped, skip_outdated

NOW = datetime.now(UTC)


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[SyncPrefectClient]:
    with SyncPrefectClient(server.api_url) as client:
        yield client


@pytest.fixture
def deployment(client: SyncPrefectClient) -> Iterator[UUID]:
    made = client.create_deployment(client.create_flow_from_name("waiting"), name=str(uuid4()))
    yield made
    for run in all_runs(client, made):  # other tests ask for the last of all runs
        client.delete_flow_run(run.id)
    client.delete_deployment(made)


@pytest.fixture
def scheduled(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    """Runs that a schedule made: two that were due in the last hour, and later ones."""
    anchor = (NOW - timedelta(minutes=5)).isoformat()
    client.request(
        "POST",
        "/deployments/{id}/schedules",
        path_params={"id": deployment},
        json=[{"schedule": {"interval": 1800.0, "anchor_date": anchor}, "active": True}],
    ).raise_for_status()
    start, end = NOW - timedelta(hours=1, minutes=1), NOW + timedelta(minutes=31)
    body = {"start_time": start.isoformat(), "end_time": end.isoformat(), "min_runs": 4}
    client.request(
        "POST", "/deployments/{id}/schedule", path_params={"id": deployment}, json=body
    ).raise_for_status()
    return all_runs(client, deployment)


def all_runs(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter

    wanted = FlowRunFilter.model_validate({"deployment_id": {"any_": [deployment]}})
    runs = client.read_flow_runs(flow_run_filter=wanted)
    return sorted(runs, key=lambda run: run.expected_start_time or NOW)


@pytest.mark.parametrize("keep", [0, 1])
def test_of_runs_that_were_due_only_the_last_waits(
    client: SyncPrefectClient, deployment: UUID, scheduled: list[FlowRun], keep: int
) -> None:
    by_hand = client.create_flow_run_from_deployment(deployment)
    due = [run for run in scheduled if run.expected_start_time and run.expected_start_time < NOW]
    later = [run for run in scheduled if run not in due]
    assert len(due) >= 2
    assert later
    skipped = skip_outdated(client, deployment, keep)
    assert sorted(skipped) == sorted(run.name for run in due[: len(due) - keep])
    states = {run.id: run.state_name for run in all_runs(client, deployment)}
    assert [states[run.id] for run in due] == ["Cancelled"] * (len(due) - keep) + [
        "Scheduled"
    ] * keep
    assert {states[run.id] for run in later} == {"Scheduled"}
    assert states[by_hand.id] == "Scheduled"
    assert skip_outdated(client, deployment, keep) == []


def test_the_last_run_goes_on_where_it_was_stopped_with_its_process(
    client: SyncPrefectClient, deployment: UUID
) -> None:
    assert resume_stopped(client, deployment) is None
    run = client.create_flow_run_from_deployment(deployment)
    client.set_flow_run_state(run.id, Running(), force=True)
    assert resume_stopped(client, deployment) is None  # at work
    client.set_flow_run_state(run.id, Cancelled(message="stopped by SIGTERM"), force=True)
    assert resume_stopped(client, deployment) == run.name
    assert client.read_flow_run(run.id).state_name == "AwaitingRetry"
    assert skip_outdated(client, deployment, keep=0) == []  # it waits to go on


def test_a_run_that_somebody_cancelled_stays_so(
    client: SyncPrefectClient, deployment: UUID
) -> None:
    run = client.create_flow_run_from_deployment(deployment)
    for state in (Running(), Cancelling(), Cancelled()):
        client.set_flow_run_state(run.id, state, force=True)
    assert resume_stopped(client, deployment) is None
    assert client.read_flow_run(run.id).state_name == "Cancelled"


def test_a_run_that_was_stopped_long_before_others_stays_so(
    client: SyncPrefectClient, deployment: UUID
) -> None:
    for end in (Cancelled(), Completed()):
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(run.id, Running(), force=True)
        client.set_flow_run_state(run.id, end, force=True)
    assert resume_stopped(client, deployment) is None
