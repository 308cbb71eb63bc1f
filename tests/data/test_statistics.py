import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clam_dist.data.statistics import Scaling, Statistics, fit_scaling, merge_all
from clam_dist.errors import ConfigError, DataError

NAN = math.nan
numbers = st.one_of(st.just(NAN), st.floats(-1e6, 1e6))
tables = hnp.arrays(np.float64, st.tuples(st.integers(0, 30), st.just(3)), elements=numbers)


def assert_describes(statistics: Statistics, x: np.ndarray) -> None:
    """One value at a time, in exact sums."""
    assert statistics.rows == len(x)
    for j in range(x.shape[1]):
        seen = [v for v in x[:, j].tolist() if v == v]
        mean = math.fsum(seen) / max(len(seen), 1)
        m2 = math.fsum((v - mean) ** 2 for v in seen)
        size = max((abs(v) for v in seen), default=0.0)
        assert statistics.count[j] == len(seen)
        assert statistics.missing[j] == len(x) - len(seen)
        assert statistics.mean[j] == pytest.approx(mean, abs=1e-14 * size)
        assert statistics.m2[j] == pytest.approx(m2, rel=1e-9, abs=1e-13 * size**2)
        assert statistics.variance[j] == statistics.m2[j] / max(len(seen), 1)
        np.testing.assert_array_equal(statistics.minimum[j], min(seen, default=NAN))
        np.testing.assert_array_equal(statistics.maximum[j], max(seen, default=NAN))
        assert statistics.constant[j] == (len(set(seen)) == 1)


@given(tables, st.sampled_from("CF"))
def test_of_against_a_loop(x, order):
    assert_describes(Statistics.of(np.asarray(x, order=order)), x)


@given(tables, st.lists(st.integers(0, 30), max_size=4))
def test_merged_parts_describe_the_whole(x, cuts):
    parts = [Statistics.of(part) for part in np.split(x, sorted(min(c, len(x)) for c in cuts))]
    assert_describes(merge_all(parts), x)


@given(
    tables.flatmap(
        lambda x: st.tuples(st.just(x), hnp.arrays(np.int64, len(x), elements=st.integers(0, 3)))
    ),
    st.integers(0, 30),
)
def test_a_weight_is_the_row_as_many_times(case, cut):
    x, weight = case
    repeated = np.repeat(x, weight, axis=0)
    parts = [slice(0, cut), slice(cut, None)]
    found = merge_all([Statistics.of(x[part], weight[part].astype(float)) for part in parts])
    expected = Statistics.of(repeated)
    size = np.nan_to_num(np.abs(repeated)).max(axis=0, initial=0.0)
    assert found.rows == np.count_nonzero(weight)
    np.testing.assert_array_equal(found.weight, expected.count)
    np.testing.assert_array_equal(found.count, (~np.isnan(x[weight > 0])).sum(axis=0))
    assert (np.abs(found.mean - expected.mean) <= 1e-14 * size).all()
    assert (np.abs(found.variance - expected.variance) <= 1e-12 * size**2).all()
    np.testing.assert_array_equal(found.minimum, expected.minimum)
    np.testing.assert_array_equal(found.maximum, expected.maximum)


def test_fractions_as_weights_by_hand():
    x = np.array([[0.0], [4.0], [1e300]])
    statistics = Statistics.of(x, np.array([0.375, 0.125, 0.0]))
    assert (statistics.rows, statistics.weight[0], statistics.mean[0]) == (2, 0.5, 1.0)
    assert statistics.variance[0] == 3.0
    np.testing.assert_array_equal(fit_scaling(statistics, "minmax").apply(x[:2]), [[0], [1]])


def test_by_hand():
    statistics = Statistics.of(np.array([[1.0, NAN, 4.0], [3.0, NAN, 4.0], [NAN, NAN, 4.0]]))
    np.testing.assert_array_equal(statistics.count, [2, 0, 3])
    np.testing.assert_array_equal(statistics.mean, [2, 0, 4])
    np.testing.assert_array_equal(statistics.m2, [2, 0, 0])
    np.testing.assert_array_equal(statistics.minimum, [1, NAN, 4])
    np.testing.assert_array_equal(statistics.maximum, [3, NAN, 4])
    np.testing.assert_array_equal(statistics.constant, [False, False, True])


def test_variance_holds_beside_a_large_mean():
    x = 1e9 + np.random.default_rng(0).normal(size=(20000, 1))
    whole = Statistics.of(x)
    merged = merge_all([Statistics.of(part) for part in np.array_split(x, 7)])
    expected = np.var(x - 1e9)
    assert whole.variance[0] == pytest.approx(expected, rel=1e-7)
    assert merged.variance[0] == pytest.approx(expected, rel=1e-7)


def test_empty_changes_nothing():
    some = Statistics.of(np.array([[1.0], [2.0]]))
    empty = Statistics.of(np.empty((0, 1)))
    for merged in (some.merge(empty), empty.merge(some)):
        assert merged.to_json() == some.to_json()
    assert empty.merge(empty).rows == 0


@given(tables)
def test_json_is_exact(x):
    statistics = Statistics.of(x)
    again = Statistics.from_json(json.loads(json.dumps(statistics.to_json(), allow_nan=False)))
    assert again.rows == statistics.rows
    for name in ("count", "weight", "mean", "m2", "minimum", "maximum"):
        expected = getattr(statistics, name)
        np.testing.assert_array_equal(getattr(again, name), expected)
        assert getattr(again, name).dtype == expected.dtype


def test_take_and_beside():
    x = np.arange(12.0).reshape(4, 3)
    statistics = Statistics.of(x)
    halves = [statistics.take(slice(0, 1)), statistics.take(slice(1, 3))]
    assert halves[1].to_json() == Statistics.of(x[:, 1:]).to_json()
    assert Statistics.beside(halves).to_json() == statistics.to_json()


X = np.array([[1.0, 5.0, NAN, 10.0], [3.0, 5.0, NAN, NAN], [5.0, 5.0, NAN, 20.0]])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "standard",
            [[-math.sqrt(1.5), 0, NAN, -1], [0, 0, NAN, NAN], [math.sqrt(1.5), 0, NAN, 1]],
        ),
        ("minmax", [[0, 0, NAN, 0], [0.5, 0, NAN, NAN], [1, 0, NAN, 1]]),
        ("none", X),
    ],
)
def test_scaling_by_hand(kind, expected, order):
    scaling = fit_scaling(Statistics.of(X), kind)
    x = np.array(X, order=order)
    scaled = scaling.apply(x)
    assert scaled.dtype == np.float32
    assert scaled.flags.c_contiguous
    np.testing.assert_array_equal(scaled, np.float32(expected))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_allclose(scaling.invert(scaled), X, rtol=1e-6)


def test_unit_scaling_is_over_the_seen_values():
    x = np.array([[3.0, 4.0], [5.0, NAN], [0.0, 0.0], [NAN, NAN]])
    scaled = fit_scaling(Statistics.of(x), "unit").apply(x)
    expected = np.float32([[0.6, 0.8], [1, NAN], [0, 0], [NAN, NAN]])
    np.testing.assert_array_equal(scaled, expected)


def test_standard_scaling_has_zero_mean_and_unit_deviation():
    x = np.random.default_rng(1).normal([0, 1e3, -7], [1, 1e-3, 40], size=(500, 3))
    scaled = fit_scaling(Statistics.of(x), "standard").apply(x)
    np.testing.assert_allclose(scaled, (x - x.mean(0)) / x.std(0), rtol=1e-5, atol=1e-6)


def test_a_feature_that_varies_by_rounding_alone_is_not_blown_up():
    x = np.array([[0.1 + 0.2], [0.3], [0.3]])
    assert x.min() != x.max()
    scaled = fit_scaling(Statistics.of(x), "standard").apply(x)
    assert np.abs(scaled).max() < 1e-15


def test_a_constant_of_many_rows_becomes_zero_exactly():
    parts = [np.full((n, 1), 0.1) for n in (1, 999, 17)]
    statistics = merge_all([Statistics.of(part) for part in parts])
    for kind in ("standard", "minmax"):
        scaling = fit_scaling(statistics, kind)
        assert scaling.scale[0] == 1
        assert not scaling.apply(parts[1]).any()


def test_scaling_json_is_exact():
    scaling = fit_scaling(Statistics.of(np.random.default_rng(2).normal(size=(9, 4))), "standard")
    again = Scaling.from_json(json.loads(json.dumps(scaling.to_json(), allow_nan=False)))
    np.testing.assert_array_equal(again.center, scaling.center)
    np.testing.assert_array_equal(again.scale, scaling.scale)
    assert again.kind == "standard"


def test_robust_is_not_available():
    with pytest.raises(
        ConfigError,
        match=r"prepare\.scaling: robust is not available in this version; use standard or minmax",
    ):
        fit_scaling(Statistics.of(X), "robust")


def test_unknown_scaling():
    with pytest.raises(ConfigError, match="'log' is not one of standard, minmax, unit, none"):
        fit_scaling(Statistics.of(X), "log")


@pytest.mark.parametrize(
    ("kind", "largest"), [("none", 1e30), ("unit", 1e200), ("standard", 1.7e308), ("none", 1e308)]
)
def test_values_too_large_to_square(kind, largest):
    parts = [np.array([[0.0, largest]]), np.array([[1.0, -largest], [2.0, largest]])]
    statistics = merge_all([Statistics.of(part) for part in parts])
    with pytest.raises(DataError, match=rf"feature 'b' has values from -.*scaling: {kind}"):
        fit_scaling(statistics, kind, names=("a", "b"))


def test_large_values_are_fine_once_standardised():
    x = np.array([[1e100], [-1e100]])
    np.testing.assert_array_equal(fit_scaling(Statistics.of(x), "standard").apply(x), [[1], [-1]])
