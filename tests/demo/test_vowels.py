"""The simulated Vowels set: its table, its distribution, and that a row depends on its block."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from clam_dist.demo import vowels


def table_of(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    batches = list(vowels.batches(rows, seed))
    x = [np.column_stack([b[name].to_numpy() for name in b.schema.names[:-1]]) for b in batches]
    return np.concatenate(x), np.concatenate([b["label"].to_numpy() for b in batches])


def test_table_is_nine_classes_of_fourteen_features():
    table = vowels.class_table()
    assert table.means.shape == (9, 14)
    assert table.covariances.shape == (9, 14, 14)
    assert len(table.features) == 14
    assert table.weights.sum() == pytest.approx(1)
    assert np.array_equal(table.labels, np.arange(1, 10))
    for covariance in table.covariances:
        assert np.array_equal(covariance, covariance.T)
        assert np.linalg.eigvalsh(covariance).min() > 0


def test_rows_have_the_moments_of_the_table():
    table = vowels.class_table()
    x, label = table_of(4 * vowels.BLOCK_ROWS)
    x = x.astype(np.float64)
    for index, of_class in enumerate(table.labels):
        rows = x[label == of_class]
        n = len(rows)
        assert n / len(x) == pytest.approx(table.weights[index], abs=0.004)
        deviation = np.sqrt(np.diag(table.covariances[index]))
        assert np.abs((rows.mean(0) - table.means[index]) / deviation).max() < 5 / np.sqrt(n)
        scale = np.outer(deviation, deviation)
        error = (np.cov(rows.T) - table.covariances[index]) / scale
        assert np.abs(error).max() < 7 / np.sqrt(n)


def test_is_as_hard_as_the_real_set():
    """K-means scores .148 on the real frames, .109 on the paper's million rows; here between."""
    x, _ = table_of(6000)
    x = (x - x.mean(0)) / x.std(0)
    labels = KMeans(9, n_init=2, random_state=0).fit_predict(x)
    assert 0.10 < silhouette_score(x, labels, sample_size=3000, random_state=0) < 0.15


def test_fewer_rows_are_the_first_of_more():
    long, long_label = table_of(vowels.BLOCK_ROWS + 10)
    for rows in (1, 7, vowels.BLOCK_ROWS, vowels.BLOCK_ROWS + 3):
        short, short_label = table_of(rows)
        assert np.array_equal(short, long[:rows])
        assert np.array_equal(short_label, long_label[:rows])


def test_blocks_and_seeds_differ():
    first, _ = vowels.draw_block(0, 0)
    assert not np.array_equal(first, vowels.draw_block(0, 1)[0])
    assert not np.array_equal(first, vowels.draw_block(1, 0)[0])
    assert np.array_equal(first, vowels.draw_block(0, 0)[0])


def test_batches_follow_the_schema_and_stay_small():
    batches = list(vowels.batches(vowels.BLOCK_ROWS + 1, 0))
    assert [len(batch) for batch in batches] == [vowels.BLOCK_ROWS, 1]
    assert all(batch.schema == vowels.schema() for batch in batches)
    assert not any(column.null_count for batch in batches for column in batch.columns)
