"""Which member wins, and why others were passed over: pure functions of the members' scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clam_dist.train.members import Member

SMALL_SHARE = 0.05
"""A cluster below this share of an even one (``SMALL_SHARE / k`` of the weight) counts as unused
for the guard: a member that splits off a few outliers scores well and says nothing."""


@dataclass(frozen=True)
class Score:
    """What is known of one member's labels of the sample.

    Parameters
    ----------
    silhouette
        Sampled Euclidean silhouette, nan where only one cluster is in use.
    n_used
        Clusters that at least one row chose.
    smallest_share
        Share of the weight in the smallest of all ``k`` clusters, 0 to 1.
    loss
        Validation loss a hidden (or observed) entry, in scaled units squared.
    """

    silhouette: float
    n_used: int
    smallest_share: float
    loss: float

    def to_json(self) -> dict[str, Any]:
        """The score as a JSON object."""
        return asdict(self)


def full(member: Member, score: Score) -> bool:
    """Whether all k clusters are in use and none is below the small share."""
    in_use = score.n_used == member.n_clusters
    return in_use and score.smallest_share >= SMALL_SHARE / member.n_clusters


def rank_members(
    members: Sequence[Member], scores: Sequence[Score], select: str = "silhouette"
) -> list[int]:
    """Positions of the members from best to worst.

    Full members come first (all clusters in use, none tiny), then those with the most clusters
    in use as a share of k; among equals the greater silhouette, or the smaller validation loss.
    Ties go to the earlier member, so that the order never depends on anything else.
    """

    def key(position: int) -> tuple[float, ...]:
        member, score = members[position], scores[position]
        value = -score.loss if select == "loss" else score.silhouette
        value = float("-inf") if value != value else value
        share_used = score.n_used / member.n_clusters
        return (-float(full(member, score)), -share_used, -value, position)

    return sorted(range(len(members)), key=key)


def keep_best(
    members: Sequence[Member], scores: Sequence[Score], keep: int, select: str
) -> list[int]:
    """Positions, in their old order, of the ``keep`` best members of each number of clusters."""
    kept: list[int] = []
    ranked = rank_members(members, scores, select)
    for k in sorted({member.n_clusters for member in members}):
        kept += [position for position in ranked if members[position].n_clusters == k][:keep]
    return sorted(kept)


def describe(member: Member, score: Score, state: str) -> dict[str, Any]:
    """One row of the candidates' table: settings, scores, what became of it."""
    return {
        **member.to_json(),
        **score.to_json(),
        "state": state,
        "full": full(member, score),
    }


def passed_over(table: Sequence[dict[str, Any]], winner: dict[str, Any]) -> list[dict[str, Any]]:
    """Candidates with a greater silhouette than the winner's that the guard rejected, and why.

    Parameters
    ----------
    table
        Rows as :func:`describe` gives them.
    winner
        The chosen one of them.
    """
    rows = []
    for row in table:
        if row["full"] or not row["silhouette"] > winner["silhouette"]:
            continue
        if row["n_used"] < row["n_clusters"]:
            why = f"uses {row['n_used']} of {row['n_clusters']} clusters"
        else:
            why = f"its smallest cluster holds {row['smallest_share']:.3%} of the rows"
        rows.append({"member": row["index"], "silhouette": row["silhouette"], "why": why})
    return rows
