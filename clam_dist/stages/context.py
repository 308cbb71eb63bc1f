"""What every stage is given, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clam_dist.config import Config, Stage
from clam_dist.data.features import FeatureSchema
from clam_dist.data.shards import ShardFile, plan_shard_rows
from clam_dist.data.source import Source
from clam_dist.data.statistics import Scaling, Statistics
from clam_dist.executor import Event, Executor
from clam_dist.manifests import stage_digest

if TYPE_CHECKING:
    from clam_dist.stages.budget import Budget

Result = TypeVar("Result")
STAGE_NAMES: tuple[Stage, ...] = ("profile", "shards", "train", "assign", "evaluate", "report")
PROGRESS_SECONDS = 0.2
BYTES_A_VALUE = 8
"""Of a decoded number: features are decoded to float64."""


@dataclass(frozen=True)
class StageResult:
    """What a stage leaves: facts for its manifest, and the files that must stand with it."""

    data: dict[str, Any]
    files: Sequence[str | Path] = ()


@dataclass
class Context:
    """A run as its stages see it.

    Parameters
    ----------
    config
        The validated config.
    output, work
        Folders of the results and of what can be made again.
    make_executor
        ``(config, decoded bytes, shards, work folder, log folder, on_event) -> Executor``; called
        once, when the size of the data is known.
    on_event
        Takes every event of the run.
    """

    config: Config
    output: Path
    work: Path
    make_executor: Callable[..., Executor]
    on_event: Callable[[Event], None]
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    _executor: Executor | None = None
    size: tuple[int, int] | None = None
    budget: Budget | None = None

    # -- what earlier stages found ---------------------------------------------------------------

    def data(self, stage: str) -> dict[str, Any]:
        """The facts in a finished stage's manifest."""
        data: dict[str, Any] = self.manifests[stage]["data"]
        return data

    @property
    def source(self) -> Source:
        """The source as frozen at profile."""
        return Source.from_json(self.data("profile")["source"])

    @property
    def schema(self) -> FeatureSchema:
        """The features, with their encoded widths."""
        return FeatureSchema.from_json(self.data("profile")["schema"])

    @property
    def scaling(self) -> Scaling:
        """From original to scaled units."""
        return Scaling.from_json(self.data("profile")["scaling"])

    @property
    def statistics(self) -> Statistics:
        """Of every feature, in original units."""
        return Statistics.from_json(self.data("profile")["statistics"])

    @property
    def shards(self) -> list[ShardFile]:
        """The shards in order."""
        return [ShardFile.from_json(value) for value in self.data("shards")["shards"]]

    @property
    def shards_folder(self) -> Path:
        """Where shards and samples lie."""
        return self.work / "shards"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Secrets for the source's file system: handed on, never written."""
        return self.config.source.storage_options_plain()

    # -- doing work ------------------------------------------------------------------------------

    @property
    def executor(self) -> Executor:
        """Who does the work; started when first asked for."""
        if self._executor is None:
            if self.size is None:
                profile = self.data("profile")
                self.size = (profile["n_rows"], profile["n_features"])
            n_rows, width = self.size
            shard_rows = self.shard_rows(n_rows, width)
            self._executor = self.make_executor(
                self.config.cluster,
                decoded_bytes=n_rows * width * BYTES_A_VALUE,
                n_shards=max(1, -(-n_rows // shard_rows)),
                work_folder=str(self.work),
                log_folder=str(self.output / "logs"),
                on_event=self.on_event,
            )
        return self._executor

    @property
    def started(self) -> bool:
        """Whether anything had to be done, so that an executor was started."""
        return self._executor is not None

    def digest(self, stage: Stage) -> str:
        """What a stage depends on: its own keys of the config and all that came before it."""
        position = STAGE_NAMES.index(stage)
        upstream = [self.manifests[name]["digest"] for name in STAGE_NAMES[:position]]
        return stage_digest(self.config.digest(stage), *upstream)

    def shard_rows(self, n_rows: int, width: int) -> int:
        """Rows of a shard: as asked for, else from the data's size alone."""
        asked = self.config.prepare.shard_rows
        return plan_shard_rows(n_rows, width) if asked == "auto" else int(asked)

    def close(self) -> dict[str, int]:
        """Stop the executor; return the peak memory of the driver and the workers by name."""
        if self._executor is None:
            return {}
        try:
            return self._executor.peak_rss_bytes()
        finally:
            self._executor.close()
            self._executor = None

    def emit(self, event: str, **values: Any) -> None:
        """Send an event to whoever watches the run."""
        self.on_event({"event": event, **values})

    def warn(self, message: str) -> None:
        """Say something the user should act on, without stopping."""
        self.emit("warning", message=message)

    def track(
        self,
        stage: str,
        results: Iterable[Result],
        rows: Sequence[int],
        unit: str = "rows",
    ) -> Iterator[Result]:
        """Pass results on while reporting how many of their rows are done."""
        total, done, said = sum(rows), 0, 0.0
        self.emit("progress", stage=stage, done=0, total=total, unit=unit)
        for result, n in zip(results, rows, strict=True):
            yield result
            done += n
            if time.monotonic() - said > PROGRESS_SECONDS or done == total:
                said = time.monotonic()
                self.emit("progress", stage=stage, done=done, total=total, unit=unit)


def strictly(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without NaN or infinity, which JSON cannot hold: they become None."""

    def clean(value: Any) -> Any:
        if isinstance(value, float):
            return value if value - value == 0 else None
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(item) for item in value]
        return value

    cleaned: dict[str, Any] = clean(values)
    return cleaned
