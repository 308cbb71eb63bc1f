"""Laws of the batch plan: each row once an epoch, shares even, the same for any ownership."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.data.batches import BatchPlan, take_turns


def all_bounds(plan: BatchPlan, shards: np.ndarray) -> np.ndarray:
    """(S + 1, s): where each step begins in each shard, one step at a time."""
    return np.array([plan.bounds(step, shards) for step in range(plan.steps + 1)])


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.integers(0, 300), max_size=12),
    lanes=st.integers(1, 5),
    batch_rows=st.integers(1, 2000),
)
def test_each_row_once(rows: list[int], lanes: int, batch_rows: int) -> None:
    plan = BatchPlan(rows, lanes, batch_rows, seed=0)
    assert plan.steps == max(1, -(-sum(rows) // batch_rows))
    shards = np.arange(len(rows))
    bounds = all_bounds(plan, shards)
    assert (bounds[0] == 0).all()
    assert bounds[-1].tolist() == rows
    assert (np.diff(bounds, axis=0) >= 0).all()
    owned = [s for lane in range(lanes) for s in plan.shards_of(lane)]
    assert sorted(owned) == list(range(len(rows)))
    assert all(s % lanes == lane for lane in range(lanes) for s in plan.shards_of(lane))
    for chosen in (shards, plan.shards_of(0)):
        counted = np.diff(all_bounds(plan, chosen), axis=0).sum(axis=1).max(initial=0)
        assert plan.most_rows(chosen) == counted


def test_bounds_by_hand() -> None:
    # 10 + 5 rows in batches of 4: 4 steps. Two lanes: phases floor(4 * 0), floor(4 * 0.5).
    plan = BatchPlan([10, 5], 2, 4, seed=0)
    bounds = all_bounds(plan, np.arange(2))
    # floor(t * 10 / 4) and floor((t * 5 + 2) / 4)
    assert bounds.T.tolist() == [[0, 2, 5, 7, 10], [0, 1, 3, 4, 5]]


def test_batches_are_even() -> None:
    plan = BatchPlan([15_625] * 64, 8, 8192, seed=0)
    sizes = np.diff(all_bounds(plan, np.arange(64)), axis=0)
    assert np.abs(sizes.sum(axis=1) - 1_000_000 / plan.steps).max() < 32
    assert sizes.min() >= 127  # every batch draws from every shard
    lane = sizes[:, plan.shards_of(3)].sum(axis=1)
    assert lane.max() - lane.min() <= 8


@pytest.mark.parametrize("lanes", [1, 8, 13, 16])
def test_batches_are_even_with_fewer_rows_a_shard_than_steps(lanes: int) -> None:
    plan = BatchPlan([7] * 3000, lanes, 100, seed=0)
    assert plan.steps == 210
    sizes = np.diff(all_bounds(plan, np.arange(3000)), axis=0).sum(axis=1)
    assert sizes.min() > 85
    assert sizes.max() < 115


def test_many_shards_give_slices_worth_reading() -> None:
    # 2000 shards and batches of 1024: 4 rows at a time from about 256 shards, not 1 from half
    plan = BatchPlan([500] * 2000, 8, 1024, seed=0)
    sizes = np.diff(all_bounds(plan, np.arange(2000)), axis=0)
    assert set(np.unique(sizes)) <= {0, 4}
    assert np.abs(sizes.sum(axis=1) - 1024).max() < 103
    drawn = (sizes > 0).sum(axis=1)
    assert drawn.min() > 230
    # and those are spread over the source, whose shards may be sorted by class
    spread = (sizes > 0).reshape(plan.steps, 20, 100).sum(axis=2)  # (S, s) -> (S, 20 stretches)
    assert spread.min() >= 5


def test_rotations_are_keyed_and_even() -> None:
    plan = BatchPlan([1000] * 200, 4, 100, seed=5)
    first = plan.rotations(0)
    assert ((first >= 0) & (first < 1000)).all()
    assert 400 < first.mean() < 600
    assert (first != plan.rotations(1)).mean() > 0.9
    assert (first == BatchPlan([1000] * 200, 4, 100, seed=5).rotations(0)).all()
    assert (first != BatchPlan([1000] * 200, 4, 100, seed=6).rotations(0)).mean() > 0.9
    assert BatchPlan([0, 1], 1, 10, seed=0).rotations(0).tolist() == [0, 0]


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BatchPlan([1], 0, 1, seed=0)


shards_of_domains = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4)), max_size=14)


@settings(max_examples=200, deadline=None)
@given(shards=shards_of_domains, lanes=st.integers(1, 5), batch_rows=st.integers(1, 2000))
def test_each_row_once_and_one_domain_a_step(
    shards: list[tuple[int, int]], lanes: int, batch_rows: int
) -> None:
    rows, domains = [n for n, _ in shards], [g for _, g in shards]
    plan = BatchPlan(rows, lanes, batch_rows, seed=0, domains=domains)
    bounds = all_bounds(plan, np.arange(len(rows)))
    assert (bounds[0] == 0).all()
    assert bounds[-1].tolist() == rows
    taken = np.diff(bounds, axis=0)
    assert (taken >= 0).all()
    owned = [s for lane in range(lanes) for s in plan.shards_of(lane)]
    assert sorted(owned) == list(range(len(rows)))
    for chosen in (np.arange(len(rows)), plan.shards_of(0)):
        counted = np.diff(all_bounds(plan, chosen), axis=0).sum(axis=1).max(initial=0)
        assert plan.most_rows(chosen) == counted
    if len(set(domains)) < 2:
        assert plan.domain_of_step is None
        return
    for domain in set(domains):
        of = [n for n, g in shards if g == domain]
        assert (plan.domain_of_step == domain).sum() == -(-sum(of) // batch_rows)
    for step in range(len(plan.domain_of_step)):
        others = np.array(domains) != plan.domain_of_step[step]
        assert taken[step, others].sum() == 0


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.integers(0, 300), max_size=12), lanes=st.integers(1, 5))
def test_one_domain_is_as_none(rows: list[int], lanes: int) -> None:
    one, none = (BatchPlan(rows, lanes, 70, 3, given) for given in ([2] * len(rows), None))
    shards = np.arange(len(rows))
    np.testing.assert_array_equal(all_bounds(one, shards), all_bounds(none, shards))
    for lane in range(lanes):
        np.testing.assert_array_equal(one.shards_of(lane), none.shards_of(lane))
        assert one.shards_of(lane).tolist() == list(range(lane, len(rows), lanes))


def test_shards_of_one_size_are_dealt_in_turn_within_their_domain() -> None:
    plan = BatchPlan([10] * 8, 2, 20, seed=0, domains=[0, 0, 1, 1, 1, 0, 1, 0])
    assert plan.shards_of(0).tolist() == [0, 2, 4, 5]  # first and third of 0, and of 1
    assert plan.shards_of(1).tolist() == [1, 3, 6, 7]


def test_the_largest_shards_are_dealt_first() -> None:
    # domain 1: 9 to lane 0, 5 and 4 to lane 1, then 3 to lane 0 (9 rows each: the lower)
    plan = BatchPlan([1, 3, 5, 9, 4], 2, 100, seed=0, domains=[0, 1, 1, 1, 1])
    assert plan.shards_of(0).tolist() == [0, 1, 3]
    assert plan.shards_of(1).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("steps", "order"),
    [
        ([4], [0, 0, 0, 0]),
        ([0, 2], [1, 1]),
        ([2, 2], [0, 1, 0, 1]),
        # at 0 .25 .5 .75; .618; .236
        ([4, 1, 1], [0, 2, 0, 0, 1, 0]),
        ([], []),
    ],
)
def test_turns_by_hand(steps: list[int], order: list[int]) -> None:
    assert take_turns(steps).tolist() == order


@given(steps=st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_turns_are_in_proportion_all_the_way(steps: list[int]) -> None:
    order = take_turns(steps)
    total = sum(steps)
    for domain, own in enumerate(steps):
        came = np.cumsum(order == domain)
        due = np.arange(1, total + 1) * own / max(total, 1)
        # Every domain is within one step of its share of the time, and so all are of the steps.
        assert np.abs(came - due).max(initial=0) <= 1 + len(steps) * own / max(total, 1)
