"""Automatic sizes and the plateau rule, by hand and by property."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.train.schedule import (
    Plateau,
    auto_batch_rows,
    auto_epochs,
    lanes_of,
    power_of_two,
)


@given(st.integers(1, 10**12))
def test_batches_are_powers_of_two_within_bounds(n_rows):
    rows = auto_batch_rows(n_rows)
    assert 16 <= rows <= 65_536
    assert rows & (rows - 1) == 0
    assert rows <= max(16, n_rows)
    lanes = lanes_of(rows)
    assert lanes & (lanes - 1) == 0
    assert 1 <= lanes <= 64


def test_sizes_by_hand():
    assert [power_of_two(v) for v in (0.2, 1, 2, 3, 1023, 1024)] == [1, 1, 2, 2, 512, 1024]
    assert auto_batch_rows(1_000_000) == 8192
    assert lanes_of(8192) == 4
    assert lanes_of(256) == 1
    assert auto_epochs(1_000_000, 8192, searched=True) == 2
    assert auto_epochs(10**9, 65_536, searched=True) == 2


def test_plateau_lowers_each_rate_on_its_own_and_stops_at_the_floor():
    plateau = Plateau(np.array([1.0, 1.0]), patience=2, factor=0.5, threshold=1e-3, floor=0.3)
    assert plateau.observe(np.array([10.0, 10.0])).tolist() == [True, True]
    # 9.995 is better by less than the threshold: kept as best, but it does not reset the wait.
    assert plateau.observe(np.array([9.0, 9.995])).tolist() == [True, True]
    assert plateau.rates.tolist() == [1.0, 1.0]
    assert plateau.observe(np.array([8.0, 9.999])).tolist() == [True, False]
    assert plateau.rates.tolist() == [1.0, 0.5]
    plateau.observe(np.array([7.0, 9.999]))
    plateau.observe(np.array([6.0, 9.999]))
    assert plateau.rates.tolist() == [1.0, 0.25]
    assert plateau.stopped.tolist() == [False, True]


def test_plateau_survives_a_checkpoint_bit_for_bit():
    plateau = Plateau(np.array([0.1, 0.03]))
    losses = np.random.default_rng(0).random((9, 2))
    for loss in losses[:4]:
        plateau.observe(loss)
    other = Plateau(np.array([1.0, 1.0]))
    other.restore(json.loads(json.dumps(plateau.state())))
    for loss in losses[4:]:
        assert plateau.observe(loss).tolist() == other.observe(loss).tolist()
    assert plateau.rates.tolist() == other.rates.tolist()


def test_an_infinite_loss_is_never_an_improvement():
    plateau = Plateau(np.array([1.0]))
    assert plateau.observe(np.array([np.inf])).tolist() == [False]
