"""Which numbers of clusters a run tries."""

from __future__ import annotations

from clam_dist.config_values import AUTO

MOST_AUTO_CLUSTERS = 20
"""Greatest number of clusters that ``n_clusters: auto`` tries."""


def cluster_choices(asked: int | tuple[int, ...] | str, sample_rows: int) -> list[int]:
    """Numbers of clusters to try, rising.

    Parameters
    ----------
    asked
        One, several, or ``auto``: every number from 2 to 20, and at most ``sample_rows``.
    """
    if asked == AUTO:
        return list(range(2, max(2, min(MOST_AUTO_CLUSTERS, sample_rows)) + 1))
    if isinstance(asked, int):
        return [asked]
    return sorted({int(k) for k in asked})
