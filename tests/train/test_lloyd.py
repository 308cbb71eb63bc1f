"""Streamed k-means against scikit-learn and against slow loops."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from clam_dist.models.nearest import Geometry
from clam_dist.train.lloyd import Block, Lloyd, lloyd, part_sums, sums_of, worst_rows


@dataclass(frozen=True)
class Rows:
    """A part that is in memory, in blocks of ``size`` rows."""

    x: np.ndarray
    weight: np.ndarray | None = None
    size: int = 70

    def blocks(self) -> Iterator[Block]:
        for first in range(0, len(self.x), self.size):
            rows = slice(first, first + self.size)
            yield self.x[rows], None if self.weight is None else self.weight[rows]


def cut(x: np.ndarray, weight: np.ndarray | None, count: int) -> list[Rows]:
    """Parts of unequal sizes, one of them empty."""
    at = [0, *(len(x) * i * i // count**2 for i in range(1, count + 1)), len(x)]
    return [Rows(x[a:b], None if weight is None else weight[a:b]) for a, b in pairwise(at)]


def blobs(seed: int, n: int = 300, d: int = 4, groups: int = 5) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centers = 3.0 * generator.normal(size=(groups, d))
    return (centers[np.arange(n) % groups] + generator.normal(size=(n, d))).astype(np.float32)


def some_rows(x: np.ndarray, k: int, starts: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.stack([x[generator.choice(len(x), k, replace=False)] for _ in range(starts)])


def slow_pass(
    x: np.ndarray, weight: np.ndarray, centers: np.ndarray, spherical: bool
) -> tuple[np.ndarray, float]:
    """New centers and the inertia of the old ones, value by value in float64."""
    totals = np.zeros(centers.shape)
    seen = np.zeros(centers.shape)
    inertia = 0.0
    for row, w in zip(x.astype(np.float64), weight, strict=True):
        there = ~np.isnan(row)
        if spherical:
            length = np.sqrt(sum(value**2 for value in row[there]))
            if length == 0:
                continue
            row = row / length
        far = []
        for center in centers:
            if spherical:
                other = np.sqrt(sum(value**2 for value in center[there]))
                product = row[there] @ center[there]
                far.append(1.0 - (product / other if other > 0 else 0.0))
            else:
                far.append(sum((row[there] - center[there]) ** 2))
        label = int(np.argmin(far))
        inertia += w * far[label]
        totals[label, there] += w * row[there]
        seen[label, there] += w
    new = np.where(seen > 0, totals / np.where(seen > 0, seen, 1.0), centers)
    if spherical:
        for i, center in enumerate(new):
            length = np.sqrt(sum(value**2 for value in center))
            new[i] = center / length if length > 0 else centers[i]
    return new, inertia


def same(one: Lloyd, other: Lloyd) -> bool:
    return (
        np.array_equal(one.prototypes, other.prototypes)
        and np.array_equal(one.inertia, other.inertia)
        and np.array_equal(one.iterations, other.iterations)
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_equals_scikit_learn_from_the_same_starts(weighted: bool) -> None:
    x = blobs(1)
    weight = np.random.default_rng(2).uniform(0.5, 3.0, len(x)) if weighted else None
    begun = some_rows(x, 5, starts=4)
    found = lloyd(begun, cut(x, weight, 3), tolerance=0.0)
    total = len(x) if weight is None else weight.sum()
    assert found.weight == pytest.approx(total)
    for start, prototypes, inertia in zip(begun, found.prototypes, found.inertia, strict=True):
        model = KMeans(5, init=start, n_init=1, tol=0.0).fit(x, sample_weight=weight)
        assert inertia * total == pytest.approx(model.inertia_, rel=1e-5)
        np.testing.assert_allclose(prototypes, model.cluster_centers_, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    d=st.integers(2, 5),
    k=st.integers(1, 6),
    missing=st.sampled_from([0.0, 0.3]),
    spherical=st.booleans(),
    weighted=st.booleans(),
)
def test_a_pass_equals_the_slow_one(
    seed: int, d: int, k: int, missing: float, spherical: bool, weighted: bool
) -> None:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(40, d)).astype(np.float32)
    x[7] = 0.0
    x[generator.random(x.shape) < missing] = np.nan
    if spherical:  # in one feature all cosines are 1 or -1: prototypes tie
        x[(~np.isnan(x)).sum(1) == 1] = np.nan
    weight = generator.integers(0, 4, len(x)).astype(np.float64)
    centers = generator.normal(size=(k, d)).astype(np.float32)
    if spherical:
        centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    geometry: Geometry = "spherical" if spherical else "euclidean"
    parts = cut(x, weight if weighted else None, 3)
    sums = sums_of(centers[None], parts, geometry)
    rows = ~np.isnan(x).all(1)
    new, inertia = slow_pass(
        x[rows], (weight if weighted else np.ones(len(x)))[rows], centers, spherical
    )
    assert sums.inertia[0] == pytest.approx(inertia, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(
        sums.prototypes(centers[None], geometry)[0], new, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
def test_the_slow_loop_ends_in_the_same_place(geometry: Geometry) -> None:
    x = blobs(3, n=120, d=3, groups=4)
    start = some_rows(x, 4, starts=1)
    if geometry == "spherical":
        start /= np.linalg.norm(start, axis=2, keepdims=True)
    centers, last = start[0].astype(np.float64), np.inf
    while True:
        centers, inertia = slow_pass(x, np.ones(len(x)), centers, geometry == "spherical")
        if last - inertia <= 1e-12:
            break
        last = inertia
    found = lloyd(start, cut(x, None, 2), geometry, tolerance=0.0)
    assert found.inertia[0] * len(x) == pytest.approx(inertia, rel=1e-5)
    np.testing.assert_allclose(found.prototypes[0], centers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
def test_weight_2_is_the_row_twice(geometry: Geometry) -> None:
    x = blobs(4)
    weight = 1.0 + (np.arange(len(x)) % 3 == 0)
    begun = some_rows(x, 5, starts=2)
    once = lloyd(begun, [Rows(x, weight)], geometry, tolerance=0.0)
    twice = lloyd(begun, [Rows(np.repeat(x, weight.astype(int), axis=0))], geometry, tolerance=0.0)
    np.testing.assert_allclose(once.prototypes, twice.prototypes, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(once.inertia, twice.inertia, rtol=1e-9)
    assert once.weight == twice.weight


def test_rows_of_weight_0_and_rows_without_values_do_not_count() -> None:
    x = blobs(5)
    begun = some_rows(x, 4, starts=1)
    strange = np.full((3, x.shape[1]), 1e4, np.float32)
    strange[1] = np.nan
    weight = np.ones(len(x) + 3)
    weight[[len(x), len(x) + 2]] = 0.0
    found = lloyd(begun, [Rows(np.concatenate([x, strange]), weight)])
    plain = lloyd(begun, [Rows(x)])
    np.testing.assert_allclose(found.prototypes, plain.prototypes, rtol=1e-6)
    assert found.weight == len(x)


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
def test_bits_do_not_depend_on_who_computes_which_part(geometry: Geometry) -> None:
    x = blobs(6, n=900, d=7)
    x[np.random.default_rng(0).random(x.shape) < 0.05] = np.nan
    begun = np.nan_to_num(some_rows(x, 6, starts=3))
    parts = cut(x, np.random.default_rng(1).uniform(size=len(x)), 5)
    alone = lloyd(begun, parts, geometry)
    with ThreadPoolExecutor(3) as pool:
        assert same(alone, lloyd(begun, parts, geometry, map_parts=pool.map))


def test_each_start_runs_as_if_alone() -> None:
    x = blobs(7)
    begun = some_rows(x, 6, starts=3)
    together = lloyd(begun, cut(x, None, 3))
    assert len(set(together.iterations.tolist())) > 1
    for place in range(3):
        alone = lloyd(begun[place : place + 1], cut(x, None, 3))
        assert np.array_equal(alone.prototypes[0], together.prototypes[place])
        assert alone.iterations[0] == together.iterations[place]


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_prototypes_that_no_row_chooses_are_placed_anew(geometry: Geometry, missing: float) -> None:
    x = blobs(8, groups=4)
    x[np.random.default_rng(0).random(x.shape) < missing] = np.nan
    begun = np.repeat(np.nan_to_num(x[:1]), 4, axis=0)[None]
    parts = cut(x, None, 3)
    found = lloyd(begun, parts, geometry)
    assert (sums_of(found.prototypes, parts, geometry).weight > 0).all()
    assert found.iterations[0] > 2


def test_the_worst_rows_by_hand() -> None:
    x = np.array([[0.0, 1.0], [9.0, 0.0], [9.0, 0.0], [5.0, np.nan], [0.0, 0.0]], np.float32)
    prototypes = np.array([[0.0, 0.0], [0.0, -7.0]], np.float32)
    rows = worst_rows(prototypes, [Rows(x[:2]), Rows(x[2:])], "euclidean")
    assert rows.tolist() == [[9.0, 0.0], [5.0, 0.0]]  # once each, the gap filled by the prototype's


def test_fewer_distinct_rows_than_clusters() -> None:
    x = np.repeat(np.eye(2, dtype=np.float32), 20, axis=0)
    begun = np.zeros((1, 4, 2), np.float32)
    found = lloyd(begun, [Rows(x)])
    assert found.inertia[0] == 0.0
    assert {tuple(row) for row in found.prototypes[0].tolist()} >= {(0.0, 1.0), (1.0, 0.0)}


def test_with_missing_values_every_pass_lowers_the_inertia() -> None:
    x = blobs(9)
    x[np.random.default_rng(3).random(x.shape) < 0.3] = np.nan
    x[:, 2] = np.nan  # a column never seen keeps what the start had
    begun = np.nan_to_num(some_rows(x, 4, starts=1), nan=0.5)
    inertias = [
        lloyd(begun, [Rows(x)], most_iterations=most, tolerance=0.0).inertia[0]
        for most in range(1, 8)
    ]
    assert (np.diff(inertias) <= 1e-9).all()
    assert inertias[-1] < inertias[0]
    assert (lloyd(begun, [Rows(x)]).prototypes[0, :, 2] == begun[0, :, 2]).all()


def test_where_passes_end() -> None:
    x = blobs(10)
    begun = some_rows(x, 5, starts=1)
    assert lloyd(begun, [Rows(x)], most_iterations=2).iterations.tolist() == [2]
    loose = lloyd(begun, [Rows(x)], tolerance=0.5).iterations[0]
    strict = lloyd(begun, [Rows(x)], tolerance=0.0)
    assert loose < strict.iterations[0]
    again = lloyd(strict.prototypes, [Rows(x)], tolerance=0.0)
    assert again.iterations.tolist() == [2]  # one pass measures, the next finds nothing to change
    assert np.array_equal(again.prototypes, strict.prototypes)


def test_blocks_only_change_rounding() -> None:
    x = blobs(11)
    part = Rows(x)
    small = part_sums(part, prototypes=some_rows(x, 5, 1), geometry="euclidean")
    large = part_sums(replace(part, size=1000), prototypes=some_rows(x, 5, 1), geometry="euclidean")
    np.testing.assert_allclose(small.total, large.total, rtol=1e-12)
    assert np.array_equal(small.weight, large.weight)
