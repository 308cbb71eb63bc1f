"""Noise that rows start with, drawn by key, never from a global generator."""

from __future__ import annotations

import numpy as np


def draw_noise(seed: int, key: tuple[int, ...], rows: int, width: int) -> np.ndarray:
    """Standard normal numbers for the corruption of Saha et al., ICML 2023, equation 5.

    They depend on the arguments alone, so that all members of a sweep see the same.

    Parameters
    ----------
    seed : int
        Non-negative seed of the run.
    key : tuple of int
        Non-negative numbers that name the use, such as (phase, epoch, step, lane).
    rows, width
        Shape of the result.

    Returns
    -------
    ndarray (rows, width) float32
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
    return generator.standard_normal((rows, width), dtype=np.float32)
