"""A small run as the stages hand it to the reports: plain values, as JSON holds them."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.fixture
def report_inputs() -> dict[str, Any]:
    """Three clusters of two features, one empty; names that HTML and Markdown must escape."""
    clusters = [
        {
            "cluster": 0,
            "rows": 250,
            "share": 0.25,
            "distance": 0.7,
            "silhouette": 0.2,
            "means": [1.5, -0.00004],
            "z": [2.0, 0.1],
        },
        {
            "cluster": 1,
            "rows": 750,
            "share": 0.75,
            "distance": 0.6,
            "silhouette": 0.4,
            "means": [0.5, 3.25],
            "z": [-0.66, 0.3],
        },
        {
            "cluster": 2,
            "rows": 0,
            "share": 0.0,
            "distance": None,
            "silhouette": None,
            "means": [None, None],
            "z": [None, None],
        },
    ]
    inputs = {
        "metrics": {
            "n_rows": 1000,
            "n_features": 2,
            "n_clusters": 3,
            "n_used": 2,
            "cluster_sizes": [250, 750, 0],
            "unlabelled_rows": 4,
            "silhouette": {
                "value": 0.35,
                "standard_error": 0.0123,
                "rows": 500,
                "references": 200,
                "seed": 3,
                "metric": "euclidean",
                "form": "pairwise",
            },
            "loss": 0.4,
            "inertia": 812.5,
            "nmi": 0.61,
            "selected": {"beta": 0.5, "objective": "masked", "by": "silhouette"},
            "seconds": {"profile": 1.25, "shards": 2.0, "train": 64.0},
            "peak_rss_bytes": {"driver": 300 << 20, "worker-0": 412 << 20},
        },
        "run": {
            "config": {"name": "<b>night|ly</b>", "source": {"uri": "data/*.parquet"}, "seed": 3},
            "resolved": {"train.batch_rows": 8192, "model.beta": 0.5},
            "digest": "abcdef0123456789abcdef",
            "versions": {"python": "3.11"},
            "source": {"files": [{"name": "a.parquet", "size": 3 << 20}]},
        },
        "history": [
            {"phase": "search", "epoch": 1.0, "loss": 1.5, "validation_loss": 1.6},
            {"phase": "search", "epoch": 2.0, "loss": 0.9, "validation_loss": 1.0},
            {"phase": "train", "epoch": 1.0, "loss": 0.5, "validation_loss": 0.55},
        ],
        "profile": {
            "features": [
                {
                    "feature": "a_b*",
                    "count": 1000,
                    "missing": 0,
                    "mean": 0.75,
                    "deviation": 1.0,
                    "minimum": -2.0,
                    "maximum": None,
                }
            ],
            "warnings": ["column <id> only rises"],
        },
        "cluster_profile": {
            "features": ["a_b*", "c"],
            "overall": [0.75, 2.4375],
            "clusters": clusters,
        },
        "silhouettes": {
            "0": {"rows": 125, "mean": 0.2, "quantiles": [0.5, 0.2, -0.1]},
            "1": {"rows": 375, "mean": 0.4, "quantiles": [0.7, 0.4, 0.1]},
            "2": {"rows": 0, "mean": None, "quantiles": []},
        },
        "members": [
            {
                "index": i,
                "silhouette": silhouette,
                "n_used": used,
                "n_clusters": 3,
                "loss": 0.4 + i / 10,
                "beta": beta,
                "objective": "masked",
                "start": "kmeans",
                "state": "trained",
            }
            for i, (silhouette, used, beta) in enumerate(
                [(0.3, 2, 0.25), (0.35, 2, 0.5), (0.9, 1, 1.0), (float("nan"), 1, 2.0)]
            )
        ],
        "passed_over": [{"member": 2, "silhouette": 0.9, "why": "uses 1 of 3 clusters"}],
    }
    return json.loads(json.dumps(inputs))
