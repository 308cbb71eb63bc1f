"""The words that Prefect's pages show: task names that say what is done to what, the verdict."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clam_dist.config import Config
    from pipelines.configs import DemoData


def title(stage: str, config: Config) -> str:
    """What a stage does to what, such as ``profile data/x.parquet``."""
    source, output = shown(config.source.uri), shown(config.output.uri)
    titles = {
        "profile": f"profile {source}",
        "shards": f"write shards of {source}",
        "train": f"train {config.model.kind} on {source}",
        "assign": f"label {source} into {output}/labels",
        "evaluate": f"score the labels in {output}",
        "report": f"report to {output}/report.html",
    }
    return titles.get(stage, f"{stage} {source}")


def demo_title(demo: DemoData, config: Config) -> str:
    """What demo data is made where."""
    return f"make {shown(config.source.uri)}: {demo.rows:,} rows of {demo.name}"


def done_message(seconds: float, rows: int | None) -> str:
    """How long a stage took, and for a source of how many rows where that is known."""
    return f"{seconds:.1f} s" + (f", {rows:,} rows" if rows else "")


def shown(uri: str) -> str:
    """An address without the user and password it may hold."""
    return re.sub(r"(?<=://)[^/@]*@", "", uri)


def verdict(metrics: dict[str, Any], output: str) -> str:
    """One line: how good, how many clusters in use, where."""
    silhouette = metrics.get("silhouette")
    score = "no silhouette"
    if silhouette:
        score = f"silhouette {silhouette['value']:.4f} ± {silhouette['standard_error']:.4f}"
    return (
        f"{score}, {metrics['n_used']} of {metrics['n_clusters']} clusters in use,"
        f" {metrics['n_rows']:,} rows; {output}"
    )
