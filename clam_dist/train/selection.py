"""Which member wins, and why others were passed over: pure functions of the members' scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clam_dist.train.members import Member

SMALL_SHARE = 0.05
"""A cluster below this share of an even one (``SMALL_SHARE / k`` of the weight) counts as unused
for the guard, unless k-means' own least cluster is as small: a member that splits off a few
outliers scores well and says nothing."""

FAITHFUL = 1.1
"""Greatest loss of a faithful member, as a multiple of its pretrained network's (the rule that
DClAM's authors choose by: reconstruction within a tenth of the pretrained one)."""

START_MARGIN, SEARCH_MARGIN, FINAL_MARGIN = (4.0, 0.3), (3.0, 0.15), (2.0, 0.05)
"""A number of clusters stays in the search while its best member is within so many standard
errors, or this share, of the best of all: of k-means before there are members, on the way, and
where members go on to train on all rows."""


@dataclass(frozen=True)
class Score:
    """What is known of one member's labels of the sample.

    Parameters
    ----------
    silhouette
        Sampled Euclidean silhouette, nan where only one cluster is in use.
    standard_error
        Of ``silhouette``, the rows being a sample of what they stand for.
    n_used
        Clusters that at least one row chose.
    smallest_share
        Share of the weight in the smallest of all ``k`` clusters, 0 to 1.
    loss
        Validation loss a hidden (or observed) entry, in scaled units squared.
    full
        All clusters in use and none tiny, see :func:`is_full`, and faithful.
    faithful
        False for a network that reconstructs rows much worse than it did when pretrained: latents
        that forget the rows are easily clustered, and say nothing of them.
    filled
        All clusters in use and none tiny, whether faithful or not.
    """

    silhouette: float
    standard_error: float
    n_used: int
    smallest_share: float
    loss: float
    full: bool
    faithful: bool = True
    filled: bool = True

    def to_json(self) -> dict[str, Any]:
        """The score as a JSON object."""
        return asdict(self)


def is_full(n_clusters: int, n_used: int, smallest_share: float, kmeans_share: float) -> bool:
    """Whether all clusters are in use and none is tiny.

    Parameters
    ----------
    n_clusters, n_used, smallest_share
        Of the member.
    kmeans_share
        Share of the weight in the smallest cluster of k-means on the same rows. Where the data
        themselves have so small a group, it is no sign of a degenerate member (Segment: k-means'
        seven clusters hold down to .1 % of the rows).
    """
    least = min(SMALL_SHARE / n_clusters, kmeans_share)
    return n_used == n_clusters and smallest_share >= least


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
        return (-float(score.full), -share_used, -value, position)

    return sorted(range(len(members)), key=key)


def best_of_each(
    members: Sequence[Member], scores: Sequence[Score], select: str = "silhouette"
) -> dict[int, int]:
    """Position of the best member of each number of clusters, by that number, rising."""
    best: dict[int, int] = {}
    for position in rank_members(members, scores, select):
        best.setdefault(members[position].n_clusters, position)
    return dict(sorted(best.items()))


def choose(members: Sequence[Member], scores: Sequence[Score], select: str = "silhouette") -> int:
    """Position of the winner.

    Of one number of clusters, the first that :func:`rank_members` gives. Of several, the fewest
    clusters whose best member's silhouette is within one standard error of the greatest (the
    one-standard-error rule of Breiman et al. 1984): loss falls with every further cluster, so it
    never chooses between them. Full members go before others. Where there is none and some are
    unfaithful, see :func:`most_faithful`.
    """
    full = any(score.full for score in scores)
    if not full and not all(score.faithful for score in scores):
        return most_faithful(members, scores, select)
    best = best_of_each(members, scores, select)
    if any(scores[position].full for position in best.values()):
        best = {k: position for k, position in best.items() if scores[position].full}
    values = {k: _silhouette(scores[position]) for k, position in best.items()}
    top = max(best, key=lambda k: (values[k], -k))
    enough = values[top] - scores[best[top]].standard_error
    # A standard error that is not known (nan) leaves the greatest itself.
    return best[min((k for k in best if values[k] >= enough), default=top)]


def most_faithful(
    members: Sequence[Member], scores: Sequence[Score], select: str = "silhouette"
) -> int:
    """Position of the winner where none is full, as some forget what the rows are.

    Most clusters in use as a share of k first, then faithful members, then those with no tiny
    cluster. Unfaithful ones are never compared by silhouette, which grows as rows are forgotten:
    the least loss wins.
    """

    def key(position: int) -> tuple[float, ...]:
        member, score = members[position], scores[position]
        by_loss = select == "loss" or not score.faithful
        cost = score.loss if by_loss else -score.silhouette
        cost = float("inf") if cost != cost else cost
        share_used = score.n_used / member.n_clusters
        return (-share_used, not score.faithful, not score.filled, cost, position)

    return min(range(len(members)), key=key)


def unfaithful_words(winner: Mapping[str, Any], pretrained_loss: float) -> str:
    """What to say of a winner that is not faithful, with both losses and the remedy.

    Parameters
    ----------
    winner
        Its row as :func:`describe` gives it.
    pretrained_loss
        Of the network that it began from.
    """
    loss, times = winner["loss"], winner["loss"] / max(pretrained_loss, 1e-300)
    return (
        f"the chosen candidate's loss is {loss:.3g}, {times:.3g} times the {pretrained_loss:.3g} "
        "of its pretrained network, and no candidate that uses all clusters came within "
        f"{FAITHFUL:g} times: its clusters may say little of the rows, its silhouette flatters; "
        "train longer by a greater train.epochs (and model.pretrain_epochs), or give a smaller "
        "model.beta"
    )


def _silhouette(score: Score) -> float:
    return score.silhouette if score.silhouette == score.silhouette else -2.0


def keep_best(
    members: Sequence[Member], scores: Sequence[Score], keep: int, select: str, *, final: bool
) -> list[int]:
    """Positions, in their old order, of the members that go on.

    Parameters
    ----------
    keep
        Members of each number of clusters.
    final
        They go on to train on all rows: a number of clusters must be nearer to the best.
    """
    best = best_of_each(members, scores)
    values = {k: (scores[p].silhouette, scores[p].standard_error) for k, p in best.items()}
    near = promising(values, FINAL_MARGIN if final else SEARCH_MARGIN)
    kept: list[int] = []
    ranked = rank_members(members, scores, select)
    for k in near:
        kept += [place for place in ranked if members[place].n_clusters == k][:keep]
    return sorted(kept)


def promising(values: Mapping[int, tuple[float, float]], margin: tuple[float, float]) -> list[int]:
    """Numbers of clusters whose silhouette is near the greatest, rising.

    Parameters
    ----------
    values
        For each number of clusters the silhouette and its standard error; nan is far from any.
    margin
        Standard errors of the greatest, and share of it, whichever is more.
    """
    known = {k: value for k, (value, _) in values.items() if value == value}
    if not known:
        return sorted(values)
    top = max(known, key=lambda k: (known[k], -k))
    error = values[top][1] if values[top][1] == values[top][1] else 0.0
    enough = known[top] - max(margin[0] * error, margin[1] * abs(known[top]))
    return sorted(k for k in known if known[k] >= enough)


def describe(member: Member, score: Score, state: str) -> dict[str, Any]:
    """One row of the candidates' table: settings, scores, what became of it."""
    return {**member.to_json(), **score.to_json(), "state": state}


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
        if not row["faithful"]:
            why = f"its loss is more than {FAITHFUL:g} times that of its pretrained network"
        elif row["n_used"] < row["n_clusters"]:
            why = f"uses {row['n_used']} of {row['n_clusters']} clusters"
        else:
            why = f"its smallest cluster holds {row['smallest_share']:.3%} of the rows"
        rows.append({"member": row["index"], "silhouette": row["silhouette"], "why": why})
    return rows
