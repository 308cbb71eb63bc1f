"""What a model learned, in pictures: which there are, and how to read each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clam_dist.reporting.basin_plots import basins_plot, entropy_plot, mean_entropy
from clam_dist.reporting.image_plots import (
    MOST_COLUMNS,
    MOST_TILES,
    history_plot,
    prototypes_plot,
    reconstructions_plot,
)
from clam_dist.reporting.space_plots import MOST_PATHS, latents_plot, paths_plot
from clam_dist.reporting.words import figure, percent, whole

MOST_BYTES = 1_500_000
"""All pictures of a report together take no more, whatever is given: sides, tiles, panels and
points are bounded."""
KEYS = (
    "image_shape",
    "sizes",
    "prototypes",
    "prototype_history",
    "decoded_prototypes",
    "reconstructions",
    "latents",
    "paths",
    "basins",
    "entropies",
)
OPTIONAL = {"clusters", "names", "chosen", "unit", "encoded"}
"""Parts of an entry without which it can be drawn; of basins, the points too."""
STRIP = "a strip of one cell for each feature or few, in scaled units"


class Picture(NamedTuple):
    """A plot with what stands over and under it."""

    title: str
    svg: str
    caption: str


def model_pictures(pictures: Mapping[str, Any]) -> list[Picture]:
    """The pictures for which there is something to show, in the order of a report.

    Parameters
    ----------
    pictures : mapping
        Of NumPy arrays or nested lists. Each key may be absent, None or empty: then its picture is
        left out.

        - ``image_shape``: ``[channels, height, width]`` of a row of features. Without it,
          prototypes are not drawn and reconstructions are strips.
        - ``sizes``: ``(k,)`` rows of each cluster, which order the tiles.
        - ``prototypes``: ``(k, d)``, in units in which pictures look natural.
        - ``prototype_history``: sequence of ``{"epoch": float or str, "prototypes": (k, d)}``; a
          word for a moment without an epoch, such as the start.
        - ``decoded_prototypes``: ``(k, d)``, what the decoder makes of each prototype.
        - ``reconstructions``: ``{"inputs": (n, d), "outputs": (n, d), "clusters": (n,)}``, the
          last optional; with ``decoded_prototypes`` in one scale.
        - ``latents``: ``{"points": (n, m), "labels": (n,), "prototypes": (k, m), "encoded":
          bool}``, the last True by default, False where a learned metric maps the rows.
        - ``paths``: ``{"points": (n, m), "paths": (L + 1, k, m)}``: latents, and the centroids
          before the first block and after each.
        - ``basins``: ``{"labels": (nb, H, W), "betas": (nb,), "extent": [x_min, x_max, y_min,
          y_max], "prototypes": (k, 2), "points": (n, 2), "chosen": float, "names": [x, y], "unit":
          [x, y]}``, the last four optional; row 0 of a grid is at ``y_min``. ``unit`` is the
          length of 1 along each axis for distances, 1 by default. A beta of nan is that of a
          model without inverse temperature.
        - ``entropies``: ``{"counts": (b,), "edges": (b + 1,), "n_clusters": k}``, in nats, of the
          rows of a sample.

    Raises
    ------
    ValueError
        A key that is not known, or arrays whose shapes do not fit together.
    """
    unknown = sorted(set(pictures) - set(KEYS))
    if unknown:
        raise ValueError(f"pictures has the key {unknown[0]!r}; known are {', '.join(KEYS)}.")
    given = {key: value for key, value in pictures.items() if _something(value, key)}
    shape = given.get("image_shape")
    drawn = [
        _prototypes(given, shape),
        _history(given, shape),
        _decoded(given, shape),
        _reconstructions(given, shape),
        _latents(given.get("latents")),
        _paths(given.get("paths")),
        _basins(given.get("basins")),
        _entropies(given.get("entropies")),
    ]
    return [found for found in drawn if found is not None]


def _something(value: Any, name: str = "") -> bool:
    """Whether there is a part to draw: not None, not empty, and nothing it needs is either."""
    if value is None:
        return False
    if isinstance(value, Mapping):
        optional = OPTIONAL | ({"points"} if name == "basins" else set())
        needed = [part for key, part in value.items() if key not in optional]
        return bool(needed) and all(_something(part) for part in needed)
    return not hasattr(value, "__len__") or len(value) > 0


def _sizes(given: Mapping[str, Any], count: int) -> list[float]:
    sizes = [float(size) for size in given.get("sizes", ())] or [0.0] * count
    if len(sizes) != count:
        raise ValueError(
            f"pictures has {len(sizes)} sizes but {count} prototypes; give one size for each."
        )
    return sizes


def _of(shown: int, count: int, what: str) -> str:
    return f" The {shown} largest of {count} {what}." if count > shown else ""


def _scale_in_words(shape: Sequence[int] | None) -> str:
    kind = "Colours" if shape is not None and shape[0] == 3 else "Shades"
    return f"{kind} of all are on one scale, drawn under them."


def _prototypes(given: Mapping[str, Any], shape: Sequence[int] | None) -> Picture | None:
    if "prototypes" not in given or shape is None:
        return None
    table = np.asarray(given["prototypes"], dtype=np.float64)
    caption = (
        "Each cluster's prototype as an image, with its number and rows. Prototypes draw rows to "
        f"them and may look sharper than any mean. {_scale_in_words(shape)}"
        f"{_of(MOST_TILES, len(table), 'clusters')}"
    )
    svg = prototypes_plot(table, shape, _sizes(given, len(table)), "Prototypes")
    return Picture("Prototypes", svg, caption)


def _history(given: Mapping[str, Any], shape: Sequence[int] | None) -> Picture | None:
    rounds = given.get("prototype_history")
    if rounds is None or shape is None:
        return None
    count = len(rounds[0]["prototypes"])
    caption = (
        "A column for each cluster, a row for each epoch named at the left, the start on top: "
        'where rows look alike, training had settled. From "search" to "chosen" it was on all '
        f"rows. {_scale_in_words(shape)}"
        f"{_of(MOST_COLUMNS, count, 'clusters')}"
    )
    svg = history_plot(rounds, shape, _sizes(given, count))
    return Picture("Prototypes through training", svg, caption)


def _decoded(given: Mapping[str, Any], shape: Sequence[int] | None) -> Picture | None:
    if "decoded_prototypes" not in given:
        return None
    table = np.asarray(given["decoded_prototypes"], dtype=np.float64)
    what = "an image" if shape is not None else STRIP
    caption = (
        f"What the decoder makes of each prototype, as {what} with the cluster's number and rows: "
        f"what a typical row of it looks like. {_scale_in_words(shape)}"
        f"{_of(MOST_TILES, len(table), 'clusters')}"
    )
    svg = prototypes_plot(table, shape, _sizes(given, len(table)), "Decoded prototypes")
    return Picture("Decoded prototypes", svg, caption)


def _reconstructions(given: Mapping[str, Any], shape: Sequence[int] | None) -> Picture | None:
    pairs = given.get("reconstructions")
    if pairs is None:
        return None
    clusters = pairs.get("clusters")
    svg = reconstructions_plot(pairs["inputs"], pairs["outputs"], shape, clusters)
    side = "left" if shape is not None else f"the upper of two, each {STRIP}"
    caption = (
        f"Rows ({side}) and what the model makes of them beside it: what the two share is what the "
        f"model keeps of a row, the rest is lost to it. {_scale_in_words(shape)}"
    )
    return Picture("Rows and their reconstructions", svg, caption)


def _latents(found: Mapping[str, Any] | None) -> Picture | None:
    if found is None:
        return None
    encoded = bool(found.get("encoded", True))
    title = "Latents and prototypes" if encoded else "Rows and prototypes by the learned metric"
    svg = latents_plot(found["points"], found["labels"], found["prototypes"], title)
    caption = (
        f"A sample of rows as the {'encoder' if encoded else 'metric'} places them, in the two "
        "directions in which they spread "
        "most. Colour is the cluster (from 10 on, crosses and then dashes); ringed and numbered "
        "are prototypes. Clusters that overlap here may be apart in the directions not shown."
    )
    return Picture(title, svg, caption)


def _paths(found: Mapping[str, Any] | None) -> Picture | None:
    if found is None:
        return None
    svg = paths_plot(found["points"], found["paths"])
    count = np.shape(found["paths"])[1]
    caption = (
        "Each centroid's way from its start (hollow) through the blocks to where it labels rows "
        "(ringed, numbered), over a sample of rows in grey, in the two directions in which these "
        f"spread most. Short last parts mean that more blocks would change little."
        f"{f' The first {MOST_PATHS} of {count} centroids.' if count > MOST_PATHS else ''}"
    )
    return Picture("Centroids through the blocks", svg, caption)


def _basins(found: Mapping[str, Any] | None) -> Picture | None:
    if found is None:
        return None
    betas = [float(beta) for beta in found["betas"]]
    svg = basins_plot(
        found["labels"],
        betas,
        found["extent"],
        found["prototypes"],
        found.get("points"),
        found.get("chosen"),
        found.get("unit", (1.0, 1.0)),
    )
    names = found.get("names")
    axes = f" Across {names[0]}, upwards {names[1]}." if names is not None else ""
    warm = not any(math.isnan(beta) for beta in betas)
    caption = (
        f"Coloured: the region whose rows go to each prototype{', by inverse temperature β' * warm}"
        ". Dashed: the borders by nearest prototype, as k-means draws them. The percentage is the "
        f"share of the area where the two differ.{axes}"
    )
    return Picture("Basins of attraction", svg, caption)


def _entropies(found: Mapping[str, Any] | None) -> Picture | None:
    if found is None:
        return None
    counts, edges = (np.asarray(found[key], dtype=np.float64) for key in ("counts", "edges"))
    k = int(found["n_clusters"])
    mean, greatest = mean_entropy(counts, edges), math.log(k) if k > 1 else 1.0
    caption = (
        f"How undecided {whole(counts.sum())} rows of a sample are between prototypes: at 0 one "
        "prototype alone draws a row, and the "
        f"clusters are those of the nearest prototype; at log k (dashed) all {k} draw alike. The "
        f"mean is about {figure(mean, 2)}, {percent(mean / greatest)} of the greatest."
    )
    return Picture("Entropy of the assignment", entropy_plot(counts, edges, k), caption)
