"""A run from its claim on the output folder to ``_SUCCESS``: the only composer of the stages."""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from clam_dist.config import Config, Stage
from clam_dist.data.files import disk_errors
from clam_dist.data.source import Source
from clam_dist.executor import Event
from clam_dist.launch import make_executor
from clam_dist.manifests import describe_files, read_manifest, write_json, write_manifest
from clam_dist.ownership import Claim, claim
from clam_dist.reporting.markdown import markdown_report
from clam_dist.stages import assign, budget, evaluate, profile, report, shards, train
from clam_dist.stages.context import STAGE_NAMES, Context, StageResult, strictly
from clam_dist.stages.folders import (
    changed_files,
    check_folders,
    check_same_source,
    check_whole,
    prepare,
    start_over,
)
from clam_dist.stages.settings import check_model

logger = logging.getLogger("clam_dist")

STAGES: dict[str, Callable[[Context], StageResult]] = {
    "profile": profile.run,
    "shards": shards.run,
    "train": train.run,
    "assign": assign.run,
    "evaluate": evaluate.run,
    "report": report.run,
}


@dataclass(frozen=True)
class StageOutcome:
    """A stage that is done: its manifest, whether it had been done before, and its seconds."""

    name: str
    manifest: dict[str, Any]
    reused: bool
    seconds: float


class Run:
    """One claimed output folder and the stages on the way to it. Made by :func:`open_run`."""

    def __init__(
        self, config: Config, held: Claim, run_id: str, on_event: Callable[[Event], None]
    ) -> None:
        self.config, self.run_id = config, run_id
        self.output = str(held.output)
        self.already_done = held.already_done
        self._claim = held
        self._began = time.monotonic()
        self._context = Context(
            config=config,
            output=Path(self.output).absolute(),
            work=Path(config.work_folder()).absolute(),
            make_executor=make_executor,
            on_event=on_event,
        )

    def stage(self, name: Stage) -> StageOutcome:
        """Do one stage, or take it as done where its manifest holds.

        Parameters
        ----------
        name
            One of :data:`STAGE_NAMES`, in their order.
        """
        self._claim.check()
        context = self._context
        digest = context.digest(name)
        manifest = read_manifest(context.work, name, digest)
        # Later stages that are done already would not notice other data.
        if manifest is not None and name == "profile" and self._is_outdated(manifest):
            manifest = None
        if manifest is not None:
            context.manifests[name] = manifest
            seconds = float(manifest["seconds"])
            context.emit("stage", stage=name, status="reused", seconds=seconds)
            return StageOutcome(name, manifest, True, seconds)
        context.emit("stage", stage=name, status="started", seconds=0.0)
        began = time.monotonic()
        if name in ("shards", "train", "assign"):
            budget.settle(context)
        with disk_errors(str(context.work), only_full=True):
            result = STAGES[name](context)
        seconds = time.monotonic() - began
        context.manifests[name] = write_manifest(
            context.work,
            name,
            {
                "data": strictly(result.data),
                "files": describe_files(context.work, result.files),
                "seconds": seconds,
            },
            digest,
        )
        context.emit("stage", stage=name, status="finished", seconds=seconds)
        return StageOutcome(name, context.manifests[name], False, seconds)

    def _is_outdated(self, manifest: Mapping[str, Any]) -> bool:
        """Whether the source is no longer what it was; what was done of it is then forgotten."""
        before = Source.from_json(manifest["data"]["source"])
        changed = changed_files(before, self.config)
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            self._context.warn(
                f"the source has changed since this unfinished run profiled it: '{changed[0]}'"
                f"{more}; the run starts over"
            )
            start_over(self._context.work, self._context.output)
        return bool(changed)

    def finish(self) -> dict[str, Any]:
        """Write ``metrics.json``, ``run.json`` and ``_SUCCESS``; remove the work folder.

        Returns
        -------
        dict
            The metrics.
        """
        context = self._context
        record = report.run_record(context)
        seconds = report.stage_seconds(context)
        seconds["total"] = time.monotonic() - self._began
        projected = context.budget
        metrics = context.data("evaluate")["metrics"] | {
            "seconds": seconds,
            "peak_rss_bytes": context.close(),
            "projected_rss_bytes": {projected.name: projected.peak} if projected else {},
        }
        with disk_errors(self.output):
            write_json(context.output / "metrics.json", metrics)
            write_json(context.output / "run.json", record | {"run_id": self.run_id})
        self._claim.succeed()
        if not self.config.work.keep:
            shutil.rmtree(context.work)
        return metrics

    def metrics(self) -> dict[str, Any]:
        """The metrics of a finished run."""
        text = (self._context.output / "metrics.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
        return found

    def markdown_report(self) -> str:
        """One screen of Markdown about the run, once its report stage is done."""
        return markdown_report(output=self.output, **report.report_inputs(self._context))

    def close(self) -> None:
        """Stop what the run started; what is finished stays for a rerun."""
        self._context.close()


def _ignore(event: Event) -> None:
    """Take an event that nobody asked for."""
    del event


@contextmanager
def open_run(
    config: Config,
    *,
    force: bool = False,
    on_event: Callable[[Event], None] | None = None,
    now: datetime | None = None,
) -> Iterator[Run]:
    """Claim the config's output folder and yield the run.

    Parameters
    ----------
    config
        A validated config.
    force
        Replace a finished run, and forget what an unfinished one had done.
    on_event
        Takes the run's events (dicts with a key ``event``), from any thread.
    now
        Fills ``{date}`` and ``{time}`` of folder names; default the present.

    Raises
    ------
    ConfigError
        The output folder is someone else's, its owner lives, or it holds other results.
    """
    config = config.resolve_templates(now or datetime.now())
    check_folders(config)
    check_model(config)
    run_id = uuid.uuid4().hex[:12]
    with claim(
        config.output.uri,
        run_id=run_id,
        digest=config.run_digest(),
        config_public=config.result_dict(),
        force=force,
    ) as held:
        run = Run(config, held, run_id, on_event or _ignore)
        if run.already_done:
            check_whole(held.output)
            check_same_source(config, held.output)
            left = Path(config.work_folder())
            if left.is_dir() and not config.work.keep:  # killed between _SUCCESS and the clean-up
                shutil.rmtree(left)
            yield run
            return
        prepare(Path(config.work_folder()), held, fresh=force)
        try:
            yield run
        finally:
            run.close()


def run(
    config: Config,
    *,
    force: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> dict[str, Any]:
    """Run the whole pipeline; return its metrics (those on disk where it is already done)."""
    with open_run(config, force=force, on_event=on_event) as opened:
        if opened.already_done:
            return opened.metrics()
        for name in STAGE_NAMES:
            opened.stage(name)
        return opened.finish()
