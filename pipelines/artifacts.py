"""What a finished run leaves on Prefect's artifact pages: the report, and a table of clusters.

Both are keyed by the config's name, so that a later run adds a version to the same page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clam_dist.reporting import words
from pipelines.titles import shown

if TYPE_CHECKING:
    from clam_dist.config import Config

MOST_FEATURES = 12
"""Columns of means in the table; with more it is wider than a page."""


def publish(
    config: Config,
    markdown: str,
    evaluated: Mapping[str, Any],
    metrics: Mapping[str, Any],
    output: str,
) -> None:
    """Make the artifacts of a finished run.

    Parameters
    ----------
    config : Config
    markdown : str
        One screen about the run.
    evaluated : mapping
        The evaluate stage's manifest, with ``data.clusters`` the profile of the clusters.
    metrics : mapping
        Those of the finished run.
    output : str
        The run's output folder.
    """
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    key = artifact_key(config.name)
    about = f"Clusters of {shown(config.source.uri)}"
    links = links_line(output, metrics)
    create_markdown_artifact(with_links(markdown, links), key=key, description=about)
    profile = (evaluated.get("data") or {}).get("clusters")
    if profile:
        rows = cluster_rows(profile)
        wide = len(profile["features"]) > MOST_FEATURES
        means = f"the first {MOST_FEATURES} features'" if wide else "the features'"
        create_table_artifact(
            rows, key=f"{key}-clusters", description=f"{about}: sizes and {means} means"
        )


def artifact_key(name: str) -> str:
    """The key of a config's artifacts: lower-case letters, digits and dashes, as Prefect asks."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"clam-dist-{slug or 'run'}"


def with_links(markdown: str, links: str) -> str:
    """The report with the links after its verdict, for its end is below the first screen."""
    first, _, rest = markdown.partition("\n")
    return f"{first}\n{links}\n{rest}"


def links_line(output: str, metrics: Mapping[str, Any]) -> str:
    """Links to the output folder and the report in it, and how many rows it took a second."""
    folder = output if "://" in output else Path(output).absolute().as_uri()
    folder = shown(folder).rstrip("/").replace(")", "%29").replace("(", "%28")
    total = (metrics.get("seconds") or {}).get("total")
    rate = f" · {metrics['n_rows'] / total:,.0f} rows/s from source to report" if total else ""
    return f"[report.html]({folder}/report.html) · [output folder]({folder}/){rate}"


def cluster_rows(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A table's rows, the largest cluster first.

    Parameters
    ----------
    profile : mapping
        ``features``, names, and ``clusters``, each with ``cluster, rows, share, distance,
        silhouette, means``.

    Returns
    -------
    list of dict
        Values ready to be shown: equal decimals in a column, a dash for what nobody saw.
    """
    clusters: Sequence[Mapping[str, Any]] = sorted(
        profile["clusters"], key=lambda cluster: -cluster["rows"]
    )
    names = profile["features"][:MOST_FEATURES]
    columns = {
        "cluster": [cluster["cluster"] for cluster in clusters],
        "rows": [cluster["rows"] for cluster in clusters],
        "share": [f"{100 * cluster['share']:.1f} %" for cluster in clusters],
        "silhouette": [words.score(cluster["silhouette"]) for cluster in clusters],
        "distance": words.aligned([cluster["distance"] for cluster in clusters]),
    } | {
        f"mean {name}": words.aligned([cluster["means"][place] for cluster in clusters], 4)
        for place, name in enumerate(names)
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
