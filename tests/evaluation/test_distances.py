"""Blockwise sums of distances against distances written out."""

from __future__ import annotations

import numpy as np
import pytest

from clam_dist.data.sampling import row_hash
from clam_dist.evaluation.distances import distance_sums
from clam_dist.evaluation.references import ReferenceCollector


@pytest.mark.parametrize(("exact", "tolerance"), [(1 << 22, 1e-10), (0, 1e-4)])
def test_sums_equal_distances_written_out(
    exact: int, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clam_dist.evaluation.distances.EXACT_VALUES", exact)
    monkeypatch.setattr("clam_dist.evaluation.distances.SLAB", 12)
    monkeypatch.setattr("clam_dist.evaluation.distances.REFERENCE_BLOCK", 5)
    monkeypatch.setattr("clam_dist.evaluation.distances.QUERY_BLOCK", 8)
    rng = np.random.default_rng(0)
    n = 120
    x = rng.normal(size=(n, 4)).astype(np.float32)
    labels, weight = rng.choice([0, 2], n, p=[0.8, 0.2]), rng.uniform(0.5, 2, n)
    collector = ReferenceCollector(3, 4, 30)
    hashes = row_hash(0, "reference", "", 0, n)
    collector.update(x, labels, hashes, np.arange(n), weight, rng.uniform(0.2, 3, n))
    found = collector.finish()
    queries = np.arange(0, n, 3)
    sums = distance_sums(x[queries], queries, found)

    stands_for = found.weight * found.design
    distance, square = np.zeros((len(queries), 3)), np.zeros((len(queries), 3))
    for c in range(3):
        for j in range(found.starts[c], found.starts[c + 1]):
            away = np.linalg.norm(x[queries].astype(float) - found.x[j].astype(float), axis=1)
            distance[:, c] += stands_for[j] * away
            square[:, c] += stands_for[j] * away**2
    np.testing.assert_allclose(sums.distance.sum(2), distance, rtol=tolerance, atol=1e-12)
    np.testing.assert_allclose(sums.square.sum(2), square, rtol=1e-9, atol=1e-9)
    for c in range(3):
        part = slice(found.starts[c], found.starts[c + 1])
        certain = stands_for[part][found.certain[part]].sum()
        assert sums.weight[c, 0] == pytest.approx(certain, abs=1e-12)
        assert sums.weight[c].sum() == pytest.approx(stands_for[part].sum(), abs=1e-12)
    for q, row in enumerate(queries):
        if row in found.rows:
            place = int(np.flatnonzero(found.rows == row)[0])
            assert sums.itself[q] // sums.weight.shape[1] == labels[row]
            assert sums.own[q] == stands_for[place]
        else:
            assert (sums.itself[q], sums.own[q]) == (-1, 0.0)


def test_groups_of_one_cluster_share_its_drawn_references_evenly() -> None:
    n = 500
    collector = ReferenceCollector(2, 1, 47)
    labels = np.repeat([0, 1], [20, n - 20])  # the first cluster is taken whole
    x = np.random.default_rng(0).normal(size=(n, 1))
    collector.update(x, labels, row_hash(0, "reference", "", 0, n), np.arange(n))
    found = collector.finish()
    sums = distance_sums(x[:2], np.arange(2), found)
    assert found.groups == 20
    assert sums.weight[0].tolist() == [20.0] + [0.0] * 20
    share = sums.weight[1, 1:] / found.design[-1]
    assert sorted(np.round(share)) == [2.0] * 13 + [3.0] * 7
