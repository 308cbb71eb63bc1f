"""The million-row run beside scikit-learn's whole script, in one run of this file.

    python tests/bench/million.py [--rows N] [--json] [--folder DIR] [--sorted]

Each contender is a process of its own, given the same Parquet file, one after another: ours is
``clam-dist run`` with k = 9 and defaults otherwise; scikit-learn's reads, scales, fits
``KMeans(n_init=10)``, scores a sample of 15 000 rows and writes the labels. Both sets of labels
are then scored on the same fixed sample of rows against the same references.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clam_dist import silhouette_sampled
from clam_dist.demo import write_demo

K = 9
SCORED_ROWS = 20_000

SCIKIT_LEARN = """
import json, sys, time
began = time.perf_counter()
seconds = {}
def mark(name):
    global began
    now = time.perf_counter()
    seconds[name] = now - began
    began = now
import numpy as np
import pyarrow as pa, pyarrow.parquet as pq
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from sklearn.preprocessing import StandardScaler
mark("import")
table = pq.read_table(sys.argv[1]).drop(["label"])
x = np.stack([column.to_numpy() for column in table.columns], axis=1)
mark("read")
x = StandardScaler().fit_transform(x)
mark("scale")
labels = KMeans(int(sys.argv[3]), n_init=10, random_state=0).fit_predict(x)
mark("fit")
rows = np.random.default_rng(0).choice(len(x), min(len(x), 15000), replace=False)
silhouette_score(x[rows], labels[rows])
mark("silhouette")
pq.write_table(pa.table({"cluster": labels}), sys.argv[2])
mark("write")
print(json.dumps(seconds))
"""


def scaled(path: Path) -> np.ndarray:
    """The features of a demo file, standardised: ``(n, 14)`` float64."""
    table = pq.read_table(path).drop(["label"])
    x = np.stack([column.to_numpy() for column in table.columns], axis=1)
    return (x - x.mean(axis=0)) / x.std(axis=0)


def timed(command: list[str]) -> tuple[float, str]:
    """Wall seconds and standard output of a command; raises where it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[:4]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return time.perf_counter() - began, done.stdout


def ours(data: Path, out: Path, *options: str) -> dict[str, Any]:
    """One run of the command: wall seconds, stage seconds, labels."""
    config = out.parent / f"{out.name}.yaml"
    config.write_text(
        f"source: {{uri: {data}, label: label}}\nmodel: {{n_clusters: {K}}}\n"
        f"output: {{uri: {out}}}\n"
    )
    command = [sys.executable, "-m", "clam_dist.cli", "run", str(config), "--json"]
    wall, text = timed([*command, *options])
    metrics = json.loads(text)
    labels = pq.read_table(out / "labels" / data.name)["cluster"].to_numpy()
    return {
        "wall": wall,
        "stages": metrics["seconds"],
        "n_used": metrics["n_used"],
        "reported": metrics["silhouette"],
        "labels": labels,
    }


def measure(folder: Path, rows: int, *, sort: bool) -> dict[str, Any]:
    """Run both contenders; a JSON-able record of what was measured."""
    data = folder / "vowels.parquet"
    write_demo("vowels", data, rows=rows)
    x = scaled(data)

    def score(labels: np.ndarray, of: np.ndarray = x) -> float:
        return silhouette_sampled(of, labels, sample_size=SCORED_ROWS, seed=11).value

    run = ours(data, folder / "ours")
    wall, text = timed(
        [sys.executable, "-c", SCIKIT_LEARN, str(data), str(folder / "km.parquet"), str(K)]
    )
    means = pq.read_table(folder / "km.parquet")["cluster"].to_numpy()
    assert len(run["labels"]) == rows
    record = {
        "rows": rows,
        "ours": {key: value for key, value in run.items() if key != "labels"}
        | {"silhouette": score(run["labels"])},
        "scikit-learn": {"wall": wall, "stages": json.loads(text), "silhouette": score(means)},
        "ratio": run["wall"] / wall,
    }
    if sort:
        order = np.argsort(pq.read_table(data)["label"].to_numpy(), kind="stable")
        by_class = folder / "sorted.parquet"
        pq.write_table(pq.read_table(data).take(pa.array(order)), by_class)
        run = ours(by_class, folder / "sorted")
        back = np.empty(rows, np.int64)
        back[order] = run["labels"]
        record["sorted"] = {"wall": run["wall"], "silhouette": score(back)}
    return record


def show(record: dict[str, Any]) -> None:
    """Print the record for a person."""
    for name in ("ours", "scikit-learn", "sorted"):
        if name in record:
            one = record[name]
            stages = ", ".join(f"{k} {v:.1f}" for k, v in one.get("stages", {}).items())
            print(f"{name:13s} {one['wall']:6.1f} s  silhouette {one['silhouette']:.4f}  {stages}")
    print(f"ours / scikit-learn: {record['ratio']:.2f} of the wall time")


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--folder", type=Path, help="where files go; default: a temporary one")
    parser.add_argument("--sorted", action="store_true", help="also with the rows sorted by class")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        record = measure(Path(folder), options.rows, sort=options.sorted)
    if options.json:
        print(json.dumps(record, indent=1))
    else:
        show(record)


if __name__ == "__main__":
    main()
