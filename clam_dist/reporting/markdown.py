"""One screen of Markdown about a run, for a page that shows Markdown alone.

Plots are inline images (SVG in base64): no file, no server, nothing fetched.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

from clam_dist.reporting import plots, words
from clam_dist.reporting.report import MODEL, STAGES, total_seconds
from clam_dist.reporting.sweep_plots import BY_CLUSTERS, sweep_plots

MOST_CLUSTERS = 3
"""Rows of the table; with more, the page leaves one screen."""
MOST_DRAWN = 10


def markdown_report(
    *,
    output: str,
    metrics: Mapping[str, Any],
    run: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]] = (),
    profile: Mapping[str, Any],
    cluster_profile: Mapping[str, Any],
    silhouettes: Mapping[str, Mapping[str, Any]],
    members: Sequence[Mapping[str, Any]] = (),
    passed_over: Sequence[Mapping[str, Any]] = (),
    baselines: Mapping[str, Mapping[str, Any]] | None = None,
    pictures: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
) -> str:
    """Verdict, key figures, two plots, the largest clusters, where the files are.

    Parameters
    ----------
    output : str
        Address of the run's output folder.
    metrics, run, history, profile, cluster_profile, silhouettes, members, passed_over, baselines
        As ``write_report`` takes them.
    pictures
        Taken so that both reports take the same; shown in ``report.html`` alone, where there is
        room.
    model
        As ``write_report`` takes it.

    Returns
    -------
    str
        Markdown with tables and images.
    """
    del pictures
    clusters = words.by_size(cluster_profile["clusters"])
    silhouette = metrics.get("silhouette")
    lines = [f"**{cell(words.verdict(metrics))}**", ""]
    lines += [f"> {cell(warning)}" for warning in list(profile.get("warnings") or ())[:3]]
    lines += ["", *_figures(metrics, len(members), len(passed_over)), ""]
    drawn = clusters[:MOST_DRAWN]
    first = ("Rows in each cluster", plots.sizes_plot(drawn))
    if silhouette and silhouettes:
        order = [cluster["cluster"] for cluster in drawn]
        plot = plots.silhouette_plot(order, silhouettes, silhouette["value"])
        second = ("Silhouette by cluster", plot)
    else:
        second = ("Loss by epoch", plots.loss_plot(history))
    known = MODEL | dict(model or {})
    lines_of = {} if known["own_space"] else baselines or {}
    sweep = sweep_plots(members, lines_of, metrics.get("selected") or {})
    by_clusters = [
        (f"Silhouette by {BY_CLUSTERS.lower()}", p) for t, p in sweep if t == BY_CLUSTERS
    ]
    shown = [first, second, *by_clusters]
    lines += [image(plots.side_by_side(shown)), ""]
    lines += [*_clusters(clusters, cluster_profile["features"]), "", *_times(metrics)]
    if silhouette:
        differ = words.how_silhouettes_differ(metrics)
        lines.append(f"Silhouette: {words.how_measured(silhouette)}.{differ and f' {differ}'}  ")
    source = (run["config"].get("source") or {}).get("uri")
    lines.append(
        f"Labels, model and report.html: `{output}`" + (f" from `{source}`" if source else "")
    )
    return "\n".join(lines) + "\n"


def _figures(metrics: Mapping[str, Any], members: int, passed_over: int) -> list[str]:
    columns = [
        ("rows", words.whole(metrics["n_rows"])),
        ("features", words.whole(metrics["n_features"])),
        ("clusters in use", f"{metrics['n_used']} of {metrics['n_clusters']}"),
    ]
    if metrics.get("silhouette"):
        name = words.silhouette_name(metrics["silhouette"]).lower()
        columns.append((name, words.with_error(metrics["silhouette"])))
        if metrics.get("silhouette_recursed"):
            columns.append(
                ("after the recursion", words.with_error(metrics["silhouette_recursed"]))
            )
    if "nmi" in metrics:
        columns.append(("NMI with labels", words.score(metrics["nmi"])))
    if members:
        passed = f", {passed_over} passed over" if passed_over else ""
        columns.append(("candidates", f"{words.whole(members)}{passed}"))
    heads, values = zip(*columns, strict=True)
    return [row(heads), row(["---:"] * len(heads)), row(values)]


def _times(metrics: Mapping[str, Any]) -> list[str]:
    spent = metrics.get("seconds") or {}
    total = total_seconds(spent)
    if total is None:
        return []
    stages = [f"{stage} {words.seconds(spent[stage])}" for stage in STAGES if stage in spent]
    return [f"Time: {words.seconds(total)} ({', '.join(stages)}).  "]


def _clusters(clusters: Sequence[Mapping[str, Any]], features: Sequence[str]) -> list[str]:
    lines = [
        row(["cluster", "rows", "share", "silhouette", "stands out by"]),
        row(["---:", "---:", "---:", "---:", ":---"]),
    ]
    lines += [
        row(
            [
                str(cluster["cluster"]),
                words.whole(cluster["rows"]),
                words.percent(cluster["share"]),
                words.score(cluster.get("silhouette")),
                cell(words.stands_out(cluster, features)),
            ]
        )
        for cluster in clusters[:MOST_CLUSTERS]
    ]
    rest = clusters[MOST_CLUSTERS:]
    if rest:
        total = sum(cluster["rows"] for cluster in rest)
        share = sum(cluster["share"] for cluster in rest)
        note = f"{len(rest)} smaller clusters"
        lines.append(row(["…", words.whole(total), words.percent(share), "", note]))
    return lines


def image(svg: str) -> str:
    """A plot as an inline image, with its title as the text for those who do not see it."""
    title = html.unescape(svg.split("<title>", 1)[1].split("</title>", 1)[0])
    data = base64.b64encode(svg.encode()).decode()
    return f"![{cell(title)}](data:image/svg+xml;base64,{data})"


def row(values: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(values)} |"


def cell(text: str) -> str:
    """Text that holds no Markdown and no HTML of its own."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
