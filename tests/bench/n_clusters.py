"""How many clusters ``n_clusters='auto'`` finds: blobs of known number, and two real sets.

    python tests/bench/n_clusters.py [--seeds 5] [--groups 3,7,15] [--features 16] [--json]

Blobs: 1500 rows, unit deviation, centres uniform in a box of side 20, whose distances are the more
alike the more features there are. ``truth`` is the silhouette of the blobs themselves: where two of
them lie much nearer than the rest, it is below that of fewer clusters, and no rule by silhouette is
right. ``digits`` and ``iris`` are scikit-learn's, whose classes are 10 and 3.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_iris, make_blobs
from sklearn.metrics import silhouette_score

from clam_dist import ClAM


def chosen(x: np.ndarray, seed: int) -> dict[str, Any]:
    """The number chosen, with its silhouette and the seconds of the fit."""
    began = time.perf_counter()
    model = ClAM(n_clusters="auto", random_state=seed).fit(x)
    return {
        "chosen": model.n_clusters_,
        "silhouette": model.silhouette_,
        "seconds": time.perf_counter() - began,
    }


def truth(x: np.ndarray, labels: np.ndarray) -> float:
    """Silhouette of the known labels on standardised features."""
    spread = x.std(axis=0)
    z = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return float(silhouette_score(z, labels))


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--groups", default="3,7,15", help="numbers of blobs, commas between")
    parser.add_argument("--features", type=int, default=16, help="of the blobs")
    parser.add_argument("--json", action="store_true", help="a list of objects")
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    for groups in map(int, options.groups.split(",")):
        for seed in range(options.seeds):
            x, labels = make_blobs(
                1500,
                n_features=options.features,
                centers=groups,
                center_box=(-10, 10),
                random_state=seed,
            )
            known = {"set": f"{groups} blobs", "groups": groups, "truth": truth(x, labels)}
            records.append(known | chosen(x, seed))
    for name, load in (("iris", load_iris), ("digits", load_digits)):
        x, labels = load(return_X_y=True)
        known = {"set": name, "groups": None, "truth": truth(x, labels)}
        records.append(known | chosen(x, 0))
    if options.json:
        print(json.dumps(records, indent=1))
        return
    for record in records:
        print(
            f"{record['set']:10s} chosen {record['chosen']:2d}  silhouette "
            f"{record['silhouette']:.3f} (truth {record['truth']:.3f})  {record['seconds']:.1f} s"
        )
    blobs = [record for record in records if record["groups"]]
    print(f"right on {sum(r['chosen'] == r['groups'] for r in blobs)} of {len(blobs)} blob sets")


if __name__ == "__main__":
    main()
