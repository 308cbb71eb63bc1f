"""Rows that look like Japanese Vowels: 14 features of 9 speakers, as many as asked for.

The ClAM paper clusters a million-row version of this set. Each class is a Gaussian with a full
covariance, fitted once to the 9961 real frames (`vowels.json`, which names the origin) and sampled
here in the classes' real proportions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import pyarrow as pa

BLOCK_ROWS = 65536
"""Rows drawn from one key. A row depends on the seed and its block alone, so that a smaller set is
the beginning of a larger one, however either is cut up."""


@dataclass(frozen=True)
class ClassTable:
    """The class-conditional model.

    Attributes
    ----------
    features : tuple of str
        Names of the d = 14 features.
    labels : ndarray of int64, shape (k,)
    weights : ndarray of float64, shape (k,)
        Share of each class; they sum to 1.
    means : ndarray of float64, shape (k, d)
    covariances : ndarray of float64, shape (k, d, d)
    """

    features: tuple[str, ...]
    labels: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray


@cache
def class_table() -> ClassTable:
    """The table in the package."""
    table = json.loads(resources.files(__package__).joinpath("vowels.json").read_text("utf-8"))
    width = len(table["features"])
    lower = np.zeros((len(table["classes"]), width, width))
    lower[:, *np.tril_indices(width)] = [one["covariance"] for one in table["classes"]]
    return ClassTable(
        features=tuple(table["features"]),
        labels=np.array([one["label"] for one in table["classes"]]),
        weights=np.array([one["rows"] / table["rows"] for one in table["classes"]]),
        means=np.array([one["mean"] for one in table["classes"]]),
        covariances=lower + np.tril(lower, -1).transpose(0, 2, 1),
    )


def schema() -> pa.Schema:
    """14 float32 features and an int64 ``label``, as in the real set."""
    features = [pa.field(name, pa.float32(), nullable=False) for name in class_table().features]
    return pa.schema([*features, pa.field("label", pa.int64(), nullable=False)])


def batches(rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield the first ``rows`` rows of the set of ``seed``, at most `BLOCK_ROWS` at a time."""
    for block in range(-(-rows // BLOCK_ROWS)):
        x, label = draw_block(seed, block)
        here = min(BLOCK_ROWS, rows - block * BLOCK_ROWS)
        columns = [*(pa.array(column[:here]) for column in x), pa.array(label[:here])]
        yield pa.record_batch(columns, schema=schema())


def draw_block(seed: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw one whole block.

    Returns
    -------
    x : ndarray of float32, shape (d, BLOCK_ROWS)
        One row a feature, as Parquet wants it.
    label : ndarray of int64, shape (BLOCK_ROWS,)
    """
    table = class_table()
    key = np.random.SeedSequence(seed, spawn_key=(block,))
    random = np.random.Generator(np.random.Philox(key))
    of_class = np.searchsorted(np.cumsum(table.weights), random.random(BLOCK_ROWS), side="right")
    # The weights may sum to a hair below 1.
    of_class = np.minimum(of_class, len(table.weights) - 1)
    # (d, n) standard normals, then for each class its columns times the Cholesky factor.
    x = random.standard_normal((len(table.features), BLOCK_ROWS), dtype=np.float32)
    for index, (mean, covariance) in enumerate(zip(table.means, table.covariances, strict=True)):
        columns = np.flatnonzero(of_class == index)
        factor = np.linalg.cholesky(covariance)
        x[:, columns] = factor @ x[:, columns] + mean[:, None]
    return x, table.labels[of_class]
