"""TDCM carried to a domain that it never saw: digits turned further than any it was trained on.

    python tests/bench/transfer.py [--seeds 5] [--laps 30] [--rows N] [--json]

Sources are scikit-learn's digits turned by 0, 15 and 30 degrees, the target the same turned by 45.
From all pixels the sources' mean image is taken and all are divided by one number: scaled pixel by
pixel, those that hardly vary in the sources would blow up in the target. No method sees classes,
nor how far a digit is turned.

Methods:

- ``k-means carried``: centroids of k-means on the sources label the target;
- ``TDCM carried``: trained domain by domain, the sources' centroids label the target;
- ``TDCM adapted``: the same after ``adapt`` on the target's rows, without training;
- ``TDCM mixed``: adapted, but trained on batches in which the sources are mixed;
- ``k-means fitted``, ``TDCM fitted``: on the target itself.

Domain by domain is a ``fit`` on all sources that pretrains the network, and one epoch of which
leaves next to nothing; then ``laps`` times ``partial_fit`` on one source after the other, so that
centroids settle in batches of one domain each. Agreement with the classes as mean and deviation
over seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.ndimage import rotate
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from clam_dist import TDCM

SOURCES, TARGET = (0, 15, 30), 45
"""Degrees."""
K = 10
PRETRAIN_EPOCHS, MIXED_EPOCHS, BATCH_ROWS = 140, 60, 512
KMEANS_STARTS = 10


@dataclass(frozen=True)
class Data:
    """Scaled rows ``(n,d)`` of each source and of the target, in one order, and their classes."""

    sources: tuple[np.ndarray, ...]
    target: np.ndarray
    classes: np.ndarray

    @property
    def pooled(self) -> np.ndarray:
        """All sources' rows, one source after the other."""
        return np.concatenate(self.sources)


@dataclass(frozen=True)
class Line:
    """A method's agreement with the target's classes over seeds."""

    method: str
    nmi: float
    nmi_deviation: float
    ari: float
    ari_deviation: float
    used: float
    seconds: float


def load(rows: int) -> Data:
    """The first ``rows`` digits in all four domains."""
    digits = load_digits()
    images, classes = digits.images[:rows], digits.target[:rows]

    def turned(angle: int) -> np.ndarray:
        # A turn by nothing would only go through the spline and back.
        found = [image if angle == 0 else rotate(image, angle, reshape=False) for image in images]
        return np.stack(found).reshape(len(images), -1)

    raw = {angle: turned(angle) for angle in (*SOURCES, TARGET)}
    pooled = np.concatenate([raw[angle] for angle in SOURCES])
    mean = pooled.mean(axis=0)
    unit = float((pooled - mean).std())
    scaled = {angle: ((x - mean) / unit).astype(np.float32) for angle, x in raw.items()}
    return Data(tuple(scaled[angle] for angle in SOURCES), scaled[TARGET], classes)


def tdcm(seed: int, **given: Any) -> TDCM:
    """The estimator as all methods here take it."""
    common = {"restarts": 1, "batch_rows": BATCH_ROWS, "scaling": "none", "device": "cpu"}
    return TDCM(K, random_state=seed, **{**common, "pretrain_epochs": PRETRAIN_EPOCHS, **given})


def domain_by_domain(data: Data, seed: int, laps: int) -> TDCM:
    """TDCM with every batch from one source."""
    model = tdcm(seed, epochs=1).fit(data.pooled)
    for _ in range(laps):
        for x in data.sources:
            model.partial_fit(x)
    return model


def kmeans(x: np.ndarray, seed: int) -> KMeans:
    """The run of least inertia of several."""
    return KMeans(K, n_init=KMEANS_STARTS, random_state=seed).fit(x)


def methods(laps: int) -> dict[str, Callable[[Data, int], np.ndarray]]:
    """By name, each to labels of the target's rows."""
    trained: dict[int, TDCM] = {}

    def carried(data: Data, seed: int) -> np.ndarray:
        trained[seed] = domain_by_domain(data, seed, laps)
        return np.asarray(trained[seed].predict(data.target))

    return {
        "k-means carried": lambda data, seed: kmeans(data.pooled, seed).predict(data.target),
        "TDCM carried": carried,
        "TDCM adapted": lambda data, seed: trained[seed].adapt(data.target).labels_,
        "TDCM mixed": lambda data, seed: (
            tdcm(seed, epochs=MIXED_EPOCHS).fit(data.pooled).adapt(data.target).labels_
        ),
        "k-means fitted": lambda data, seed: kmeans(data.target, seed).labels_,
        # As many steps as on the three sources.
        "TDCM fitted": lambda data, seed: (
            tdcm(
                seed,
                pretrain_epochs=len(SOURCES) * PRETRAIN_EPOCHS,
                epochs=len(SOURCES) * MIXED_EPOCHS,
            )
            .fit(data.target)
            .labels_
        ),
    }


def measure(data: Data, seeds: int, laps: int) -> Iterator[Line]:
    """All methods over seeds."""
    for name, method in methods(laps).items():
        began = time.perf_counter()
        found = [method(data, seed) for seed in range(seeds)]
        nmi = [normalized_mutual_info_score(data.classes, labels) for labels in found]
        ari = [adjusted_rand_score(data.classes, labels) for labels in found]
        yield Line(
            name,
            float(np.mean(nmi)),
            float(np.std(nmi)),
            float(np.mean(ari)),
            float(np.std(ari)),
            float(np.mean([len(np.unique(labels)) for labels in found])),
            (time.perf_counter() - began) / seeds,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--laps", type=int, default=30, help="passes over each source in turn")
    parser.add_argument("--rows", type=int, default=1797, help="digits of each domain, at most")
    parser.add_argument("--json", action="store_true", help="a list of objects")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = measure(load(options.rows), options.seeds, options.laps)
    if options.json:
        print(json.dumps([asdict(line) for line in lines]))
        return
    print(f"{'method':16} {'NMI':>13} {'ARI':>13} {'used':>5} {'s a seed':>8}")
    for line in lines:
        print(
            f"{line.method:16} {line.nmi:.3f} ± {line.nmi_deviation:.3f} "
            f"{line.ari:.3f} ± {line.ari_deviation:.3f} {line.used:5.1f} {line.seconds:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
