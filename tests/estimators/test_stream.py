"""partial_fit: predictable, near a fit of all rows, kept by pickle."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from clam_dist import ClAM
from clam_dist.estimators.stream import FIRST_RATE, LAST_RATE, rate_share

Make = Callable[..., ClAM]


@pytest.fixture(scope="module")
def stream() -> tuple[list[np.ndarray], np.ndarray]:
    x, truth = make_blobs(4000, n_features=6, centers=5, cluster_std=2.0, random_state=2)
    return np.array_split(x, 20), truth


def learnt(make: Make, chunks: list[np.ndarray]) -> ClAM:
    model = make(5)
    for chunk in chunks:
        assert model.partial_fit(chunk) is model
    return model


def test_a_stream_comes_near_a_fit(
    quick: Make, stream: tuple[list[np.ndarray], np.ndarray]
) -> None:
    chunks, truth = stream
    x = np.concatenate(chunks)
    fitted = adjusted_rand_score(truth, quick(5).fit(x).labels_)
    model = learnt(quick, chunks)
    assert adjusted_rand_score(truth, model.predict(x)) > fitted - 0.03
    assert model.cluster_sizes_.sum() == len(x)
    np.testing.assert_array_equal(model.labels_, model.predict(chunks[-1]))
    assert model.n_features_in_ == 6


def test_it_moves_to_where_rows_go(
    quick: Make, stream: tuple[list[np.ndarray], np.ndarray]
) -> None:
    chunks = stream[0]
    model = quick(5).fit(chunks[0])
    before = model.score(chunks[0] + 0.7)
    for chunk in chunks[1:]:
        model.partial_fit(chunk + 0.7)
    moved = quick(5).fit(chunks[0]).partial_fit(chunks[0][:1])
    assert np.abs(model.prototypes_ - moved.prototypes_).mean() > 0.2
    assert model.score(chunks[0] + 0.7) > before


def test_the_same_rows_give_the_same_model(
    quick: Make, stream: tuple[list[np.ndarray], np.ndarray]
) -> None:
    chunks = stream[0][:4]
    one, two = learnt(quick, chunks), learnt(quick, chunks)
    np.testing.assert_array_equal(one.prototypes_, two.prototypes_)
    # Through a pickle on the way, and past a clone, which forgets all.
    half = pickle.loads(pickle.dumps(learnt(quick, chunks[:2])))
    assert not hasattr(clone(half), "labels_")
    for chunk in chunks[2:]:
        half.partial_fit(chunk)
    np.testing.assert_array_equal(half.prototypes_, one.prototypes_)
    assert half.inertia_ == one.inertia_


def test_it_changes_no_other_model(
    quick: Make, stream: tuple[list[np.ndarray], np.ndarray]
) -> None:
    chunks = stream[0]
    model = quick(5).fit(chunks[0])
    kept, before = model.prototypes_, model.prototypes_.copy()
    trained = model._trained
    model.partial_fit(chunks[1])
    np.testing.assert_array_equal(kept, before)
    assert trained is not model._trained
    assert not np.array_equal(model.prototypes_, before)


def test_weights_and_missing_values(
    quick: Make, stream: tuple[list[np.ndarray], np.ndarray]
) -> None:
    chunks = stream[0]
    weight = np.array([0.0, 2.0] * 100)
    model = quick(5).fit(chunks[0]).partial_fit(chunks[1], sample_weight=weight)
    assert model.cluster_sizes_.sum() == 200 + 200
    rows = chunks[2].copy()
    rows[::3, 1] = np.nan
    rows[0] = np.nan
    model.partial_fit(rows)
    assert model.labels_[0] == -1
    assert np.isfinite(model.prototypes_).all()
    assert model.cluster_sizes_.sum() == 400 + 199
    same = pickle.loads(pickle.dumps(model))
    same.partial_fit(np.full((3, 6), np.nan))  # nothing to learn from
    np.testing.assert_array_equal(same.prototypes_, model.prototypes_)


def test_wrong_rows(quick: Make, stream: tuple[list[np.ndarray], np.ndarray]) -> None:
    model = quick(5).partial_fit(stream[0][0])
    with pytest.raises(ValueError, match="has 5 features, but ClAM is expecting 6"):
        model.partial_fit(stream[0][1][:, :5])


def test_the_rate_falls_to_a_floor() -> None:
    rates = [rate_share(step) for step in range(0, 100_000, 50)]
    assert rates[0] == FIRST_RATE
    assert rates[-1] == LAST_RATE
    assert all(one >= two for one, two in itertools.pairwise(rates))
