"""Sums by cluster against loops over rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.errors import DataError
from clam_dist.evaluation.moments import ClusterMoments
from clam_dist.evaluation.scores import AssignSums, cluster_profile


def table(n: int, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    codes = rng.integers(-1, 2, n)
    return {
        "x": x,
        "labels": rng.integers(-1, 3, n),
        "distances": rng.uniform(0, 2, n).astype(np.float32),
        "weight": rng.uniform(0.5, 2, n),
        "truth": (codes, ["yes", "no"]),
    }


def sums(data: dict, part: slice = slice(None)) -> AssignSums:
    codes, names = data["truth"]
    return AssignSums.of(
        data["x"][part],
        data["labels"][part],
        3,
        distances=data["distances"][part],
        weight=data["weight"][part],
        truth=(codes[part], names),
    )


def test_sums_equal_a_loop() -> None:
    data = table(60)
    found = sums(data)
    for c in range(3):
        mine = data["labels"] == c
        w = data["weight"][mine]
        x = data["x"][mine].astype(float)
        seen = ~np.isnan(x)
        assert found.count[c] == mine.sum()
        assert found.weight[c] == pytest.approx(w.sum())
        assert found.mean_distances[c] == pytest.approx(
            np.average(data["distances"][mine], weights=w), rel=1e-6
        )
        for f in range(3):
            kept = seen[:, f]
            mean = np.average(x[kept, f], weights=w[kept])
            spread = np.average((x[kept, f] - mean) ** 2, weights=w[kept])
            assert found.observed[c, f] == pytest.approx(w[kept].sum())
            assert found.means[c, f] == pytest.approx(mean)
            assert found.deviations[c, f] == pytest.approx(np.sqrt(spread))
    inertia = float(np.sum(found.deviations**2 * found.observed))
    assert found.inertia == pytest.approx(inertia)
    assert found.unlabelled == int((data["labels"] < 0).sum())
    codes = data["truth"][0]
    for code, name in enumerate(("yes", "no")):
        expected = [int(((codes == code) & (data["labels"] == c)).sum()) for c in range(3)]
        assert found.classes[name].tolist() == expected
    assert found.contingency().tolist() == [
        found.classes["no"].tolist(),
        found.classes["yes"].tolist(),
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 99))
def test_merged_parts_equal_the_whole(n: int, cut: int, seed: int) -> None:
    data = table(n, seed)
    merged = sums(data, slice(0, cut)).merge(sums(data, slice(cut, None)))
    again = AssignSums.from_arrays(AssignSums.zeros(3, 3).merge(merged).to_arrays())
    for name, array in sums(data).to_arrays().items():
        if array.dtype.kind == "U":
            assert array.tolist() == again.to_arrays()[name].tolist()
        else:
            np.testing.assert_allclose(again.to_arrays()[name], array, atol=1e-9)


def test_moments_are_those_of_filled_rows() -> None:
    data = table(40)
    expected = ClusterMoments.of(data["x"], data["labels"], 3, data["weight"]).to_arrays()
    for name, array in sums(data).moments().to_arrays().items():
        np.testing.assert_allclose(array, expected[name], atol=1e-9)


def test_a_cluster_of_one_row_repeated_has_no_inertia() -> None:
    x = np.full((5, 2), 3.0, np.float32)
    found = AssignSums.of(x, np.zeros(5, int), 2)
    assert found.inertia == 0.0
    assert found.n_used == 1
    assert np.isnan(found.means[1]).all()


def test_too_many_classes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clam_dist.evaluation.scores.MOST_CLASSES", 3)
    truth = (np.arange(4), [str(i) for i in range(4)])
    with pytest.raises(DataError, match=r"source\.label: more than 3 distinct values"):
        AssignSums.of(np.zeros((4, 1)), np.zeros(4, int), 1, truth=truth)


def test_profile_by_hand() -> None:
    x = np.array([[-1.0, 0.0], [-1.0, np.nan], [2.0, np.nan]], np.float32)
    found = AssignSums.of(x, np.array([0, 0, 1]), 3, distances=np.array([0.5, 1.5, 0.0]))
    profile = cluster_profile(
        found,
        ["a", "b"],
        np.array([10.0, 0.0]),
        np.array([2.0, 1.0]),
        {"0": {"mean": 0.25}},
    )
    assert profile["features"] == ["a", "b"]
    assert profile["overall"] == [10.0, 0.0]
    first, second, third = profile["clusters"]
    assert (first["rows"], first["distance"], first["silhouette"]) == (2, 1.0, 0.25)
    assert first["share"] == pytest.approx(2 / 3)
    assert first["means"] == [8.0, 0.0]
    assert first["z"] == pytest.approx([-1 / np.sqrt(2), 0.0])
    assert second["means"] == [14.0, None]
    assert second["z"] == [pytest.approx(2 / np.sqrt(2)), None]
    assert (third["rows"], third["distance"], third["means"]) == (0, None, [None, None])
