"""One rank beside several: the same bits, what that costs, and what a second rank brings.

    python tests/bench/ranks.py [--rows N] [--only NAME] [--json] [--folder DIR]

``bits``: runs of one process without Dask, and of 1, 2, 3, 4 and 7 ranks, on shards of uneven
size with row weights and missing values: prototypes and labels are equal bit for bit.
``exactness``: what the fixed cut into micro-batches and their sums in float64 in a fixed order
cost: a step so, and a step with one micro-batch for each rank.
``throughput``: rows a second of two ranks over those of one, one thread each, at 768 features,
100 clusters, 10 steps; the best of many short steps, and, for a machine that others use too, from
the processor time that the slowest rank took.
``share``: of a step of 65 536 rows, the part in the all-reduce: with the wait for the slower rank
(as it is in training), and of the exchange alone.
``scale``: the constants of the model in README.md: seconds of a step against ranks, rows, k, d, and
of an all-gather against bytes and ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clam_dist.config import Config
from clam_dist.executor import Collective
from clam_dist.launch import SerialExecutor, dask
from clam_dist.launch.collectives import LocalCollective
from clam_dist.launch.gang import Patience
from clam_dist.launch.workers import DaskExecutor

WORLDS = (1, 2, 3, 4, 7)
ALONE = 0
PATIENCE = Patience(collective=300.0)


# -- the same bits --------------------------------------------------------------------------------


def write_uneven(folder: Path, rows: int) -> None:
    """Files of very unlike sizes, with a weight column and a tenth of the cells empty."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(6, 9)) * 3
    folder.mkdir(parents=True)
    for number, share in enumerate((0.001, 0.62, 0.05, 0.329)):
        n = max(1, int(rows * share))
        x = centres[rng.integers(0, 6, n)] + rng.normal(size=(n, 9))
        hidden = rng.random((n, 9)) < 0.1
        columns = {f"f{i}": pa.array(x[:, i], mask=hidden[:, i]) for i in range(9)}
        columns["w"] = pa.array(rng.uniform(0, 3, n))
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet")


def bits(folder: Path, rows: int) -> dict[str, Any]:
    """Every number of ranks against the run of one process."""
    from clam_dist.models.bundle import load_bundle
    from clam_dist.stages import run

    write_uneven(folder / "data", rows)
    found: dict[str, Any] = {}
    reference: Any = None
    for world in (0, *WORLDS):
        out = folder / f"out-{world}"
        values = {
            "source": {"uri": str(folder / "data"), "weight": "w"},
            "prepare": {"shard_rows": max(64, rows // 13)},
            "model": {"n_clusters": 6, "beta": [0.3, 1.0], "objective": "masked"},
            "train": {"restarts": 2, "epochs": 3, "batch_rows": rows // 2},
            "cluster": {"workers": world, "kind": "local"} if world else {"kind": "serial"},
            "work": {"keep": True},
            "output": {"uri": str(out)},
        }
        began = time.perf_counter()
        run(Config.model_validate(values))
        seconds = time.perf_counter() - began
        labels = [pq.read_table(path) for path in sorted((out / "labels").glob("*.parquet"))]
        prototypes = load_bundle(out / "model").dataset["prototypes"].values
        if reference is None:
            reference = labels, prototypes
        name = f"{world} ranks" if world else "serial"
        manifest = json.loads((out / "_work" / "manifests" / "train.json").read_text())
        found[name] = {
            "ranks": manifest["data"]["ranks"],
            "same_labels": all(a.equals(b) for a, b in zip(labels, reference[0], strict=True)),
            "same_prototypes": bool(np.array_equal(prototypes, reference[1])),
            "seconds": seconds,
        }
    return found


# -- steps ----------------------------------------------------------------------------------------


class Timed:
    """A collective that counts the seconds of its all-gathers."""

    def __init__(self, collective: Collective, *, meet: bool) -> None:
        self.inner, self.meet = collective, meet
        self.rank, self.world_size = collective.rank, collective.world_size
        self.threads = collective.threads
        self.seconds = 0.0
        self.bytes = 0

    def all_gather(self, tensor: Any) -> Any:
        if self.meet:
            self.inner.barrier()
        began = time.perf_counter()
        gathered = self.inner.all_gather(tensor)
        self.seconds += time.perf_counter() - began
        self.bytes = tensor.numel() * tensor.element_size()
        return gathered


def steps(collective: Collective, payload: dict[str, Any]) -> dict[str, float]:
    """Time steps of training on made-up rows; ``lanes`` of ``rows`` rows each."""
    import numpy as np
    import torch

    from clam_dist.models.factory import build_model
    from clam_dist.train.members import Member
    from clam_dist.train.population import build_group
    from clam_dist.train.reduction import lanes_to_read
    from clam_dist.train.step import batch_sums

    torch.set_num_threads(1)
    d, k, lanes, rows = (payload[name] for name in ("d", "k", "lanes", "rows"))
    member = Member(0, k, payload["steps"], payload["objective"], 0.15, 1.0, 1.0, 0.03, 0, "rows")
    settings = {"kind": "clam", "step_size": None, "seed": 0, "mask_value": [0.0] * d}
    model = build_model(settings, member.to_json())
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(1, k, d, generator=generator)
    group = build_group([member], model, {"prototypes": start})
    rng = np.random.default_rng(collective.rank)
    if payload["alone"]:  # every rank a step of its own, with no word between them
        collective = LocalCollective(1, sys.stdout.write)
    mine = lanes_to_read(lanes, collective.rank, collective.world_size)
    x = rng.normal(size=(rows, d)).astype(np.float32)
    timed = Timed(collective, meet=payload["meet"])
    seconds, reduces, used = [], [], []
    for step in range(payload["repeats"] + 1):
        collective.barrier()
        timed.seconds = 0.0
        began, cpu = time.perf_counter(), time.process_time()
        (sums,) = batch_sums(
            [group],
            [(lane, x, None) for lane in mine],
            lanes=lanes,
            key=(2, 0, step),
            has_missing=False,
            device=torch.device("cpu"),
            collective=timed,
            pool=None,
        )
        group.update(sums)
        if step:  # the first warms up
            seconds.append(time.perf_counter() - began)
            reduces.append(timed.seconds)
            used.append(time.process_time() - cpu)
    return {
        "seconds": float(np.median(seconds)),
        "best": float(min(seconds)),
        "cpu": float(np.median(used)),
        "reduce_best": float(min(reduces)),
        "reduce_seconds": float(np.median(reduces)),
        "share": float(sum(reduces) / sum(seconds)),
        "bytes": timed.bytes,
    }


def shape(d: int, k: int, t: int, lanes: int, rows: int, **other: Any) -> dict[str, Any]:
    values = {"d": d, "k": k, "steps": t, "lanes": lanes, "rows": rows}
    return values | {"objective": "unmasked", "repeats": 5, "meet": False, "alone": False} | other


class Ranks:
    """Embedded clusters by their number of ranks, one thread each."""

    def __init__(self) -> None:
        self.open: dict[int, DaskExecutor] = {}

    def run(self, world: int, payload: dict[str, Any]) -> list[dict[str, float]]:
        """``steps`` on so many ranks."""
        if world == 0:
            return SerialExecutor(threads=1).gang(steps, payload)
        if world not in self.open:
            self.close()
            self.open[world] = DaskExecutor(dask.embedded(world, 2**31, 1), patience=PATIENCE)
            self.open[world].wait_for_workers(world)
        return self.open[world].gang(steps, payload)

    def slowest(self, world: int, payload: dict[str, Any], what: str = "seconds") -> float:
        """Seconds of a step of the slowest rank."""
        return max(result[what] for result in self.run(world, payload))

    def close(self) -> None:
        for executor in self.open.values():
            executor.close()
        self.open = {}


def exactness(ranks: Ranks, scale: int) -> dict[str, Any]:
    """A step as it is, and one with a single micro-batch a rank, in turn; processor time."""
    found = {}
    for d, k, t, rows in ((14, 9, 10, 65536), (64, 10, 10, 65536), (768, 100, 10, 8192)):
        total = rows // scale
        lanes = max(4, total // 2048)
        exact, plain = [], []
        for _ in range(3):
            exact.append(ranks.slowest(2, shape(d, k, t, lanes, total // lanes), "cpu"))
            plain.append(ranks.slowest(2, shape(d, k, t, 2, total // 2), "cpu"))
        found[f"d={d} k={k} T={t}, {total} rows"] = {
            "exact_cpu_seconds": min(exact),
            "plain_cpu_seconds": min(plain),
            "ratio": min(exact) / min(plain),
        }
    return found


def throughput(ranks: Ranks, scale: int) -> dict[str, Any]:
    """Two ranks over one on a compute-bound shape, taken in turn.

    The machine's ceiling beside it: two processes that do whole steps with no word between them.
    """
    payload = shape(768, 100, 10, 4, 2048 // scale, repeats=10)
    found: dict[int, dict[str, float]] = {}
    for _ in range(3):
        for case, world in ((1, 1), (2, 2), (ALONE, 2)):
            results = ranks.run(world, payload | {"alone": case == ALONE})
            now = {what: max(r[what] for r in results) for what in ("seconds", "best", "cpu")}
            before = found.get(case, now)
            found[case] = {what: min(now[what], before[what]) for what in now}
    rows = payload["lanes"] * payload["rows"]
    return {
        "one_rows_per_second": rows / found[1]["best"],
        "two_rows_per_second": rows / found[2]["best"],
        "ratio": found[1]["best"] / found[2]["best"],
        "ratio_of_medians": found[1]["seconds"] / found[2]["seconds"],
        "ratio_of_cpu": found[1]["cpu"] / found[2]["cpu"],
        "machine_ceiling": 2 * found[1]["best"] / found[ALONE]["best"],
        "machine_ceiling_of_medians": 2 * found[1]["seconds"] / found[ALONE]["seconds"],
    }


def share(ranks: Ranks, scale: int) -> dict[str, Any]:
    """Of a step of 65 536 rows, the part in the all-reduce."""
    found = {}
    for d, k, t in ((14, 9, 10), (768, 100, 10)):
        rows = 65536 // scale
        lanes = max(4, rows // 2048)
        repeats = 3 if d > 100 else 25
        waiting = ranks.run(2, shape(d, k, t, lanes, rows // lanes, repeats=repeats))
        alone = ranks.run(2, shape(d, k, t, lanes, rows // lanes, repeats=repeats, meet=True))
        step = max(result["best"] for result in alone)
        exchange = min(result["reduce_best"] for result in alone)
        found[f"d={d} k={k} T={t}, {rows} rows"] = {
            "step_seconds": max(result["seconds"] for result in waiting),
            "share_with_wait": min(result["share"] for result in waiting),
            "best_step_seconds": step,
            "best_exchange_seconds": exchange,
            "share_of_exchange": exchange / step,
            "bytes": alone[0]["bytes"],
        }
    return found


def gathers(collective: Collective, sizes: list[int]) -> dict[int, dict[str, float]]:
    """Seconds of an all-gather of so many float64 a rank."""
    import torch

    found = {}
    for size in sizes:
        tensor = torch.zeros(size, dtype=torch.float64)
        times = []
        for _ in range(30):
            collective.barrier()
            began = time.perf_counter()
            collective.all_gather(tensor)
            times.append(time.perf_counter() - began)
        found[8 * size] = {"median": float(np.median(times[5:])), "best": min(times)}
    return found


def scale_model(ranks: Ranks, scale: int) -> dict[str, Any]:
    """Constants: seconds of a multiply-add, of a step's fixed part, and of an all-gather."""
    found: dict[str, Any] = {"steps": [], "gathers": {}}
    for d, k, t in ((14, 9, 10), (64, 10, 10), (256, 32, 10), (768, 100, 10)):
        for lanes in (4, 8):
            rows = 2048 // scale
            seconds = ranks.slowest(0, shape(d, k, t, lanes, rows), "cpu")
            work = lanes * rows * k * (2 * d + 2 * k * t)
            entry = {"d": d, "k": k, "T": t, "rows": lanes * rows, "cpu_seconds": seconds}
            found["steps"].append(entry | {"multiply_adds": work, "a_second": work / seconds})
    sizes = [100, 1000, 10_000, 100_000]
    for world in (2, 4, 7):
        ranks.run(world, shape(14, 9, 2, 8, 64))
        results = ranks.open[world].gang(gathers, sizes)
        found["gathers"][world] = results[0]
    return found


NAMES = ("bits", "exactness", "throughput", "share", "scale")


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=131_072, help="of the runs of `bits`")
    parser.add_argument("--scale", type=int, default=1, help="divides the rows of timed steps")
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--folder", type=Path, help="where files go; default: a temporary one")
    options = parser.parse_args()
    record: dict[str, Any] = {"rows": options.rows}
    ranks = Ranks()
    timed = {"exactness": exactness, "throughput": throughput, "share": share}
    timed["scale"] = scale_model
    try:
        for name in options.only or NAMES:
            if name == "bits":
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    record[name] = bits(Path(folder) / "bits", options.rows)
            else:
                record[name] = timed[name](ranks, options.scale)
            if not options.json:
                print(name, json.dumps(record[name], indent=1), flush=True)
    finally:
        ranks.close()
    if options.json:
        print(json.dumps(record, indent=1))


if __name__ == "__main__":
    sys.exit(main())
