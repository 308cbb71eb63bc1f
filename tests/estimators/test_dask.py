"""Dask arrays and frames: read a partition at a time, answered lazily."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from clam_dist import ClAM

Make = Callable[..., ClAM]


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample so small that the rows do not fit into it."""
    import clam_dist.estimators.prepare as prepare
    import clam_dist.stages.fitting as fitting

    for module in (prepare, fitting):
        monkeypatch.setattr(module, "sample_rows", lambda _: 64)


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(600, n_features=4, centers=3, cluster_std=1.0, random_state=4)


def lazy(x: np.ndarray, kind: str) -> Any:
    if kind == "array":
        return da.from_array(x, chunks=(37, 2))
    return dd.from_pandas(pd.DataFrame(x, columns=list("abcd")), npartitions=5)


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_a_small_one_equals_numpy(quick: Make, holes: np.ndarray, kind: str) -> None:
    expected = quick().fit(holes)
    x = lazy(holes, kind)
    model = quick().fit(x)
    np.testing.assert_array_equal(model.prototypes_, expected.prototypes_)
    for found in (model.labels_, model.predict(x), model.fit_predict(x)):
        assert not isinstance(found, np.ndarray)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found.compute(), expected.labels_)
    np.testing.assert_allclose(model.transform(x).compute(), expected.transform(holes))
    np.testing.assert_allclose(model.complete(x).compute(), expected.complete(holes), rtol=1e-6)
    assert model.score(x) == pytest.approx(expected.score(holes))


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("kind", ["array", "frame"])
def test_streamed(quick: Make, blobs: tuple[np.ndarray, np.ndarray], kind: str) -> None:
    x, truth = blobs
    model = quick().fit(lazy(x, kind))
    labels = model.labels_.compute()
    assert adjusted_rand_score(truth, labels) > 0.95
    assert model.cluster_sizes_.sum() == 600
    np.testing.assert_array_equal(model.cluster_sizes_, np.bincount(labels))
    means = np.stack([x[labels == j].mean(axis=0) for j in range(3)])
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-5, atol=1e-6)
    if kind == "frame":
        assert list(model.feature_names_in_) == list("abcd")


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("as_dask", [True, False])
def test_weights(quick: Make, blobs: tuple[np.ndarray, np.ndarray], as_dask: bool) -> None:
    x = blobs[0]
    weight = np.random.default_rng(0).integers(0, 3, 600).astype(float)
    given = da.from_array(weight, chunks=37) if as_dask else weight
    model = quick().fit(lazy(x, "array"), sample_weight=given)
    assert model.cluster_sizes_.sum() == weight.sum()
    expected = np.average(x, axis=0, weights=weight)
    np.testing.assert_allclose(model._trained.statistics.mean, expected)
    with pytest.raises(ValueError, match="sample_weight has 3 values for 37 rows"):
        quick().fit(lazy(x, "array"), sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="weight is zero"):
        quick().fit(lazy(x, "array"), sample_weight=np.zeros(600))
    with pytest.raises(ValueError, match=r"Dask collection of 2 partitions.*same partitions"):
        quick().fit(lazy(x, "array"), sample_weight=da.ones(600, chunks=300))


@pytest.mark.usefixtures("streaming")
def test_one_partition_is_in_memory_at_a_time(quick: Make) -> None:
    alive: set[int] = set()
    made: list[int] = []
    most = 0

    def block(numbers: np.ndarray) -> np.ndarray:
        nonlocal most
        number = int(numbers[0, 0])
        rows = np.random.default_rng(number).normal(10 * (number % 3), 1.0, (200, 4))
        token = len(made)
        made.append(number)
        alive.add(token)
        weakref.finalize(rows, alive.discard, token)
        most = max(most, len(alive))
        return rows

    numbers = da.from_array(np.arange(12).reshape(12, 1), chunks=1)
    x = numbers.map_blocks(block, chunks=((200,) * 12, (4,)), dtype=float, meta=np.empty((0, 4)))
    model = quick().fit(x)
    gc.collect()
    assert not alive
    assert most <= 2  # one, and the one before it until it is let go of
    # Two passes, and the look at the first that tells whether all are few.
    assert made.count(5) == 2
    assert len(made) <= 2 * 12 + 1
    labels = model.predict(x)
    assert len(made) <= 2 * 12 + 1  # nothing is read until it is asked for
    assert len(np.unique(labels.compute(scheduler="synchronous"))) == 3


def test_wrong_lazy_rows(quick: Make) -> None:
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array instead"):
        quick().fit(da.ones(10))
    with pytest.raises(ValueError, match="infinity"):
        quick().fit(da.from_array(np.array([[1.0], [np.inf], [3.0]]), chunks=1))


@pytest.mark.usefixtures("streaming")
def test_partitions_of_a_stream(quick: Make, blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, truth = blobs
    model = quick().partial_fit(lazy(x[:100], "array")).partial_fit(lazy(x[100:], "array"))
    assert model.cluster_sizes_.sum() == 600
    assert adjusted_rand_score(truth, model.predict(x)) > 0.95
