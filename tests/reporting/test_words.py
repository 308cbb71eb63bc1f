"""Numbers as written, and verdicts."""

from __future__ import annotations

import pytest

from clam_dist.reporting import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (1.0, "1.00"),
        (-0.0466, "−0.0466"),
        (12345.6, "12,346"),
        (999.96, "1,000"),
        (0.00001234, "1.23e−05"),
        (2.5e9, "2.50e+09"),
    ],
)
def test_figures(value: float | None, text: str) -> None:
    assert words.figure(value) == text


def test_aligned_figures_share_their_decimals() -> None:
    assert words.aligned([12.345, -0.0001, None]) == ["12.3", "0.0", "–"]
    assert words.aligned([0.12, -0.0334]) == ["0.120", "−0.033"]
    assert words.aligned([1e9, 1.0]) == ["1.00e+09", "1.00"]
    assert words.aligned([None]) == ["–"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.97, "10 s"), (185, "3 min 05 s"), (7805, "2 h 10 min")],
)
def test_seconds(value: float, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.5, "50 %"), (0.0123, "1.2 %"), (0.0004, "< 0.1 %")]
)
def test_percent(share: float, text: str) -> None:
    assert words.percent(share) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(512, "512 B"), (412 << 20, "412 MiB"), (3 << 40, "3.0 TiB")]
)
def test_size(n_bytes: int, text: str) -> None:
    assert words.size(n_bytes) == text


def test_verdict_counts_unused_clusters_and_says_how_far_apart(report_inputs) -> None:
    metrics = report_inputs["metrics"]
    assert words.verdict(metrics) == (
        "1,000 rows; 2 of 3 clusters in use; silhouette 0.350 ± 0.012: "
        "the clusters are partly apart."
    )
    metrics |= {"n_used": 3, "silhouette": None}
    assert words.verdict(metrics) == (
        "1,000 rows in 3 clusters, all in use; no silhouette, which needs two clusters or more."
    )


def test_silhouettes_are_told_apart(report_inputs) -> None:
    metrics = report_inputs["metrics"]
    assert words.silhouette_name(metrics["silhouette"]) == "Silhouette"
    assert words.silhouette_name(None) == "Silhouette"
    assert words.how_silhouettes_differ(metrics) == ""
    metrics["silhouette_recursed"] = metrics["silhouette"] | {"value": 0.9, "standard_error": 0}
    note = words.how_silhouettes_differ(metrics)
    assert "latents before the recursion. After it the score is 0.900," in note
    assert "angle" not in note
    metrics["silhouette"]["metric"] = "cosine"
    assert words.silhouette_name(metrics["silhouette"]) == "Cosine silhouette"
    assert words.how_silhouettes_differ(metrics).startswith("By the angle between rows")
    assert words.verdict(metrics).endswith(
        "cosine silhouette 0.350 ± 0.012: the clusters are partly apart by direction."
    )
    assert words.how_silhouettes_differ(metrics | {"silhouette": None}) == ""


@pytest.mark.parametrize(
    ("silhouette", "text"),
    [
        (0.7, "well apart"),
        (0.3, "partly apart"),
        (0.12, "clusters overlap"),
        (0.02, "widely"),
        (-0.1, "as near to other"),
    ],
)
def test_separation(silhouette: float, text: str) -> None:
    assert text in words.separation(silhouette)


@pytest.mark.parametrize(
    ("error", "text"),
    [(0.0123, "0.350 ± 0.012"), (0.00004, "0.350 ± 4e-05"), (0, "0.350"), (None, "0.350")],
)
def test_standard_error(error: float | None, text: str) -> None:
    assert words.with_error({"value": 0.35, "standard_error": error}) == text


def test_how_it_was_measured(report_inputs) -> None:
    silhouette = report_inputs["metrics"]["silhouette"]
    expected = "Euclidean, pairwise; 500 rows against 200 rows a cluster, seed 3"
    assert words.how_measured(silhouette) == expected
    assert "against all rows" in words.how_measured(silhouette | {"references": "all"})


def test_what_stands_out() -> None:
    names = ["a", "b", "c", "d"]
    assert words.stands_out({"z": [0.6, -2.0, 0.1, None]}, names) == "low b, high a"
    assert words.stands_out({"z": [0.1, 0, 0, 0]}, names) == "near the overall mean"
    assert words.stands_out({"z": [None] * 4}, names) == "no rows"


def test_telling_features_weigh_clusters_by_their_share() -> None:
    profile = {
        "features": ["rare", "flat", "common"],
        "clusters": [
            {"share": 0.01, "z": [3.0, 0.0, 0.0]},
            {"share": 0.99, "z": [0.0, 0.1, 1.0]},
        ],
    }
    assert words.telling_features(profile, 2) == [0, 2]
    assert words.telling_features(profile, 1) == [2]
