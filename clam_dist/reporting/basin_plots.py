"""Basins of attraction beside Voronoi's cells, and how undecided rows are between prototypes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clam_dist.reporting.image_plots import thinned
from clam_dist.reporting.plots import (
    LINE,
    MAIN,
    SOFT,
    TEXT,
    WARN,
    WIDTH,
    figure_svg,
    rule,
    text,
    ticks,
)
from clam_dist.reporting.rasters import Array, picture
from clam_dist.reporting.space_plots import (
    COLOURS,
    MOST_PANELS,
    PANEL_CELLS,
    PANEL_POINTS,
    Frame,
    colour_of,
    dots,
    numbered,
)
from clam_dist.reporting.words import percent, whole

MOST_BARS = 48
STRONG, WEAK = 150, 82
"""Opacities of a basin, of 255: weak for the first ten clusters, strong for the next ten."""


def basins_plot(
    labels: ArrayLike,
    betas: Sequence[float],
    extent: Sequence[float],
    prototypes: ArrayLike,
    points: ArrayLike | None = None,
    chosen: float | None = None,
    unit: Sequence[float] = (1.0, 1.0),
) -> str:
    """A panel for each inverse temperature: basins in colour, Voronoi's cells by dashed lines.

    Parameters
    ----------
    labels : array of int (nb, H, W)
        The cluster to which the middle of each cell of a grid flows; row 0 at the least y,
        column 0 at the least x; below 0 is left blank.
    betas : sequence of float, nb
    extent : (x_min, x_max, y_min, y_max)
        Edges of the grid.
    prototypes : array (k, 2)
    points : array (n, 2), optional
        Rows, drawn faintly.
    chosen : float, optional
        The model's own inverse temperature, named in its panel's title.
    unit : (float, float)
        Length of 1 along each axis for the distances to prototypes.
    """
    grids, memories = np.asarray(labels).astype(int), np.asarray(prototypes, dtype=np.float64)
    if grids.ndim != 3 or len(grids) != len(betas) or memories.shape[1:] != (2,):
        raise ValueError(
            f"basins: labels have shape {grids.shape}, betas {len(betas)} entries and prototypes "
            f"shape {memories.shape}; give a grid for each beta and prototypes of two features."
        )
    kept = _panels(len(betas), betas, chosen)
    rows = np.asarray([] if points is None else points, dtype=np.float64).reshape(-1, 2)
    rows = rows[np.isfinite(rows).all(axis=1)]
    rows = rows[thinned(len(rows), PANEL_POINTS)]
    columns, gap = min(len(kept), 2), 12.0
    wide = (WIDTH - gap * (columns - 1) - 1) / columns
    left, right, bottom, top = (float(edge) for edge in extent)
    tall = wide * min(max((top - bottom) / ((right - left) or 1.0), 0.5), 1.6)
    scale = np.asarray(unit, dtype=np.float64)
    within = (left / scale[0], right / scale[0], bottom / scale[1], top / scale[1])
    edges = [ends * scale for ends in voronoi_edges(memories / scale, within)]
    body, said = [], []
    for place, panel in enumerate(kept):
        x, y = 0.5 + (place % columns) * (wide + gap), 20 + (place // columns) * (tall + 30)
        frame = Frame((left, bottom), (right, top), x, y, wide, tall)
        other = percent(off_voronoi(grids[panel], memories / scale, within))
        own = ", the model's" if betas[panel] == chosen else ""
        name = "" if math.isnan(betas[panel]) else f"β {betas[panel]:.3g}{own}"
        said.append(f"{name or 'The model'}: {other} of the area not the nearest prototype's")
        body.append(text(x, y - 6, name))
        body.append(text(x + wide, y - 6, other, "end", SOFT))
        body.append(picture(_tints(grids[panel]), x, y, wide, tall))
        body.append(dots(frame.at(rows[frame.holds(rows)]), TEXT, size=1.8, opacity=0.5))
        lines = "".join(
            f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" for a, b in map(frame.at, edges)
        )
        body.append(
            f'<path d="{lines}" stroke="{TEXT}" stroke-width="1.3" stroke-dasharray="4 3" '
            'fill="none"/>'
        )
        body.append(frame.border())
        here = [c for c in range(len(memories)) if frame.holds(memories[c : c + 1])[0]]
        body += numbered(frame.at(memories[here]), here, [colour_of(c) for c in here])
    height = 20 + -(-len(kept) // columns) * (tall + 30) - 24
    return figure_svg(height, "Basins of attraction", "; ".join(said) + ".", body)


def _panels(count: int, betas: Sequence[float], chosen: float | None) -> list[int]:
    """At most six panels, the model's own among them."""
    kept = thinned(count, MOST_PANELS)
    own = next((i for i, beta in enumerate(betas) if beta == chosen), None)
    if own is not None and own not in kept:
        kept[min(range(len(kept)), key=lambda i: abs(kept[i] - own))] = own
    return sorted(kept)


def off_voronoi(grid: NDArray[np.int_], prototypes: Array, extent: Sequence[float]) -> float:
    """Share of a grid's cells that do not flow to the prototype nearest to them."""
    height, width = grid.shape
    left, right, bottom, top = extent
    x = left + (np.arange(width) + 0.5) / width * (right - left)
    y = bottom + (np.arange(height) + 0.5) / height * (top - bottom)
    nearest = np.zeros(grid.shape, dtype=int)
    least = np.full(grid.shape, np.inf)
    for c, (px, py) in enumerate(prototypes):
        distance = (x[None] - px) ** 2 + (y[:, None] - py) ** 2
        closer = distance < least
        nearest[closer], least[closer] = c, distance[closer]
    return float(np.mean(nearest[grid >= 0] != grid[grid >= 0])) if (grid >= 0).any() else 0.0


def voronoi_edges(prototypes: Array, extent: Sequence[float]) -> list[Array]:
    """Borders between Voronoi's cells inside a rectangle, each ``(2, 2)``: its two ends.

    Each border lies on the perpendicular bisector of two prototypes; what is nearer to a third one
    or outside is cut off.
    """
    left, right, bottom, top = extent
    walls = [((1, 0), right), ((-1, 0), -left), ((0, 1), top), ((0, -1), -bottom)]
    found = []
    for i, a in enumerate(prototypes):
        for j in range(i + 1, len(prototypes)):
            b = prototypes[j]
            if np.array_equal(a, b):
                continue
            middle, along = (a + b) / 2, np.array([a[1] - b[1], b[0] - a[0]])
            limits = [(np.array(n, dtype=np.float64), level) for n, level in walls]
            # Nearer to a than to c: (c - a)·x <= (|c|² - |a|²) / 2.
            limits += [
                (c - a, (c @ c - a @ a) / 2) for m, c in enumerate(prototypes) if m not in (i, j)
            ]
            ends = _cut(middle, along, limits)
            if ends is not None:
                found.append(np.array([middle + ends[0] * along, middle + ends[1] * along]))
    return found


def _cut(
    middle: Array, along: Array, limits: Sequence[tuple[Array, float]]
) -> tuple[float, float] | None:
    """The part of a line that all half-planes ``n·x <= level`` share, or None."""
    low, high = -math.inf, math.inf
    for normal, level in limits:
        slope, room = float(normal @ along), float(level - normal @ middle)
        if slope > 0:
            high = min(high, room / slope)
        elif slope < 0:
            low = max(low, room / slope)
        elif room < 0:
            return None
    return (low, high) if low < high else None


def _tints(grid: NDArray[np.int_]) -> NDArray[np.uint8]:
    """Colours with opacity ``(H', W', 4)``, the greatest y on top."""
    step = -(-max(grid.shape) // PANEL_CELLS)
    cells = grid[::step, ::step][::-1]
    table = np.array([[*bytes.fromhex(colour[1:])] for colour in COLOURS], dtype=np.uint8)
    strength = np.where(cells // len(COLOURS) % 2 == 0, WEAK, STRONG)
    opacity = np.where(cells < 0, 0, strength).astype(np.uint8)
    return np.concatenate([table[cells % len(COLOURS)], opacity[..., None]], axis=-1)


def entropy_plot(counts: ArrayLike, edges: ArrayLike, n_clusters: int) -> str:
    """Histogram of the rows' entropies from 0 to log k, where all prototypes draw alike.

    Parameters
    ----------
    counts : array (b,)
        Rows of each bin.
    edges : array (b + 1,)
        Of the bins, in nats.
    n_clusters : int
    """
    rows, bounds = np.asarray(counts, dtype=np.float64), np.asarray(edges, dtype=np.float64)
    if len(bounds) != len(rows) + 1:
        raise ValueError(
            f"entropies: {len(rows)} counts but {len(bounds)} edges; give one edge more than bins."
        )
    step = -(-len(rows) // MOST_BARS)
    starts = np.arange(0, len(rows), step)
    rows, bounds = np.add.reduceat(rows, starts), bounds[[*starts, len(rows)]]
    total, most = float(rows.sum()) or 1.0, float(rows.max()) or 1.0
    greatest = math.log(n_clusters) if n_clusters > 1 else 0.0
    end = max(greatest, float(bounds[-1])) or 1.0
    left, right, top, bottom = 48.0, 14.0, 24.0, 190.0

    def x_of(value: float) -> float:
        return left + (WIDTH - left - right) * value / end

    def y_of(share: float) -> float:
        return bottom - (bottom - top - 8) * share * total / most

    body = []
    for tick in ticks(0.0, most / total, 5):
        body.append(rule(left, y_of(tick), WIDTH - right, y_of(tick), LINE))
        body.append(text(left - 8, y_of(tick) + 4, percent(tick), "end", SOFT))
    for count, a, b in zip(rows, bounds[:-1], bounds[1:], strict=True):
        if count:
            y = min(y_of(count / total), bottom - 0.8)
            wide = max(x_of(b) - x_of(a) - 0.7, 0.8)
            body.append(
                f'<rect x="{x_of(a):.1f}" y="{y:.1f}" width="{wide:.1f}" '
                f'height="{bottom - y:.1f}" fill="{MAIN}"/>'
            )
    for tick in ticks(0.0, end, 6):
        body.append(text(x_of(tick), bottom + 18, f"{tick:.3g}", "middle", SOFT))
    if greatest:
        body.append(rule(x_of(greatest), top - 4, x_of(greatest), bottom + 4, WARN, "4 3"))
        body.append(text(x_of(greatest) - 4, top - 8, f"log {n_clusters} = {greatest:.2f}", "end"))
    body.append(text(WIDTH - right, bottom + 36, "entropy in nats", "end", SOFT))
    said = f"{whole(total)} rows; mean about {mean_entropy(rows, bounds):.3g} of {greatest:.3g}."
    return figure_svg(bottom + 42, "Entropy of the assignment", said, body)


def mean_entropy(counts: Array, edges: Array) -> float:
    """Mean of a histogram, each row at the middle of its bin."""
    total = float(np.sum(counts)) or 1.0
    return float(np.sum(counts * (edges[:-1] + edges[1:]) / 2)) / total
