"""Which features are hidden from which rows: drawn by key, never from a global generator."""

from __future__ import annotations

import numpy as np


def hidden_count(width: int, rate: float) -> int:
    """Features hidden at a time: exactly ``max(1, round(rate · width))``, never more than all."""
    return min(width, max(1, round(rate * width)))


def draw_masks(seed: int, key: tuple[int, ...], groups: int, width: int, rate: float) -> np.ndarray:
    """Hidden columns of each group of rows, without replacement, every feature eligible.

    Each group and feature has one uniform number that depends on ``seed`` and ``key`` alone; the
    features with the smallest numbers are hidden. A larger rate under the same key therefore hides
    a superset, which makes the members of a sweep over rates comparable.

    Parameters
    ----------
    seed : int
        Non-negative seed of the run.
    key : tuple of int
        Non-negative numbers that name the use, such as (epoch, step, lane).
    groups, width
        Number of groups of rows, and of features.
    rate : float
        Share of the features to hide, see :func:`hidden_count`.

    Returns
    -------
    ndarray (groups, h) int64
        Column numbers, increasing along each row.
    """
    count = hidden_count(width, rate)
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
    uniform = generator.random((groups, width))
    if count == width:
        return np.tile(np.arange(width, dtype=np.int64), (groups, 1))
    smallest = np.argpartition(uniform, count - 1, axis=1)[:, :count]
    return np.sort(smallest, axis=1).astype(np.int64, copy=False)
