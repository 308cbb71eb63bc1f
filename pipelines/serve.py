"""``clam-dist serve``: a config on a schedule, on one machine, from one process.

Prefect keeps the schedule; this process starts each run when it is due, as a process of its own.
Where no API is configured our own server comes along, with its pages and its scheduler, for as
long as this process lives. The schedule survives both: a pause in the pages holds until someone
ends it there, and stopping this process pauses nothing.

The command ``clam-dist`` finds this by an entry point (group ``clam_dist.commands``), for nothing
in ``clam_dist`` imports this package. Prefect is imported inside functions.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clam_dist.errors import ConfigError

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.deployments.runner import RunnerDeployment

    from clam_dist.config import Config

SLUG = "cron"
"""The schedule's name. Prefect replaces schedules without one, and so ends a pause."""

RETRIES = 2
"""How often a run whose process was killed is begun again."""

_ONE_AT_A_TIME = 1


def serve(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A YAML file, or a packaged config's name.")
    ],
    cron: Annotated[
        str,
        typer.Option("--cron", metavar='"M H D M W"', help="Minute, hour, day, month, weekday."),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Set one config key, as YAML; repeatable."),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option("--timezone", metavar="AREA/CITY", help="Of --cron; default this machine's."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Each run replaces the results of the one before it.")
    ] = False,
) -> None:
    """Run a config on a schedule, watched and paused from Prefect's pages.

    \b
    Examples:
      clam-dist serve night.yaml --cron "0 3 * * *"
      clam-dist serve night.yaml --cron "*/30 * * * *" --set 'output.uri=runs/{date}-{time}'
      clam-dist serve night.yaml --cron "0 3 * * *" --force
      clam-dist serve night.yaml --cron "0 6 * * 1" --timezone Europe/Vienna
      PREFECT_API_URL=http://prefect.example:4200/api clam-dist serve night.yaml --cron "@daily"

    Runs go one at a time: one that is due while another runs waits for it, and takes the place of
    those that wait already. End it with ctrl-C or SIGTERM: the run at work stops, and goes on where
    it was when this is started again. A folder holds one run: give output.uri a {date}, or --force.
    Without PREFECT_API_URL a server of its own comes along, at http://127.0.0.1:4200 where that is
    free.
    """
    from pipelines.configs import find_config, load_named

    overrides = list(set_ or [])
    loaded = load_named(config, overrides)[0]  # a wrong config is told before anything starts
    schedule = cron_schedule(cron, timezone)
    if not force and is_one_folder(loaded):
        _say(
            f"warning: every run writes to {loaded.output.uri}: those after the first find it done,"
            " or other data and refuse; put {date} into output.uri, or give --force"
        )
    path, packaged = find_config(config)
    named = packaged or str(path.absolute())

    from pipelines.session import prefect_session

    with prefect_session(_say, schedules=True):
        deployment = deployment_of(loaded.name, named, overrides, schedule, force=force)
        _put_right(f"cluster/{deployment.name}", schedule)
        _say(
            f"serving cluster/{deployment.name} at {schedule.cron!r}, {schedule.timezone};"
            " end with ctrl-C"
        )
        _run(deployment)


def cron_schedule(cron: str, timezone: str | None) -> CronSchedule:
    """The schedule of a cron expression.

    Parameters
    ----------
    cron : str
        Five fields, or a name such as ``@daily``.
    timezone : str or None
        An IANA name; None for this machine's.

    Raises
    ------
    ConfigError
        Where Prefect does not take the one or the other.
    """
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    zone = local_timezone() if timezone is None else timezone
    # Prefect takes six fields, too, of which one is seconds.
    fields = cron.split()
    no_zone = ConfigError(
        f"--timezone {zone!r}: no such timezone; give an IANA name such as Europe/Vienna"
    )
    if not zone:
        raise no_zone
    try:
        if len(fields) != 5 and not cron.startswith("@"):
            raise ConfigError(_not_cron(cron))
        return CronSchedule(cron=cron, timezone=zone)
    except ValidationError as caught:
        keys = {str(error["loc"][0]) for error in caught.errors() if error["loc"]}
        if "timezone" in keys:
            raise no_zone from None
    raise ConfigError(_not_cron(cron))


def _not_cron(cron: str) -> str:
    return (
        f"--cron {cron!r}: not a cron expression; give five fields, minute hour day month weekday,"
        ' such as "0 3 * * *" for three in the morning'
    )


def is_one_folder(config: Config) -> bool:
    """Whether runs at different times write to the same folder."""
    times = datetime(2001, 1, 1), datetime(2002, 2, 2, 2, 2, 2)
    return len({config.resolve_templates(at).output.uri for at in times}) == 1


def local_timezone() -> str:
    """The IANA name of this machine's timezone; UTC where it has none."""
    from zoneinfo import ZoneInfo

    place = os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    for name in (os.environ.get("TZ", "").lstrip(":"), place):
        try:
            return ZoneInfo(name).key
        except (ValueError, OSError, KeyError):  # KeyError: no timezone of that name
            continue
    return "UTC"


def deployment_of(
    name: str, config: str, overrides: list[str], schedule: CronSchedule, *, force: bool = False
) -> RunnerDeployment:
    """What Prefect is told: the flow, its parameters, when, and that runs go one at a time.

    Parameters
    ----------
    name : str
        The config's.
    config : str
        Its absolute path or packaged name.
    overrides : list of str
    schedule : CronSchedule
    force : bool
        Each run replaces the results of the one before it.

    Notes
    -----
    The schedule's ``active`` is left out: where the deployment is there already, it stays as it is.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import RunnerDeployment
    from prefect.types.entrypoint import EntrypointType

    from pipelines.flow import flow
    from pipelines.stale import TAG

    parameters: dict[str, Any] = {"config": config, "overrides": overrides, "force": force}
    deployment = RunnerDeployment.from_flow(
        flow(),
        name=name.replace("/", "-").replace("%", "-"),
        schedules=[DeploymentScheduleCreate(schedule=schedule, slug=SLUG)],
        concurrency_limit=ConcurrencyLimitConfig(
            limit=_ONE_AT_A_TIME, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
        ),
        parameters=parameters,
        tags=[TAG, name],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    deployment.entrypoint = "pipelines.cluster.cluster"
    return deployment


def _run(deployment: RunnerDeployment) -> None:
    """Start runs as they are due, until ctrl-C or SIGTERM, which are raised at the end."""
    import asyncio
    import signal

    from prefect.runner import Runner

    from clam_dist.cli_errors import Terminated

    async def run() -> None:
        # The deployment's limit holds, under which the second waits in the pages for all to see.
        runner = Runner(name="clam-dist-serve", limit=None, pause_on_shutdown=False)
        await runner.aadd_deployment(deployment)
        await runner.start()

    # Said at every look at a run that waits for its slot; the pages show it as waiting.
    logging.getLogger("prefect.runner.state_proposer").setLevel(logging.WARNING)
    before = signal.getsignal(signal.SIGTERM)
    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGTERM, before)
    raise Terminated  # the runner returns of itself at SIGTERM alone


def _put_right(name: str, schedule: CronSchedule) -> None:
    """What a predecessor left: runs that were stopped or killed go on, and few wait."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    from pipelines.stale import mark_stale_runs
    from pipelines.waiting import resume_stopped, skip_outdated

    with get_client(sync_client=True) as client:
        for run in mark_stale_runs(client, deployed=True, retries=RETRIES):
            _say(f"marked an earlier run as crashed, its process is gone: {run}")
        try:
            before = client.read_deployment_by_name(name)
        except ObjectNotFound:
            return
        resumed = resume_stopped(client, before.id)
        if resumed:
            _say(f"goes on where it was stopped: {resumed}")
        same = [one.schedule for one in before.schedules] == [schedule]
        for run in skip_outdated(client, before.id, keep=1 if same else 0):
            _say(f"skipped, it had not begun: {run}")


def _say(line: str) -> None:
    print(f"clam-dist: {line}", file=sys.stderr, flush=True)
