"""Mergeable statistics of encoded features, and the scaling fitted from them.

Legend: n rows, d encoded dimensions. Everything is float64 until ``Scaling.apply``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import numpy as np

from clam_dist.errors import ConfigError, DataError

# Differences of scaled values are squared and summed in float32, whose largest value is 3.4e38.
LARGEST_SCALED = 1e18
# Values divided by their row's norm need only have squares that float64 holds.
LARGEST_NORMED = 1e150
# A deviation below this part of the mean is the rounding of sums, as of 0.1 + 0.2 and 0.3.
ROUNDING = 4 * np.finfo(np.float64).eps
SCALINGS = ("standard", "minmax", "unit", "none")
# Rows looked at first, so that a column that does not rise is found out at once.
RISE_PROBE = 64


@dataclass(frozen=True)
class Statistics:
    """Counts and moments of each encoded dimension over some consecutive rows.

    Statistics of consecutive parts merge into those of the whole (up to rounding).
    """

    rows: int
    count: np.ndarray
    """int64 (d,): values seen, that is rows less the missing ones."""
    mean: np.ndarray
    """float64 (d,): mean of the seen values; 0 where none was seen."""
    m2: np.ndarray
    """float64 (d,): sum of squared deviations from the mean."""
    minimum: np.ndarray
    """float64 (d,): NaN where no value was seen."""
    maximum: np.ndarray
    """float64 (d,): NaN where no value was seen."""
    increasing: np.ndarray
    """bool (d,): every row's value is above the row's before; False where one is missing."""
    first: np.ndarray
    """float64 (d,): the first row's value; NaN where missing or without rows."""
    last: np.ndarray
    """float64 (d,): the last row's value; NaN where missing or without rows."""

    @classmethod
    def empty(cls, width: int) -> Statistics:
        """Statistics of no rows: merging with them changes nothing."""
        zero, nan = np.zeros(width), np.full(width, np.nan)
        rises = np.ones(width, dtype=bool)
        return cls(0, np.zeros(width, dtype=np.int64), zero, zero, nan, nan, rises, nan, nan)

    @classmethod
    def of(cls, x: np.ndarray) -> Statistics:
        """Statistics of encoded rows.

        Parameters
        ----------
        x : ndarray of float64, shape (n, d)
            NaN where missing, no infinities.
        """
        rows, width = x.shape
        if rows == 0:
            return cls.empty(width)
        total = x.sum(axis=0)
        # NaN + anything is NaN: the sums tell whether any value is missing, without another pass.
        if np.isnan(total).any():
            seen = ~np.isnan(x)
            count = seen.sum(axis=0, dtype=np.int64)
            mean = np.where(seen, x, 0.0).sum(axis=0) / np.maximum(count, 1)
            deviation = np.where(seen, x - mean, 0.0)
            # fmin ignores NaN, and gives NaN where nothing else is there, without a warning.
            minimum, maximum = np.fmin.reduce(x, axis=0), np.fmax.reduce(x, axis=0)
        else:
            count = np.full(width, rows, dtype=np.int64)
            mean = total / rows
            deviation = x - mean
            minimum, maximum = x.min(axis=0), x.max(axis=0)
        np.multiply(deviation, deviation, out=deviation)
        m2 = deviation.sum(axis=0)
        # copies: a row of x would keep the whole batch alive
        first, last = x[0].copy(), x[-1].copy()
        return cls(rows, count, mean, m2, minimum, maximum, _rises(x), first, last)

    def merge(self, other: Statistics) -> Statistics:
        """Statistics of this part's rows followed by the ``other``'s.

        Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing
        sample variances".
        """
        if self.rows == 0:
            return other
        if other.rows == 0:
            return self
        count = self.count + other.count
        # 0 of a feature seen in neither part stays 0
        share = other.count / np.maximum(count, 1)
        delta = other.mean - self.mean
        return Statistics(
            rows=self.rows + other.rows,
            count=count,
            mean=self.mean + delta * share,
            m2=self.m2 + other.m2 + delta * delta * (self.count * share),
            minimum=np.fmin(self.minimum, other.minimum),
            maximum=np.fmax(self.maximum, other.maximum),
            increasing=self.increasing & other.increasing & (other.first > self.last),
            first=self.first,
            last=other.last,
        )

    @property
    def variance(self) -> np.ndarray:
        """float64 (d,): population variance of the seen values; 0 where none was seen."""
        return self.m2 / np.maximum(self.count, 1)

    @property
    def missing(self) -> np.ndarray:
        """int64 (d,): rows without a value."""
        return self.rows - self.count

    @property
    def constant(self) -> np.ndarray:
        """bool (d,): one value, seen at least once, and no other."""
        return self.minimum == self.maximum

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values, None for NaN; exact: ``from_json`` gives the same bits."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Statistics:
        """The statistics that ``to_json`` described."""
        dtypes = {"count": np.int64, "increasing": np.bool_}
        arrays = {
            field.name: np.array(value[field.name], dtype=dtypes.get(field.name, np.float64))
            for field in fields(cls)
            if field.name != "rows"
        }
        return cls(rows=value["rows"], **arrays)


def merge_all(parts: Iterable[Statistics]) -> Statistics:
    """Statistics of all parts, merged in their order; at least one part."""
    return reduce(Statistics.merge, parts)


@dataclass(frozen=True)
class Scaling:
    """``(x - center) / scale``, and for ``unit`` each row divided by its norm."""

    center: np.ndarray
    """float64 (d,), in the feature's own units."""
    scale: np.ndarray
    """float64 (d,), in the feature's own units; never 0."""
    kind: str
    """``standard``, ``minmax``, ``unit`` or ``none``."""

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Scale encoded rows.

        Parameters
        ----------
        x : ndarray of float64, shape (n, d)
            Encoded rows in any memory order, NaN where missing.

        Returns
        -------
        ndarray of float32, shape (n, d), C order
            Scaled rows, a new array, NaN where missing.
        """
        scaled = x - self.center
        scaled /= self.scale
        if self.kind == "unit":
            # over the seen values; a row of zeros, or with none seen, stays as it is
            norm = np.sqrt(np.nansum(np.square(scaled), axis=1, keepdims=True))
            scaled /= np.where(norm > 0, norm, 1.0)
        return scaled.astype(np.float32, order="C")

    def invert(self, x: np.ndarray) -> np.ndarray:
        """Scaled values, shape (..., d), in original units, float64.

        A norm that ``unit`` divided by is gone: its rows come back as directions.
        """
        return np.asarray(x, dtype=np.float64) * self.scale + self.center

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values; exact: ``from_json`` gives the same bits."""
        return {"kind": self.kind, "center": self.center.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Scaling:
        """The scaling that ``to_json`` described."""
        return cls(
            np.array(value["center"], dtype=np.float64),
            np.array(value["scale"], dtype=np.float64),
            value["kind"],
        )


def fit_scaling(statistics: Statistics, kind: str, names: Sequence[str] = ()) -> Scaling:
    """Fit a scaling to the whole source's statistics.

    A constant feature gets scale 1 and, where the kind centres, becomes 0: it takes no part in
    any distance. A feature with no value at all is left alone: it is missing in every row.

    Parameters
    ----------
    kind : str
        ``standard``: zero mean, unit variance (population). ``minmax``: 0 to 1. ``unit``: each
        row divided by its norm. ``none``: as it is.
    names : sequence of str
        Names of the d dimensions, for messages.

    Raises
    ------
    ConfigError
        A kind that this version does not have.
    DataError
        Values so large that scaled rows overflow float32.
    """
    if kind == "robust":
        raise ConfigError(
            "prepare.scaling: robust is not available in this version; use standard or minmax"
        )
    if kind not in SCALINGS:
        raise ConfigError(f"prepare.scaling: {kind!r} is not one of {', '.join(SCALINGS)}")
    center, scale = np.zeros_like(statistics.mean), np.ones_like(statistics.mean)
    with np.errstate(over="ignore"):
        spread = statistics.maximum - statistics.minimum
        deviation = np.sqrt(statistics.variance)
    seen = statistics.count > 0
    if kind in ("standard", "minmax"):
        varies = seen & ~statistics.constant & (deviation > ROUNDING * np.abs(statistics.mean))
        if kind == "standard":
            center[seen], scale[varies] = statistics.mean[seen], deviation[varies]
        else:
            center[seen], scale[varies] = statistics.minimum[seen], spread[varies]
        center[statistics.constant] = statistics.minimum[statistics.constant]
    with np.errstate(over="ignore", invalid="ignore"):
        extremes = (np.stack([statistics.minimum, statistics.maximum]) - center) / scale
    _refuse_overflow(extremes, kind, names)
    return Scaling(center, scale, kind)


def _refuse_overflow(scaled: np.ndarray, kind: str, names: Sequence[str]) -> None:
    """Refuse scaled extremes, shape (2, d), that later sums of squares could not hold."""
    largest = LARGEST_NORMED if kind == "unit" else LARGEST_SCALED
    # NaN (no value seen) compares False; an overflow has become an infinity
    wrong = (np.abs(scaled) > largest).any(axis=0)
    if wrong.any():
        index = int(np.argmax(wrong))
        name = f"'{names[index]}'" if len(names) else f"number {index}"
        raise DataError(
            f"feature {name} has values up to {np.nanmax(np.abs(scaled[:, index])):.3g} after "
            f"scaling '{kind}', more than the {largest:.3g} that can be squared and summed. "
            "Use prepare.scaling: standard, or add the column to source.exclude."
        )


def _rises(x: np.ndarray) -> np.ndarray:
    """bool (d,): each row strictly above the one before."""
    probe = x[: RISE_PROBE + 1]
    rises = (probe[1:] > probe[:-1]).all(axis=0) & ~np.isnan(x[0])
    for column in np.flatnonzero(rises):
        values = x[:, column]
        rises[column] = (values[1:] > values[:-1]).all()
    return rises


def _plain(value: np.ndarray | int) -> list[Any] | int:
    if not isinstance(value, np.ndarray):
        return value
    return [None if item != item else item for item in value.tolist()]
