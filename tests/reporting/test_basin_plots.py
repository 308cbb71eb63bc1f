"""Voronoi's borders and areas against a grid, basins and entropies as given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.reporting.basin_plots import (
    basins_plot,
    entropy_plot,
    mean_entropy,
    off_voronoi,
    voronoi_edges,
)

NS = "{http://www.w3.org/2000/svg}"
EXTENT = (-2.0, 2.0, -1.0, 1.0)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{NS}text")]


def cells(height: int, width: int) -> np.ndarray:
    """Middles ``(H, W, 2)`` of a grid over the extent."""
    left, right, bottom, top = EXTENT
    x = left + (np.arange(width) + 0.5) / width * (right - left)
    y = bottom + (np.arange(height) + 0.5) / height * (top - bottom)
    return np.stack(np.meshgrid(x, y), axis=2)


def nearest(points: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    return ((points[..., None, :] - prototypes) ** 2).sum(axis=-1).argmin(axis=-1)


def test_the_border_of_two_is_their_bisector() -> None:
    (edge,) = voronoi_edges(np.array([[-1.0, 0], [1, 0]]), EXTENT)
    np.testing.assert_allclose(edge[:, 0], 0, atol=1e-12)
    np.testing.assert_allclose(sorted(edge[:, 1]), [-1, 1])
    assert voronoi_edges(np.array([[0.5, 0], [0.5, 0]]), EXTENT) == []


@given(st.integers(2, 8), st.integers(0, 999))
def test_borders_lie_as_near_to_two_as_to_none_other(k: int, seed: int) -> None:
    prototypes = np.random.default_rng(seed).uniform([-2, -1], [2, 1], (k, 2))
    for edge in voronoi_edges(prototypes, EXTENT):
        for share in (0.01, 0.5, 0.99):
            point = edge[0] + share * (edge[1] - edge[0])
            distances = np.sort(((prototypes - point) ** 2).sum(axis=1))
            assert distances[1] - distances[0] < 1e-9
            assert -2 - 1e-9 <= point[0] <= 2 + 1e-9
            assert -1 - 1e-9 <= point[1] <= 1 + 1e-9


@given(st.integers(2, 6), st.integers(0, 999))
def test_borders_are_crossed_wherever_the_nearest_changes(k: int, seed: int) -> None:
    prototypes = np.random.default_rng(seed).uniform([-2, -1], [2, 1], (k, 2))
    labels = nearest(cells(24, 48), prototypes)
    touching = {
        (min(a, b), max(a, b))
        for one, two in ((labels[:, 1:], labels[:, :-1]), (labels[1:], labels[:-1]))
        for a, b in zip(one.ravel().tolist(), two.ravel().tolist(), strict=True)
        if a != b
    }
    drawn = set()
    for edge in voronoi_edges(prototypes, EXTENT):
        pair = np.argsort(((prototypes - edge.mean(axis=0)) ** 2).sum(axis=1))[:2]
        drawn.add((int(pair.min()), int(pair.max())))
    # A border shorter than a cell may show on the grid as two cells that touch across a corner.
    short = 4 / 48 * 3
    missing = touching - drawn
    for a, b in missing:
        middle = cells(24, 48)[(labels == a) | (labels == b)]
        assert np.linalg.norm(prototypes[a] - prototypes[b]) > 0
        assert (
            min(
                np.linalg.norm(edge[i] - middle, axis=1).min()
                for edge in voronoi_edges(prototypes, EXTENT)
                for i in (0, 1)
            )
            < short
        )


def test_share_away_from_the_nearest() -> None:
    prototypes = np.array([[-1.0, 0], [1, 0]])
    labels = nearest(cells(10, 20), prototypes)
    assert off_voronoi(labels, prototypes, EXTENT) == 0
    labels[:, 10:15] = 0
    assert off_voronoi(labels, prototypes, EXTENT) == 0.25
    labels[:, 10:15] = -1  # blank: not counted
    assert off_voronoi(labels, prototypes, EXTENT) == 0
    assert off_voronoi(np.full((2, 2), -1), prototypes, EXTENT) == 0


def test_a_panel_for_each_beta_and_the_models_own() -> None:
    prototypes = np.array([[-1.0, 0], [1, 0]])
    grid = nearest(cells(10, 20), prototypes)
    other = grid.copy()
    other[:, 10:15] = 0
    betas = [0.5, 2.0]
    points = np.array([[0.0, 0.0], [9, 9], [np.nan, 0]])
    svg = basins_plot(np.stack([other, grid]), betas, EXTENT, prototypes, points, chosen=2.0)
    shown = texts(svg)
    assert shown[:2] == ["β 0.5", "25 %"]
    assert {"β 2, the model's", "0 %"} <= set(shown)
    assert len(list(ET.fromstring(svg).iter(f"{NS}image"))) == 2
    assert svg.count("h0") == 2  # one row inside, in both panels
    many = [float(b) for b in range(40)]
    svg = basins_plot(np.stack([grid] * 40), many, EXTENT, prototypes, chosen=9.0)
    named = [t for t in texts(svg) if t.startswith("β")]
    assert len(named) == 6
    assert "β 9, the model's" in named
    with pytest.raises(ValueError, match="betas 1 entries"):
        basins_plot(np.stack([grid, grid]), [1.0], EXTENT, prototypes)


def test_the_top_of_a_panel_is_the_greatest_y() -> None:
    prototypes = np.array([[0.0, -0.9], [0, 0.9]])
    svg = basins_plot(nearest(cells(4, 4), prototypes)[None], [1.0], EXTENT, prototypes)
    circles = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', svg)]
    assert circles[0] > circles[1]
    (edge,) = re.findall(r'<path d="M([\d. L]+)" stroke="[^"]*" stroke-width="1.3"', svg)
    ys = [float(pair.split()[1]) for pair in edge.split("L")]
    assert ys[0] == pytest.approx(np.mean(circles), abs=0.2)


def test_bars_of_entropies_end_at_log_k() -> None:
    edges = np.linspace(0, math.log(4), 5)
    svg = entropy_plot([60, 30, 10, 0], edges, 4)
    bars = [
        (float(r.get("x", "0")), float(r.get("height", "0")))
        for r in ET.fromstring(svg).iter(f"{NS}rect")
    ]
    assert len(bars) == 3
    assert bars[1][1] / bars[0][1] == pytest.approx(0.5, abs=0.01)
    assert "log 4 = 1.39" in texts(svg)
    assert mean_entropy(np.array([1, 0, 0, 1.0]), edges) == pytest.approx(math.log(4) / 2)
    with pytest.raises(ValueError, match="3 counts but 3 edges"):
        entropy_plot([1, 2, 3], [0, 1, 2], 4)


def test_many_bins_are_joined_and_keep_their_rows() -> None:
    counts = np.random.default_rng(0).integers(1, 9, 1000)
    svg = entropy_plot(counts, np.linspace(0, math.log(3), 1001), 3)
    assert len(list(ET.fromstring(svg).iter(f"{NS}rect"))) <= 48
    assert f"{counts.sum():,} rows" in svg
    ET.fromstring(entropy_plot([0.0], [0.0, 1.0], 1))
