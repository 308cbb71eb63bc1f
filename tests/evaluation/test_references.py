"""Reference samples against sorting by hand, in one part and in many."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_samples, silhouette_score

from clam_dist.data.sampling import row_hash
from clam_dist.errors import ConfigError
from clam_dist.evaluation.queries import score_queries
from clam_dist.evaluation.references import (
    ReferenceCollector,
    References,
    auto_references,
    reference_sizes,
)


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    labels = rng.choice(4, n, p=[0.6, 0.25, 0.14, 0.01]) - (rng.random(n) < 0.05) * 9
    return x, np.maximum(labels, -1), row_hash(seed, "reference", "f", 0, n), np.arange(n)


def collect(arrays, each: int | None, cuts: list[int] = (), **more) -> References:
    collector = ReferenceCollector(4, 2, each)
    edges = [0, *sorted(cuts), len(arrays[0])]
    for start, stop in itertools.pairwise(edges):
        part = ReferenceCollector(4, 2, each)
        extra = {name: value[start:stop] for name, value in more.items()}
        part.update(*(a[start:stop] for a in arrays), **extra)
        collector.merge(ReferenceCollector.from_arrays(part.to_arrays()))
    return collector.finish()


def test_uniform_references_are_the_rows_of_smallest_hash() -> None:
    x, labels, hashes, _rows = arrays = table(400)
    found = collect(arrays, 10)
    for c in range(4):
        mine = np.flatnonzero(labels == c)
        expected = mine[np.argsort(hashes[mine])][:10]
        part = slice(found.starts[c], found.starts[c + 1])
        assert sorted(found.rows[part]) == sorted(expected)
        np.testing.assert_array_equal(found.x[part], np.nan_to_num(x[found.rows[part]]))
        if len(mine) <= 10:
            assert found.certain[part].all()
        else:  # each stands for about n / r rows
            np.testing.assert_allclose(found.design[part], found.design[part][0])
            assert 0.4 < found.design[part].sum() / len(mine) < 2.5
    assert found.moments.count.tolist() == [int((labels == c).sum()) for c in range(4)]
    assert not found.certain.all()
    assert found.groups == 10


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 150), max_size=5),
    st.sampled_from([2, 7, None]),
    st.booleans(),
    st.booleans(),
)
def test_references_do_not_depend_on_the_cut(
    cuts: list[int], each: int | None, sized: bool, weighted: bool
) -> None:
    arrays = table(150, 3)
    more = {}
    if sized:
        more["sizes"] = np.random.default_rng(5).uniform(0.1, 4, 150)
    if weighted:
        more["weight"] = np.random.default_rng(6).choice([0.0, 1.0, 2.5], 150)
    whole, cut = collect(arrays, each, **more), collect(arrays, each, cuts, **more)
    for name in ("x", "rows", "weight", "design", "starts"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(cut, name))
    np.testing.assert_allclose(whole.slope, cut.slope, atol=1e-6)
    np.testing.assert_allclose(whole.moments.sums, cut.moments.sums, atol=1e-6)


def test_sized_references_estimate_sums_without_bias() -> None:
    """Each draw stands for its cluster: weighted sums of any function average to the true sum."""
    rng = np.random.default_rng(1)
    n = 300
    values = rng.pareto(1.5, n) + 0.1
    x = values[:, None].astype(np.float32)
    labels, rows = np.zeros(n, int), np.arange(n)
    sums = {"sized": [], "uniform": []}
    for seed in range(300):
        hashes = row_hash(seed, "reference", "", 0, n)
        for name, sizes in (("sized", values + 0.5), ("uniform", None)):
            collector = ReferenceCollector(1, 1, 30)
            collector.update(x, labels, hashes, rows, None, sizes)
            found = collector.finish()
            sums[name].append(float(found.x[:, 0] @ found.design))
    for found in sums.values():
        assert abs(np.mean(found) - x.sum()) < 4 * np.std(found) / np.sqrt(300)
    assert np.std(sums["sized"]) < 0.4 * np.std(sums["uniform"])


def test_order_within_a_cluster_says_nothing_of_size() -> None:
    n = 4000
    sizes = np.linspace(0.1, 10, n)
    collector = ReferenceCollector(1, 1, 500)
    hashes = row_hash(0, "reference", "", 0, n)
    collector.update(
        np.zeros((n, 1), np.float32), np.zeros(n, int), hashes, np.arange(n), None, sizes
    )
    found = collector.finish()
    assert abs(np.corrcoef(np.arange(500), sizes[found.rows])[0, 1]) < 0.15


def test_all_rows_are_certain_and_ungrouped() -> None:
    arrays = table(100)
    found = collect(arrays, None)
    assert found.certain.all()
    assert found.groups == 0
    assert found.count.tolist() == found.moments.count.tolist()
    assert (found.drawn_share == 0).all()


def test_everything_takes_the_moments_of_the_whole() -> None:
    x, labels, _, rows = table(100)
    moments = collect(table(100), None).moments
    part = References.everything(x[:30], labels[:30], rows[:30], moments)
    assert part.moments is moments
    assert sorted(part.rows) == [r for r in range(30) if labels[r] >= 0]


def test_references_survive_a_file(tmp_path) -> None:
    found = collect(table(100), 5)
    np.savez(tmp_path / "r.npz", **found.to_arrays())
    with np.load(tmp_path / "r.npz", allow_pickle=False) as arrays:
        again = References.from_arrays(arrays)
    for name, array in found.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)


def test_no_rows_give_no_references() -> None:
    found = ReferenceCollector(3, 2, 10).finish()
    assert found.count.tolist() == [0, 0, 0]
    assert found.groups == 0


def test_too_few_references_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.references: 1 a cluster is too few"):
        ReferenceCollector(3, 2, 1)


def test_automatic_references_follow_rows_and_clusters() -> None:
    assert auto_references(1_000_000, 9) == 2000
    assert auto_references(1_000_000, 50) == 400
    assert auto_references(1_000_000, 500) == 200
    assert auto_references(20_000, 9) is None
    assert auto_references(90_000, 500) is None


def test_sizes_are_positive_and_grow_with_distance() -> None:
    sizes = reference_sizes(
        np.array([0.0, 3.0, np.nan, 2.0]), np.array([0, 0, -1, 1]), np.array([1.5, 0.0])
    )
    assert sizes.tolist() == [1.5, 4.5, 1.0, 3.0]


def test_a_sample_as_its_own_references_knows_how_little_it_knows() -> None:
    generator = np.random.default_rng(5)
    labels = generator.choice(3, 4000, p=[0.5, 0.3, 0.2])
    x = generator.normal(size=(4000, 2)) + 2 * np.eye(3, 2)[labels]
    exact = silhouette_score(x, labels)
    errors, misses = [], []
    for seed in range(30):
        rows = np.sort(np.random.default_rng(seed).permutation(4000)[:200])
        found = References.of_sample(x[rows], labels[rows], rows, 3, 200 / 4000)
        result = score_queries(x[rows], labels[rows], rows, found).result(4000, 0, "all")
        assert result.value == pytest.approx(silhouette_score(x[rows], labels[rows]), abs=1e-6)
        errors.append(result.standard_error)
        misses.append(result.value - exact)
    # Thirty draws tell a standard deviation to an eighth; the error is that of both draws.
    assert np.mean(errors) == pytest.approx(np.std(misses), rel=0.35)
    rows = np.arange(4000)
    everything = References.of_sample(x, labels, rows, 3, 1.0)
    scores = score_queries(x[:50], labels[:50], rows[:50], everything)
    assert scores.replicates.shape == (50, 0)
    np.testing.assert_allclose(scores.silhouette, silhouette_samples(x, labels)[:50], atol=1e-6)
