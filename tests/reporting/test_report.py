"""The page: whole, self-contained, escaped, and right about who was chosen."""

from __future__ import annotations

import os
from html.parser import HTMLParser

import pytest

from clam_dist.reporting.report import (
    facts,
    heat_table,
    member_rows,
    render,
    shade,
    total_seconds,
    write_report,
)


class Page(HTMLParser):
    """Open tags, addresses and text of a page; fails on a tag closed out of turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href", "action") and v]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_is_well_formed_and_needs_nothing_else(report_inputs) -> None:
    page = Page(render(**report_inputs))
    assert page.open == []
    assert page.addresses == ["data:,"]
    assert "script" not in page.tags
    assert page.tags.count("svg") == 3


def test_page_says_what_matters(report_inputs) -> None:
    text = " ".join(Page(render(**report_inputs)).words)
    for expected in (
        "1,000 rows; 2 of 3 clusters in use; silhouette 0.350 ± 0.012",
        "Euclidean, pairwise; 500 rows against 200 rows a cluster, seed 3",
        "4 rows have no value at all",
        "passed over: uses 1 of 3 clusters",
        "column <id> only rises",
        "412 MiB",
        "1 min 07 s",
        "low a_b*",
        "8,192",
    ):
        assert expected in text


def test_latents_after_the_recursion_have_a_score_of_their_own(report_inputs) -> None:
    assert "After the recursion" not in render(**report_inputs)
    metrics = report_inputs["metrics"]
    metrics["silhouette_recursed"] = metrics["silhouette"] | {"value": 0.8765}
    text = " ".join(Page(render(**report_inputs)).words)
    assert "After the recursion 0.876 ± 0.012" in " ".join(text.split())
    assert "compare the one before" in text
    metrics["silhouette"]["metric"] = "cosine"
    assert "<dt>Cosine silhouette</dt>" in render(**report_inputs)


def test_names_cannot_inject_markup(report_inputs) -> None:
    page = render(**report_inputs)
    assert "<b>night" not in page
    assert "&lt;b&gt;night|ly&lt;/b&gt;" in page


def test_page_without_silhouette_labels_or_sweep(report_inputs) -> None:
    metrics = report_inputs["metrics"] | {"silhouette": None, "n_used": 1, "selected": {}}
    for key in ("nmi", "seconds", "peak_rss_bytes"):
        del metrics[key]
    bare = report_inputs | {
        "metrics": metrics,
        "run": {"config": {"name": "bare"}},
        "silhouettes": {},
        "members": [],
        "passed_over": [],
        "history": [],
    }
    text = " ".join(Page(render(**bare)).words)
    assert "no silhouette, which needs two clusters or more" in text
    assert "NMI" not in text


def test_large_runs_show_their_largest_clusters_and_most_telling_features(report_inputs) -> None:
    clusters = [
        {
            "cluster": c,
            "rows": 100 + c,
            "share": 1 / 60,
            "distance": 1.0,
            "silhouette": 0.1,
            "means": [float(c)] * 200,
            "z": [f / 100 for f in range(200)],
        }
        for c in range(60)
    ]
    profile = {
        "features": [f"f{i}" for i in range(200)],
        "overall": [0.0] * 200,
        "clusters": clusters,
    }
    table = heat_table(profile)
    assert table["clusters"] == list(range(59, 35, -1))
    assert [row["name"] for row in table["rows"]] == [f"f{i}" for i in range(170, 200)]
    text = " ".join(Page(render(**report_inputs | {"cluster_profile": profile})).words)
    assert "The 30 of 200 features that separate the clusters most." in text
    assert "The 24 largest of 60 clusters." in text
    assert "36 smaller clusters" in text


def test_the_chosen_member_is_marked_once(report_inputs) -> None:
    rows = member_rows(
        report_inputs["members"],
        report_inputs["metrics"]["selected"],
        report_inputs["passed_over"],
    )
    assert [(row["index"], row["outcome"]) for row in rows] == [
        (2, "passed over: uses 1 of 3 clusters"),
        (1, "chosen"),
        (0, ""),
        (3, ""),
    ]


def test_a_chosen_member_far_down_is_still_shown() -> None:
    members = [{"index": i, "silhouette": 1 - i / 100, "beta": float(i)} for i in range(40)]
    rows = member_rows(members, {"beta": 30.0}, [])
    assert [row["index"] for row in rows] == [*range(12), 30]


@pytest.mark.parametrize(
    ("z", "expected"),
    [(None, ""), (0.2, ""), (0.3, "high1"), (-0.3, "low1"), (1.0, "high2"), (-9.0, "low4")],
)
def test_shades(z: float | None, expected: str) -> None:
    assert shade(z) == expected


def test_total_seconds() -> None:
    assert total_seconds({"train": 2.0, "assign": 1.0}) == 3.0
    assert total_seconds({"train": 2.0, "total": 9.0}) == 9.0
    assert total_seconds({}) is None


def test_facts(report_inputs) -> None:
    assert facts(report_inputs["run"]) == [
        ("train.batch_rows", "8,192"),
        ("model.beta", "0.5000"),
        ("source files", "1, 3 MiB"),
        ("digest", "abcdef0123456789"),
        ("versions", "python 3.11"),
    ]


def test_report_is_written_whole_or_not_at_all(report_inputs, tmp_path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(path, **report_inputs)
    first = path.read_text(encoding="utf-8")
    assert first.startswith("<!doctype html>")
    assert first.rstrip().endswith("</html>")
    broken = report_inputs | {"cluster_profile": {"features": []}}
    with pytest.raises(KeyError):
        write_report(path, **broken)
    assert path.read_text(encoding="utf-8") == first
    assert os.listdir(path.parent) == ["report.html"]
