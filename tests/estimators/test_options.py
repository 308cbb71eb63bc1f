"""ClAM's variants on rows that each is made for: directions, learned metrics, outliers, shares."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from clam_dist import ClAM, load_model

Make = Callable[..., ClAM]


@pytest.fixture(scope="module")
def directions() -> tuple[np.ndarray, np.ndarray]:
    """Three directions at lengths that say nothing, and a row of zeros at the end."""
    generator = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 50)
    along = np.eye(4)[truth] + 0.15 * generator.normal(size=(150, 4))
    x = along * np.exp(2.0 * generator.normal(size=(150, 1)))
    return np.vstack([x, np.zeros(4)]), truth


@pytest.fixture(scope="module")
def turned() -> tuple[np.ndarray, np.ndarray]:
    """Two long clusters side by side, turned by 35 degrees: no scale of a feature parts them."""
    generator = np.random.default_rng(0)
    truth = np.repeat([0, 1], 150)
    x = generator.normal(size=(300, 2)) * [6.0, 0.5]
    x[:, 1] += np.where(truth, 2.5, -2.5)
    angle = np.deg2rad(35)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return x @ turn.T, truth


def test_on_the_sphere(
    quick: Make, directions: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, truth = directions
    model = quick(geometry="spherical", scaling="none", beta=10.0).fit(x)
    assert model.labels_[-1] == -1
    assert model.cluster_sizes_.sum() == 150
    assert adjusted_rand_score(truth, model.labels_[:-1]) > 0.95
    distances = model.transform(x)
    prototypes = model.prototypes_ / np.linalg.norm(model.prototypes_, axis=1, keepdims=True)
    rows = x[:-1] / np.linalg.norm(x[:-1], axis=1, keepdims=True)
    np.testing.assert_allclose(distances[:-1], 1.0 - rows @ prototypes.T, atol=1e-5)
    assert np.isnan(distances[-1]).all()
    # Lengths mean nothing.
    np.testing.assert_array_equal(model.predict(7.5 * x), model.labels_)
    shares = model.predict_proba(x)
    assert np.isnan(shares[-1]).all()
    np.testing.assert_array_equal(shares[:-1].argmax(axis=1), model.labels_[:-1])
    with pytest.raises(ValueError, match=r"complete: only a Euclidean ClAM.*geometry='euclidean'"):
        model.complete(np.where(np.eye(4)[:2] > 0, np.nan, 1.0))
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(x)[0], model.labels_)


@pytest.mark.parametrize("select", ["silhouette", "loss"])
def test_a_full_metric_parts_long_clusters(
    turned: tuple[np.ndarray, np.ndarray], select: str, tmp_path: Path
) -> None:
    x, truth = turned
    common = {"objective": "unmasked", "select": select, "random_state": 0, "device": "cpu"}
    model = ClAM(2, metric="full", **common).fit(x)
    assert adjusted_rand_score(truth, model.labels_) > 0.9
    assert adjusted_rand_score(truth, ClAM(2, **common).fit(x).labels_) < 0.5
    # Distances are the metric's: the nearest prototype by them is the label, or nearly always.
    distances = model.transform(x)
    assert (distances.argmin(axis=1) == model.labels_).mean() > 0.95
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x), model.labels_)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(x)[0], model.labels_)
    with pytest.raises(ValueError, match=r"complete: .*metric='none'"):
        model.complete(np.array([[np.nan, 1.0]]))


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_manhattan_finds_the_inliers(share: float) -> None:
    generator = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 60)
    inliers = np.array([[0, 0], [6, 0], [0, 6], [6, 6]])[truth] + generator.normal(size=(240, 2))
    outliers = generator.uniform(-40, 40, size=(round(share * 240), 2))
    x = np.vstack([inliers, outliers])

    def agreement(loss: str) -> float:
        model = ClAM(
            4,
            objective="unmasked",
            loss=loss,
            select="loss",
            beta=[1.0, 3.0, 10.0],
            random_state=0,
            device="cpu",
        )
        return float(adjusted_rand_score(truth, model.fit(x).labels_[:240]))

    assert agreement("manhattan") > 0.9
    assert agreement("squared") < 0.6


def test_noise_and_huber(quick: Make, iris: np.ndarray) -> None:
    noisy = quick(objective="noise", noise=0.2).fit(iris)
    assert noisy.objective_ == "noise"
    assert len(np.unique(noisy.labels_)) == 3
    other = quick(objective="noise", noise=0.6).fit(iris)
    assert not np.array_equal(noisy.prototypes_, other.prototypes_)
    # A threshold beyond every difference leaves the squared loss, but for a factor.
    squared, huge = quick().fit(iris), quick(loss="huber", huber=1e3).fit(iris)
    np.testing.assert_allclose(huge.prototypes_, squared.prototypes_, rtol=0.02, atol=0.02)
    low = quick(loss="huber", huber=0.1).fit(iris)
    assert not np.allclose(low.prototypes_, squared.prototypes_, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("beta", [0.2, 2.0, 50.0])
def test_memberships(quick: Make, iris: np.ndarray, holes: np.ndarray, beta: float) -> None:
    for x in (iris, holes):
        model = quick(beta=beta).fit(x)
        shares = model.predict_proba(x)
        assert shares.shape == (150, 3)
        assert shares.dtype == np.float64
        placed = model.labels_ >= 0
        assert np.isnan(shares[~placed]).all()
        np.testing.assert_allclose(shares[placed].sum(axis=1), 1.0, rtol=1e-5)
        np.testing.assert_array_equal(shares[placed].argmax(axis=1), model.labels_[placed])
        np.testing.assert_array_equal(shares[40:60], model.predict_proba(x[40:60]))
    assert quick().fit(iris).predict_proba(iris.astype(np.float32)).dtype == np.float32


def test_memberships_by_hand() -> None:
    """One step that goes all the way: shares of the prototypes' softmax mean."""
    x = np.array([[0.0], [0.2], [1.0], [1.2]])
    model = ClAM(
        2,
        beta=3.0,
        steps=1,
        step_size=1.0,
        objective="unmasked",
        scaling="none",
        restarts=1,
        epochs=1,
        random_state=0,
        device="cpu",
    ).fit(x)
    prototypes = model.prototypes_[:, 0]

    def softmax(points: np.ndarray) -> np.ndarray:
        logits = np.exp(-3.0 * np.square(points[:, None] - prototypes[None]))
        return logits / logits.sum(axis=1, keepdims=True)

    settled = softmax(x[:, 0]) @ prototypes
    np.testing.assert_allclose(model.predict_proba(x), softmax(settled), rtol=1e-4)
