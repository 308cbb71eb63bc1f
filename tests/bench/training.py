"""The training stage beside k-means tools, and a sweep beside one member, on a million rows.

    python tests/bench/training.py [--rows N] [--json] [--folder DIR] [--only fits|sweep]

``fits``: each contender is a process of its own, one after another, given the same standardised
rows with all cores: scikit-learn's ``KMeans(n_init=10)`` and ``MiniBatchKMeans(n_init=10)``, faiss'
``Kmeans(nredo=10)`` where faiss is installed, and our training stage with defaults (its seconds
are from the run's own record, its starts and choice included). Labels of all rows are scored on
one fixed sample.

``sweep``: 32 members (8 inverse temperatures, 4 restarts, the unmasked objective) against one
member, both for the same epochs: wall seconds of the training stage, and bytes read from shards.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from clam_dist import silhouette_sampled
from clam_dist.demo import write_demo

sys.path.insert(0, str(Path(__file__).parent))
from million import SCORED_ROWS, K, ours, scaled, timed

EPOCHS = 4
BETAS = [round(float(beta), 4) for beta in np.geomspace(0.02, 5.0, 8)]

FIT = """
import json, sys, time
import numpy as np
x = np.load(sys.argv[1])
name, k = sys.argv[3], int(sys.argv[4])
if name == "faiss":
    import faiss
    began = time.perf_counter()
    model = faiss.Kmeans(x.shape[1], k, nredo=10, niter=100, seed=1, max_points_per_centroid=10**9)
    model.train(x)
    seconds = time.perf_counter() - began
    labels = model.index.search(x, 1)[1][:, 0]
else:
    from sklearn.cluster import KMeans, MiniBatchKMeans
    made = {"KMeans": KMeans, "MiniBatchKMeans": MiniBatchKMeans}[name]
    began = time.perf_counter()
    labels = made(k, n_init=10, random_state=0).fit(x).labels_
    seconds = time.perf_counter() - began
np.save(sys.argv[2], labels)
print(json.dumps(seconds))
"""


def score(x: np.ndarray, labels: np.ndarray) -> float:
    """Silhouette on the one sample that all contenders are scored on."""
    return silhouette_sampled(x, labels, sample_size=SCORED_ROWS, seed=11).value


def fits(folder: Path, data: Path) -> dict[str, Any]:
    """Seconds and silhouette of every contender."""
    x = scaled(data)
    rows = folder / "rows.npy"
    np.save(rows, x.astype(np.float32))
    found: dict[str, Any] = {}
    run = ours(data, folder / "ours")
    found["ours"] = {"seconds": run["stages"]["train"], "silhouette": score(x, run["labels"])}
    names = ["KMeans", "MiniBatchKMeans"]
    if importlib.util.find_spec("faiss") is not None:
        names.append("faiss")
    for name in names:
        out = folder / f"{name}.npy"
        _, text = timed([sys.executable, "-c", FIT, str(rows), str(out), name, str(K)])
        found[name] = {"seconds": json.loads(text), "silhouette": score(x, np.load(out))}
    return found


def sweep(folder: Path, data: Path) -> dict[str, Any]:
    """One member, and 32, for the same epochs."""
    common = ["--set", "model.objective=unmasked", "--set", f"train.epochs={EPOCHS}"]
    found: dict[str, Any] = {"epochs": EPOCHS}
    for name, betas, restarts in (("one", BETAS[4], 1), ("many", BETAS, 4)):
        options = ["--set", f"model.beta={betas}", "--set", f"train.restarts={restarts}"]
        out = folder / f"sweep-{name}"
        run = ours(data, out, *common, *options)
        record = json.loads((out / "run.json").read_text(encoding="utf-8"))
        members = {
            row["member"] if "member" in row else row["index"] for row in record["candidates"]
        }
        found[name] = {
            "members": len(members),
            "seconds": run["stages"]["train"],
            "bytes_read": record["resolved"]["train.bytes_read"],
            "bytes_read_of_sample": record["resolved"]["search.bytes_read"],
        }
    found["ratio"] = found["many"]["seconds"] / found["one"]["seconds"]
    return found


def show(record: dict[str, Any]) -> None:
    """Print the record for a person."""
    for name, one in record.get("fits", {}).items():
        print(f"{name:16s} {one['seconds']:7.2f} s  silhouette {one['silhouette']:.4f}")
    if "sweep" in record:
        found = record["sweep"]
        for name in ("one", "many"):
            one = found[name]
            print(
                f"{one['members']:3d} member(s), {found['epochs']} epochs: {one['seconds']:.2f} s, "
                f"{one['bytes_read'] / 1e6:.1f} MB read from shards, "
                f"{one['bytes_read_of_sample'] / 1e6:.1f} MB from the sample"
            )
        print(f"ratio of the seconds: {found['ratio']:.2f}")


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--folder", type=Path, help="where files go; default: a temporary one")
    parser.add_argument("--only", choices=["fits", "sweep"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        data = folder / "vowels.parquet"
        write_demo("vowels", data, rows=options.rows)
        record: dict[str, Any] = {"rows": options.rows}
        if options.only != "sweep":
            record["fits"] = fits(folder, data)
        if options.only != "fits":
            record["sweep"] = sweep(folder, data)
    if options.json:
        print(json.dumps(record, indent=1))
    else:
        show(record)


if __name__ == "__main__":
    main()
