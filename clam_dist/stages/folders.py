"""A run's folders: what may be in them when it begins, and what must be when it is done."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clam_dist.config import Config
from clam_dist.data.files import disk_errors, remove_temporaries
from clam_dist.data.parquet import open_parquet
from clam_dist.data.source import Source, SourceFile
from clam_dist.errors import ConfigError
from clam_dist.ownership import Claim

RESULTS = (
    "labels",
    "logs",
    "model",
    "evaluation",
    "metrics.json",
    "run.json",
    "sweep.nc",
    "report.html",
)


def prepare(work: Path, held: Claim, *, fresh: bool) -> None:
    """Clear what a lost or replaced run left where it would be taken for this one's.

    Parameters
    ----------
    work
        The run's own work folder.
    held
        Its output folder.
    fresh
        Forget what an unfinished run of the same config had done.
    """
    output = held.output
    if held.previous is not None and not held.resumed:
        _clear_results(output)  # of another config
    if fresh:
        _clear_work(work)
    with disk_errors(str(work)):
        os.makedirs(work, exist_ok=True)
    for folder in {work, output}:
        remove_temporaries(str(folder))


def _clear_results(output: Path) -> None:
    """Nothing of other results may stand beside this run's."""
    for name in RESULTS:
        path = output / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _clear_work(work: Path) -> None:
    """Forget what an unfinished run had done; a folder without manifests is not of a run."""
    if (work / "manifests").is_dir():
        shutil.rmtree(work)
        with disk_errors(str(work)):
            os.makedirs(work)


def start_over(work: Path, output: Path) -> None:
    """Forget what an unfinished run had done, and what it had written of its results."""
    _clear_results(output)
    _clear_work(work)


def changed_files(before: Source, config: Config) -> list[str]:
    """Names of the source's files that changed, came or went since it was frozen, in order."""
    after = open_parquet(config.source.uri, config.source.storage_options_plain())
    return _differing(_stamps(before.files), _stamps(after.files))


def _stamps(files: Iterable[SourceFile]) -> dict[str, Any]:
    return {f.name: (f.size, f.modified, f.footer) for f in files}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names whose values differ, or that only one of the two has."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def check_whole(output: Path) -> None:
    """A finished run is done only while what it wrote stands there."""
    needed = ("labels", "model", "metrics.json", "run.json", "sweep.nc", "report.html")
    lost = [name for name in needed if not (output / name).exists()]
    if lost:
        raise ConfigError(
            f"output.uri: {output} holds a finished run that has lost {', '.join(lost)}; make it "
            "again with --force"
        )


def check_folders(config: Config) -> None:
    """The work folder must not lie where results are removed and written."""
    work = os.path.abspath(config.work_folder())
    for name in RESULTS:
        inside = os.path.join(os.path.abspath(config.output.uri), name)
        if os.path.commonpath([work, inside]) == inside:
            raise ConfigError(f"work.uri: {config.work.uri} lies in the results; name another")


def check_same_source(config: Config, output: Path) -> None:
    """A finished run is done only for the data that it saw."""
    record = json.loads((output / "run.json").read_text(encoding="utf-8"))
    before = {f["name"]: (f["size"], f["footer"]) for f in record["source"]["files"]}
    source = open_parquet(config.source.uri, config.source.storage_options_plain())
    differing = _differing(before, {f.name: (f.size, f.footer) for f in source.files})
    if differing:
        raise ConfigError(
            f"output.uri: {output} holds a finished run of this config on other data "
            f"({len(differing)} file(s) differ, such as '{differing[0]}'); name another folder, "
            "or replace it with --force"
        )
