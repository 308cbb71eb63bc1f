"""Plots as plain SVG text: no script, no font, no file; readable at phone width.

Every plot is 380 units wide, about a phone's width, so that its text never shrinks below 10 px.
Colours come from CSS variables with a default, so that the page's dark mode reaches into the plot
and the same plot stands alone as an image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from clam_dist.reporting.words import percent, score, whole

WIDTH = 380
MOST_CLUSTERS = 40
"""Clusters drawn, the largest; more would be hairlines."""

TEXT = "var(--text, #1f2933)"
SOFT = "var(--soft, #5b6875)"
LINE = "var(--line, #d9dee3)"
MAIN = "var(--main, #2f6fb2)"
SECOND = "var(--second, #93a4b5)"
WARN = "var(--warn, #c2571a)"


def figure_svg(height: float, title: str, description: str, body: Sequence[str]) -> str:
    """Wrap parts of a plot: named for screen readers, scaling with its container."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif" font-size="12.5">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(body)}</svg>"
    )


def side_by_side(plots: Sequence[tuple[str, str]]) -> str:
    """Titled plots as one, on a white ground, so that it reads on dark pages too.

    Parameters
    ----------
    plots : sequence of (str, str)
        Title and SVG of each.
    """
    gap, top = 16, 26
    heights = [
        float(svg.split(f'viewBox="0 0 {WIDTH} ', 1)[1].split('"', 1)[0]) for _, svg in plots
    ]
    width = len(plots) * (WIDTH + gap) + gap
    height = max(heights) + top + gap
    names = escape("; ".join(title for title, _ in plots))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
        f'width="{width}" height="{height:.0f}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">'
        f'<title>{names}</title><rect width="100%" height="100%" rx="6" fill="#fff"/>'
    ]
    for i, (title, svg) in enumerate(plots):
        x = gap + i * (WIDTH + gap)
        parts.append(f'<g font-size="14" font-weight="600">{text(x, 20, title)}</g>')
        parts.append(svg.replace("<svg ", f'<svg x="{x}" y="{top}" ', 1))
    return "".join(parts) + "</svg>"


def text(x: float, y: float, content: str, anchor: str = "start", fill: str = TEXT) -> str:
    """One line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">'
        f"{escape(content)}</text>"
    )


def rule(x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, dash: str = "") -> str:
    """A straight line."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{stroke}"{dashes}/>'


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two values, both included where they are round."""
    span = high - low
    if not span > 0:
        return [low]
    raw = span / max(most - 1, 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def sizes_plot(clusters: Sequence[Mapping[str, Any]]) -> str:
    """Bars of the clusters' rows, in the order given.

    Parameters
    ----------
    clusters : sequence of mapping
        With ``cluster``, ``rows`` and ``share``.
    """
    shown, rest = clusters[:MOST_CLUSTERS], clusters[MOST_CLUSTERS:]
    pitch = _pitch(len(shown))
    labels = [f"{whole(cluster['rows'])} ({percent(cluster['share'])})" for cluster in shown]
    left, right = 34.0, 14.0 + 7.2 * max(map(len, labels), default=0)
    most = max((cluster["rows"] for cluster in shown), default=0) or 1
    body = []
    for i, cluster in enumerate(shown):
        y = i * pitch
        length = (WIDTH - left - right) * cluster["rows"] / most
        middle = y + pitch / 2 + 4.5
        body.append(text(left - 8, middle, str(cluster["cluster"]), "end"))
        body.append(
            f'<rect x="{left}" y="{y + pitch * 0.14:.1f}" width="{max(length, 1):.1f}" '
            f'height="{pitch * 0.72:.1f}" rx="2" fill="{MAIN if cluster["rows"] else WARN}"/>'
        )
        body.append(text(left + length + 6, middle, labels[i], fill=SOFT))
    height = len(shown) * pitch + 4
    if rest:
        height += 18
        total = sum(cluster["rows"] for cluster in rest)
        note = f"and {len(rest)} smaller clusters with {whole(total)} rows"
        body.append(text(left, height - 6, note, fill=SOFT))
    return figure_svg(height, "Rows in each cluster", _sizes_in_words(clusters), body)


def _sizes_in_words(clusters: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"cluster {c['cluster']}: {whole(c['rows'])}" for c in clusters[:MOST_CLUSTERS]]
    return "; ".join(parts) + "."


def _pitch(rows: int) -> float:
    return 24.0 if rows <= 20 else 17.0


def silhouette_plot(
    order: Sequence[int], bands: Mapping[str, Mapping[str, Any]], value: float
) -> str:
    """Each cluster's scores from the greatest down, with its mean; below 0 in another colour.

    Parameters
    ----------
    order : sequence of int
        Clusters from top to bottom.
    bands : mapping
        For each cluster, by its number as a string: ``mean`` and ``quantiles``.
    value : float
        Mean over all rows, drawn as a line.
    """
    shown = [c for c in order if bands.get(str(c), {}).get("quantiles")][:MOST_CLUSTERS]
    pitch = _pitch(len(shown))
    left, right, top = 34.0, 56.0, 18.0
    lowest = min((min(bands[str(c)]["quantiles"]) for c in shown), default=0.0)
    low = min(math.floor(lowest * 5 - 1e-9) / 5, 0.0)
    highest = max((max(bands[str(c)]["quantiles"]) for c in shown), default=1.0)
    high = min(max(math.ceil(highest * 5 + 1e-9) / 5, 0.2), 1.0)
    scale = (WIDTH - left - right) / (high - low)
    bottom = top + len(shown) * pitch

    def at(score_value: float) -> float:
        return left + (score_value - low) * scale

    body = []
    for tick in ticks(low, high, 6):
        body.append(rule(at(tick), top, at(tick), bottom + 4))
        body.append(text(at(tick), bottom + 19, f"{tick:.1f}".replace("-", "−"), "middle", SOFT))
    for i, c in enumerate(shown):
        y = top + i * pitch
        quantiles = bands[str(c)]["quantiles"]
        body.append(text(left - 8, y + pitch / 2 + 4.5, str(c), "end"))
        for positive in (True, False):
            body.append(_band(quantiles, y + pitch * 0.08, pitch * 0.84, at, positive))
        mean = score(bands[str(c)]["mean"])
        body.append(text(WIDTH - right + 10, y + pitch / 2 + 4.5, mean, fill=SOFT))
    body.append(rule(at(0), top, at(0), bottom + 4, stroke=SOFT))
    body.append(rule(at(value), top - 3, at(value), bottom + 4, stroke=TEXT, dash="4 3"))
    body.append(text(at(value), top - 6, f"mean {score(value)}", "middle"))
    said = "; ".join(f"cluster {c}: mean {score(bands[str(c)]['mean'])}" for c in shown)
    return figure_svg(bottom + 26, "Silhouette by cluster", f"{said}.", body)


def _band(quantiles: Sequence[float], y: float, height: float, at: Any, positive: bool) -> str:
    """Steps from 0 to each score, of one sign."""
    step = height / len(quantiles)
    cut = [max(q, 0.0) if positive else min(q, 0.0) for q in quantiles]
    if not any(cut):
        return ""
    points = [f"M{at(0):.1f} {y:.1f}"]
    for i, q in enumerate(cut):
        points.append(f"L{at(q):.1f} {y + i * step:.1f}L{at(q):.1f} {y + (i + 1) * step:.1f}")
    points.append(f"L{at(0):.1f} {y + height:.1f}Z")
    return f'<path d="{"".join(points)}" fill="{MAIN if positive else WARN}"/>'


def loss_plot(history: Sequence[Mapping[str, Any]]) -> str:
    """Loss by epoch: on the rows held out where there are such, and in training.

    The scale is logarithmic where the loss falls more than tenfold.

    Parameters
    ----------
    history : sequence of mapping
        With ``epoch``, ``loss``, ``phase`` and, where measured, ``validation_loss``. An epoch
        that starts again (a second phase) is drawn after the phase before.
    """
    lines = _loss_lines(history)
    values = [y for _, points in lines for _, y in points]
    if not values:
        return figure_svg(40, "Loss", "No epochs.", [text(0, 24, "no epochs recorded", fill=SOFT)])
    last = max(x for _, points in lines for x, _ in points)
    first = min(x for _, points in lines for x, _ in points)
    low, high = min(values), max(values)
    logarithmic = low > 0 and high > 10 * low
    left, right, top, bottom = 48.0, 10.0, 40.0, 220.0

    def y_of(value: float) -> float:
        a, b, v = (math.log(u) for u in (low, high, value)) if logarithmic else (low, high, value)
        return bottom - (bottom - top) * ((v - a) / (b - a) if b > a else 0.5)

    def x_of(epoch: float) -> float:
        return left + (WIDTH - left - right) * ((epoch - first) / ((last - first) or 1.0))

    body = []
    for tick in log_ticks(low, high) if logarithmic else ticks(low, high):
        body.append(rule(left, y_of(tick), WIDTH - right, y_of(tick)))
        body.append(text(left - 8, y_of(tick) + 4, f"{tick:.4g}", "end", SOFT))
    for tick in ticks(first, last, 6):
        body.append(text(x_of(tick), bottom + 19, f"{tick:.4g}", "middle", SOFT))
    body.append(text(WIDTH - right, bottom + 36, "epoch", "end", SOFT))
    starts = _phase_starts(history)
    for name, epoch in starts:
        if epoch > first:
            body.append(rule(x_of(epoch), top - 4, x_of(epoch), bottom, SOFT, "2 3"))
        if len(starts) > 1:
            body.append(text(x_of(epoch), top - 7, name, fill=SOFT))
    for i, (name, points) in enumerate(lines):
        colour = MAIN if i == 0 else SECOND
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in points)
        body.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.6" fill="{colour}"/>'
            for x, y in (points if len(points) == 1 else ())
        ]
        key = left + i * 124
        body.append(f'<rect x="{key:.1f}" y="6" width="14" height="4" rx="2" fill="{colour}"/>')
        body.append(text(key + 20, 13, name))
    said = f"{lines[0][0]} from {lines[0][1][0][1]:.4g} to {lines[0][1][-1][1]:.4g}."
    return figure_svg(bottom + 42, "Loss by epoch", said, body)


def _loss_lines(
    history: Sequence[Mapping[str, Any]],
) -> list[tuple[str, list[tuple[float, float]]]]:
    places = _places(history)
    lines = []
    for key, name in (("validation_loss", "fixed sample"), ("loss", "training rows")):
        points = [
            (x, float(record[key]))
            for x, record in zip(places, history, strict=True)
            if record.get(key) is not None and math.isfinite(record[key])
        ]
        if points:
            lines.append((name, points))
    return lines


def _places(history: Sequence[Mapping[str, Any]]) -> list[float]:
    """Epochs counted on where a phase starts again."""
    places: list[float] = []
    offset = before = 0.0
    for record in history:
        epoch = float(record["epoch"])
        if places and epoch < before:
            offset = places[-1]
        before = epoch
        places.append(offset + epoch)
    return places


def _phase_starts(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    starts: list[tuple[str, float]] = []
    places = _places(history)
    for i, record in enumerate(history):
        name = str(record.get("phase") or "train")
        if not starts or starts[-1][0] != name:
            starts.append((name, places[i - 1] if i else places[i]))
    return starts


def log_ticks(low: float, high: float) -> list[float]:
    """Values 1, 2 and 5 times a power of ten between two positive ones; 1 alone where many."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [m * 10.0**e for e in exponents for m in (1, 2, 5)]
    inside = [value for value in every if low <= value <= high]
    return inside if len(inside) <= 7 else [v for v in inside if f"{v:e}".startswith("1")]
