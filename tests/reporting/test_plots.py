"""Plots parse as XML, stay inside their box and show what they were given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from clam_dist.reporting import plots

NS = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{NS}text")]


def bars(svg: str) -> list[float]:
    return [float(r.get("width", "0")) for r in ET.fromstring(svg).iter(f"{NS}rect")]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1.0]),
        (-0.2, 0.6, [-0.2, 0, 0.2, 0.4, 0.6]),
        (3, 3, [3]),
        (0.13, 0.42, [0.2, 0.3, 0.4]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert plots.ticks(low, high) == pytest.approx(expected)


def test_bars_are_as_long_as_clusters_are_large() -> None:
    clusters = [
        {"cluster": 4, "rows": 800, "share": 0.8},
        {"cluster": 1, "rows": 200, "share": 0.2},
        {"cluster": 0, "rows": 0, "share": 0.0},
    ]
    svg = plots.sizes_plot(clusters)
    long, short, none = bars(svg)
    assert short / long == pytest.approx(0.25, abs=0.01)
    assert none == 1.0
    assert texts(svg) == ["4", "800 (80 %)", "1", "200 (20 %)", "0", "0 (0 %)"]
    assert "cluster 4: 800" in svg


def test_many_clusters_are_summed_up() -> None:
    clusters = [{"cluster": i, "rows": 10, "share": 0.01} for i in range(100)]
    svg = plots.sizes_plot(clusters)
    assert len(bars(svg)) == plots.MOST_CLUSTERS
    assert texts(svg)[-1] == "and 60 smaller clusters with 600 rows"


def test_silhouettes_of_both_signs_and_of_empty_clusters(report_inputs) -> None:
    svg = plots.silhouette_plot([1, 2, 0], report_inputs["silhouettes"], 0.35)
    shown = texts(svg)
    assert "mean 0.350" in shown
    assert [t for t in shown if t in ("0", "1", "2")] == ["1", "0"]
    assert "0.400" in shown
    paths = [p.get("fill", "") for p in ET.fromstring(svg).iter(f"{NS}path")]
    assert sum("--warn" in fill for fill in paths) == 1
    assert sum("--main" in fill for fill in paths) == 2


def test_loss_of_two_phases_goes_on_where_the_first_ends(report_inputs) -> None:
    svg = plots.loss_plot(report_inputs["history"])
    assert {"search", "train", "fixed sample", "training rows", "epoch"} <= set(texts(svg))
    lines = [p.get("d", "") for p in ET.fromstring(svg).iter(f"{NS}path") if p.get("stroke-width")]
    assert len(lines) == 2
    for line in lines:
        xs = [float(x) for x in re.findall(r"[ML]([\d.]+) ", line)]
        ys = [float(y) for y in re.findall(r" ([\d.]+)", line)]
        assert xs == sorted(xs)
        assert len(set(xs)) == 3
        assert ys == sorted(ys)  # the loss falls: down the page


def test_a_steep_loss_is_drawn_by_logarithm() -> None:
    history = [{"epoch": i, "loss": 10.0 ** (-i)} for i in range(4)]
    assert {"1", "0.1", "0.01", "0.001"} <= set(texts(plots.loss_plot(history)))


@pytest.mark.parametrize("history", [[], [{"epoch": 1, "loss": float("nan")}]])
def test_no_loss_says_so(history: list[dict]) -> None:
    assert texts(plots.loss_plot(history)) == ["no epochs recorded"]


def test_one_epoch_is_a_dot() -> None:
    svg = plots.loss_plot([{"epoch": 1, "loss": 0.5, "phase": "train"}])
    assert len(list(ET.fromstring(svg).iter(f"{NS}circle"))) == 1


def test_labels_stay_inside_the_box() -> None:
    clusters = [{"cluster": 0, "rows": 12_345_678_901, "share": 0.999}]
    for element in ET.fromstring(plots.sizes_plot(clusters)).iter(f"{NS}text"):
        width = 7.2 * len(element.text or "")
        x = float(element.get("x", "0"))
        assert x - width * (element.get("anchor") == "end") >= 0
        if element.get("text-anchor") == "start":
            assert x + width <= plots.WIDTH


def test_side_by_side_holds_both_and_parses() -> None:
    one = plots.sizes_plot([{"cluster": 0, "rows": 5, "share": 1.0}])
    svg = plots.side_by_side([("First <1>", one), ("Second", plots.loss_plot([]))])
    root = ET.fromstring(svg)
    assert len(list(root.iter(f"{NS}svg"))) == 3
    assert "First <1>" in texts(svg)
    assert float(root.get("width", "0")) > 2 * plots.WIDTH
