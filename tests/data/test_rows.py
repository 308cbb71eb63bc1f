"""Treatment of missing values, cell by cell."""

from __future__ import annotations

import numpy as np
import pytest

from clam_dist.data.rows import any_missing, rows_with_values, treat_missing
from clam_dist.errors import DataError

NAN = np.nan
VALUES = np.array([[1.0, 2.0], [NAN, 4.0], [NAN, NAN]])


def locate(row: int) -> str:
    return f"file 'a', row group 0, row {row}"


def test_mask_leaves_them() -> None:
    assert treat_missing(VALUES, "mask", None, "ab", locate, 0) is VALUES


def test_mean_fills_them_and_keeps_the_argument() -> None:
    before = VALUES.copy()
    filled = treat_missing(VALUES, "mean", np.array([9.0, NAN]), "ab", locate, 0)
    np.testing.assert_array_equal(filled, [[1.0, 2.0], [9.0, 4.0], [9.0, NAN]])
    np.testing.assert_array_equal(VALUES, before)


def test_error_names_the_first() -> None:
    with pytest.raises(DataError, match=r"row 101: 'a' is missing.*source\.exclude"):
        treat_missing(VALUES, "error", None, "ab", locate, 100)
    whole = VALUES[:1]
    assert treat_missing(whole, "error", None, "ab", locate, 100) is whole


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="needs fill"):
        treat_missing(VALUES, "mean", None, "ab", locate, 0)
    with pytest.raises(ValueError, match="'drop'"):
        treat_missing(VALUES, "drop", None, "ab", locate, 0)


def test_rows_with_values() -> None:
    usable = rows_with_values(VALUES.astype(np.float32))
    assert usable is not None
    assert usable.tolist() == [True, True, False]
    assert rows_with_values(VALUES[:2]) is None
    assert rows_with_values(VALUES[:1]) is None
    assert rows_with_values(VALUES[:0]) is None


def test_any_missing_sums_without_overflow() -> None:
    assert any_missing(VALUES)
    assert not any_missing(np.full((1000, 10), 3e38, np.float32))
