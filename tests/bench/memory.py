"""Peak memory of a run's workers, projected and measured.

    python tests/bench/memory.py [--case [MODEL:]ROWSxFEATURES]… [--limit 1GiB] [--workers 2]
                                 [--stages] [--kept] [--json] [--folder DIR]

Each case is a process of its own: data are made, a run with k = 9 and defaults otherwise starts
on embedded workers of the limit given, and the largest resident size of every worker is read from
``/proc/<pid>/status``; with ``--stages`` that of each stage, the mark being put back before
it. 14 features are the vowels demo, other widths a mixture of nine normal distributions. Models are
those of :data:`MODELS`, ClAM by default; networks train for few passes, which hold as much as many.
Last, a run whose population cannot fit must be refused before any work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from clam_dist.config import config_from_dict
from clam_dist.demo import write_demo
from clam_dist.errors import ConfigError
from clam_dist.stages import STAGE_NAMES, open_run
from clam_dist.stages.pipeline import Run

CASES = ("1000000x14", "10000000x14", "30000000x14", "2000000x256")
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "clam": {},
    "full": {"model": {"metric": "full", "objective": "unmasked"}, "train": {"epochs": 2}},
    "noise": {"model": {"objective": "noise"}, "train": {"epochs": 2}},
    "dclam": {"model": {"kind": "dclam", "pretrain_epochs": 2}, "train": {"epochs": 2}},
    "tdcm": {"model": {"kind": "tdcm", "pretrain_epochs": 2}, "train": {"epochs": 2}},
    "kmeans": {"model": {"kind": "kmeans"}},
    "minibatch_kmeans": {"model": {"kind": "minibatch_kmeans"}},
    "spherical_kmeans": {"model": {"kind": "spherical_kmeans"}},
}
"""What a case's model changes in the config."""
DEEP_CASES = ("dclam:300000x64", "tdcm:300000x64", "full:300000x128", "kmeans:3000000x14")
TOO_LARGE = {"n_clusters": 2000, "n_features": 768}
GROUP_ROWS = 131_072
MIB = 2**20


def write_mixture(path: Path, rows: int, width: int, clusters: int = 9) -> None:
    """Rows of normal distributions about ``clusters`` centres, a row group at a time."""
    centres = np.random.default_rng(0).standard_normal((width, clusters), dtype=np.float32)
    schema = pa.schema([pa.field(f"f{i:04d}", pa.float32()) for i in range(width)])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for number, first in enumerate(range(0, rows, GROUP_ROWS)):
            generator = np.random.default_rng([1, number])
            here = min(GROUP_ROWS, rows - first)
            x = generator.standard_normal((width, here), dtype=np.float32)
            x += centres[:, generator.integers(clusters, size=here)]
            writer.write_table(pa.Table.from_arrays([pa.array(c) for c in x], schema=schema), here)


def write_data(path: Path, rows: int, width: int) -> None:
    """The data of a case."""
    if width == 14:
        write_demo("vowels", path, rows=rows)
    else:
        write_mixture(path, rows, width)


# -- in the run's own process --------------------------------------------------------------------


def workers() -> list[int]:
    """Process ids of the embedded workers, or this one's where there are none."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child.pid)
        except psutil.Error:
            continue
    return found or [os.getpid()]


def peak(pid: int) -> int:
    """Largest resident size of a process since it was last forgotten, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget(pid: int) -> None:
    """Begin the largest resident size of a process anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def run_stages(opened: Run, by_stage: bool) -> dict[str, int]:
    """Do all stages; the largest of the workers' peaks in each, or since they began."""
    found: dict[str, int] = {}
    for name in STAGE_NAMES:
        for pid in workers() if by_stage and name != "profile" else ():
            forget(pid)
        opened.stage(name)
        found[name] = max(peak(pid) for pid in workers())
    return found


def one(config: dict[str, Any], by_stage: bool) -> dict[str, Any]:
    """One run: what was projected and what was measured, in bytes."""
    lines: list[str] = []
    with open_run(
        config_from_dict(config),
        on_event=lambda event: lines.append(str(event.get("message", ""))),
    ) as opened:
        stages = run_stages(opened, by_stage)
        metrics = opened.finish()
    record = json.loads(Path(opened.output, "run.json").read_text())["memory"]
    projected = {
        name: record["base"] + sum(parts.values()) for name, parts in record["stages"].items()
    }
    driver = metrics["peak_rss_bytes"]["driver"]
    return {
        "projected": record["projected_rss_bytes"],
        "measured": max(stages.values()),
        "limit": record["limit"],
        "driver": driver,
        "stages": {
            name: {"projected": projected[name], "measured": stages[name]} for name in projected
        }
        if by_stage
        else {},
        "parts": record["stages"],
        "base": record["base"],
        "buffer_bytes": record["buffer_bytes"],
        "restarted": [line for line in lines if "start" in line and "again" in line],
        "seconds": metrics["seconds"],
    }


# -- about the runs ------------------------------------------------------------------------------


def measure(folder: Path, case: str, options: argparse.Namespace) -> dict[str, Any]:
    """One case in a process of its own."""
    model, _, shape = case.rpartition(":")
    rows, width = (int(number) for number in shape.split("x"))
    data = (options.folder or folder) / f"{shape}.parquet"
    if not data.exists():
        write_data(data, rows, width)
    config = {
        "source": {"uri": str(data)} | ({"label": "label"} if width == 14 else {}),
        "model": {"n_clusters": 9},
        "cluster": {"kind": "local", "workers": options.workers, "memory_limit": options.limit},
        "output": {"uri": str(folder / "out")},
    }
    for section, changes in MODELS[model or "clam"].items():
        config[section] = config.get(section, {}) | changes
    if options.kept:
        config["source"]["keep"] = ["label" if width == 14 else "f0000"]
    command = [sys.executable, __file__, "--one", json.dumps(config)]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, *(["--stages"] if options.stages else [])],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{case} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {
        "case": case,
        "ratio": found["measured"] / found["projected"],
        "wall": time.perf_counter() - began,
    }


def refuse(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A population that cannot fit: how it is refused, and what had been done by then."""
    data = folder / "data.parquet"
    write_mixture(data, 20_000, TOO_LARGE["n_features"])
    config = {
        "source": {"uri": str(data)},
        "model": {"n_clusters": TOO_LARGE["n_clusters"]},
        "cluster": {"kind": "local", "workers": options.workers, "memory_limit": options.limit},
        "output": {"uri": str(folder / "out")},
    }
    began = time.perf_counter()
    message = "not refused"
    try:
        with open_run(config_from_dict(config)) as opened:
            opened.stage("profile")
    except ConfigError as error:
        message = str(error)
    wall = time.perf_counter() - began
    left = sorted(path.name for path in (folder / "out").rglob("*") if path.is_file())
    return {"message": message, "wall": wall, "files": left}


def show(records: list[dict[str, Any]], refused: dict[str, Any]) -> None:
    """Print the records for a person, in MiB."""
    print(
        f"{'rows x features':>16s} {'projected':>9s} {'measured':>9s} {'ratio':>6s} {'limit':>6s}"
    )
    for record in records:
        print(
            f"{record['case']:>16s} {record['projected'] / MIB:9.0f} "
            f"{record['measured'] / MIB:9.0f} {record['ratio']:6.2f} {record['limit'] / MIB:6.0f}"
            f"  driver {record['driver'] / MIB:.0f}, {record['seconds']['total']:.0f} s"
        )
        for name, stage in record["stages"].items():
            print(
                f"{name:>16s} {stage['projected'] / MIB:9.0f} {stage['measured'] / MIB:9.0f} "
                f"{stage['measured'] / stage['projected']:6.2f}"
            )
    print(f"refused after {refused['wall']:.1f} s, files left: {refused['files'] or 'none'}")
    print(refused["message"])


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", help="[MODEL:]ROWSxFEATURES, again and again")
    parser.add_argument("--limit", default="1GiB", help="cluster.memory_limit")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stages", action="store_true", help="measure each stage by itself")
    parser.add_argument("--kept", action="store_true", help="keep a column in the labels")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.add_argument(
        "--folder", type=Path, help="where files go, and data stay for another time"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(json.loads(options.one), options.stages)))
        return
    records = []
    for case in options.case or (*CASES, *DEEP_CASES):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            records.append(measure(Path(folder), case, options))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        refused = refuse(Path(folder), options)
    if options.json:
        print(json.dumps({"cases": records, "refused": refused}, indent=1))
    else:
        show(records, refused)


if __name__ == "__main__":
    main()
