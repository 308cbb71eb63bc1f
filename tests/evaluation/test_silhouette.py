"""Sampled silhouettes against scikit-learn, and their standard error against many draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

from clam_dist.errors import ConfigError, DataError
from clam_dist.evaluation.silhouette import silhouette_sampled


def clusters(n: int, k: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    return rng.normal(size=(n, d)) + 2 * rng.normal(size=(k, d))[labels], labels


@settings(max_examples=40, deadline=None)
@given(
    st.integers(4, 90),
    st.integers(2, 6),
    st.integers(1, 5),
    st.integers(0, 1000),
    st.sampled_from([0.0, 1e4]),
)
def test_all_rows_against_all_rows_is_scikit_learns(
    n: int, k: int, d: int, seed: int, offset: float
) -> None:
    x, labels = clusters(max(n, k + 1), k, d, seed)
    found = silhouette_sampled(x + offset, labels, references="all", sample_size=None)
    assert found.value == pytest.approx(silhouette_score(x, labels), abs=1e-7)
    assert found.standard_error == 0.0
    assert (found.rows, found.references) == (len(x), "all")
    assert (found.metric, found.form) == ("euclidean", "pairwise")


def test_float32_products_stay_within_1e_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clam_dist.evaluation.distances.EXACT_VALUES", 0)
    monkeypatch.setattr("clam_dist.evaluation.distances.REFERENCE_BLOCK", 64)
    monkeypatch.setattr("clam_dist.evaluation.distances.QUERY_BLOCK", 50)
    monkeypatch.setattr("clam_dist.evaluation.distances.SLAB", 100)
    x, labels = clusters(700, 3, 6, 0)
    for scale, offset in ((1.0, 0.0), (1e25, 0.0), (1e-25, 0.0), (1.0, 100.0)):
        found = silhouette_sampled(x * scale + offset, labels, references="all")
        assert found.value == pytest.approx(silhouette_score(x, labels), abs=1e-5)


def test_references_covering_all_rows_bring_no_error() -> None:
    x, labels = clusters(60, 3, 2, 0)
    found = silhouette_sampled(x, labels, references=60)
    assert found.value == pytest.approx(silhouette_score(x, labels), abs=1e-9)
    assert found.standard_error == 0.0


def test_labels_may_be_names_and_gaps() -> None:
    x, labels = clusters(50, 3, 2, 0)
    names = np.array(["b", "a", "zz"])[labels]
    first = silhouette_sampled(x, names).value
    assert first == pytest.approx(silhouette_sampled(x, labels * 5 - 1).value, abs=1e-12)


def test_duplicate_rows_lie_at_distance_zero() -> None:
    x = np.repeat([[0.1, 0.7], [0.3, 0.2], [5.0, 5.0]], 20, axis=0)
    labels = np.repeat([0, 0, 1], 20)
    assert silhouette_sampled(x, labels).value == pytest.approx(
        silhouette_score(x, labels), abs=1e-7
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_weight_two_equals_the_row_twice(seed: int) -> None:
    x, labels = clusters(30, 4, 2, seed)
    weight = np.random.default_rng(seed).integers(1, 4, 30)
    twice = np.repeat(np.arange(30), weight)
    found = silhouette_sampled(x, labels, weight=weight)
    assert found.value == pytest.approx(silhouette_score(x[twice], labels[twice]), abs=1e-7)


def test_missing_values_count_as_the_mean() -> None:
    x, labels = clusters(80, 3, 3, 2)
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    completed = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
    found = silhouette_sampled(x, labels)
    assert found.value == pytest.approx(silhouette_score(completed, labels), abs=1e-9)
    assert np.isnan(x).any()  # the caller's rows are as they were


def test_threads_do_not_change_a_digit() -> None:
    x, labels = clusters(600, 5, 3, 0)
    one = silhouette_sampled(x, labels, references=30, sample_size=200)
    assert silhouette_sampled(x, labels, references=30, sample_size=200, threads=3) == one


def heavy_tailed(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.choice(3, 3000, p=[0.7, 0.25, 0.05])
    spread = np.array([0.5, 2.0, 1.0])[labels][:, None]
    return rng.gamma(0.5, 1.0, (3000, 4)) * spread + 2.0 * labels[:, None], labels


def round_clusters(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, 5, 3000)
    return rng.normal(size=(3000, 6)) * 0.7 + rng.normal(size=(5, 6))[labels], labels


@pytest.mark.parametrize(
    ("make", "queries", "references"),
    [
        (round_clusters, 150, 30),  # query error rules
        (round_clusters, 1500, 20),
        (heavy_tailed, 300, 100),
        (heavy_tailed, 1500, 60),  # reference error rules
    ],
)
def test_standard_error_covers_the_exact_score(make, queries: int, references: int) -> None:
    x, labels = make(np.random.default_rng(0))
    exact = silhouette_sampled(x, labels, sample_size=None, references="all").value
    draws = [
        silhouette_sampled(x, labels, sample_size=queries, references=references, seed=seed)
        for seed in range(60)
    ]
    values = np.array([draw.value for draw in draws])
    errors = np.array([draw.standard_error for draw in draws])
    typical = np.sqrt(np.mean(errors**2))
    miss = np.sqrt(np.mean((values - exact) ** 2))
    # A spread from 60 draws is known to 9 %: three of its errors, and a tenth of modelling.
    assert 0.65 < typical / miss < 1.5
    assert np.mean(np.abs(values - exact) <= 2 * errors) >= 0.85
    assert abs(values.mean() - exact) < 0.4 * typical


def test_sized_references_and_slopes_beat_a_uniform_uncorrected_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, labels = heavy_tailed(np.random.default_rng(0))
    exact = silhouette_sampled(x, labels, sample_size=1500, references="all").value

    def miss() -> float:
        draws = [
            silhouette_sampled(x, labels, sample_size=1500, references=60, seed=seed).value
            for seed in range(25)
        ]
        return float(np.sqrt(np.mean((np.array(draws) - exact) ** 2)))

    ours = miss()
    monkeypatch.setattr("clam_dist.evaluation.silhouette._sizes", lambda *_: None)
    monkeypatch.setattr(
        "clam_dist.evaluation.references.fit_slopes", lambda *given: np.zeros(len(given[3]) - 1)
    )
    assert ours < 0.7 * miss()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"labels": np.zeros(6, int)}, DataError, "all 6 rows are in 1 cluster"),
        ({"labels": np.arange(6)}, DataError, "6 clusters of one row each"),
        ({"labels": np.zeros(5, int)}, DataError, r"labels of shape \(5,\) for 6 rows"),
        ({"weight": -np.ones(6)}, DataError, "weights must be finite and not negative"),
        ({"x": np.array([[0.0]] * 5 + [[np.inf]])}, DataError, "row 5, column 0 is infinite"),
        ({"x": np.zeros(6)}, DataError, "table of two axes"),
        ({"sample_size": 0}, ConfigError, "sample_size is 0"),
        ({"references": 1}, ConfigError, "1 a cluster is too few"),
    ],
)
def test_bad_input_says_what(change: dict, error: type[Exception], words: str) -> None:
    given = {"x": np.arange(6.0)[:, None], "labels": np.array([0, 0, 0, 1, 1, 1])} | change
    with pytest.raises(error, match=words):
        silhouette_sampled(given.pop("x"), given.pop("labels"), **given)
