from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.artifacts import MOST_FEATURES, artifact_key, cluster_rows, links_line, with_links

PROFILE = {
    "features": ["a", "b"],
    "clusters": [
        {"cluster": 0, "rows": 2500, "share": 0.25, "distance": 1.5, "silhouette": None}
        | {"means": [45.678, None]},
        {"cluster": 1, "rows": 7500, "share": 0.75, "distance": None, "silhouette": 0.123456}
        | {"means": [0.25, -2.0]},
    ],
}


def test_a_row_for_each_cluster_the_largest_first() -> None:
    assert cluster_rows(PROFILE) == [
        {"cluster": 1, "rows": 7500, "share": "75.0 %", "silhouette": "0.123", "distance": "–"}
        | {"mean a": "0.25", "mean b": "−2.000"},
        {"cluster": 0, "rows": 2500, "share": "25.0 %", "silhouette": "–", "distance": "1.50"}
        | {"mean a": "45.68", "mean b": "–"},
    ]


def test_no_more_features_than_a_page_is_wide() -> None:
    names = [f"f{i}" for i in range(MOST_FEATURES + 5)]
    cluster = PROFILE["clusters"][0] | {"means": [1.0] * len(names)}  # type: ignore[operator,index]
    [row] = cluster_rows({"features": names, "clusters": [cluster]})
    assert len(row) == 5 + MOST_FEATURES
    assert f"mean f{MOST_FEATURES}" not in row


@pytest.mark.parametrize(
    ("name", "key"),
    [("Tiny run", "clam-dist-tiny-run"), ("Ä-x_9", "clam-dist-x-9"), ("ß", "clam-dist-run")],
)
def test_a_key_that_prefect_takes(name: str, key: str) -> None:
    from prefect.client.schemas.actions import ArtifactCreate

    assert artifact_key(name) == key
    assert ArtifactCreate(key=key).key == key


def test_links_stand_after_the_verdict() -> None:
    assert with_links("**good**\n\n| rows |\n", "[a](b)") == "**good**\n[a](b)\n\n| rows |\n"


def test_links_lead_to_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.as_uri()
    metrics = {"n_rows": 1000, "seconds": {"total": 2.0}}
    assert links_line("runs/a (1)", metrics) == (
        f"[report.html]({folder}/runs/a%20%281%29/report.html) ·"
        f" [output folder]({folder}/runs/a%20%281%29/) · 500 rows/s from source to report"
    )
    assert links_line("s3://key:secret@bucket/a", {}) == (
        "[report.html](s3://bucket/a/report.html) · [output folder](s3://bucket/a/)"
    )
