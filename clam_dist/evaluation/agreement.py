"""How far two partitions agree, from their contingency table.

Letters: ``c`` true classes, ``k`` clusters.
"""

from __future__ import annotations

import numpy as np


def nmi(contingency: np.ndarray) -> float:
    """Normalised mutual information of two partitions, by the mean of their entropies.

    Equal to scikit-learn's ``normalized_mutual_info_score``.

    Parameters
    ----------
    contingency : ndarray of int, shape (c, k)
        Rows of each true label in each cluster.

    Returns
    -------
    float
        0 to 1; 1 where both partitions are a single part or there are no rows.
    """
    table = np.asarray(contingency, np.float64)
    n = table.sum()
    if n == 0:
        return 1.0
    rows, columns = table.sum(axis=1) / n, table.sum(axis=0) / n
    h_rows, h_columns = _entropy(rows), _entropy(columns)
    if h_rows + h_columns == 0:
        return 1.0
    if h_rows == 0 or h_columns == 0:
        return 0.0
    joint = table / n
    expected = np.outer(rows, columns)
    seen = joint > 0
    information = float(np.sum(joint[seen] * np.log(joint[seen] / expected[seen])))
    return min(max(2.0 * information / (h_rows + h_columns), 0.0), 1.0)


def _entropy(shares: np.ndarray) -> float:
    seen = shares[shares > 0]
    return float(max(-np.sum(seen * np.log(seen)), 0.0))


def ari(contingency: np.ndarray) -> float:
    """Adjusted Rand index (Hubert and Arabie 1985), as scikit-learn's ``adjusted_rand_score``.

    Parameters
    ----------
    contingency : ndarray of int, shape (c, k)
        Rows of each true label in each cluster.

    Returns
    -------
    float
        1 for equal partitions, about 0 for independent ones.
    """
    # Whole numbers of Python do not overflow: pairs of 10^10 rows pass 2^63.
    table = [[int(value) for value in row] for row in np.asarray(contingency)]
    n = sum(map(sum, table))
    both = sum(value * (value - 1) // 2 for row in table for value in row)
    rows = sum(total * (total - 1) // 2 for total in map(sum, table))
    columns = sum(total * (total - 1) // 2 for total in map(sum, zip(*table)))
    pairs = n * (n - 1) // 2
    if pairs == 0 or rows == columns == both:
        return 1.0
    expected = rows * columns / pairs
    return (both - expected) / ((rows + columns) / 2 - expected)
