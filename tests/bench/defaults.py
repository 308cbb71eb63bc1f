"""Defaults untouched, beside k-means: silhouette and seconds on sets that nobody tuned for.

    python tests/bench/defaults.py [--data DIR] [--set iris,wine] [--json]

``ClAM(n_clusters=k, random_state=0).fit(X)``, k the number of classes; scikit-learn's ``KMeans`` on
the same standardised features, once with 100 starts (the figure to reach) and once with
``n_init=10`` (the time beside). Silhouettes are Euclidean on standardised features: exact up to
10 000 rows, of the same 10 000 against all rows above. Sets with a file in DIR are left out, with a
line that says so, where there is none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from clam_dist import ClAM, silhouette_sampled

sys.path.insert(0, str(Path(__file__).parent))
from paper import BUNDLED, FILES, load

STARTS = 100
LEAST = -0.002
"""How far below k-means a default fit may end."""


def measure(name: str, z: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """One set's figures."""
    k = len(np.unique(labels))

    def score(found: np.ndarray) -> float:
        size = None if len(z) <= 10_000 else 10_000
        return silhouette_sampled(z, found, sample_size=size, seed=5).value

    began = time.perf_counter()
    model = ClAM(n_clusters=k, random_state=0).fit(z)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    KMeans(k, n_init=10, random_state=0).fit(z)
    ten = time.perf_counter() - began
    best = KMeans(k, n_init=STARTS, random_state=0).fit(z)
    ours, theirs = score(model.labels_), score(best.labels_)
    return {
        "set": name,
        "rows": len(z),
        "features": z.shape[1],
        "n_clusters": k,
        "n_used": len(np.unique(model.labels_)),
        "silhouette": ours,
        "kmeans_silhouette": theirs,
        "difference": ours - theirs,
        "enough": ours - theirs >= LEAST,
        "seconds": seconds,
        "kmeans_10_seconds": ten,
        "objective": model.objective_,
        "beta": model.beta_,
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the sets' Parquet files")
    parser.add_argument("--set", help="names, with commas between")
    parser.add_argument("--rows", type=int, help="of each set, at most")
    parser.add_argument("--json", action="store_true", help="a list of objects")
    options = parser.parse_args()
    names = options.set.split(",") if options.set else [*BUNDLED, *FILES]
    records = []
    for name in names:
        if name in FILES and (
            options.data is None or not (options.data / f"{name}.parquet").exists()
        ):
            print(f"{name}: left out, no file in --data", file=sys.stderr)
            continue
        data = load(name, options.data, options.rows)
        records.append(measure(name, data.x, data.classes))
        if not options.json:
            one = records[-1]
            print(
                f"{name:16s} {one['rows']:6d} x {one['features']:<4d} k {one['n_clusters']:2d} "
                f"(in use {one['n_used']:2d})  silhouette {one['silhouette']:.4f}  "
                f"k-means {one['kmeans_silhouette']:.4f}  {one['difference']:+.4f}  "
                f"{one['seconds']:.1f} s beside {one['kmeans_10_seconds']:.1f} s",
                flush=True,
            )
    if options.json:
        print(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
