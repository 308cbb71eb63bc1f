"""The page that people read: one HTML file that needs nothing else, without a script.

All inputs are plain values as JSON holds them, so a report can be written again from
``metrics.json`` and ``run.json`` and the manifests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from clam_dist.reporting import plots, words
from clam_dist.reporting.model_plots import model_pictures
from clam_dist.reporting.sweep_plots import sweep_plots

MOST_FEATURES = 30
MOST_CLUSTERS = 24
MOST_MEMBERS = 12
MODEL: dict[str, Any] = {
    "trained": True,
    "tempered": True,
    "own_space": False,
    "recursive": False,
    "faithful": False,
    "chosen_by": "silhouette",
    "loss": "Loss for each entry in scaled units squared",
}
"""What a page says of a model where nobody knows better: whether it is trained by gradient, has an
inverse temperature, measures silhouettes in a space of its own, is judged after its recursion, has
to reconstruct rows; what candidates are chosen by, and what its loss is."""
STAGES = ("profile", "shards", "train", "assign", "evaluate", "report")


def write_report(
    path: str | os.PathLike[str],
    *,
    metrics: Mapping[str, Any],
    run: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    profile: Mapping[str, Any],
    cluster_profile: Mapping[str, Any],
    silhouettes: Mapping[str, Mapping[str, Any]],
    members: Sequence[Mapping[str, Any]],
    passed_over: Sequence[Mapping[str, Any]] = (),
    baselines: Mapping[str, Mapping[str, Any]] | None = None,
    pictures: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
) -> None:
    """Write the report; the file appears whole or not at all.

    Parameters
    ----------
    path : path
        Where the page goes; an older one is replaced.
    metrics : mapping
        As ``metrics.json``: ``n_rows, n_features, n_clusters, n_used, cluster_sizes, silhouette``
        (None where undefined) and, where known, ``loss, inertia, nmi, ari, selected, seconds,
        peak_rss_bytes, unlabelled_rows, silhouette_recursed`` (of latents after the recursion;
        then ``silhouette`` is of those before it).
    run : mapping
        As ``run.json``: ``config`` (with ``name`` and ``source.uri``), ``resolved``, ``digest``,
        ``versions``, ``source``; all but ``config`` may be absent.
    history : sequence of mapping
        One for each round of training: ``phase, epoch, loss`` and ``validation_loss`` or None.
    profile : mapping
        ``features``: for each encoded feature ``feature, count, missing, mean, deviation,
        minimum, maximum`` in original units; ``warnings``: sentences.
    cluster_profile : mapping
        ``features`` (names), ``overall`` (means) and ``clusters``: for each ``cluster, rows,
        share, distance, silhouette, means, z``, None where nothing is seen.
    silhouettes : mapping
        For each cluster, by its number as a string: ``rows, mean, quantiles`` (greatest first).
    members : sequence of mapping
        One for each candidate of the sweep: ``index, silhouette, n_used, loss, beta`` and, where
        known, ``objective, start, learning_rate, restart, state, full``.
    passed_over : sequence of mapping
        Members with a greater silhouette than the chosen one: ``member, silhouette, why``.
    baselines : mapping, optional
        k-means on the same sample, by number of clusters as a string: ``silhouette``,
        ``standard_error``.
    pictures : mapping, optional
        Arrays of what the model learned, as
        :func:`~clam_dist.reporting.model_plots.model_pictures` takes them: ``image_shape, sizes,
        prototypes, prototype_history, decoded_prototypes, reconstructions, latents, paths, basins,
        entropies``, each of which may be absent. They add at most 1.5 MB to the page.
    model : mapping, optional
        What to say of the model, see :data:`MODEL`; each key may be absent.
    """
    page = render(
        metrics=metrics,
        run=run,
        history=history,
        profile=profile,
        cluster_profile=cluster_profile,
        silhouettes=silhouettes,
        members=members,
        passed_over=passed_over,
        baselines=baselines,
        pictures=pictures,
        model=model,
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def render(
    *,
    metrics: Mapping[str, Any],
    run: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    profile: Mapping[str, Any],
    cluster_profile: Mapping[str, Any],
    silhouettes: Mapping[str, Mapping[str, Any]],
    members: Sequence[Mapping[str, Any]],
    passed_over: Sequence[Mapping[str, Any]] = (),
    baselines: Mapping[str, Mapping[str, Any]] | None = None,
    pictures: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
) -> str:
    """The page as text; inputs as :func:`write_report` takes them."""
    files = resources.files("clam_dist.reporting")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "whole": words.whole,
        "figure": words.figure,
        "score": words.score,
        "percent": words.percent,
        "seconds": words.seconds,
        "size": words.size,
    }
    clusters = words.by_size(cluster_profile["clusters"])
    silhouette, told = metrics.get("silhouette"), MODEL | dict(model or {})
    value = silhouette["value"] if silhouette else 0.0
    recursed = metrics.get("silhouette_recursed")
    order = [cluster["cluster"] for cluster in clusters]
    template = environment.from_string((files / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        css=Markup((files / "report.css").read_text(encoding="utf-8")),
        name=run["config"]["name"],
        source=(run["config"].get("source") or {}).get("uri"),
        verdict=words.verdict(metrics),
        metrics=metrics,
        silhouette=words.with_error(silhouette) if silhouette else None,
        measured=words.how_measured(silhouette) if silhouette else None,
        total_seconds=total_seconds(metrics.get("seconds") or {}),
        peak=max((metrics.get("peak_rss_bytes") or {}).values(), default=None),
        stages=[(s, metrics["seconds"][s]) for s in STAGES if s in (metrics.get("seconds") or {})],
        warnings=list(profile.get("warnings") or ()),
        sizes_plot=Markup(plots.sizes_plot(clusters)),
        silhouette_plot=Markup(plots.silhouette_plot(order, silhouettes, value))
        if silhouette and silhouettes
        else None,
        recursed=words.with_error(recursed) if recursed else None,
        silhouette_name=words.silhouette_name(silhouette),
        silhouette_note=words.how_silhouettes_differ(metrics),
        pictures=[
            (title, Markup(svg), caption) for title, svg, caption in model_pictures(pictures or {})
        ],
        loss_plot=Markup(plots.loss_plot(history)) if told["trained"] else None,
        model=told,
        no_cluster=words.why_no_cluster(silhouette),
        clusters=[
            {**cluster, "words": words.stands_out(cluster, cluster_profile["features"])}
            for cluster in clusters
        ],
        shown_clusters=MOST_CLUSTERS,
        table=heat_table(cluster_profile),
        members=member_rows(members, metrics.get("selected") or {}, passed_over),
        members_total=len(members),
        sweep=[
            (title, Markup(svg))
            for title, svg in sweep_plots(
                members,
                # k-means' silhouettes are of the rows as they are.
                {} if told["own_space"] else baselines or {},
                metrics.get("selected") or {},
            )
        ],
        features=profile["features"],
        facts=facts(run),
        config=json.dumps(run["config"], indent=2, ensure_ascii=False),
    )


def total_seconds(seconds: Mapping[str, float]) -> float | None:
    """The run's seconds, or the sum of its stages' where it is still at the last of them."""
    if "total" in seconds:
        return seconds["total"]
    return sum(seconds.values()) if seconds else None


def heat_table(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Means by feature and cluster with the shade of each, for the features that tell most.

    Returns
    -------
    dict
        ``clusters`` (numbers), ``rows`` (``name, overall, cells`` of ``value, shade``, in words),
        ``features`` and ``all_clusters`` (how many there are in all).
    """
    clusters = words.by_size(profile["clusters"])[:MOST_CLUSTERS]
    rows = []
    for place in words.telling_features(profile, MOST_FEATURES):
        means = [cluster["means"][place] for cluster in clusters]
        overall, *shown = words.aligned([profile["overall"][place], *means])
        cells = [
            {"value": value, "shade": shade(cluster["z"][place])}
            for value, cluster in zip(shown, clusters, strict=True)
        ]
        rows.append({"name": profile["features"][place], "overall": overall, "cells": cells})
    return {
        "clusters": [cluster["cluster"] for cluster in clusters],
        "rows": rows,
        "features": len(profile["features"]),
        "all_clusters": len(profile["clusters"]),
    }


def shade(z: float | None) -> str:
    """CSS class of a cell: ``high1`` to ``high4`` and ``low1`` to ``low4`` by half deviations."""
    if z is None or abs(z) < 0.25:
        return ""
    return f"{'high' if z > 0 else 'low'}{min(int((abs(z) + 0.25) / 0.5), 4)}"


def member_rows(
    members: Sequence[Mapping[str, Any]],
    selected: Mapping[str, Any],
    passed_over: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The candidates worth showing, best silhouette first, each with what became of it.

    The chosen one is the first that was not passed over and agrees with ``selected``.
    """
    why = {(row["member"], row["silhouette"]): row["why"] for row in passed_over}
    ranked = sorted(members, key=lambda member: -_finite(member.get("silhouette")))
    rows = []
    chosen = False
    for member in ranked:
        reason = why.get((member["index"], member.get("silhouette")))
        same = all(member.get(key, value) == value for key, value in selected.items())
        won = not chosen and reason is None and bool(selected) and same
        chosen = chosen or won
        outcome = "chosen" if won else f"passed over: {reason}" if reason else ""
        rows.append({**member, "outcome": outcome, "won": won})
    head = rows[:MOST_MEMBERS]
    return head + [row for row in rows[MOST_MEMBERS:] if row["won"]]


def _finite(value: float | None) -> float:
    return value if value is not None and value == value else float("-inf")


def facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a run was made with: automatic values as resolved, source, versions."""
    rows = [(key, _plain(value)) for key, value in (run.get("resolved") or {}).items()]
    files = (run.get("source") or {}).get("files") or []
    if files:
        total = sum(file["size"] for file in files)
        rows.append(("source files", f"{words.whole(len(files))}, {words.size(total)}"))
    domains = (run.get("source") or {}).get("domains")
    if domains:
        shown = zip(domains["values"], domains["rows"], strict=True)
        told = ", ".join(f"{_plain(value)} ({words.whole(rows)} rows)" for value, rows in shown)
        rows.append((f"domains of {domains['column']}", told))
    if run.get("digest"):
        rows.append(("digest", str(run["digest"])[:16]))
    versions = run.get("versions") or {}
    if versions:
        rows.append(("versions", ", ".join(f"{key} {value}" for key, value in versions.items())))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return words.figure(value, 4)
    if isinstance(value, int) and not isinstance(value, bool):
        return words.whole(value)
    return "–" if value is None else str(value)
