"""Figures in words: numbers as people write them, and what a run came to in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CLEAR, PARTLY, SLIGHTLY = 0.5, 0.25, 0.1
"""Silhouettes from which clusters are called apart, partly apart and overlapping. After Kaufman
and Rousseeuw 1990, with one more step, since many features alone bring a silhouette below .25."""

Cluster = Mapping[str, Any]


def whole(value: float) -> str:
    """A count with thousands set apart: 1 234 567 as ``1,234,567``."""
    return f"{value:,.0f}"


def figure(value: float | None, digits: int = 3) -> str:
    """A measured value in so many significant digits, without an exponent where it reads well."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e7:
        decimals = max(digits - 1 - _order(value), 0)
        return f"{value:,.{decimals}f}".replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")


def aligned(values: Sequence[float | None], digits: int = 3) -> list[str]:
    """Values of one kind with equal decimals: so many significant digits for the largest."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    if not 1e-4 <= largest < 1e7:
        return [figure(value, digits) for value in values]
    decimals = max(digits - 1 - _order(largest), 0)
    shown = ["–" if value is None else f"{value:,.{decimals}f}" for value in values]
    zero = f"{0:.{decimals}f}"
    return [zero if text == f"-{zero}" else text.replace("-", "−") for text in shown]


def _order(value: float) -> int:
    return int(f"{abs(value):e}".split("e")[1])


def score(value: float | None) -> str:
    """A silhouette, NMI or the like: three decimals."""
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def percent(share: float) -> str:
    """A share of 1 as a percentage; small ones keep a digit that is not 0."""
    if share == 0 or share >= 0.0995:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.1f} %" if share >= 0.001 else "< 0.1 %"


def seconds(value: float | None) -> str:
    """A duration: ``0.4 s``, ``12 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if value is None:
        return "–"
    if value < 9.95:
        return f"{value:.1f} s"
    rounded = round(value)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def size(n_bytes: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def separation(silhouette: float) -> str:
    """What a Euclidean silhouette says of the clusters."""
    if silhouette >= CLEAR:
        return "the clusters lie well apart"
    if silhouette >= PARTLY:
        return "the clusters are partly apart"
    if silhouette >= SLIGHTLY:
        return "the clusters overlap"
    if silhouette > 0:
        return "the clusters overlap widely"
    return "rows lie as near to other clusters as to their own"


def verdict(metrics: Mapping[str, Any]) -> str:
    """The run in one sentence: rows, clusters in use, how far apart they are.

    Parameters
    ----------
    metrics : mapping
        ``metrics.json``: ``n_rows, n_clusters, n_used, silhouette`` are read.
    """
    k, used = metrics["n_clusters"], metrics["n_used"]
    clusters = f" in {k} clusters, all in use" if used == k else f"; {used} of {k} clusters in use"
    text = f"{whole(metrics['n_rows'])} rows{clusters}"
    silhouette = metrics.get("silhouette")
    if not silhouette:
        return f"{text}; no silhouette, which needs two clusters or more."
    name = silhouette_name(silhouette).lower()
    where = " by direction" if _by_angle(silhouette) else ""
    where += " in the model's own space" if _of_latents(silhouette) else ""
    return f"{text}; {name} {with_error(silhouette)}: {separation(silhouette['value'])}{where}."


def silhouette_name(silhouette: Mapping[str, Any] | None) -> str:
    """``Silhouette``, or ``Cosine silhouette`` where it is of angles: the two do not compare."""
    return "Cosine silhouette" if silhouette and _by_angle(silhouette) else "Silhouette"


def _by_angle(silhouette: Mapping[str, Any]) -> bool:
    return str(silhouette.get("metric")) == "cosine"


def _of_latents(silhouette: Mapping[str, Any]) -> bool:
    return str(silhouette.get("space")) == "latent"


def how_silhouettes_differ(metrics: Mapping[str, Any]) -> str:
    """What sets a run's silhouettes apart from others that people know; "" for the usual one.

    Parameters
    ----------
    metrics : mapping
        ``silhouette`` and, for models with an encoder, ``silhouette_recursed``.
    """
    silhouette, recursed = metrics.get("silhouette"), metrics.get("silhouette_recursed")
    notes = []
    if silhouette and _by_angle(silhouette):
        notes.append("By the angle between rows, not their distance.")
    if silhouette and _of_latents(silhouette):
        notes.append(
            "Measured in the space that the model learned, not among the rows as they are: it does "
            "not compare with that of a model that leaves rows where they lie."
        )
    if silhouette and recursed:
        notes.append(
            "Measured on the latents before the recursion. After it the score is "
            f"{with_error(recursed)}, but there rows sit on their prototypes whatever the clusters "
            "are: compare the one before."
        )
    return " ".join(notes)


def why_no_cluster(silhouette: Mapping[str, Any] | None) -> str:
    """What rows without a cluster lack; on the sphere a direction will be missing too."""
    if silhouette and _by_angle(silhouette):
        return "have no direction (no value, or all of them 0 in scaled units) and no cluster"
    return "have no value at all and no cluster"


def with_error(silhouette: Mapping[str, Any]) -> str:
    """``0.118 ± 0.001``: the value and its standard error, which 0 leaves out."""
    error = silhouette.get("standard_error")
    if not error:
        return score(silhouette["value"])
    shown = f"{error:.3f}" if error >= 0.0005 else f"{error:.1g}"
    return f"{score(silhouette['value'])} ± {shown}"


def how_measured(silhouette: Mapping[str, Any]) -> str:
    """Metric, form, samples and seed of a silhouette, which belong with the number."""
    space = " in the model's own space" if _of_latents(silhouette) else ""
    return (
        f"{silhouette['metric'].capitalize()}{space}, {silhouette.get('form', 'pairwise')}; "
        f"{whole(silhouette['rows'])} rows{_against(silhouette.get('references'))}, "
        f"seed {silhouette['seed']}"
    )


def _against(references: int | str | None) -> str:
    if references is None:
        return ""
    if references == "queries":
        return " against one another"
    named = "all rows" if references == "all" else f"{whole(float(references))} rows a cluster"
    return f" against {named}"


def stands_out(cluster: Cluster, features: Sequence[str], most: int = 3) -> str:
    """Where a cluster's means lie furthest from the overall ones, in words.

    Parameters
    ----------
    cluster : mapping
        With ``z``: standard deviations from the overall mean by feature, None where unseen.
    features : sequence of str
    most : int
        Features named.
    """
    known = [(z, name) for z, name in zip(cluster["z"], features, strict=True) if z is not None]
    far = sorted((pair for pair in known if abs(pair[0]) >= 0.5), key=lambda pair: -abs(pair[0]))
    if not far:
        return "near the overall mean" if known else "no rows"
    return ", ".join(f"{'high' if z > 0 else 'low'} {name}" for z, name in far[:most])


def by_size(clusters: Sequence[Cluster]) -> list[Cluster]:
    """Clusters from the largest to the smallest; equal ones in order of number."""
    return sorted(clusters, key=lambda cluster: (-cluster["rows"], cluster["cluster"]))


def telling_features(profile: Mapping[str, Any], most: int) -> list[int]:
    """Places of the features that separate the clusters most, in the order of the table.

    By the mean squared z over clusters, each by its share of the rows.
    """
    weights = [0.0] * len(profile["features"])
    for cluster in profile["clusters"]:
        for place, z in enumerate(cluster["z"]):
            weights[place] += cluster["share"] * (z or 0.0) ** 2
    best = sorted(range(len(weights)), key=lambda place: (-weights[place], place))[:most]
    return sorted(best)
