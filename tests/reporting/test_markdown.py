"""The Markdown report: one screen, images that decode, text that cannot break a table."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

from clam_dist.reporting.markdown import cell, markdown_report


def test_it_holds_the_verdict_the_plots_and_the_way_to_the_files(report_inputs) -> None:
    text = markdown_report(output="runs/nightly", **report_inputs)
    assert text.startswith("**1,000 rows; 2 of 3 clusters in use; silhouette 0.350 ± 0.012")
    assert r"> column \<id\> only rises" in text
    assert "| 1,000 | 2 | 2 of 3 | 0.350 ± 0.012 | 0.610 | 4, 1 passed over |" in text
    assert r"| 1 | 750 | 75 % | 0.400 | low a\_b\* |" in text
    assert "Time: 1 min 07 s (profile 1.2 s, shards 2.0 s, train 1 min 04 s)." in text
    assert "`runs/nightly` from `data/*.parquet`" in text
    visible = re.sub(r"\(data:[^)]*\)", "", text)
    assert len(visible.splitlines()) < 30


def test_its_plots_are_whole_svg(report_inputs) -> None:
    text = markdown_report(output="o", **report_inputs)
    images = re.findall(r"!\[([^]]*)\]\(data:image/svg\+xml;base64,([^)]*)\)", text)
    assert [title for title, _ in images] == ["Rows in each cluster; Silhouette by cluster"]
    ET.fromstring(base64.b64decode(images[0][1]))


def test_without_silhouettes_it_draws_the_loss(report_inputs) -> None:
    report_inputs["metrics"]["silhouette"] = None
    text = markdown_report(output="o", **report_inputs)
    assert "![Rows in each cluster; Loss by epoch]" in text
    assert "Silhouette:" not in text


def test_several_silhouettes_are_told_apart_and_pictures_left_to_the_page(report_inputs) -> None:
    plain = markdown_report(output="o", **report_inputs)
    assert markdown_report(output="o", **report_inputs, pictures={"sizes": [1]}) == plain
    silhouette = report_inputs["metrics"]["silhouette"]
    silhouette["metric"] = "cosine"
    report_inputs["metrics"]["silhouette_recursed"] = silhouette | {"value": 0.9}
    text = markdown_report(output="o", **report_inputs)
    assert "| cosine silhouette | after the recursion |" in text
    assert "| 0.350 ± 0.012 | 0.900 ± 0.012 |" in text
    assert "seed 3. By the angle between rows, not their distance. Measured on the" in text


def test_a_curve_over_numbers_of_clusters_says_what_is_drawn(report_inputs) -> None:
    one = report_inputs["members"][0]
    members = [one | {"n_clusters": k, "silhouette": k / 10, "full": True} for k in (2, 3, 4)]
    page = markdown_report(output="runs/a", **(report_inputs | {"members": members}))
    [data] = re.findall(r"base64,([^)]+)\)", page)
    assert "Silhouette by number of clusters k" in base64.b64decode(data).decode()


def test_many_clusters_are_summed_up(report_inputs) -> None:
    first = report_inputs["cluster_profile"]["clusters"][0]
    report_inputs["cluster_profile"]["clusters"] = [
        {**first, "cluster": c, "rows": 10, "share": 0.05} for c in range(20)
    ]
    text = markdown_report(output="o", **report_inputs)
    assert "| … | 170 | 85 % |  | 17 smaller clusters |" in text


def test_cells_hold_no_markdown() -> None:
    assert cell("a|b *c*\n<d>") == r"a\|b \*c\* \<d\>"
