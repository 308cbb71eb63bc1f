"""The winner and the reasons, on tables made by hand."""

import math

from clam_dist.train.members import Member
from clam_dist.train.selection import (
    Score,
    choose,
    describe,
    is_full,
    keep_best,
    passed_over,
    promising,
    rank_members,
    unfaithful_words,
)


def member(index, k=4):
    return Member(index, k, 10, "masked", 0.15, 1.0, 1.0, 0.03, 0, "kmeans")


def score(silhouette, n_used=4, share=0.2, loss=1.0, full=True, error=0.01):
    return Score(silhouette, error, n_used, share, loss, full)


def test_full_members_come_before_a_better_silhouette_of_fewer_clusters():
    members = [member(0), member(1), member(2)]
    scores = [score(0.10, loss=3.0), score(0.66, 2, 0.0, full=False), score(0.12, loss=2.0)]
    assert rank_members(members, scores) == [2, 0, 1]
    assert rank_members(members, scores, "loss") == [2, 0, 1]
    table = [describe(m, s, "trained") for m, s in zip(members, scores, strict=True)]
    rows = passed_over(table, table[2])
    assert [row["member"] for row in rows] == [1]
    assert "2 of 4 clusters" in rows[0]["why"]


def test_a_tiny_cluster_counts_as_unused_unless_k_means_has_one_as_tiny():
    assert not is_full(4, 4, 0.001, kmeans_share=0.2)
    assert not is_full(4, 3, 0.0, kmeans_share=0.0)
    assert is_full(4, 4, 0.001, kmeans_share=0.001)
    assert is_full(4, 4, 0.0125, kmeans_share=0.2)
    members = [member(0), member(1)]
    scores = [score(0.9, share=0.001, full=False), score(0.1)]
    assert rank_members(members, scores) == [1, 0]
    table = [describe(m, s, "trained") for m, s in zip(members, scores, strict=True)]
    assert "0.100%" in passed_over(table, table[1])[0]["why"]


def test_without_full_members_the_most_clusters_win_and_nan_is_last():
    members = [member(0), member(1), member(2)]
    scores = [
        score(0.9, 1, 0.0, full=False),
        score(0.2, 3, 0.0, full=False),
        score(math.nan, 3, 0.0, full=False),
    ]
    assert rank_members(members, scores) == [1, 2, 0]
    assert choose(members, scores) == 1


def test_ties_go_to_the_earlier_member():
    members = [member(i) for i in range(4)]
    assert rank_members(members, [score(0.5)] * 4) == [0, 1, 2, 3]


def test_the_fewest_clusters_within_one_standard_error_of_the_best_win():
    members = [member(0, 2), member(1, 3), member(2, 3), member(3, 4)]
    scores = [score(0.50), score(0.585), score(0.40), score(0.59)]
    assert choose(members, scores) == 1
    assert choose(members, [*scores[:1], score(0.57), *scores[2:]]) == 3
    assert choose(members, [score(0.50, error=0.0), *scores[1:3], score(0.59, error=0.2)]) == 0
    # An unknown standard error allows nothing.
    assert choose(members, [*scores[:3], score(0.59, error=math.nan)]) == 3


def test_a_number_of_clusters_with_no_full_member_is_not_chosen():
    members = [member(0, 2), member(1, 3)]
    assert choose(members, [score(0.2, 2), score(0.9, 2, 0.0, full=False)]) == 0


def test_the_loss_chooses_within_a_number_of_clusters_and_never_between_them():
    members = [member(0, 2), member(1, 2), member(2, 3)]
    scores = [score(0.60, loss=2.0), score(0.58, loss=1.0), score(0.3, loss=0.1)]
    assert choose(members, scores, "loss") == 1


def test_each_number_of_clusters_keeps_its_own_best():
    members = [member(0, 2), member(1, 2), member(2, 3), member(3, 3)]
    scores = [score(value) for value in (0.5, 0.52, 0.48, 0.49)]
    assert keep_best(members, scores, 1, "silhouette", final=False) == [1, 3]


def test_numbers_of_clusters_far_from_the_best_leave_the_search():
    members = [member(i, 2 + i) for i in range(4)]
    scores = [score(0.5), score(0.46), score(0.42), score(math.nan, full=False)]
    assert keep_best(members, scores, 1, "silhouette", final=False) == [0, 1]
    assert keep_best(members, scores, 1, "silhouette", final=True) == [0]
    wide = [score(0.5, error=0.05), *scores[1:]]
    assert keep_best(members, wide, 1, "silhouette", final=False) == [0, 1, 2]


def test_promising_numbers_of_clusters_by_hand():
    values = {2: (0.5, 0.01), 3: (0.46, 0.0), 4: (0.449, 0.0), 5: (math.nan, math.nan)}
    assert promising(values, (3.0, 0.1)) == [2, 3]  # a tenth is more than three errors
    assert promising(values, (6.0, 0.1)) == [2, 3, 4]
    assert promising({k: (-v, e) for k, (v, e) in values.items()}, (0.0, 0.1)) == [3, 4]
    assert promising({2: (math.nan, math.nan)}, (1.0, 0.1)) == [2]


def unfaithful(silhouette, loss, n_used=4, filled=True, faithful=False):
    share = 0.2 if filled else 0.0
    return Score(silhouette, 0.01, n_used, share, loss, False, faithful, filled)


def test_where_none_is_faithful_the_least_loss_wins_never_the_silhouette():
    members = [member(i) for i in range(4)]
    scores = [
        unfaithful(0.70, 4.05),  # untrained: flattering, and far from the rows
        unfaithful(0.46, 1.30),
        unfaithful(0.50, 1.25),
        unfaithful(0.90, math.nan),
    ]
    assert choose(members, scores) == 2
    assert choose(members, scores, "loss") == 2
    # A loss smaller still counts less than all clusters in use, or than none that is tiny.
    assert choose(members, [*scores[:3], unfaithful(0.9, 1.15, n_used=3, filled=False)]) == 2
    assert choose(members, [*scores[:3], unfaithful(0.9, 1.15, filled=False)]) == 2
    # A faithful one with a tiny cluster says more of the rows than any of these.
    tiny = unfaithful(0.1, 1.0, filled=False, faithful=True)
    assert choose(members, [*scores[:3], tiny]) == 3
    # One that is full is chosen as ever.
    assert choose(members, [*scores[:3], score(0.3, loss=1.05)]) == 3


def test_where_none_is_faithful_the_loss_chooses_between_numbers_of_clusters_too():
    members = [member(0, 2), member(1, 3), member(2, 4)]
    scores = [unfaithful(0.9, 3.0, 2), unfaithful(0.5, 1.4, 3), unfaithful(0.4, 1.2, 4)]
    assert choose(members, scores) == 2
    assert choose(members, [score(0.2, 2), *scores[1:]]) == 0


def test_words_for_an_unfaithful_winner_hold_both_losses_and_the_remedy():
    row = describe(member(0), unfaithful(0.7, 0.0256), "start")
    message = unfaithful_words(row, 0.0064)
    assert "loss is 0.0256, 4 times the 0.0064 of its pretrained network" in message
    assert "within 1.1 times" in message
    assert "train.epochs" in message
    assert "model.pretrain_epochs" in message
