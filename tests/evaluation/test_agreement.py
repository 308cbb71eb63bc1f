"""Agreement of partitions against scikit-learn's scores from the labels themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from clam_dist.evaluation.agreement import ari, nmi


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=60))
def test_equal_to_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    table = np.zeros((5, 4), int)
    for truth, label in pairs:
        table[truth, label] += 1
    truth, labels = zip(*pairs)
    assert nmi(table) == pytest.approx(normalized_mutual_info_score(truth, labels), abs=1e-9)
    assert ari(table) == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-9)


def test_equal_partitions_and_none() -> None:
    assert nmi(np.diag([3, 4, 5])) == pytest.approx(1.0)
    assert ari(np.diag([3, 4, 5])) == 1.0
    assert nmi(np.zeros((0, 3))) == 1.0
    assert ari(np.zeros((0, 3))) == 1.0


def test_ten_billion_rows_do_not_overflow() -> None:
    table = np.array([[5_000_000_000, 0], [0, 5_000_000_000]])
    assert ari(table) == 1.0
    mixed = np.full((2, 2), 2_500_000_000)
    assert ari(mixed) == pytest.approx(0.0, abs=1e-6)
