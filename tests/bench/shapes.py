"""Shapes in the plane that k-means gets wrong, and what each option of ClAM does for them.

    python tests/bench/shapes.py [--seeds 5] [--set all] [--folder pictures] [--json]

After the toy figures of *End-to-end Differentiable Clustering with Associative Memories* (figure 1,
appendices B.6 and B.8, section 3.5), whose rows are not published: these are drawn anew.

- ``two bands``, ``three bands``: elongated clusters, turned by 30 degrees.
- ``clean``, ``outliers``: two discs, without and with 5 % of further rows strewn over a square 15
  times as wide as a disc. Scores are of the discs' rows alone.
- ``aside``: the same discs, and 3 % of further rows in a loose group three times as far from them
  as one is from the other.
- ``unequal``: round clusters of 90, 9 and 1 % of the rows.

``DEC`` is that of :mod:`deep_baselines` on standardised rows: its autoencoder is one linear layer
each way that starts as the identity.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deep_baselines import Refinement, dec
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import nn

from clam_dist import ClAM
from clam_dist.reporting.plots import WIDTH, figure_svg, side_by_side
from clam_dist.reporting.space_plots import Frame, colour_of, dots, numbered

Rows = tuple[np.ndarray, np.ndarray]
"""Places ``(n,2)`` and classes ``(n,)``, -1 for a row of none."""
Found = tuple[np.ndarray, np.ndarray | None]
"""Labels ``(n,)``, and prototypes ``(k,2)`` in the rows' units."""


def bands(count: int, seed: int, degrees: float = 30.0) -> Rows:
    """Clusters nine times as long as wide, side by side, all turned alike."""
    draws = np.random.default_rng(seed)
    n = 150
    parts = [np.c_[draws.normal(0, 4, n), draws.normal(2.2 * i, 0.45, n)] for i in range(count)]
    turn = np.deg2rad(degrees)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return np.concatenate(parts) @ rotation.T, np.repeat(np.arange(count), n)


def discs(seed: int, share: float) -> Rows:
    """Two discs of radius 2, centres 5 apart, and a share of outliers, which have no class."""
    draws = np.random.default_rng(seed)
    n = 200
    turn, radius = draws.uniform(0, 2 * np.pi, 2 * n), 2.0 * np.sqrt(draws.uniform(size=2 * n))
    x = np.c_[radius * np.cos(turn), radius * np.sin(turn)]
    x[n:, 0] += 5.0
    others = draws.uniform(-30, 30, (round(share * 2 * n), 2))
    classes = np.repeat([0, 1, -1], [n, n, len(others)])
    return np.concatenate([x, others]), classes


def aside(seed: int) -> Rows:
    """Two discs and a loose group of 12 rows without a class, 16 away."""
    draws = np.random.default_rng(seed)
    x, classes = discs(seed, 0.0)
    others = draws.normal([2.5, 16.0], [4.0, 1.5], (12, 2))
    return np.concatenate([x, others]), np.concatenate([classes, np.full(12, -1)])


def unequal(seed: int) -> Rows:
    """Round clusters of 900, 90 and 10 rows, centres 5 deviations apart."""
    draws = np.random.default_rng(seed)
    classes = np.repeat([0, 1, 2], [900, 90, 10])
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [2.5, 4.33]])
    return centres[classes] + draws.normal(size=(1000, 2)), classes


SETS: dict[str, Callable[[int], Rows]] = {
    "two bands": lambda seed: bands(2, seed),
    "three bands": lambda seed: bands(3, seed),
    "clean": lambda seed: discs(seed, 0.0),
    "outliers": lambda seed: discs(seed, 0.05),
    "aside": aside,
    "unequal": unequal,
}
METRIC = {"metric": "full", "objective": "unmasked"}
MANHATTAN = {"loss": "manhattan", "objective": "unmasked", "select": "loss"}
SHARP = {**MANHATTAN, "beta": [16.0, 64.0]}
"""Outliers inflate the inertia that automatic betas are measured in: these are above most."""
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "two bands": {"ClAM full metric": METRIC},
    "three bands": {"ClAM full metric": METRIC},
    "clean": {"ClAM Manhattan": MANHATTAN, "ClAM Manhattan, sharp": SHARP},
    "outliers": {"ClAM Manhattan": MANHATTAN, "ClAM Manhattan, sharp": SHARP},
    "aside": {"ClAM Manhattan": MANHATTAN, "ClAM Manhattan, sharp": SHARP},
    "unequal": {
        "ClAM weighted": {"weighted": True},
        "ClAM by loss": {"objective": "unmasked", "select": "loss"},
        "ClAM weighted by loss": {"objective": "unmasked", "select": "loss", "weighted": True},
    },
}
"""What is tried of each set beside k-means, DEC and ClAM as it comes."""


@dataclass(frozen=True)
class Record:
    """One line of the table: a method's agreement with the classes, over seeds."""

    set: str
    method: str
    ari: float
    least: float
    greatest: float
    seconds: float


def kmeans(x: np.ndarray, k: int, seed: int) -> Found:
    """Of 20 starts, on standardised features."""
    centre, spread = x.mean(0), x.std(0)
    model = KMeans(k, n_init=20, random_state=seed).fit((x - centre) / spread)
    return model.labels_, model.cluster_centers_ * spread + centre


def deep(x: np.ndarray, k: int, seed: int) -> Found:
    """DEC on standardised features, through linear layers that start as the identity."""
    network = nn.ModuleDict({"encoder": nn.Linear(2, 2), "decoder": nn.Linear(2, 2)})
    for layer in network.values():
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    z = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    return dec(z, k, network, seed, Refinement(epochs=100, batch_rows=64))[0], None


def clam(x: np.ndarray, k: int, seed: int, options: dict[str, Any]) -> Found:
    """ClAM's estimator with some of its options."""
    model = ClAM(n_clusters=k, random_state=seed, n_jobs=1, **options).fit(x)
    return model.labels_, model.prototypes_


def methods(name: str) -> dict[str, Callable[[np.ndarray, int, int], Found]]:
    """All that is tried of a set."""

    def with_options(options: dict[str, Any]) -> Callable[[np.ndarray, int, int], Found]:
        return lambda x, k, seed: clam(x, k, seed, options)

    tried = {method: with_options(options) for method, options in OPTIONS[name].items()}
    return {"k-means": kmeans, "DEC": deep, "ClAM": with_options({}), **tried}


def agreement(classes: np.ndarray, labels: np.ndarray) -> float:
    """Adjusted Rand index of the rows that have a class."""
    inside = classes >= 0
    return float(adjusted_rand_score(classes[inside], labels[inside]))


def measure(name: str, seeds: Sequence[int], folder: Path | None = None) -> list[Record]:
    """All methods on all draws of a set; a picture of the first draw where there is a folder."""
    records, panels = [], []
    for method, function in methods(name).items():
        scores, began = [], time.perf_counter()
        for seed in seeds:
            x, classes = SETS[name](seed)
            labels, prototypes = function(x, int(classes.max()) + 1, seed)
            scores.append(agreement(classes, labels))
            if seed == seeds[0]:
                if not panels:
                    panels.append(("classes", scatter(x, classes, None)))
                panels.append((f"{method}: {scores[0]:.2f}", scatter(x, labels, prototypes)))
        took = (time.perf_counter() - began) / len(seeds)
        mean = float(np.mean(scores))
        records.append(Record(name, method, mean, min(scores), max(scores), took))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name.replace(' ', '_')}.svg").write_text(side_by_side(panels))
    return records


def scatter(x: np.ndarray, labels: np.ndarray, prototypes: np.ndarray | None) -> str:
    """Rows in the colours of their labels, grey where there is none, and prototypes' numbers."""
    middle, half = (x.max(0) + x.min(0)) / 2, 0.52 * float(np.ptp(x, axis=0).max())
    low, high = middle - half, middle + half
    frame = Frame((low[0], low[1]), (high[0], high[1]), 0.5, 0.5, WIDTH - 1, WIDTH - 1)
    body = [frame.border()]
    for label in np.unique(labels):
        colour = "#999999" if label < 0 else colour_of(int(label))
        body.append(dots(frame.at(x[labels == label]), colour, size=5.0))
    if prototypes is not None:
        here = [c for c in range(len(prototypes)) if frame.holds(prototypes[c : c + 1])[0]]
        body += numbered(frame.at(prototypes[here]), here, [colour_of(c) for c in here])
    return figure_svg(WIDTH, "Rows and prototypes", f"{len(x)} rows", body)


def as_text(record: Record) -> str:
    """A line of the table."""
    return (
        f"{record.set:12} {record.method:22} {record.ari:6.3f} {record.least:6.3f} "
        f"{record.greatest:6.3f} {record.seconds:6.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", default="all", help="commas between, or all")
    parser.add_argument("--folder", type=Path, help="a picture of each set goes here")
    parser.add_argument("--json", action="store_true", help="a list of objects")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records: list[Record] = []
    if not options.json:
        print(f"{'set':12} {'method':22} {'ARI':>6} {'least':>6} {'most':>6} {'s':>6}")
    for name in SETS if options.set == "all" else options.set.split(","):
        found = measure(name, range(options.seeds), options.folder)
        records += found
        if not options.json:
            print("\n".join(map(as_text, found)), flush=True)
    if options.json:
        print(json.dumps([asdict(record) for record in records]))


if __name__ == "__main__":
    main()
