"""What prototypes and an autoencoder look like: rows of features drawn as images or as strips.

Letters: ``n`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clam_dist.reporting.plots import SOFT, WIDTH, figure_svg, text
from clam_dist.reporting.rasters import (
    Array,
    Scale,
    common_scale,
    image_pixels,
    picture,
    tile_side,
)
from clam_dist.reporting.words import percent, whole

MOST_TILES = 24
"""Prototypes drawn, those of the largest clusters."""
MOST_ROUNDS = 6
MOST_COLUMNS = 12
"""Clusters whose prototypes are followed through the rounds, the largest."""
MOST_PAIRS = 8
TILE_PIXELS, SMALL_PIXELS = 48, 32
"""Pixels of a side in a grid, and where many tiles stand in a row."""
STRIP_CELLS = 96
GAP = 8.0


def thinned(count: int, most: int) -> list[int]:
    """Places of at most so many of ``count`` things, evenly apart, the first and last among them.

    >>> thinned(10, 4)
    [0, 3, 6, 9]
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def largest(sizes: Sequence[float], most: int) -> list[int]:
    """The clusters with most rows, largest first; equal ones by number."""
    return sorted(range(len(sizes)), key=lambda c: (-sizes[c], c))[:most]


def prototypes_plot(
    prototypes: Array, shape: Sequence[int] | None, sizes: Sequence[float], title: str
) -> str:
    """A tile for each prototype, the largest cluster first, with its number and rows.

    Parameters
    ----------
    prototypes : ndarray (k, d)
    shape : (channels, height, width), optional
        Without it, each is a strip of one cell for each feature.
    sizes : sequence of float, k
        Rows of each cluster.
    title : str
    """
    prototypes = np.asarray(prototypes, dtype=np.float64)
    order = largest(sizes, MOST_TILES)
    scale = common_scale(prototypes[order])
    shown = prototypes[order]
    said = f"{len(order)} of {len(prototypes)} prototypes, the largest cluster first."
    if shape is None:
        strips = [(_caption(c, sizes), [row]) for c, row in zip(order, shown, strict=True)]
        return _strips_plot(strips, scale, title, said)
    columns = min(5, max(len(order), 3))
    side = tile_side(columns, WIDTH, GAP)
    height = _height(side, shape)
    tiles = image_pixels(shown, shape, scale, TILE_PIXELS)
    body = []
    for place, (cluster, pixels) in enumerate(zip(order, tiles, strict=True)):
        x = (place % columns) * (side + GAP)
        y = (place // columns) * (height + 26)
        body.append(picture(pixels, x, y, side, height))
        body.append(text(x + side / 2, y + height + 16, _caption(cluster, sizes), "middle"))
    bottom = -(-len(order) // columns) * (height + 26)
    body += scale.key(0, bottom + 4)
    return figure_svg(bottom + 20, title, said, body)


def history_plot(
    rounds: Sequence[Mapping[str, object]], shape: Sequence[int], sizes: Sequence[float]
) -> str:
    """Prototypes through training: a row for each of at most six rounds, a column for a cluster.

    Parameters
    ----------
    rounds : sequence of mapping
        ``epoch``, a number or a word, and ``prototypes (k, d)``, in the order of training.
    shape : (channels, height, width)
    sizes : sequence of float, k
    """
    kept = [rounds[i] for i in thinned(len(rounds), MOST_ROUNDS)]
    order = largest(sizes, MOST_COLUMNS)
    tables = [np.asarray(r["prototypes"], dtype=np.float64)[order] for r in kept]
    scale = common_scale(*tables)
    left, gap = 56.0, 3.0
    side = min(tile_side(max(len(order), 4), WIDTH - left, gap), 56.0)
    height = _height(side, shape)
    body = [
        text(left + i * (side + gap) + side / 2, 12, str(cluster), "middle", SOFT)
        for i, cluster in enumerate(order)
    ]
    for place, (entry, table) in enumerate(zip(kept, tables, strict=True)):
        y = 18 + place * (height + gap)
        moment = entry["epoch"]
        name = moment if isinstance(moment, str) else f"{moment:.4g}"
        body.append(text(left - 8, y + height / 2 + 4.5, name, "end"))
        for i, pixels in enumerate(image_pixels(table, shape, scale, SMALL_PIXELS)):
            body.append(picture(pixels, left + i * (side + gap), y, side, height))
    bottom = 18 + len(kept) * (height + gap)
    body += scale.key(left, bottom + 6)
    said = f"{len(order)} prototypes at {len(kept)} of {len(rounds)} rounds, the first on top."
    return figure_svg(bottom + 22, "Prototypes through training", said, body)


def reconstructions_plot(
    inputs: Array, outputs: Array, shape: Sequence[int] | None, clusters: Sequence[int] | None
) -> str:
    """At most eight rows, each above what the model makes of it.

    Parameters
    ----------
    inputs, outputs : ndarray (n, d)
        In one scale and order.
    shape : (channels, height, width), optional
        Without it, each is a strip of one cell for each feature.
    clusters : sequence of int, n, optional
        Cluster of each row.
    """
    inputs, outputs = (np.asarray(rows, dtype=np.float64) for rows in (inputs, outputs))
    if inputs.shape != outputs.shape:
        raise ValueError(
            f"reconstructions: inputs have shape {inputs.shape} and outputs {outputs.shape}; "
            "give the same rows in both."
        )
    kept = thinned(len(inputs), MOST_PAIRS)
    scale = common_scale(inputs[kept], outputs[kept])
    names = [f"cluster {clusters[i]}" if clusters is not None else f"row {i + 1}" for i in kept]
    title, said = "Rows and their reconstructions", f"{len(kept)} rows, each with its own."
    if shape is None:
        strips = [(n, [inputs[i], outputs[i]]) for n, i in zip(names, kept, strict=True)]
        return _strips_plot(strips, scale, title, said)
    columns = 4
    side = tile_side(2 * columns, WIDTH - 10 * columns, 1.0)
    height = _height(side, shape)
    before = image_pixels(inputs[kept], shape, scale, TILE_PIXELS)
    after = image_pixels(outputs[kept], shape, scale, TILE_PIXELS)
    body = []
    for place, pair in enumerate(zip(before, after, strict=True)):
        x = (place % columns) * (WIDTH + 10) / columns
        y = (place // columns) * (height + 26)
        body += [picture(p, x + i * (side + 1), y, side, height) for i, p in enumerate(pair)]
        body.append(text(x + side, y + height + 16, names[place], "middle"))
    bottom = -(-len(kept) // columns) * (height + 26)
    body += scale.key(0, bottom + 4)
    return figure_svg(bottom + 20, title, said, body)


def _strips_plot(
    strips: Sequence[tuple[str, Sequence[Array]]], scale: Scale, title: str, said: str
) -> str:
    """Strips of cells with a name at the left; those of one name stand close together."""
    left = 12.0 + 7.2 * max((len(name) for name, _ in strips), default=0)
    thick, gap = 12.0, 9.0
    y, body = 0.0, []
    for name, rows in strips:
        middle = y + thick * len(rows) / 2
        body.append(text(left - 8, middle + 4.5, name, "end"))
        for row in rows:
            body.append(picture(_cells(row, scale), left, y, WIDTH - left, thick))
            y += thick
        y += gap
    body += scale.key(left, y + 2)
    return figure_svg(y + 18, title, said, body)


def _cells(row: Array, scale: Scale) -> np.ndarray:
    step = -(-len(row) // STRIP_CELLS)
    starts = np.arange(0, len(row), step)
    means = np.add.reduceat(row, starts) / np.diff(np.append(starts, len(row)))
    return scale.colours(means[None])


def _height(side: float, shape: Sequence[int]) -> float:
    return side * min(max(shape[1] / shape[2], 0.25), 3.0)


def _caption(cluster: int, sizes: Sequence[float]) -> str:
    rows = whole(sizes[cluster])
    total = sum(sizes) or 1.0
    return (
        f"{cluster}: {rows}" if len(rows) <= 7 else f"{cluster}: {percent(sizes[cluster] / total)}"
    )
