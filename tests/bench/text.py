"""Spherical ClAM and spherical k-means on text: what is written about functions, by its package.

    python tests/bench/text.py [--seeds 3] [--rows 200] [--dimensions 64] [--json]

Rows are the docstrings of public functions and classes of packages that this one needs anyway, as
tf-idf of their words taken to a few dimensions by a truncated singular value decomposition and to
length 1. The class of a row is where it belongs, such as ``scipy.stats``; names of packages are
taken out of the words. Scores: the cosine silhouette in the space that is clustered, mutual
information and the Rand index with the classes.

``k-means`` is scikit-learn's on rows of length 1, and ``spherical k-means`` this package's Lloyd
on directions, both of 20 starts; ``ClAM`` has ``geometry='spherical', scaling='none'`` and nothing
else set.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import (
    adjusted_rand_score,
    normalized_mutual_info_score,
    silhouette_score,
)
from sklearn.preprocessing import normalize

from clam_dist import ClAM, run
from clam_dist.config import config_from_dict

TOPICS = {
    "numpy": ("numpy",),
    "numpy.linalg": ("numpy.linalg", "scipy.linalg"),
    "scipy.stats": ("scipy.stats",),
    "scipy.special": ("scipy.special",),
    "scipy.signal": ("scipy.signal",),
    "scipy.sparse": ("scipy.sparse", "scipy.sparse.csgraph", "scipy.sparse.linalg"),
    "sklearn": ("sklearn.metrics", "sklearn.linear_model", "sklearn.ensemble"),
    "torch.nn": ("torch.nn", "torch.nn.functional"),
    "pyarrow": ("pyarrow", "pyarrow.compute", "pyarrow.parquet"),
    "dask": ("dask.array", "distributed"),
}
"""Modules by class. A docstring found in two classes belongs to the first."""
SHORTEST = 200
"""Letters of a docstring at the least."""
STARTS = 20
NAMES = re.compile(
    r"\b(numpy|np|scipy|sklearn|scikit|torch|pyarrow|pa|pc|dask|distributed|da)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Corpus:
    """Texts as directions.

    Parameters
    ----------
    x : ndarray (n,d) float32
        Rows of length 1.
    classes : ndarray (n,)
    """

    x: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class Record:
    """One line of the table."""

    method: str
    seed: int
    silhouette: float
    nmi: float
    ari: float
    used: int
    seconds: float


def texts(modules: Sequence[str]) -> Iterator[str]:
    """Docstrings of what modules offer, in the order of names."""
    for module in modules:
        found = importlib.import_module(module)
        for name in sorted(getattr(found, "__all__", dir(found))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of old names
                offered = getattr(found, name, None)
            if name.startswith("_") or inspect.ismodule(offered) or not callable(offered):
                continue
            said = inspect.getdoc(offered) or ""
            if len(said) >= SHORTEST:
                yield said


def corpus(rows: int, dimensions: int, seed: int) -> Corpus:
    """At most so many texts of each class, drawn by seed."""
    taken: dict[str, int] = {}
    for number, modules in enumerate(TOPICS.values()):
        for said in texts(modules):
            taken.setdefault(said, number)
    said, classes = np.array(list(taken)), np.array(list(taken.values()))
    draws = np.random.default_rng(seed)
    order = draws.permutation(len(said))
    kept = np.concatenate([order[classes[order] == one][:rows] for one in range(len(TOPICS))])
    cleaned = [NAMES.sub(" ", text) for text in said[kept]]
    words = TfidfVectorizer(
        sublinear_tf=True,
        min_df=3,
        max_df=0.5,
        stop_words="english",
        token_pattern=r"(?u)\b[a-z]{3,}\b",
    )
    found = words.fit_transform(cleaned)
    short = TruncatedSVD(dimensions, random_state=seed).fit_transform(found)
    x = normalize(short).astype(np.float32)
    return Corpus(x, classes[kept])


def kmeans(x: np.ndarray, k: int, seed: int) -> np.ndarray:
    """scikit-learn's, on rows of length 1."""
    return KMeans(k, n_init=STARTS, random_state=seed).fit(x).labels_


def spherical_kmeans(x: np.ndarray, k: int, seed: int) -> np.ndarray:
    """This package's baseline, as a run has it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        columns = {f"x{column:03d}": x[:, column] for column in range(x.shape[1])}
        pq.write_table(pa.table(columns), place / "rows.parquet")
        run(
            config_from_dict(
                {
                    "source": {"uri": str(place / "rows.parquet")},
                    "prepare": {"scaling": "none"},
                    "model": {"kind": "spherical_kmeans", "n_clusters": k},
                    "train": {"restarts": STARTS},
                    "cluster": {"kind": "serial"},
                    "work": {"uri": str(place / "work")},
                    "output": {"uri": str(place / "out")},
                    "seed": seed,
                }
            )
        )
        labels = pq.read_table(place / "out" / "labels", columns=["cluster"])["cluster"]
        return np.asarray(labels.to_numpy())


def spherical_clam(x: np.ndarray, k: int, seed: int) -> np.ndarray:
    """ClAM of the sphere, untouched."""
    model = ClAM(k, geometry="spherical", scaling="none", random_state=seed, n_jobs=1)
    return np.asarray(model.fit(x).labels_)


METHODS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "k-means": kmeans,
    "spherical k-means": spherical_kmeans,
    "ClAM": spherical_clam,
}


def measure(data: Corpus, seed: int) -> Iterator[Record]:
    """All methods on one draw of texts."""
    k = len(np.unique(data.classes))
    for method, function in METHODS.items():
        began = time.perf_counter()
        labels = function(data.x, k, seed)
        took = time.perf_counter() - began
        yield Record(
            method,
            seed,
            float(silhouette_score(data.x, labels, metric="cosine")),
            float(normalized_mutual_info_score(data.classes, labels)),
            float(adjusted_rand_score(data.classes, labels)),
            len(np.unique(labels)),
            took,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="draws of texts and of starts")
    parser.add_argument("--rows", type=int, default=200, help="texts of a class at most")
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="a list of objects")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records = []
    if not options.json:
        print(f"{'method':18} seed  cosine    NMI    ARI used      s")
    for seed in range(options.seeds):
        data = corpus(options.rows, options.dimensions, seed)
        for record in measure(data, seed):
            records.append(record)
            if not options.json:
                print(
                    f"{record.method:18} {record.seed:4} {record.silhouette:7.4f} "
                    f"{record.nmi:6.3f} {record.ari:6.3f} {record.used:4} {record.seconds:6.1f}",
                    flush=True,
                )
    if options.json:
        print(json.dumps([asdict(record) for record in records]))
        return
    for method in METHODS:
        own = [record for record in records if record.method == method]
        means = [
            np.mean([getattr(one, key) for one in own]) for key in ("silhouette", "nmi", "ari")
        ]
        print(f"{method:18} mean {means[0]:7.4f} {means[1]:6.3f} {means[2]:6.3f}")


if __name__ == "__main__":
    main()
