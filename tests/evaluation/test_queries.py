"""Scores of queries: parts against the whole, and what they leave out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import silhouette_samples

from clam_dist.data.sampling import row_hash
from clam_dist.errors import DataError
from clam_dist.evaluation.distances import distance_sums
from clam_dist.evaluation.estimate import QueryScores
from clam_dist.evaluation.linear import directions
from clam_dist.evaluation.moments import ClusterMoments
from clam_dist.evaluation.queries import corrected, score_cosines, score_queries, score_sums
from clam_dist.evaluation.references import ReferenceCollector, References


def table(n: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, n, p=[0.4, 0.3, 0.29, 0.01])
    x = rng.normal(size=(n, 3)) + labels[:, None]
    return (x - x.mean(axis=0)).astype(np.float32), labels, np.arange(n)


def references(each: int | None, seed: int = 0) -> References:
    x, labels, rows = table(seed=seed)
    collector = ReferenceCollector(5, 3, each)  # the fifth cluster is not in use
    collector.update(x, labels, row_hash(0, "reference", "", 0, len(rows)), rows)
    return collector.finish()


def test_every_row_is_scored_as_scikit_learn_scores_it() -> None:
    x, labels, rows = table()
    scores = score_queries(x, labels, rows, references(None))
    np.testing.assert_allclose(scores.silhouette, silhouette_samples(x, labels), atol=1e-6)
    assert scores.replicates.shape == (240, 0)


def test_cosines_from_moments_are_scikit_learns_for_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, labels, rows = table()
    z = directions(x).astype(np.float32)
    moments = ClusterMoments.of(z, labels, 5)  # the fifth cluster is not in use
    scores = score_cosines(z, labels, rows, moments)
    expected = silhouette_samples(x, labels, metric="cosine")
    np.testing.assert_allclose(scores.silhouette, expected, atol=1e-5)
    result = scores.result(240, 7, None, "cosine")
    assert result.value == pytest.approx(expected.mean(), abs=1e-5)
    assert (result.metric, result.standard_error, result.references) == ("cosine", 0.0, "all")
    monkeypatch.setattr("clam_dist.evaluation.queries.CHUNK_VALUES", 0)  # 64 queries a chunk
    again = score_cosines(z, labels, rows, moments)
    np.testing.assert_allclose(again.silhouette, scores.silhouette, atol=1e-12)


def test_cosines_leave_out_rows_without_a_cluster_and_count_weights() -> None:
    x, labels, rows = table()
    z = directions(x)
    some = np.where(rows % 5 == 0, -1, labels)
    weight = np.where(rows % 2 == 0, 2.0, 1.0)
    scores = score_cosines(z, some, rows, ClusterMoments.of(z, some, 4, weight), weight)
    kept = np.flatnonzero(some >= 0)
    np.testing.assert_array_equal(scores.rows, kept)
    np.testing.assert_array_equal(scores.weight, weight[kept])
    twice = np.repeat(kept, weight[kept].astype(int))
    expected = silhouette_samples(x[twice], labels[twice], metric="cosine")
    np.testing.assert_allclose(
        np.repeat(scores.silhouette, weight[kept].astype(int)), expected, atol=1e-5
    )


def test_cosines_of_one_cluster_are_an_error() -> None:
    x, labels, rows = table()
    moments = ClusterMoments.of(x, 0 * labels, 3)
    with pytest.raises(DataError, match="1 cluster"):
        score_cosines(x, 0 * labels, rows, moments)


@pytest.mark.parametrize("each", [None, 15])
def test_scores_do_not_depend_on_how_queries_are_cut(
    each: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels, rows = table()
    found = references(each)
    whole = score_queries(x, labels, rows, found)
    monkeypatch.setattr("clam_dist.evaluation.queries.CHUNK_VALUES", 0)  # 64 queries a chunk
    order = np.random.default_rng(0).permutation(240)
    parts = [
        score_queries(x[part], labels[part], rows[part], found)
        for part in (order[:7], order[7:100], order[100:])
    ]
    joined = QueryScores.join(parts)
    np.testing.assert_array_equal(joined.rows, whole.rows)
    np.testing.assert_allclose(joined.silhouette, whole.silhouette, atol=1e-12)
    np.testing.assert_allclose(joined.replicates, whole.replicates, atol=1e-12)


def test_sums_over_parts_of_all_rows_merge_to_the_exact_score() -> None:
    x, labels, rows = table()
    everything = references(None)
    parts = [
        distance_sums(
            x[:50],
            rows[:50],
            References.everything(
                x[start : start + 80],
                labels[start : start + 80],
                rows[start : start + 80],
                everything.moments,
            ),
        )
        for start in (0, 80, 160)
    ]
    merged = parts[2].merge(parts[0]).merge(parts[1])
    scores = score_sums(x[:50], labels[:50], rows[:50], merged, everything)
    np.testing.assert_allclose(scores.silhouette, silhouette_samples(x, labels)[:50], atol=1e-6)


def test_rows_without_a_cluster_are_left_out() -> None:
    x, labels, rows = table()
    some = np.where(rows % 5 == 0, -1, labels)
    scores = score_queries(x, some, rows, references(None))
    assert scores.rows.tolist() == [row for row in range(240) if row % 5]


def test_a_query_whose_cluster_has_no_rows_scores_zero() -> None:
    x, _labels, rows = table()
    scores = score_queries(x[:3], np.full(3, 4), rows[:3], references(None))
    assert scores.silhouette.tolist() == [0.0, 0.0, 0.0]


def test_no_queries_give_no_scores() -> None:
    x, labels, rows = table()
    scores = score_queries(x[:0], labels[:0], rows[:0], references(10))
    assert len(scores.silhouette) == 0
    assert scores.replicates.shape == (0, references(10).groups)


def test_a_query_is_never_its_own_reference() -> None:
    """Moving a query's row number away makes it meet itself, at distance 0, and score higher."""
    x, labels, rows = table()
    honest = score_queries(x, labels, rows, references(None))
    flattered = score_queries(x, labels, rows + 1000, references(None))
    big = np.isin(labels, (0, 1, 2))
    assert (flattered.silhouette[big] != honest.silhouette[big]).all()


def test_missing_entries_count_as_zero() -> None:
    x, labels, rows = table()
    holes = x.copy()
    holes[:, 1] = np.nan
    flat = x.copy()
    flat[:, 1] = 0
    found = references(20)
    np.testing.assert_array_equal(
        score_queries(holes, labels, rows, found).silhouette,
        score_queries(flat, labels, rows, found).silhouette,
    )


def test_one_cluster_in_use_is_an_error() -> None:
    collector = ReferenceCollector(2, 1, None)
    x = np.arange(4.0, dtype=np.float32)[:, None]
    rows = np.arange(4)
    collector.update(x, np.ones(4, int), np.zeros(4, np.uint64), rows)
    with pytest.raises(DataError, match="all 4 rows are in 1 cluster"):
        score_queries(x, np.ones(4, int), rows, collector.finish())


def test_correction_by_hand() -> None:
    # root 5; the references lie 2.75 too far in mean square: 1 * 2.75 / 10 off the mean distance
    found = corrected(
        np.array([[4.0, 4.0, 9.0, 1.0]]),
        np.array([[27.75, 27.75, 81.0, 1.0]]),
        np.array([[25.0, 25.0, 25.0, np.inf]]),
        np.array([1.0, 0.0, 0.0, 1.0]),
    )
    np.testing.assert_allclose(found, [[3.725, 4.0, 5.0, 0.0]])
