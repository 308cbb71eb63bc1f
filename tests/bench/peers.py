"""Whole pipelines side by side on one Parquet file: ours, scikit-learn, faiss and Spark MLlib.

    python tests/bench/peers.py [--rows N] [--only NAME]... [--json] [--folder DIR]

Each contender is a process of its own, one after another, on the same two cores and the same
simulated vowels with k = 9: from the file on disk to a file with a cluster for every row.

``ours``: ``clam-dist run`` with defaults. ``KMeans`` and ``MiniBatchKMeans``: scikit-learn's, the
best of 10 inits. ``faiss``: ``Kmeans(nredo=10, niter=100)`` on all rows. These three score a sample
of as many rows as ours does. ``spark``: pyspark on ``local[2]`` with the best of 10 fits by cost,
each with its own seed, since MLlib's ``KMeans`` has no number of inits; ``spark-once`` is a single
fit, as MLlib comes. Both score all rows with MLlib's own (squared) silhouette.

Seconds are wall clock from the process's start to its end, in four parts: start (interpreter,
imports, JVM), prepare (read and scale), fit, finish (score, label, write, and our report);
processor seconds and memory are of the process and its children. Memory is the sum of each one's
largest resident size (VmHWM), the JVM's also alone. Labels are then scored alike: scikit-learn's
silhouette of one fixed sample of rows in the same scaled units. Before its turn each has a short
run on 20,000 rows, which counts for nothing: whoever came first would wait for the disk alone.

A contender that is not installed says so in its row. The exit status is 1 where one failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a contender does not need is imported where it is used: its start and memory are its own.

K = 9
INITS = 10
CORES = 2
OWN_SCORED_ROWS = 10_000  # what our defaults score
SCORED_ROWS = 10_000
WARM_ROWS = 20_000
JVM_MEMORY = "4g"
PARTS = ("start", "prepare", "fit", "finish")
TARGETS = {"KMeans": 1.5, "spark": 0.5, "spark-once": 0.5}
"""Largest ratio of our seconds to the contender's."""
SILHOUETTE_MARGIN = 0.002
MIB = 2**20


# -- in the contender's own process --------------------------------------------------------------


class Clock:
    """Seconds of named steps, one after another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def mark(self, name: str) -> None:
        """The step that ends now."""
        now = time.perf_counter()
        self.seconds[name] = now - self._began
        self._began = now


def in_memory(name: str, data: Path, out: Path, clock: Clock) -> None:
    """Read, scale, fit, score a sample, write: a script around one estimator."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.metrics import silhouette_score
    from sklearn.preprocessing import StandardScaler

    if name == "faiss":
        import faiss
    clock.mark("import")
    table = pq.read_table(data).drop(["label"])
    x = np.stack([column.to_numpy() for column in table.columns], axis=1)
    del table
    clock.mark("read")
    x = StandardScaler().fit_transform(x)
    clock.mark("scale")
    if name == "faiss":
        x = np.ascontiguousarray(x, dtype=np.float32)
        # Left alone, faiss fits on 256 rows a cluster and for 25 passes.
        model = faiss.Kmeans(
            x.shape[1], K, nredo=INITS, niter=100, seed=1, max_points_per_centroid=len(x)
        )
        model.train(x)
        labels = model.index.search(x, 1)[1][:, 0]
    else:
        made = {"KMeans": KMeans, "MiniBatchKMeans": MiniBatchKMeans}[name]
        labels = made(K, n_init=INITS, random_state=0).fit_predict(x)
    clock.mark("fit")
    rows = np.random.default_rng(0).choice(len(x), min(len(x), OWN_SCORED_ROWS), replace=False)
    silhouette_score(x[rows], labels[rows])
    clock.mark("silhouette")
    pq.write_table(pa.table({"cluster": labels.astype(np.int32)}), out)
    clock.mark("write")


def spark(inits: int, data: Path, out: Path, clock: Clock) -> None:
    """The same in Spark; the position of each row is written too, since parts have no order."""
    from pyspark.ml.clustering import KMeans
    from pyspark.ml.evaluation import ClusteringEvaluator
    from pyspark.ml.feature import StandardScaler, VectorAssembler
    from pyspark.sql import SparkSession

    clock.mark("import")
    settings = {
        "spark.driver.memory": JVM_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(out.parent),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("peers")
    session = builder.config(map=settings).getOrCreate()
    clock.mark("session")
    table = session.read.parquet(str(data))
    names = [name for name in table.columns if name != "label"]
    table = table.select(*names, table["_metadata.row_index"].alias("row"))
    table = VectorAssembler(inputCols=names, outputCol="raw").transform(table).select("row", "raw")
    scaler = StandardScaler(inputCol="raw", outputCol="features", withMean=True, withStd=True)
    scaled = scaler.fit(table).transform(table).select("row", "features").cache()
    scaled.count()  # so that the seconds of reading are counted here, not in the first fit
    clock.mark("read, assemble, scale")
    fits = [KMeans(k=K, seed=seed).fit(scaled) for seed in range(inits)]
    best = min(fits, key=lambda fit: fit.summary.trainingCost)
    clock.mark("fit")
    labelled = best.transform(scaled)
    ClusteringEvaluator().evaluate(labelled)
    clock.mark("evaluate")
    labelled.selectExpr("row", "prediction AS cluster").write.parquet(str(out))
    clock.mark("write")
    session.stop()
    clock.mark("stop")


def contend(name: str, data: Path, out: Path) -> None:
    """Run a contender that is not ours in this process; its seconds go to standard output."""
    clock = Clock()
    if name in ("spark", "spark-once"):
        spark(INITS if name == "spark" else 1, data, out, clock)
    else:
        in_memory(name, data, out, clock)
    print(json.dumps(clock.seconds))


# -- who takes part ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """What a contender needs, and which of its steps belong to which part.

    Parameters
    ----------
    packages
        Distribution to install, by the module that it brings.
    parts
        Part of :data:`PARTS` of each step; steps not named belong to ``start``.
    """

    packages: dict[str, str]
    parts: dict[str, str]


_SCRIPT = {
    "read": "prepare",
    "scale": "prepare",
    "fit": "fit",
    "silhouette": "finish",
    "write": "finish",
}
_SPARK = {
    "read, assemble, scale": "prepare",
    "fit": "fit",
    "evaluate": "finish",
    "write": "finish",
    "stop": "finish",
}
_OURS = {
    "profile": "prepare",
    "shards": "prepare",
    "train": "fit",
    "assign": "finish",
    "evaluate": "finish",
    "report": "finish",
}
CONTENDERS = {
    "ours": Contender({"clam_dist": "clam-dist", "torch": "torch"}, _OURS),
    "KMeans": Contender({"sklearn": "scikit-learn"}, _SCRIPT),
    "MiniBatchKMeans": Contender({"sklearn": "scikit-learn"}, _SCRIPT),
    "faiss": Contender({"faiss": "faiss-cpu"}, _SCRIPT),
    "spark": Contender({"pyspark": "pyspark"}, _SPARK),
    "spark-once": Contender({"pyspark": "pyspark"}, _SPARK),
}


def missing(name: str) -> str | None:
    """What to install before a contender can run; None where all is there."""
    packages = CONTENDERS[name].packages
    absent = [p for module, p in packages.items() if importlib.util.find_spec(module) is None]
    if absent:
        return f"pip install {' '.join(absent)}"
    java = os.environ.get("JAVA_HOME") or shutil.which("java")
    if "pyspark" in packages and not java:
        return "install Java 17 or later (Debian: apt-get install openjdk-17-jre-headless)"
    return None


def versions(name: str) -> dict[str, str]:
    """Versions of the packages of a contender, and of Java for Spark."""
    found = {p: importlib.metadata.version(p) for p in CONTENDERS[name].packages.values()}
    if "pyspark" in found:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin", "java")) if home else "java"
        text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        number = re.search(r'version "([^"]+)"', text.stderr)
        found["java"] = number[1] if number else "unknown"
    return found


# -- running and measuring -----------------------------------------------------------------------


@dataclass
class Use:
    """What one process has used so far."""

    name: str
    peak_bytes: int
    processor_seconds: float


def look(pid: int, uses: dict[int, Use]) -> None:
    """Note what a process and its children have used; the last look at each one counts."""
    import psutil

    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return
    for process in family:
        try:
            # Between fork and exec a child shows its parent's memory, the JVM's for instance.
            if process.pid != pid and process.cmdline() == psutil.Process(process.ppid()).cmdline():
                continue
            text = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            peak = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
            times = process.cpu_times()
            if peak:  # a process that has ended and was not yet waited for has none
                use = Use(process.name(), int(peak[1]) * 1024, times.user + times.system)
                uses[process.pid] = use
        except (OSError, psutil.Error):
            continue


def watched(command: list[str], folder: Path) -> dict[str, Any]:
    """Run a command on :data:`CORES` cores: seconds, exit status, output and what it used."""
    import psutil

    # Threads are as each tool chooses for the cores it is given.
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    pinned: Callable[[], None] = lambda: os.sched_setaffinity(0, cores)  # noqa: E731
    uses: dict[int, Use] = {}
    outputs = folder / "stdout.txt", folder / "stderr.txt"
    load = os.getloadavg()[0]
    with outputs[0].open("w") as out, outputs[1].open("w") as err:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, cwd=folder, env=environment, preexec_fn=pinned
        )
        while True:
            look(process.pid, uses)
            try:
                # A look costs 10 ms of one of the two cores; the largest size so far is kept by
                # the system, so few of them lose nothing.
                code = process.wait(0.25)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - began
    # A JVM ends a little after the process that asked for it: the next contender waits for it.
    left = [psutil.Process(pid) for pid in uses if psutil.pid_exists(pid)]
    psutil.wait_procs(left, timeout=20)
    by_name: dict[str, int] = {}
    for use in uses.values():
        by_name[use.name] = by_name.get(use.name, 0) + use.peak_bytes
    return {
        "exit": code,
        "seconds": seconds,
        "load": load,
        "processor_seconds": sum(use.processor_seconds for use in uses.values()),
        "peak_bytes": sum(by_name.values()),
        "peak_bytes_by_process": by_name,
        "stdout": outputs[0].read_text(encoding="utf-8"),
        "stderr": outputs[1].read_text(encoding="utf-8"),
    }


def command_of(name: str, data: Path, folder: Path) -> list[str]:
    """The command line of a contender."""
    if name != "ours":
        script = [sys.executable, str(Path(__file__).resolve()), "--contend", name]
        return [*script, str(data), str(folder / "out")]
    config = folder / "config.yaml"
    config.write_text(
        f"source: {{uri: {data}, label: label}}\nmodel: {{n_clusters: {K}}}\n"
        f"output: {{uri: {folder / 'out'}}}\n",
        encoding="utf-8",
    )
    return [sys.executable, "-m", "clam_dist.cli", "run", str(config), "--json"]


def in_parts(name: str, steps: dict[str, float], total: float) -> dict[str, float]:
    """Seconds of each of :data:`PARTS`; what no step accounts for is ``start``."""
    found = dict.fromkeys(PARTS, 0.0)
    for step, part in CONTENDERS[name].parts.items():
        found[part] += steps.get(step, 0.0)
    found["start"] = total - sum(found.values())
    return found


def contender(name: str, data: Path, folder: Path) -> dict[str, Any]:
    """Run one contender: a record without its silhouette."""
    remedy = missing(name)
    if remedy:
        return {"missing": remedy}
    folder.mkdir()
    row = watched(command_of(name, data, folder), folder)
    stdout, stderr = row.pop("stdout"), row.pop("stderr")
    if row["exit"]:
        return row | {"error": stderr.strip()[-2000:], "versions": versions(name)}
    # Ours prints one JSON object; the others' last line is theirs.
    steps = json.loads(stdout)["seconds"] if name == "ours" else json.loads(stdout.splitlines()[-1])
    steps.pop("total", None)
    parts = in_parts(name, steps, row["seconds"])
    return row | {"parts": parts, "steps": steps, "versions": versions(name)}


def labels_of(name: str, data: Path, folder: Path) -> Any:
    """Labels as a contender wrote them, in the file's order: int array ``(n,)``."""
    import numpy as np
    import pyarrow.parquet as pq

    out = folder / "out"
    table = pq.read_table(out / "labels" / data.name if name == "ours" else out)
    labels = table["cluster"].to_numpy()
    if "row" in table.column_names:
        labels = labels[np.argsort(table["row"].to_numpy())]
    return labels


def score(found: dict[str, Any], data: Path, folder: Path) -> None:
    """Add to every record its clusters in use and the silhouette of the same rows."""
    import numpy as np
    import pyarrow.parquet as pq
    from sklearn.metrics import silhouette_score

    table = pq.read_table(data).drop(["label"])
    x = np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float64)
    n = len(x)
    rows = np.random.default_rng(11).choice(n, min(n, SCORED_ROWS), replace=False)
    x = (x[rows] - x.mean(axis=0)) / x.std(axis=0)
    for name, row in found.items():
        if "parts" in row:
            labels = labels_of(name, data, folder / name)
            if len(labels) != n:
                raise RuntimeError(f"{name} wrote {len(labels)} labels for {n} rows")
            row["clusters"] = len(np.unique(labels))
            row["silhouette"] = float(silhouette_score(x, labels[rows]))


def verdicts(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What ours must reach beside the others that ran, and whether it did."""
    done = {name: row for name, row in found.items() if "silhouette" in row}
    ours = done.pop("ours", None)
    if ours is None or not done:
        return []
    said = []
    for name, most in TARGETS.items():
        if name in done:
            ratio = ours["seconds"] / done[name]["seconds"]
            what = f"seconds, ours / {name}"
            said.append({"what": what, "value": ratio, "at_most": most, "met": ratio <= most})
    best = max(done, key=lambda name: done[name]["silhouette"])
    behind = done[best]["silhouette"] - ours["silhouette"]
    met = behind <= SILHOUETTE_MARGIN
    what = f"silhouette, {best} (best of the others) - ours"
    return [*said, {"what": what, "value": behind, "at_most": SILHOUETTE_MARGIN, "met": met}]


def measure(folder: Path, rows: int, names: list[str]) -> dict[str, Any]:
    """Run the contenders one after another; a JSON-able record."""
    data, small = folder / "vowels.parquet", folder / "few.parquet"
    # In a process of its own, so that this one stays small beside those it measures.
    demo = [sys.executable, "-m", "clam_dist.cli", "demo-data", "vowels"]
    for path, count in ((data, rows), (small, min(rows, WARM_ROWS))):
        made = [*demo, "--rows", str(count), "--output", str(path)]
        subprocess.run(made, check=True, capture_output=True)
    found, warm = {}, set()
    for name in names:
        packages = tuple(CONTENDERS[name].packages)
        if packages not in warm:
            warm.add(packages)
            contender("spark-once" if name == "spark" else name, small, folder / f"{name}-few")
        found[name] = contender(name, data, folder / name)
        taken = found[name].get("seconds")
        print(f"{name}: {taken:.1f} s" if taken else f"{name}: skipped", file=sys.stderr)
    score(found, data, folder)
    python = sys.version.split()[0]
    return {
        "rows": rows,
        "n_clusters": K,
        "inits": INITS,
        "cores": CORES,
        "python": python,
        "contenders": found,
        "verdicts": verdicts(found),
    }


# -- for a person --------------------------------------------------------------------------------


def line(name: str, row: dict[str, Any]) -> str:
    """One row of the table."""
    if "missing" in row:
        return f"{name:16s} not installed: {row['missing']}"
    measured = f"{row['seconds']:7.1f} {row['processor_seconds']:7.1f}"
    memory = f"{row['peak_bytes'] / MIB:7.0f}"
    if "error" in row:
        last = row["error"].splitlines()[-1] if row["error"] else "no message"
        return f"{name:16s} {'':31s} {measured} {memory}  exit {row['exit']}: {last}"
    parts = " ".join(f"{row['parts'][part]:7.1f}" for part in PARTS)
    result = f"{row['silhouette']:10.4f} {row['clusters']:8d} {row['exit']:4d}"
    return f"{name:16s} {parts} {measured} {memory} {result} {row['load']:5.1f}"


def show(record: dict[str, Any]) -> None:
    """Print the record: the table, the steps, the versions, the verdicts."""
    print(f"{record['rows']:,} rows, k = {record['n_clusters']}, {record['cores']} cores")
    parts = " ".join(f"{part:>7s}" for part in PARTS)
    measured = f"{'total':>7s} {'cpu':>7s} {'MiB':>7s}"
    print(f"{'seconds':16s} {parts} {measured} silhouette clusters exit  load")
    for name, row in record["contenders"].items():
        print(line(name, row))
    print()
    for name, row in record["contenders"].items():
        if "parts" in row:
            steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in row["steps"].items())
            used = ", ".join(f"{p} {b / MIB:.0f}" for p, b in row["peak_bytes_by_process"].items())
            numbers = ", ".join(f"{p} {v}" for p, v in row["versions"].items())
            print(f"{name}: {steps}; MiB: {used}; {numbers}")
    print()
    for one in record["verdicts"]:
        word = "met" if one["met"] else "missed"
        print(f"{one['what']}: {one['value']:.4f}, at most {one['at_most']}: {word}")


def main(arguments: list[str] | None = None) -> int:
    """Read the options, measure, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", action="append", choices=[*CONTENDERS], help="repeatable")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--folder", type=Path, help="where files go; default: a temporary one")
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contend:
        name, data, out = options.contend
        contend(name, Path(data), Path(out))
        return 0
    names = [name for name in CONTENDERS if name in (options.only or CONTENDERS)]
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        record = measure(Path(name).resolve(), options.rows, names)
    if options.json:
        print(json.dumps(record, indent=1))
    else:
        show(record)
    return int(any(row.get("exit") for row in record["contenders"].values()))


if __name__ == "__main__":
    sys.exit(main())
