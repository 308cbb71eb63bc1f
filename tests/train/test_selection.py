"""The winner and the reasons, on tables made by hand."""

import math

from clam_dist.train.members import Member
from clam_dist.train.selection import Score, describe, full, keep_best, passed_over, rank_members


def member(index, k=4):
    return Member(index, k, 10, "masked", 0.15, 1.0, 1.0, 0.03, 0, "kmeans")


def test_full_members_come_before_a_better_silhouette_of_fewer_clusters():
    members = [member(0), member(1), member(2)]
    scores = [Score(0.10, 4, 0.2, 3.0), Score(0.66, 2, 0.0, 1.0), Score(0.12, 4, 0.1, 2.0)]
    assert rank_members(members, scores) == [2, 0, 1]
    assert rank_members(members, scores, "loss") == [2, 0, 1]
    table = [describe(m, s, "trained") for m, s in zip(members, scores, strict=True)]
    rows = passed_over(table, table[2])
    assert [row["member"] for row in rows] == [1]
    assert "2 of 4 clusters" in rows[0]["why"]


def test_a_tiny_cluster_counts_as_unused():
    members = [member(0), member(1)]
    scores = [Score(0.9, 4, 0.001, 1.0), Score(0.1, 4, 0.2, 1.0)]
    assert not full(members[0], scores[0])
    assert rank_members(members, scores) == [1, 0]
    table = [describe(m, s, "trained") for m, s in zip(members, scores, strict=True)]
    assert "0.100%" in passed_over(table, table[1])[0]["why"]


def test_without_full_members_the_most_clusters_win_and_nan_is_last():
    members = [member(0), member(1), member(2)]
    scores = [Score(0.9, 1, 0.0, 1.0), Score(0.2, 3, 0.0, 1.0), Score(math.nan, 3, 0.0, 1.0)]
    assert rank_members(members, scores) == [1, 2, 0]


def test_ties_go_to_the_earlier_member():
    members = [member(i) for i in range(4)]
    assert rank_members(members, [Score(0.5, 4, 0.2, 1.0)] * 4) == [0, 1, 2, 3]


def test_each_number_of_clusters_keeps_its_own_best():
    members = [member(0, 2), member(1, 2), member(2, 3), member(3, 3)]
    values = (0.5, 0.6, 0.1, 0.2)
    scores = [Score(v, m.n_clusters, 0.3, 1.0) for v, m in zip(values, members, strict=True)]
    assert keep_best(members, scores, 1, "silhouette") == [1, 3]
