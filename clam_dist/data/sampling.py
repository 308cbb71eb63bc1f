"""Keyed randomness over rows: which rows a sample holds does not depend on who read them, or how.

Every row of a source has a 64-bit hash of its file's name and its place in that file. A sample of
``m`` rows is the ``m`` rows of smallest hash, so it is the same for any cut of the source into
tasks, and a sample of fewer rows is a part of a sample of more (bottom-k sampling).
"""

from __future__ import annotations

import math

import numpy as np
import xxhash

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TOP = 2**64 - 1


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator of its own for each ``(seed, purpose, key)``; nothing else moves it.

    Parameters
    ----------
    seed : int
        The run's seed, at least 0.
    purpose : str
        What the numbers are for; keeps two uses of the same key apart.
    *key : int
        Which draw of that purpose, such as the epoch or the shard; each at least 0.
    """
    spawn_key = (xxhash.xxh32_intdigest(purpose.encode()), *key)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=spawn_key)))


def row_hash(seed: int, purpose: str, file_name: str, first_row: int, n: int) -> np.ndarray:
    """Hash ``n`` consecutive rows of one file.

    The file's name, the purpose and the seed give a 64-bit starting point (XXH3); the rows are
    the outputs of SplitMix64 (Steele, Lea and Flood 2014) from there, so each row's hash is one
    function of its place, computed for all rows at once.

    Parameters
    ----------
    seed : int
        The run's seed.
    purpose : str
        What the sample is for; samples of different purposes are independent.
    file_name : str
        The file's name relative to the source's base.
    first_row : int
        Place of the first row, counted from the start of the file.
    n : int
        Rows to hash.

    Returns
    -------
    ndarray of uint64, shape (n,)
    """
    text = f"{purpose}\0{file_name}".encode()
    start = np.uint64(xxhash.xxh3_64_intdigest(text, seed=seed & _TOP))
    z = np.arange(first_row + 1, first_row + n + 1, dtype=np.uint64)
    z *= _GOLDEN  # unsigned products and sums wrap, as SplitMix64 means them to
    z += start
    z ^= z >> np.uint64(30)
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    z ^= z >> np.uint64(31)
    return z


def threshold(m: int, n: int) -> np.uint64:
    """The greatest hash of a row that may be among the ``m`` smallest of ``n``.

    Rows with ``hash <= threshold(m, n)`` are candidates. Their expected number is
    ``m + 6 sqrt(m) + 16``, six standard deviations above ``m``: fewer than ``m`` are found less
    than once in a hundred million draws, and then the sample is only a little smaller.

    Parameters
    ----------
    m : int
        Rows wanted, at least 1.
    n : int
        Rows of the whole source.
    """
    if m >= n:
        return np.uint64(_TOP)
    share = (m + 6.0 * math.sqrt(m) + 16.0) / n
    return np.uint64(_TOP) if share >= 1.0 else np.uint64(math.floor(share * 2.0**64))


def smallest(hashes: np.ndarray, rows: np.ndarray, m: int) -> np.ndarray:
    """Where the ``m`` rows of smallest hash are, in order of hash, ties in order of row.

    Parameters
    ----------
    hashes : ndarray of uint64, shape (c,)
    rows : ndarray of int64, shape (c,)
        Global rows.
    m : int
        Rows wanted; all are returned if there are fewer.

    Returns
    -------
    ndarray of int64, shape (min(m, c),)
        Positions in ``hashes``.
    """
    if m <= 0:
        return np.empty(0, np.int64)
    if len(hashes) > 2 * m:  # sort only what can be chosen; ties of the m-th smallest stay in
        kept = np.flatnonzero(hashes <= np.partition(hashes, m - 1)[m - 1])
    else:
        kept = np.arange(len(hashes))
    return kept[np.lexsort((rows[kept], hashes[kept]))[:m]]
