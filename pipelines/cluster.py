"""The clustering flow: the stages of ``clam_dist.stages`` as tasks of a Prefect flow.

``python -m pipelines.cluster CONFIG.yaml [--set a.b=value]...`` (also ``clam-dist-flow``) runs it
here and now; a deployment names it ``pipelines.cluster.cluster``. The stages' manifests are the
only truth about what is done: Prefect caches nothing, and a stage whose manifest holds ends as
``Reused``.

Prefect is imported inside functions: a module run with ``-m`` is imported again by every process
that Dask spawns.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clam_dist.cli_errors import sigterm_raises
from pipelines.configs import DEMO_DATA, DemoData, find_config, packaged_names
from pipelines.endings import as_error, ending_state
from pipelines.titles import demo_title, shown, title, verdict

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.states import State

    from clam_dist.config import Config
    from pipelines.events import EventRelay

_EPILOG = """examples:
  clam-dist-flow quickstart
  clam-dist-flow night.yaml --set model.n_clusters=12 --set 'model.beta=[0.5, 1, 2]'
  PREFECT_API_URL=http://prefect.example:4200/api clam-dist-flow night.yaml

exit codes: 0 done; 2 the command or config is wrong; 3 the data is wrong; 4 the run failed;
130 and 143 stopped by ctrl-C or SIGTERM, and resumed when run again"""


def __getattr__(name: str) -> Any:
    """``cluster``, the flow, made when first asked for."""
    if name == "cluster":
        return _flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the flow once and return the exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; default: the process's.

    Returns
    -------
    int
        0 done; 2 wrong command or config; 3 wrong data; 4 failed; 130, 143 stopped.
    """
    arguments = _parser().parse_args(argv)
    try:
        with sigterm_raises():
            _run_here(arguments.config, arguments.set, arguments.force)
    except BaseException as caught:
        if isinstance(caught, (SystemExit, GeneratorExit)):
            raise
        error = as_error(caught)
        _say(f"error: {error}" if error.exit_code < 128 else str(error))
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clam-dist-flow",
        description="Cluster a table as a Prefect flow, watched in Prefect's pages.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help=f"a YAML file, or a packaged config: {', '.join(packaged_names())}",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        help="set one key of the config, the value as YAML; may be repeated",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a finished output made with another config"
    )
    return parser


def _say(line: str) -> None:
    print(f"clam-dist-flow: {line}", file=sys.stderr, flush=True)


def _run_here(config: str, overrides: Sequence[str], force: bool) -> None:
    """Run the flow in this process; raises the error it ended with."""
    from pipelines.session import prefect_session, wait_until_recorded

    loaded = _load(config, overrides)[0]  # a wrong config is told before anything starts
    with prefect_session(_say):
        from prefect import tags

        from pipelines.stale import TAG

        with tags(TAG, loaded.name):
            flow: Any = _flow()  # its overloads know no return_state
            state = flow(config, list(overrides), force, return_state=True)
        if state.state_details.flow_run_id is not None:
            wait_until_recorded(state.state_details.flow_run_id)
    ending = state.result(raise_on_failure=False)
    if isinstance(ending, BaseException):
        raise ending
    _say(state.message or "done")


def _load(config: str, overrides: Sequence[str]) -> tuple[Config, DemoData | None]:
    """The config, checked, and the demo data to make for it, if any."""
    from clam_dist.config import load_config

    path, packaged = find_config(config)
    loaded = load_config(path, overrides)
    if packaged is None or packaged not in DEMO_DATA:
        return loaded, None
    # With another source the demo data has nothing to do with the run.
    own_source = load_config(path, environ={}).source.uri
    return loaded, DEMO_DATA[packaged] if loaded.source.uri == own_source else None


# --- the flow ---


@functools.cache
def _flow() -> Flow[..., Any]:
    """The flow itself; made once in a process."""
    from prefect import flow

    return flow(name="cluster", flow_run_name=_run_name, persist_result=False)(_cluster)


def _cluster(
    config: str = "quickstart", overrides: list[str] | None = None, force: bool = False
) -> State:
    """Label every row of a table with its cluster.

    Args:
        config: Path of a YAML config where the flow runs, or a packaged config's name.
        overrides: Keys to set, each as a.b=value, the value as YAML.
        force: Replace a finished output made with another config.
    """
    from prefect import get_run_logger

    from pipelines.events import EventRelay

    try:
        _record_process()
        return _run_stages(config, overrides or [], force, EventRelay(get_run_logger()))
    except BaseException as caught:
        return ending_state(caught)


def _run_stages(config: str, overrides: list[str], force: bool, relay: EventRelay) -> State:
    from prefect import runtime
    from prefect.states import Completed

    from clam_dist import stages

    loaded, demo = _load(config, overrides)
    # A retry of a scheduled run keeps the scheduled time, and so finds the folders it began.
    began = runtime.flow_run.scheduled_start_time.astimezone()
    loaded = loaded.resolve_templates(began)
    if demo is not None:
        _run_task("demo-data", demo_title(demo, loaded), lambda: _make_demo(demo, loaded), relay)
    with stages.open_run(loaded, force=force, on_event=relay) as run:
        if run.already_done:
            return Completed(name="AlreadyDone", message=f"already done: {run.output}")
        for stage in stages.STAGE_NAMES:
            _run_task(stage, title(stage, loaded), functools.partial(_stage, run, stage), relay)
        markdown = run.markdown_report()
        metrics = run.finish()
        _publish(markdown, loaded)
    return Completed(message=verdict(metrics, run.output), data=metrics)


def _run_task(kind: str, name: str, work: Callable[[], State], relay: EventRelay) -> None:
    """Run ``work`` as one task of the flow; an error of it is raised here as it was there."""
    from prefect import get_run_logger, task
    from prefect.cache_policies import NO_CACHE

    def attempt() -> State:
        with relay.to(get_run_logger()):
            try:
                return work()
            except BaseException as caught:
                return ending_state(caught)

    run = task(name=kind, task_run_name=lambda: name, cache_policy=NO_CACHE, persist_result=False)(
        attempt
    )
    ending = run(return_state=True).result(raise_on_failure=False)
    if isinstance(ending, BaseException):
        raise ending


def _stage(run: Any, name: str) -> State:
    from prefect.states import Completed

    outcome = run.stage(name)
    if outcome.reused:
        return Completed(name="Reused", message="its manifest holds", data=outcome.manifest)
    return Completed(message=f"{outcome.seconds:.1f} s", data=outcome.manifest)


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
        name = _load(config, parameters.get("overrides") or [])[0].name
    except ClamDistError:
        name = config
    began = runtime.flow_run.scheduled_start_time.astimezone()
    return f"{name} {began:%Y-%m-%d %H:%M:%S}"


def _publish(markdown: str, config: Config) -> None:
    """The report as an artifact under a key of its own, so that a later run adds a version."""
    from prefect.artifacts import create_markdown_artifact

    slug = re.sub(r"[^a-z0-9]+", "-", config.name.lower()).strip("-") or "run"
    create_markdown_artifact(
        markdown, key=f"clam-dist-{slug}", description=f"Clusters of {shown(config.source.uri)}"
    )


def _record_process() -> None:
    """Write down which process a direct run is in; a worker does so for a deployed one."""
    from prefect import runtime
    from prefect.client.orchestration import get_client

    from pipelines.stale import this_process

    if runtime.deployment.id is None and runtime.flow_run.id is not None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(runtime.flow_run.id, infrastructure_pid=this_process())


if __name__ == "__main__":
    sys.exit(main())
