"""Many labelings at once against scikit-learn, one at a time."""

import numpy as np
import pytest
from sklearn.metrics import silhouette_samples, silhouette_score

from clam_dist.evaluation.labelings import score_labelings


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(3).normal(size=(300, 4)).astype(np.float32) + 5


def test_with_all_rows_it_is_the_exact_silhouette(rows):
    generator = np.random.default_rng(1)
    clusters = [2, 7, 300]
    labelings = np.stack([generator.integers(0, k, len(rows)) for k in clusters])
    values = score_labelings(rows, labelings, clusters)
    for (value, error), labels in zip(values, labelings, strict=True):
        assert value == pytest.approx(silhouette_score(rows, labels), abs=1e-5)
        each = silhouette_samples(rows, labels)
        assert error == pytest.approx(each.std(ddof=1) / np.sqrt(len(rows)), abs=1e-6)


def test_one_scored_row_has_no_standard_error(rows):
    labels = np.arange(len(rows)) % 2
    value, error = score_labelings(rows, labels[None], [2], queries=1)[0]
    assert np.isfinite(value)
    assert np.isnan(error)


def test_integer_weights_equal_rows_repeated(rows):
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 3, len(rows))
    weight = generator.integers(1, 3, len(rows))
    value, error = score_labelings(rows, labels[None], [3], weight.astype(float))[0]
    repeated = np.repeat(np.arange(len(rows)), weight)
    expected = silhouette_score(rows[repeated], labels[repeated])
    assert value == pytest.approx(expected, abs=1e-5)
    # Sum of w² (s - mean)² over (sum of w)²: a row that stands twice is still one draw.
    each = silhouette_samples(rows[repeated], labels[repeated])
    firsts = np.flatnonzero(np.append(True, np.diff(repeated)))
    spread = (weight**2 * (each[firsts] - expected) ** 2).sum() * len(rows) / (len(rows) - 1)
    assert error == pytest.approx(np.sqrt(spread) / weight.sum(), abs=1e-6)


def test_one_cluster_in_use_scores_nan_and_empty_ones_are_harmless(rows):
    labels = np.zeros((2, len(rows)), dtype=np.int64)
    labels[1, :100] = 4
    values = score_labelings(rows, labels, [3, 5])
    assert np.isnan(values[0]).all()
    assert values[1][0] == pytest.approx(silhouette_score(rows, labels[1]), abs=1e-5)


def test_blocks_of_columns_do_not_change_the_values(rows, monkeypatch):
    generator = np.random.default_rng(4)
    labelings = generator.integers(0, 6, (5, len(rows)))
    whole = score_labelings(rows, labelings, [6] * 5)
    monkeypatch.setattr("clam_dist.evaluation.labelings._COLUMNS", 7)
    again = score_labelings(rows, labelings, [6] * 5)
    assert np.array(again) == pytest.approx(np.array(whole), abs=1e-6)


def test_copies_of_one_row_are_no_singleton_however_they_are_written():
    rows = np.eye(3, dtype=np.float32)
    repeated = np.repeat(np.arange(3), 20)
    exact = silhouette_score(rows[repeated], repeated)
    assert exact == 1.0
    weighted = score_labelings(rows, np.arange(3)[None], [3], np.full(3, 20.0))[0][0]
    plain = score_labelings(rows[repeated], repeated[None], [3])[0][0]
    assert weighted == plain == pytest.approx(exact)
    # A row of weight 1 alone in its cluster is a singleton all the same.
    weight = np.array([1.0, 20.0, 20.0])
    value = score_labelings(rows, np.arange(3)[None], [3], weight)[0][0]
    assert value == pytest.approx(40 / 41)


def test_by_cosines_it_is_the_exact_silhouette_too(rows):
    generator = np.random.default_rng(1)
    centred = rows - 5
    clusters = [2, 7, 300, 3]
    labelings = np.stack([generator.integers(0, k, len(rows)) for k in clusters])
    labelings[3] = 1
    labelings[3, 7] = 2  # a singleton
    values = score_labelings(centred, labelings, clusters, metric="cosine")
    for (value, error), labels in zip(values, labelings, strict=True):
        assert value == pytest.approx(silhouette_score(centred, labels, metric="cosine"), abs=1e-6)
        each = silhouette_samples(centred, labels, metric="cosine")
        assert error == pytest.approx(each.std(ddof=1) / np.sqrt(len(rows)), abs=1e-6)


def test_cosines_of_narrow_groups_far_from_the_origin(rows):
    # All rows within a degree or so: 1 - cos is about 1e-5, and must not drown in float32.
    labels = (rows[:, 0] > 5).astype(np.int64)
    narrow = rows + 200
    exact = silhouette_score(narrow.astype(np.float64), labels, metric="cosine")
    value = score_labelings(narrow, labels[None], [2], metric="cosine")[0][0]
    assert value == pytest.approx(exact, abs=1e-4)


def test_rows_without_a_direction_are_left_out(rows):
    labels = np.arange(len(rows)) % 3
    padded = np.concatenate([rows, np.zeros((5, 4), np.float32)])
    given = np.concatenate([labels, np.full(5, -1)])
    value = score_labelings(padded, given[None], [3], metric="cosine")[0][0]
    exact = silhouette_score(rows, labels, metric="cosine")
    assert value == pytest.approx(exact, abs=1e-6)


def test_weights_are_multiplicities_by_cosines_as_well(rows):
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 3, len(rows))
    weight = generator.integers(1, 3, len(rows))
    value = score_labelings(rows, labels[None], [3], weight.astype(float), metric="cosine")[0][0]
    repeated = np.repeat(np.arange(len(rows)), weight)
    exact = silhouette_score(rows[repeated], labels[repeated], metric="cosine")
    assert value == pytest.approx(exact, abs=1e-6)
