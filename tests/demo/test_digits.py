"""The digits set: the real rows first, then noisy copies that keep its character."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from clam_dist.demo import digits

REAL = load_digits()


def table_of(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    batches = list(digits.batches(rows, seed))
    assert all(batch.schema == digits.schema() for batch in batches)
    x = [np.column_stack([b[name].to_numpy() for name in b.schema.names[:-1]]) for b in batches]
    return np.concatenate(x), np.concatenate([b["label"].to_numpy() for b in batches])


def test_the_first_rows_are_the_real_ones():
    x, label = table_of(digits.REAL_ROWS)
    assert np.array_equal(x, REAL.data)
    assert np.array_equal(label, REAL.target)


def test_column_names_are_scikit_learns():
    assert digits.schema().names == [*REAL.feature_names, "label"]


def test_copies_are_noisy_keep_their_label_and_stay_grey_levels():
    x, label = table_of(3 * digits.REAL_ROWS)
    copies = x.reshape(3, digits.REAL_ROWS, 64)
    assert np.array_equal(label, np.tile(REAL.target, 3))
    assert x.min() >= 0
    assert x.max() <= 16
    assert not np.array_equal(copies[1], copies[2])
    off = np.sqrt(np.mean((copies[1] - copies[0]) ** 2, axis=0))
    assert (off <= digits.NOISE * REAL.data.std(axis=0) * 1.1).all()
    blank = REAL.data.std(axis=0) == 0
    assert (x[:, blank] == 0).all()


def test_fewer_rows_are_the_first_of_more():
    many = 33 * digits.REAL_ROWS + 5
    long, long_label = table_of(many)
    assert len(long) == many
    for rows in (1, digits.REAL_ROWS + 1, 32 * digits.REAL_ROWS + 2):
        short, short_label = table_of(rows)
        assert np.array_equal(short, long[:rows])
        assert np.array_equal(short_label, long_label[:rows])


def test_seeds_differ_in_the_copies_only():
    one, two = table_of(2 * digits.REAL_ROWS, 0)[0], table_of(2 * digits.REAL_ROWS, 1)[0]
    assert np.array_equal(one[: digits.REAL_ROWS], two[: digits.REAL_ROWS])
    assert not np.array_equal(one[digits.REAL_ROWS :], two[digits.REAL_ROWS :])
