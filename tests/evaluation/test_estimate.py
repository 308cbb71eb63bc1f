"""The estimate and its error by hand and by brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from clam_dist.errors import DataError
from clam_dist.evaluation.estimate import (
    QueryScores,
    combine,
    reference_error,
    silhouette_bands,
)


def test_standard_error_is_right_over_all_samples() -> None:
    """Over every sample of 3 of 7, the mean squared error printed is the true variance."""
    population = np.array([0.9, 0.1, -0.3, 0.4, 0.45, 0.2, 0.8])
    found = [combine(population[list(s)], None, 7) for s in combinations(range(7), 3)]
    values = np.array([value for value, _ in found])
    squared = np.array([error for _, error in found]) ** 2
    assert values.mean() == pytest.approx(population.mean())
    assert squared.mean() == pytest.approx(values.var())


def test_weights_and_reference_error_by_hand() -> None:
    value, error = combine(np.array([0.5, 0.2]), np.array([1.0, 3.0]), 8, 0.3)
    assert value == pytest.approx(0.275)
    squares = (0.225**2 + (3 * 0.075) ** 2) / 4
    assert error == pytest.approx(np.sqrt(0.75 * squares / 2 + 0.09))


def test_a_whole_data_set_has_only_reference_error() -> None:
    assert combine(np.array([0.1, 0.3]), None, 2, 0.0) == (pytest.approx(0.2), 0.0)
    assert combine(np.array([0.1, 0.3]), None, 2, 0.5)[1] == 0.5


def test_one_query_says_nothing_of_the_spread() -> None:
    assert combine(np.array([0.4]), None, 9) == (0.4, None)


def test_no_query_is_an_error() -> None:
    with pytest.raises(DataError, match="0 queries with a total weight of 0"):
        combine(np.zeros(0), None, 9)


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    """Leaving out one of g values of a mean gives the textbook variance of the mean."""
    groups = np.array([0.3, 0.7, -0.2, 0.5])
    replicates = np.array([[np.delete(groups, g).mean() for g in range(4)]] * 3)
    assert reference_error(replicates, None) == pytest.approx(groups.std(ddof=1) / 2)
    assert reference_error(np.zeros((3, 0)), None) == 0.0


def test_joined_parts_give_the_result_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    parts = [
        QueryScores(
            np.arange(start, start + 5),
            rng.integers(0, 2, 5),
            np.ones(5),
            rng.uniform(-1, 1, 5),
            rng.uniform(-1, 1, (5, 3)),
        )
        for start in (10, 0, 5)
    ]
    found = QueryScores.join(parts).result(100, 7, 20)
    assert found == QueryScores.join(parts[::-1]).result(100, 7, 20)
    every = np.concatenate([part.silhouette for part in parts])
    assert found.value == pytest.approx(every.mean())
    assert found.to_json() == {
        "value": found.value,
        "standard_error": found.standard_error,
        "rows": 15,
        "references": 20,
        "seed": 7,
        "metric": "euclidean",
        "form": "pairwise",
    }
    assert QueryScores.join(parts).result(100, 7, None).references == "all"


def test_bands_by_cluster() -> None:
    labels = np.array([0, 0, 2, 0])
    bands = silhouette_bands(labels, np.array([0.1, 0.5, -1.0, 0.3]), 3, points=3)
    assert bands["0"]["rows"] == 3
    assert bands["0"]["mean"] == pytest.approx(0.3)
    assert bands["0"]["quantiles"] == pytest.approx([0.5 - 1 / 15, 0.3, 0.1 + 1 / 15])
    assert bands["1"] == {"rows": 0, "mean": None, "quantiles": []}
    assert bands["2"]["quantiles"] == [-1.0, -1.0, -1.0]
