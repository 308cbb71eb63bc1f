"""Rows of arrays laid down for training, and equal rows merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clam_dist.data.arrays import merge_equal_rows, write_rows
from clam_dist.errors import DataError

NAN = np.nan


def lay(folder: Path, parts, *, weighted: bool = False, sample_rows: int = 1000):
    return write_rows(
        lambda: iter(parts),
        str(folder),
        scaling="standard",
        sample_rows=sample_rows,
        weighted=weighted,
        seed=3,
    )


def written(folder: Path, shards, kind: str) -> np.ndarray:
    files = {shard.path: shard.sibling(kind) if kind != "x" else shard.path for shard in shards}
    return np.concatenate([np.load(folder / name) for name in files.values()])


def test_every_row_once_scaled(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3, 2, (700, 3))
    x[5, 1], x[9] = NAN, NAN
    found = lay(tmp_path, [(x[:500], None), (x[500:], None)])
    rows = written(tmp_path, found.shards, "x")
    assert sum(shard.rows for shard in found.shards) == len(rows) == 699
    expected = found.scaling.apply(np.delete(x, 9, axis=0))
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])
    assert found.has_missing
    assert found.sample_rows == 699
    np.testing.assert_allclose(found.statistics.mean, np.nanmean(x, axis=0))


def test_weights_scale_and_go_with_their_rows(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(6, 2)
    weight = np.array([1.0, 2.0, 0.0, 0.5, 1.0, 3.0])
    found = lay(tmp_path, [(x, weight)], weighted=True)
    np.testing.assert_allclose(found.statistics.mean, np.average(x, axis=0, weights=weight))
    rows, weights = written(tmp_path, found.shards, "x"), written(tmp_path, found.shards, "w")
    np.testing.assert_allclose(np.average(rows, axis=0, weights=weights), 0, atol=1e-7)
    np.testing.assert_allclose(np.average(rows**2, axis=0, weights=weights), 1, rtol=1e-6)
    by_row = dict(zip(found.scaling.invert(rows)[:, 0].round(6), weights, strict=True))
    assert by_row == {0.0: 1.0, 2.0: 2.0, 6.0: 0.5, 8.0: 1.0, 10.0: 3.0}
    np.testing.assert_array_equal(np.sort(np.load(tmp_path / "sample.w.npy")), np.sort(weights))


@pytest.mark.parametrize(
    ("x", "weight"), [(np.full((4, 2), NAN), None), (np.ones((4, 2)), np.zeros(4))]
)
def test_nothing_to_train_on(tmp_path: Path, x: np.ndarray, weight: np.ndarray | None) -> None:
    with pytest.raises(DataError, match=r"missing or the weight is zero.*positive weights"):
        lay(tmp_path, [(x, weight)], weighted=weight is not None)


def test_the_sample_is_of_all_parts(tmp_path: Path) -> None:
    parts = [(np.full((300, 1), float(number)), None) for number in range(4)]
    found = lay(tmp_path, parts, sample_rows=256)
    sample = found.scaling.invert(np.load(tmp_path / "sample.x.npy"))[:, 0].round(4)
    assert found.sample_rows == 256
    counts = np.unique(sample, return_counts=True)[1]
    assert len(counts) == 4
    assert counts.min() > 40


values = st.sampled_from([0.0, -0.0, 1.0, 2.5, NAN])
rows_and_copies = hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.just(2)), elements=values)


@given(rows_and_copies, st.data())
def test_merging_does_not_depend_on_how_rows_are_written(
    x: np.ndarray, data: st.DataObject
) -> None:
    copies = data.draw(hnp.arrays(np.int64, len(x), elements=st.integers(0, 3)))
    repeated = np.repeat(x, copies, axis=0)
    order = np.array(data.draw(st.permutations(range(len(repeated)))), dtype=np.int64)
    one = merge_equal_rows(x, copies.astype(np.float64))
    two = merge_equal_rows(repeated[order])
    np.testing.assert_array_equal(one[0], two[0])
    assert (one[1] is None) == (two[1] is None)
    if one[1] is not None:
        np.testing.assert_array_equal(one[1], two[1])
    seen = ~np.isnan(repeated).all(axis=1)
    assert (len(one[0]) if one[1] is None else one[1].sum()) == seen.sum()
    distinct = {tuple("nan" if v != v else v + 0.0 for v in row) for row in repeated[seen]}
    assert len(one[0]) == len(distinct)


def test_merging_takes_any_numbers() -> None:
    x = np.array([[1, 2], [1, 2], [0, 3]], dtype=np.int8, order="F")
    rows, weight = merge_equal_rows(x)
    assert rows.dtype == np.float64
    assert {tuple(row) for row in rows} == {(1.0, 2.0), (0.0, 3.0)}
    assert weight is not None
    assert weight.sum() == 3
