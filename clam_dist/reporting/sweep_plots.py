"""What the sweep found: silhouette against inverse temperature, depth and number of clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from clam_dist.reporting.plots import (
    LINE,
    MAIN,
    SECOND,
    SOFT,
    TEXT,
    WARN,
    WIDTH,
    figure_svg,
    log_ticks,
    rule,
    text,
    ticks,
)
from clam_dist.reporting.words import score

Points = list[tuple[float, float, float]]
"""x, silhouette, and its standard error (0 where unknown)."""
COLOURS = (MAIN, WARN, SECOND, TEXT)
BY_CLUSTERS = "Number of clusters k"
LEFT, RIGHT, TOP, BOTTOM = 48.0, 12.0, 44.0, 214.0


def sweep_plots(
    members: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, Any]],
    selected: Mapping[str, Any],
) -> list[tuple[str, str]]:
    """Title and SVG of each setting that the sweep varied; a line for each objective.

    Each point is the best full candidate (all clusters in use, none tiny) of its setting; k-means
    on the same sample is the dashed line.

    Parameters
    ----------
    members
        ``n_clusters, steps, objective, beta, silhouette, standard_error, full`` of each candidate.
    baselines
        For each number of clusters, as a string, k-means' ``silhouette``.
    selected
        ``n_clusters`` and ``steps`` of the chosen candidate: the other settings are shown at these.
    """
    known = [m for m in members if m.get("full") and _is_number(m.get("silhouette"))]
    at_k = [m for m in known if m["n_clusters"] == selected.get("n_clusters")]
    at_both = [m for m in at_k if m["steps"] == selected.get("steps")]
    here = str(selected.get("n_clusters"))
    curve = [
        (float(k), float(values["silhouette"]), float(values.get("standard_error") or 0.0))
        for k, values in baselines.items()
        if _is_number(values.get("silhouette"))
    ]
    level = [y for k, y, _ in curve if k == float(here)] if here.isdigit() else []
    flat = [(x, y, 0.0) for y in level for x in (-math.inf, math.inf)]
    found = []
    for title, rows, key, k_means, logarithmic in (
        (BY_CLUSTERS, known, "n_clusters", sorted(curve), False),
        ("Inverse temperature β", at_both, "beta", flat, True),
        ("Steps T", at_k, "steps", flat, False),
    ):
        lines = _lines(rows, key)
        places = {x for _, points in lines for x, _, _ in points}
        places |= {x for x, _, _ in k_means if math.isfinite(x)}
        if lines and len(places) > 1:
            found.append((title, _plot(title, lines, k_means, logarithmic)))
    return found


def _lines(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[str, Points]]:
    best: dict[str, dict[float, tuple[float, float]]] = {}
    for row in rows:
        points = best.setdefault(str(row.get("objective") or "candidates"), {})
        x = float(f"{row[key]:.6g}")
        value = (float(row["silhouette"]), float(row.get("standard_error") or 0.0))
        if x not in points or value > points[x]:
            points[x] = value
    return [(name, [(x, *points[x]) for x in sorted(points)]) for name, points in best.items()]


def _plot(
    title: str, lines: Sequence[tuple[str, Points]], k_means: Points, logarithmic: bool
) -> str:
    shown = [point for _, points in lines for point in points]
    places = [x for x, _, _ in (*shown, *k_means) if math.isfinite(x)]
    first, last = min(places), max(places)
    reference = [(min(max(x, first), last), y, e) for x, y, e in k_means]
    values = [y for _, y, _ in shown] + [y for _, y, _ in reference]
    low, high = min(values), max(values)
    margin = max(0.05 * (high - low), 1e-3)
    low, high = low - margin, high + margin

    def x_of(x: float) -> float:
        a, b, v = (math.log(u) for u in (first, last, x)) if logarithmic else (first, last, x)
        return LEFT + 6 + (WIDTH - LEFT - RIGHT - 12) * ((v - a) / ((b - a) or 1.0))

    def y_of(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (y - low) / (high - low)

    body = []
    for tick in ticks(low, high):
        body.append(rule(LEFT, y_of(tick), WIDTH - RIGHT, y_of(tick), LINE))
        body.append(text(LEFT - 8, y_of(tick) + 4, f"{tick:.4g}".replace("-", "−"), "end", SOFT))
    for tick in log_ticks(first, last) if logarithmic else ticks(first, last, 7):
        body.append(text(x_of(tick), BOTTOM + 19, f"{tick:.4g}", "middle", SOFT))
    body.append(text(WIDTH - RIGHT, BOTTOM + 36, title, "end", SOFT))
    keys = [*lines, ("k-means", reference)] if reference else list(lines)
    for i, (name, points) in enumerate(keys):
        dashed = name == "k-means"
        colour = SOFT if dashed else COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y, _ in points)
        body.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for x, y, error in () if dashed else points:
            body.append(
                rule(
                    x_of(x), y_of(min(y + error, high)), x_of(x), y_of(max(y - error, low)), colour
                )
            )
            body.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.6" fill="{colour}"/>')
        left = LEFT + i * 104
        body.append(rule(left, 10, left + 16, 10, colour, "4 3" if dashed else ""))
        body.append(text(left + 22, 14, name))
    best = max(shown, key=lambda point: point[1])
    said = f"Best silhouette {score(best[1])} at {title} {best[0]:.4g}."
    return figure_svg(BOTTOM + 42, f"Silhouette by {title}", said, body)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
