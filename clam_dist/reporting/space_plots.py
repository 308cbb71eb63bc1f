"""Where rows and prototypes lie: basins of attraction, latents, and the paths of centroids.

Letters: ``n`` rows, ``k`` clusters, ``m`` latent axes, ``H`` and ``W`` cells of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clam_dist.reporting.image_plots import thinned
from clam_dist.reporting.plots import LINE, SOFT, TEXT, WIDTH, figure_svg, text
from clam_dist.reporting.rasters import Array
from clam_dist.reporting.words import percent

COLOURS = (
    "#2f6fb2",
    "#d96a1f",
    "#88bbaa",
    "#7733ff",
    "#aa4444",
    "#99bbee",
    "#88cc77",
    "#447788",
    "#8877ff",
    "#ffaa00",
)
"""Colours of clusters, chosen one after the other as far as possible from those before in CIELAB,
seen with all cones, without the green and without the red ones, and readable on either page. From
the eleventh cluster on they come again with another mark; each prototype bears its number."""
MOST_POINTS = 1500
MOST_PANELS, PANEL_CELLS, PANEL_POINTS = 6, 160, 400
MOST_PATHS = 24
CARD = "var(--card, #fff)"


@dataclass(frozen=True)
class Axes:
    """The two directions in which rows spread most.

    Parameters
    ----------
    centre : ndarray (m,)
    directions : ndarray (2, m)
        Of length 1; each has its entry of greatest size above 0. With one axis the second is 0.
    shares : (float, float)
        Of the variance along each.
    """

    centre: Array
    directions: Array
    shares: tuple[float, float]

    def project(self, rows: ArrayLike) -> Array:
        """Places ``(..., 2)`` of rows ``(..., m)``."""
        return (np.asarray(rows, dtype=np.float64) - self.centre) @ self.directions.T


def principal_axes(rows: ArrayLike) -> Axes:
    """The first two principal axes of ``(n, m)`` rows, from their singular values."""
    x = np.asarray(rows, dtype=np.float64)
    centre = x.mean(axis=0)
    _, spread, directions = np.linalg.svd(x - centre, full_matrices=False)
    directions, found = directions[:2], spread[:2] ** 2
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    kept = np.zeros((2, x.shape[1]))
    kept[: len(directions)] = directions * np.where(signs == 0, 1.0, signs)[:, None]
    total = float((spread**2).sum()) or 1.0
    shares = [float(value) / total for value in found] + [0.0, 0.0]
    return Axes(centre, kept, (shares[0], shares[1]))


@dataclass(frozen=True)
class Frame:
    """A part of a plot that shows a part of the plane, y upwards.

    Parameters
    ----------
    low, high : (float, float)
        The corners of what is shown.
    x, y, width, height
        Where, in units of the plot.
    """

    low: tuple[float, float]
    high: tuple[float, float]
    x: float
    y: float
    width: float
    height: float

    def at(self, points: ArrayLike) -> Array:
        """Places in the plot of points ``(..., 2)``."""
        low, high = np.array(self.low), np.array(self.high)
        share = (np.asarray(points, dtype=np.float64) - low) / np.where(high > low, high - low, 1.0)
        corner = np.array([self.x, self.y + self.height])
        return corner + share * np.array([self.width, -self.height])

    def holds(self, points: Array) -> NDArray[np.bool_]:
        """Which points ``(n, 2)`` lie inside."""
        return np.all((points >= self.low) & (points <= self.high), axis=-1)

    def border(self) -> str:
        """A line around it."""
        return (
            f'<rect x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" '
            f'height="{self.height:.1f}" fill="none" stroke="{LINE}"/>'
        )


def square_frame(points: Array, must: Array) -> Frame:
    """A frame as wide as a plot around all ``must`` and the middle 99 % of the points."""
    known = points[np.isfinite(points).all(axis=1)]
    ends = np.quantile(known, [0.005, 0.995], axis=0) if len(known) else must[:1].repeat(2, axis=0)
    both = np.concatenate([ends, must[np.isfinite(must).all(axis=1)]])
    low, high = both.min(axis=0), both.max(axis=0)
    margin = np.where(high > low, 0.06 * (high - low), 0.5)
    low, high = low - margin, high + margin
    return Frame(tuple(low), tuple(high), 0.5, 0.5, WIDTH - 1, 300)


def dots(places: Array, colour: str, mark: int = 0, size: float = 3.0, opacity: float = 0.7) -> str:
    """Points as one path: round, or crosses for the second mark, or dashes for the third."""
    half = size / 2 + 0.3
    step = ("h0", f"m{-half:.1f} {-half:.1f}l{2 * half:.1f} {2 * half:.1f}m0 {-2 * half:.1f}"
            f"l{-2 * half:.1f} {2 * half:.1f}", f"m{-half:.1f} 0h{2 * half:.1f}")[mark]  # fmt: skip
    path = "".join(f"M{x:.0f} {y:.0f}{step}" for x, y in places)
    wide = size if mark == 0 else 1.2
    return (
        f'<path d="{path}" stroke="{colour}" stroke-width="{wide}" stroke-linecap="round" '
        f'fill="none" opacity="{opacity}"/>'
    )


def numbered(places: Array, names: Sequence[int], colours: Sequence[str]) -> list[str]:
    """Prototypes: a ringed dot in its colour with the cluster's number beside it."""
    parts = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" stroke="{TEXT}" '
        'stroke-width="1.5"/>'
        for (x, y), colour in zip(places, colours, strict=True)
    ]
    for (x, y), name in zip(places, names, strict=True):
        right = x < WIDTH - 24
        parts.append(
            f'<g font-weight="650" stroke="{CARD}" stroke-width="3" paint-order="stroke" '
            f'stroke-linejoin="round">'
            f"{text(x + (7 if right else -7), y - 4, str(name), 'start' if right else 'end')}</g>"
        )
    return parts


def colour_of(cluster: int) -> str:
    """The colour of a cluster; see ``COLOURS``."""
    return COLOURS[cluster % len(COLOURS)]


def latents_plot(
    points: ArrayLike,
    labels: ArrayLike,
    prototypes: ArrayLike,
    title: str = "Latents and prototypes",
) -> str:
    """Latents on their first two principal axes, each cluster with a colour and a mark.

    Parameters
    ----------
    points : array (n, m)
    labels : array of int (n,)
    prototypes : array (k, m)
    title : str
        For those who do not see it.
    """
    rows, codes = np.asarray(points, dtype=np.float64), np.asarray(labels).astype(int)
    if len(rows) != len(codes):
        raise ValueError(
            f"latents: {len(rows)} points but {len(codes)} labels; give a label for each point."
        )
    rows, codes = (v[np.isfinite(rows).all(axis=1)] for v in (rows, codes))
    kept = thinned(len(rows), MOST_POINTS)
    rows, codes = rows[kept], codes[kept]
    axes = principal_axes(rows)
    places, centres = axes.project(rows), axes.project(prototypes)
    frame = square_frame(places, centres)
    inside = frame.holds(places)
    body = [frame.border()]
    for cluster in np.unique(codes[inside & (codes >= 0)]):
        of = frame.at(places[inside & (codes == cluster)])
        body.append(dots(of, colour_of(cluster), min(cluster // len(COLOURS), 2)))
    names = range(len(centres))
    body += numbered(frame.at(centres), names, [colour_of(c) for c in names])
    body += _named_axes(axes, frame)
    said = f"{int(inside.sum())} rows and {len(centres)} prototypes on two principal axes."
    return figure_svg(frame.height + 44, title, said, body)


def paths_plot(points: ArrayLike, paths: ArrayLike) -> str:
    """The way of each centroid through the blocks, on the latents' first two principal axes.

    Parameters
    ----------
    points : array (n, m)
    paths : array (L + 1, k, m)
        Centroids before the first block and after each.
    """
    rows, ways = np.asarray(points, dtype=np.float64), np.asarray(paths, dtype=np.float64)
    if ways.ndim != 3 or ways.shape[2] != rows.shape[1]:
        raise ValueError(
            f"paths have shape {ways.shape} and points {rows.shape}; "
            "give paths as (blocks + 1, clusters, axes) with the axes of the points."
        )
    rows = rows[np.isfinite(rows).all(axis=1)]
    rows = rows[thinned(len(rows), MOST_POINTS)]
    axes = principal_axes(rows)
    flat = axes.project(ways[:, :MOST_PATHS])
    places = axes.project(rows)
    frame = square_frame(places, flat.reshape(-1, 2))
    body = [
        frame.border(),
        dots(frame.at(places[frame.holds(places)]), SOFT, size=2.4, opacity=0.3),
    ]
    drawn = frame.at(flat)
    for cluster in range(drawn.shape[1]):
        way, colour = drawn[:, cluster], colour_of(cluster)
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in way)
        body.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3.4 if i == 0 else 1.8}" '
            f'fill="{CARD if i == 0 else colour}" stroke="{colour}" stroke-width="1.6"/>'
            for i, (x, y) in enumerate(way[:-1])
        ]
        body += _arrow(way, colour)
    ends = drawn[-1]
    body += numbered(ends, range(len(ends)), [colour_of(c) for c in range(len(ends))])
    body += _named_axes(axes, frame)
    said = f"Paths of {drawn.shape[1]} centroids through {len(ways) - 1} blocks."
    return figure_svg(frame.height + 44, "Centroids through the blocks", said, body)


def _arrow(way: Array, colour: str) -> list[str]:
    """A head in the middle of the longest part of a path, where it hides nothing."""
    parts = np.diff(way, axis=0)
    lengths = np.linalg.norm(parts, axis=1)
    if not len(lengths) or lengths.max() < 12:
        return []
    longest = int(lengths.argmax())
    x, y = way[longest] + 0.55 * parts[longest]
    angle = math.degrees(math.atan2(parts[longest][1], parts[longest][0]))
    return [
        f'<path d="M-5 -4.5L5 0L-5 4.5Z" fill="{colour}" '
        f'transform="translate({x:.1f} {y:.1f}) rotate({angle:.0f})"/>'
    ]


def _named_axes(axes: Axes, frame: Frame) -> list[str]:
    first, second = (percent(share) for share in axes.shares)
    y = frame.y + frame.height
    return [
        text(0, y + 17, f"across: first axis, {first} of the variance", fill=SOFT),
        text(0, y + 34, f"upwards: second axis, {second}", fill=SOFT),
    ]
