"""Mergeable statistics of encoded features, and the scaling fitted from them.

Legend: n rows, d encoded dimensions. Everything is float64 until ``Scaling.apply``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
_ARRAYS = ("count", "weight", "mean", "m2", "minimum", "maximum")
SCALINGS = ("standard", "minmax", "unit", "none")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Counts and moments of each encoded dimension over some consecutive rows.

    Statistics of consecutive parts merge into those of the whole (up to rounding). Where rows have
    weights, one of weight 2 counts in the moments as two rows do, and rows of weight 0 are left
    out of everything.
    """

    rows: int
    count: np.ndarray
    """int64 (d,): values seen, that is rows less the missing ones."""
    weight: np.ndarray
    """float64 (d,): sum of the seen values' weights; ``count`` where rows have none."""
    mean: np.ndarray
    """float64 (d,): weighted mean of the seen values; 0 where none was seen."""
    m2: np.ndarray
    """float64 (d,): weighted sum of squared deviations from the mean."""
    minimum: np.ndarray
    """float64 (d,): NaN where no value was seen."""
    maximum: np.ndarray
    """float64 (d,): NaN where no value was seen."""

    @classmethod
    def empty(cls, width: int) -> Statistics:
        """Statistics of no rows: merging with them changes nothing."""
        zero, nan = np.zeros(width), np.full(width, np.nan)
        return cls(0, np.zeros(width, dtype=np.int64), zero, zero, zero, nan, nan)

    @classmethod
    def of(cls, x: np.ndarray, weight: np.ndarray | None = None) -> Statistics:
        """Statistics of encoded rows.

        Parameters
        ----------
        x : ndarray of float64, shape (n, d)
            NaN where missing, no infinities.
        weight : ndarray of float64, shape (n,), optional
            Finite, not negative.
        """
        if weight is not None:
            kept = weight > 0
            if not kept.all():
                x, weight = x[kept], weight[kept]
        rows, width = x.shape
        if rows == 0:
            return cls.empty(width)
        # Values near the largest float64 overflow into infinite moments; fit_scaling refuses them.
        with np.errstate(over="ignore", invalid="ignore"):
            return cls._moments(x, weight)

    @classmethod
    def _moments(cls, x: np.ndarray, weight: np.ndarray | None) -> Statistics:
        rows, width = x.shape
        total = _sum(x, weight)
        # NaN + anything is NaN: the sums tell whether any value is missing, without another pass.
        if np.isnan(total).any():
            seen = ~np.isnan(x)
            count = seen.sum(axis=0, dtype=np.int64)
            held = count.astype(np.float64) if weight is None else _sum(seen, weight)
            mean = _sum(np.where(seen, x, 0.0), weight) / np.where(held > 0, held, 1.0)
            deviation = np.where(seen, x - mean, 0.0)
            # fmin ignores NaN, and gives NaN where nothing else is there, without a warning.
            minimum, maximum = np.fmin.reduce(x, axis=0), np.fmax.reduce(x, axis=0)
        else:
            count = np.full(width, rows, dtype=np.int64)
            held = np.full(width, float(rows) if weight is None else weight.sum())
            mean = total / held
            deviation = x - mean
            minimum, maximum = x.min(axis=0), x.max(axis=0)
        np.multiply(deviation, deviation, out=deviation)
        m2 = _sum(deviation, weight)
        return cls(rows, count, held, mean, m2, minimum, maximum)

    def merge(self, other: Statistics) -> Statistics:
        """Statistics of this part's rows followed by the ``other``'s.

        Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing
        sample variances".
        """
        if self.rows == 0:
            return other
        if other.rows == 0:
            return self
        weight = self.weight + other.weight
        # 0 of a feature seen in neither part stays 0
        share = other.weight / np.where(weight > 0, weight, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            delta = other.mean - self.mean
            mean = self.mean + delta * share
            m2 = self.m2 + other.m2 + delta * delta * (self.weight * share)
        return Statistics(
            rows=self.rows + other.rows,
            count=self.count + other.count,
            weight=weight,
            mean=mean,
            m2=m2,
            minimum=np.fmin(self.minimum, other.minimum),
            maximum=np.fmax(self.maximum, other.maximum),
        )

    def take(self, dimensions: slice) -> Statistics:
        """Statistics of some of the dimensions."""
        return replace(self, **{name: getattr(self, name)[dimensions] for name in _ARRAYS})

    @classmethod
    def beside(cls, parts: Sequence[Statistics]) -> Statistics:
        """Statistics of the same rows' dimensions, side by side; at least one part."""
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        return cls(rows=parts[0].rows, **arrays)

    @property
    def variance(self) -> np.ndarray:
        """float64 (d,): population variance of the seen values; 0 where none was seen."""
        return self.m2 / np.where(self.weight > 0, self.weight, 1.0)

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
        return {"rows": self.rows, **{name: _plain(getattr(self, name)) for name in _ARRAYS}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Statistics:
        """The statistics that ``to_json`` described."""
        arrays = {
            name: np.array(value[name], dtype=np.int64 if name == "count" else np.float64)
            for name in _ARRAYS
        }
        return cls(rows=value["rows"], **arrays)


def merge_all(parts: Iterable[Statistics]) -> Statistics:
    """Statistics of all parts, merged in their order; at least one part."""
    return reduce(Statistics.merge, parts)


@dataclass(frozen=True, eq=False)
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
            Scaled rows, a new array, NaN where missing. Values beyond 1e18, which only rows that
            the scaling was not fitted to can have, are taken as that: sums of squares hold no more.
        """
        scaled = x - self.center
        scaled /= self.scale
        if self.kind == "unit":
            # over the seen values; a row of zeros, or with none seen, stays as it is
            norm = np.sqrt(np.nansum(np.square(scaled), axis=1, keepdims=True))
            scaled /= np.where(norm > 0, norm, 1.0)
        np.clip(scaled, -LARGEST_SCALED, LARGEST_SCALED, out=scaled)
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
    _refuse_overflow(statistics, center, scale, kind, names)
    return Scaling(center, scale, kind)


def _refuse_overflow(
    statistics: Statistics,
    center: np.ndarray,
    scale: np.ndarray,
    kind: str,
    names: Sequence[str],
) -> None:
    """Refuse values that, scaled, later sums of squares could not hold."""
    largest = LARGEST_NORMED if kind == "unit" else LARGEST_SCALED
    with np.errstate(over="ignore", invalid="ignore"):
        # (2, d); NaN where no value was seen, which compares False
        extremes = (np.stack([statistics.minimum, statistics.maximum]) - center) / scale
    finite = np.isfinite(center) & np.isfinite(scale)
    wrong = (np.abs(extremes) > largest).any(axis=0) | ~finite
    if wrong.any():
        index = int(np.argmax(wrong))
        name = f"'{names[index]}'" if len(names) else f"number {index}"
        raise DataError(
            f"feature {name} has values from {statistics.minimum[index]:.3g} to "
            f"{statistics.maximum[index]:.3g}, too large for prepare.scaling: {kind} (scaled "
            f"values may reach {largest:.0e}). Use smaller units or prepare.scaling: standard, or "
            "add the column to source.exclude."
        )


def _sum(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Sum over rows ``(n, d)``, weighted where there are weights ``(n,)``, float64 ``(d,)``.

    Not by a matrix product, whose digits depend on the number of threads.
    """
    return values.sum(axis=0) if weight is None else (values * weight[:, None]).sum(axis=0)


def _plain(value: np.ndarray) -> list[Any]:
    """A list for JSON, which has no NaN."""
    return [None if item != item else item for item in value.tolist()]
