"""TDCM in a domain that it has not seen: digits turned by 0, 15 and 30 degrees, adapted to 45.

    python tests/bench/transfer.py [--seeds N] [--rows N] [--restarts N] [--json]

Trained by the pipeline on the three source domains with ``source.domain``, each batch of one, then
``assign --adapt`` to the target: centroids settle there without training. Beside it k-means fitted
on the target, k-means' centroids carried over from the sources, and TDCM trained on the target. NMI
and ARI against the digits, mean over the seeds. Pixels are centred and scaled all alike:
standardising each of them on the sources costs more than any method gains.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.ndimage import rotate
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from clam_dist.config import Config
from clam_dist.stages import run
from clam_dist.stages.apply import apply_model

SOURCES, TARGET = (0, 15, 30), 45


def domains(rows: int) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Rows ``(n, 64)`` of each angle, and the digits."""
    images, truth = (part[:rows] for part in (load_digits().images, load_digits().target))
    turned = {
        angle: np.stack([rotate(image, angle, reshape=False) for image in images]).reshape(-1, 64)
        for angle in (*SOURCES, TARGET)
    }
    seen = np.concatenate([turned[angle] for angle in SOURCES])
    center, scale = seen.mean(axis=0), float(seen.std())
    return {angle: (x - center) / scale for angle, x in turned.items()}, truth


def write(path: Path, parts: dict[int, np.ndarray]) -> None:
    """One Parquet file of several domains."""
    x = np.concatenate(list(parts.values()))
    angle = np.repeat(list(parts), [len(part) for part in parts.values()])
    columns = {f"p{i}": column for i, column in enumerate(x.T)}
    pq.write_table(pa.table(columns | {"angle": angle}), path)


def config(source: Path, output: Path, seed: int, restarts: int, **more: Any) -> Config:
    """A run of TDCM on ten clusters."""
    return Config.model_validate(
        {
            "seed": seed,
            "source": {"uri": str(source), "keep": [], "exclude": ["angle"]} | more,
            "prepare": {"scaling": "none"},
            "model": {"kind": "tdcm", "n_clusters": 10},
            "train": {"restarts": restarts},
            "cluster": {"kind": "serial"},
            "output": {"uri": str(output)},
        }
    )


def agreement(truth: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return {
        "nmi": float(normalized_mutual_info_score(truth, labels)),
        "ari": float(adjusted_rand_score(truth, labels)),
    }


def labels_of(output: Path) -> np.ndarray:
    return np.concatenate(
        [
            pq.read_table(path, columns=["cluster"])["cluster"].to_numpy()
            for path in sorted((output / "labels").glob("*.parquet"))
        ]
    )


def one_seed(seed: int, rows: int, restarts: int, folder: Path) -> dict[str, dict[str, float]]:
    """Every method under one seed."""
    parts, truth = domains(rows)
    sources = {angle: parts[angle] for angle in SOURCES}
    write(folder / "sources.parquet", sources)
    write(folder / "target.parquet", {TARGET: parts[TARGET]})
    target = parts[TARGET]
    fitted = KMeans(10, n_init=10, random_state=seed).fit(target)
    carried = KMeans(10, n_init=10, random_state=seed).fit(np.concatenate(list(sources.values())))
    found = {
        "k-means fitted on the target": agreement(truth, fitted.labels_),
        "k-means carried over": agreement(truth, carried.predict(target)),
    }
    trained = config(
        folder / "sources.parquet", folder / "trained", seed, restarts, domain="angle", exclude=[]
    )
    run(trained)
    for name, adapt in (("TDCM adapted", True), ("TDCM as trained", False)):
        output = folder / name.replace(" ", "-")
        there = config(folder / "target.parquet", output, seed, restarts)
        apply_model(folder / "trained" / "model", there, adapt=adapt)
        found[name] = agreement(truth, labels_of(output))
    run(config(folder / "target.parquet", folder / "own", seed, restarts))
    found["TDCM trained on the target"] = agreement(truth, labels_of(folder / "own"))
    return found


def transfer(seeds: int, rows: int, restarts: int) -> dict[str, Any]:
    """Means, least and greatest over the seeds."""
    runs = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(one_seed(seed, rows, restarts, Path(folder)))
    return {
        name: {
            measure: {
                "mean": float(np.mean(values)),
                "least": float(np.min(values)),
                "greatest": float(np.max(values)),
            }
            for measure in ("nmi", "ari")
            for values in [[found[name][measure] for found in runs]]
        }
        for name in runs[0]
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1797, help="of each domain")
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    options = parser.parse_args()
    found = transfer(options.seeds, options.rows, options.restarts)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'':30s} NMI (least to greatest)   ARI (least to greatest)")
    for name, values in found.items():
        cells = [
            f"{v['mean']:.3f} ({v['least']:.3f} to {v['greatest']:.3f})" for v in values.values()
        ]
        print(f"{name:30s} {cells[0]:25s} {cells[1]}")


if __name__ == "__main__":
    main()
