"""The clustering flow: the stages of ``clam_dist.stages`` as tasks of a Prefect flow.

The stages' manifests are the only truth about what is done: Prefect caches nothing, and a stage
whose manifest holds ends as ``Reused``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from pydantic import Field

from pipelines.configs import DemoData, load_named
from pipelines.endings import ending_state
from pipelines.events import EventRelay
from pipelines.titles import demo_title, done_message, title, verdict

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.states import State

    from clam_dist.config import Config

ConfigName = Annotated[
    str, Field(min_length=1, examples=["/etc/clam-dist/night.yaml", "quickstart"])
]
Override = Annotated[
    str, Field(pattern=r"^[A-Za-z_]\w*(\.\w+)*\s*=", examples=["model.n_clusters=12"])
]

_NO_OVERRIDES: list[str] = []  # a list for Prefect's form, which shows None as a second kind


@functools.cache
def flow() -> Flow[..., Any]:
    """The flow itself; made once in a process."""
    from prefect import flow as make_flow
    from prefect.states import State

    # One name that it cannot resolve, and Prefect's form would know no type at all.
    _cluster.__annotations__ = get_type_hints(
        _cluster, localns={"State": State}, include_extras=True
    )
    return make_flow(name="cluster", flow_run_name=_run_name, persist_result=False)(_cluster)


def _cluster(
    config: ConfigName = "quickstart",
    overrides: list[Override] = _NO_OVERRIDES,
    force: bool = False,
) -> State:
    """Label every row of a table with its cluster.

    Args:
        config: Path of a YAML config where the flow runs, or a packaged config's name.
        overrides: Keys to set, each as a.b=value, the value as YAML.
        force: Replace a finished output made with another config.
    """
    from prefect import get_run_logger

    from pipelines.stale import mark_stale_siblings, record_process

    try:
        logger = get_run_logger()
        record_process()
        for name in mark_stale_siblings():
            logger.warning("marked an earlier run as crashed, its process is gone: %s", name)
        for name in _skip_outdated_siblings():
            logger.info("skipped, it had not begun and a later one waits: %s", name)
        with _watched_by_itself():
            return _run_stages(config, overrides, force, EventRelay(logger))
    except BaseException as caught:
        return ending_state(caught)


def _skip_outdated_siblings() -> list[str]:
    """Of the runs that wait for this deployment's slot, only the last is to have it."""
    from prefect import runtime
    from prefect.client.orchestration import get_client

    from pipelines.waiting import skip_outdated

    if runtime.deployment.id is None:
        return []
    with get_client(sync_client=True) as client:
        return skip_outdated(client, runtime.deployment.id)


def _watched_by_itself() -> contextlib.AbstractContextManager[None]:
    """Cancelled from Prefect's pages, a run without a deployment must notice by itself."""
    from prefect import runtime

    from pipelines.cancelling import stopped_when_cancelled

    if runtime.flow_run.id is None or runtime.deployment.id is not None:
        return contextlib.nullcontext()
    return stopped_when_cancelled(runtime.flow_run.id)


def _run_stages(config: str, overrides: list[str], force: bool, relay: EventRelay) -> State:
    from prefect import runtime
    from prefect.states import Completed

    from clam_dist import stages
    from pipelines.artifacts import publish

    loaded, demo = load_named(config, overrides)
    # A retry of a scheduled run keeps the scheduled time, and so finds the folders it began.
    began = runtime.flow_run.scheduled_start_time.astimezone()
    loaded = loaded.resolve_templates(began)
    if demo is not None:
        _run_task("demo-data", demo_title(demo, loaded), lambda: _make_demo(demo, loaded), relay)
    manifests: dict[str, dict[str, Any]] = {}
    with stages.open_run(loaded, force=force, on_event=relay) as run:
        if run.already_done:
            return Completed(name="AlreadyDone", message=f"already done: {run.output}")
        for stage in stages.STAGE_NAMES:
            work = functools.partial(_stage, run, stage, manifests)
            _run_task(stage, title(stage, loaded), work, relay)
        markdown = run.markdown_report()
        metrics = run.finish()
        publish(loaded, markdown, manifests["evaluate"], metrics, run.output)
    return Completed(message=verdict(metrics, run.output), data=metrics)


def _run_task(kind: str, name: str, work: Callable[[], State], relay: EventRelay) -> None:
    """Run ``work`` as one task of the flow; an error of it is raised here as it was there."""
    from prefect import get_run_logger, task
    from prefect.cache_policies import NO_CACHE
    from prefect.context import TagsContext

    from pipelines.progress import task_progress

    def attempt() -> State:
        with task_progress(name) as progress, relay.to(get_run_logger(), progress):
            try:
                return work()
            except BaseException as caught:
                return ending_state(caught, of_task=True)

    run = task(
        name=kind,
        task_run_name=lambda: name,
        cache_policy=NO_CACHE,
        persist_result=False,
        # A retry that is never taken: of a task without any, Prefect logs the failed state's repr
        # and an empty stack ("NoneType: None") before the line that says how it ended.
        retries=1,
        retry_condition_fn=lambda *_: False,
    )(attempt)
    # A task takes over the run's tags, and Prefect asks its server for a slot of each before every
    # task, though none is limited: two seconds after a long one, whose connection has gone (seen).
    with TagsContext(current_tags=set()):
        ending = run(return_state=True).result(raise_on_failure=False)
    if isinstance(ending, BaseException):
        raise ending


def _stage(run: Any, name: str, manifests: dict[str, dict[str, Any]]) -> State:
    from prefect.states import Completed

    outcome = run.stage(name)
    manifests[name] = outcome.manifest
    if outcome.reused:
        return Completed(name="Reused", message="its manifest holds", data=outcome.manifest)
    rows = manifests["profile"].get("data", {}).get("n_rows")
    return Completed(message=done_message(outcome.seconds, rows), data=outcome.manifest)


def _make_demo(demo: DemoData, config: Config) -> State:
    from prefect.states import Completed

    from clam_dist.demo import write_demo

    path = Path(config.source.uri)
    if path.exists():  # whatever it holds: other rows were put there on purpose
        return Completed(name="Reused", message=f"{path} is there")
    write_demo(demo.name, path, rows=demo.rows)
    return Completed(message=f"made {path}")


def _run_name() -> str:
    """The config's name and the run's time; of a config that cannot be read, its path."""
    from prefect import runtime

    from clam_dist.errors import ClamDistError

    parameters = runtime.flow_run.parameters
    config = parameters.get("config", "quickstart")
    try:
        name = load_named(config, parameters.get("overrides") or [])[0].name
    except ClamDistError:
        name = config
    began = runtime.flow_run.scheduled_start_time.astimezone()
    return f"{name} {began:%Y-%m-%d %H:%M:%S}"
