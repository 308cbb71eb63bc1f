"""What a rank is given to train: one frozen value, and the segments it is cut into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from clam_dist.data.reader import ShardFile
from clam_dist.models.base import Metric
from clam_dist.train.members import Member
from clam_dist.train.schedule import (
    FINALISTS,
    auto_batch_rows,
    auto_epochs,
    lanes_of,
    power_of_two,
)

SEARCH_STEPS = 640
"""Steps of the whole search on the sample: enough for Adam to settle (measured on ten sets)."""
RUNG_SHARES = (0.1, 0.1, 0.2, 0.6)
"""Of the search's passes, between the times that it drops the worse half: early rungs hold many
members and tell the hopeless apart soon, late ones train the few."""


class Scorer(Protocol):
    """Sampled silhouettes of several labelings of the same rows."""

    def __call__(
        self,
        x: np.ndarray,
        labelings: np.ndarray,
        clusters: Sequence[int],
        weight: np.ndarray | None,
        seed: int,
        queries: int,
        *,
        metric: Metric,
    ) -> list[tuple[float, float]]:
        """``x (S, m)``, labelings ``(M, S)`` to ``M`` silhouettes with their standard errors."""
        ...


SEARCH_QUERIES, FINAL_QUERIES = 2048, 8192
"""Rows scored while there are many members, and to choose the winner."""
SCORED_ROWS = 65_536
"""Queries times members on the way, between those two. With 2048 to the end the choice among near
equals follows the draw (seen: .0009 and .0046 below k-means)."""


MANY_MEMBERS = 256
"""More than these, of many numbers of clusters, are ranked on half the rows."""


def rung_queries(members: int) -> int:
    """Rows to score where so many members are ranked: the fewer they are, the more."""
    if members > MANY_MEMBERS:
        return SEARCH_QUERIES // 2
    return min(max(SCORED_ROWS // members, SEARCH_QUERIES), FINAL_QUERIES)


@dataclass(frozen=True)
class Baseline:
    """k-means on the sample, the run of least inertia: what members are measured against.

    Parameters
    ----------
    inertia
        Weighted mean squared distance of a row to its centroid, in scaled units squared.
    silhouette, standard_error
        Of its labels, as members are scored.
    smallest_share
        Share of the weight in its smallest cluster.
    """

    inertia: float
    silhouette: float
    standard_error: float
    smallest_share: float


@dataclass(frozen=True)
class Segment:
    """A run of epochs over one set of rows, after which the worse members are dropped.

    Parameters
    ----------
    phase
        ``pretrain`` (networks alone, on all rows), ``search`` (rows of the sample) or ``train``
        (all rows).
    epochs, first_epoch
        Passes, and the number of the first within its phase (keys the randomness).
    keep
        Members of each number of clusters that go on.
    """

    phase: str
    epochs: int
    first_epoch: int
    keep: int


@dataclass(frozen=True)
class TrainPlan:
    """All that a rank needs to know; paths, numbers and module-level functions only.

    Parameters
    ----------
    shards_folder, shards
        Where the rows lie, and the files.
    folder
        Where checkpoints and the result go.
    sample_rows, width, weighted, has_missing
        Rows of the sample, features, whether rows have weights, whether cells are missing.
    batch_rows, search_batch_rows
        Rows of a global batch of each phase.
    members, segments
        The sweep and its course.
    model_settings, build_model
        JSON of the model's settings, and the factory ``(settings, member) -> Model``.
    score
        Sampled silhouettes of several labelings of the sample.
    starts
        File of starting parameters for each number of clusters: ``(restarts, k, d)`` float32.
    baselines
        k-means, for each number of clusters.
    fixed_beta
        Whether the members' betas were asked for, rather than their scales.
    """

    shards_folder: str
    shards: tuple[ShardFile, ...]
    folder: str
    sample_rows: int
    width: int
    weighted: bool
    has_missing: bool
    seed: int
    batch_rows: int
    search_batch_rows: int
    members: tuple[Member, ...]
    segments: tuple[Segment, ...]
    model_settings: dict[str, Any]
    build_model: Callable[[dict[str, Any], dict[str, Any]], Any]
    score: Scorer
    select: str
    starts: dict[int, str]
    baselines: dict[int, Baseline]
    device: str
    digest: str
    fixed_beta: bool = True
    buffer_bytes: int = 64 << 20

    @property
    def n_rows(self) -> int:
        """Rows to train on."""
        return sum(file.rows for file in self.shards)

    def lanes(self, phase: str) -> int:
        """Micro-batches of a global batch of the phase."""
        return lanes_of(self.search_batch_rows if phase == "search" else self.batch_rows)


def search_batch_rows(sample_rows: int) -> int:
    """Rows of a batch in the search: about 1/32 of the sample, between 8 and 256."""
    return min(max(power_of_two(sample_rows / 32), 8), 256)


def plan_segments(
    members: Sequence[Member],
    *,
    n_rows: int,
    sample_rows: int,
    batch_rows: int,
    epochs: int | None,
    pretrain_epochs: int | None = None,
    steps: int | None = None,
) -> tuple[Segment, ...]:
    """The course of the sweep: halvings on the sample where there are many, then all rows.

    Parameters
    ----------
    members
        The sweep.
    n_rows, sample_rows
        Rows in all and in the sample.
    batch_rows
        Rows of a global batch in training.
    epochs
        Passes over all rows at the most, None for the automatic number.
    pretrain_epochs
        Passes that train the members' networks alone, first of all; None where they have none.
    steps
        At the most in training on all rows, where ``epochs`` is None; None for what a search
        leaves to do.
    """
    by_clusters: dict[int, int] = {}
    for member in members:
        by_clusters[member.n_clusters] = by_clusters.get(member.n_clusters, 0) + 1
    most = max(by_clusters.values())
    segments: list[Segment] = []
    if pretrain_epochs is not None:
        segments.append(Segment("pretrain", pretrain_epochs, 0, most))
    first = 0
    if most > FINALISTS or len(by_clusters) > 1:
        per_pass = max(1, -(-sample_rows // search_batch_rows(sample_rows)))
        passes = max(2 * len(RUNG_SHARES), -(-SEARCH_STEPS // per_pass))
        keep = most
        for rung, share in enumerate(RUNG_SHARES):
            last = rung == len(RUNG_SHARES) - 1
            keep = FINALISTS if last else max(FINALISTS, keep // 2)
            length = passes - first if last else max(1, round(share * passes))
            segments.append(Segment("search", length, first, keep))
            first += length
    searched = first > 0
    cap = (
        epochs
        if epochs is not None
        else auto_epochs(n_rows, batch_rows, searched=searched, steps=steps)
    )
    segments.append(Segment("train", cap, 0, 1))
    return tuple(segments)


def resolve_batch_rows(requested: int | None, n_rows: int, least: int = 1) -> int:
    """The batch asked for, or the automatic one of at least so many; no larger than the rows."""
    return min(requested or max(auto_batch_rows(n_rows), least), n_rows)
