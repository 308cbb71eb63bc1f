"""Scikit-learn's 1797 real handwritten digits, 8×8 grey levels from 0 to 16, in 10 classes.

Where more rows are asked for, the set is repeated, each copy with its own noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pyarrow as pa

REAL_ROWS = 1797
NOISE = 0.3
"""Standard deviation of a copy's noise, in units of each pixel's own over the real set: a pixel
that is always blank stays blank."""

_COPIES_AT_ONCE = 32


def schema() -> pa.Schema:
    """64 float32 pixels and an int64 ``label``."""
    names = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    pixels = [pa.field(name, pa.float32(), nullable=False) for name in names]
    return pa.schema([*pixels, pa.field("label", pa.int64(), nullable=False)])


def batches(rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield the first ``rows`` rows: the real ones, then noisy copies of them in order."""
    _, label = _real()
    step = _COPIES_AT_ONCE * REAL_ROWS
    for first in range(0, rows, step):
        here = min(step, rows - first)
        copies = range(first // REAL_ROWS, -(-(first + here) // REAL_ROWS))
        x = np.concatenate([draw_copy(seed, copy) for copy in copies])[:here]
        labels = np.tile(label, len(copies))[:here]
        columns = [*(pa.array(pixel) for pixel in x.T.copy()), pa.array(labels)]
        yield pa.record_batch(columns, schema=schema())


def draw_copy(seed: int, copy: int) -> np.ndarray:
    """The set once, float32 of shape (1797, 64): the real one for copy 0, else with noise."""
    real, _ = _real()
    if copy == 0:
        return real
    key = np.random.SeedSequence(seed, spawn_key=(copy,))
    random = np.random.Generator(np.random.Philox(key))
    noise = random.standard_normal(real.shape, dtype=np.float32) * NOISE * real.std(axis=0)
    noisy: np.ndarray = np.clip(real + noise, 0, 16).astype(np.float32)
    return noisy


@cache
def _real() -> tuple[np.ndarray, np.ndarray]:
    # Half a second to import, which `vowels` should not pay.
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.data.astype(np.float32), digits.target.astype(np.int64)
