"""Principal axes by another way, frames that hold what they must, colours told apart."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from clam_dist.reporting.space_plots import (
    COLOURS,
    MOST_POINTS,
    latents_plot,
    paths_plot,
    principal_axes,
    square_frame,
)

NS = "{http://www.w3.org/2000/svg}"


@given(st.integers(3, 40), st.integers(2, 6), st.integers(0, 999))
def test_axes_are_the_principal_ones(n: int, m: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, m)) * 2.0 ** np.arange(m) + 5.0
    axes = principal_axes(x)
    reference = PCA(2, svd_solver="full").fit(x)
    np.testing.assert_allclose(axes.shares, reference.explained_variance_ratio_, atol=1e-9)
    np.testing.assert_allclose(axes.directions @ axes.directions.T, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(
        np.abs(axes.project(x)), np.abs(reference.transform(x)), rtol=1e-6, atol=1e-6
    )
    for direction in axes.directions:
        assert direction[np.abs(direction).argmax()] > 0


def test_axes_by_hand() -> None:
    axes = principal_axes([[0, -2], [0, 2], [1, 0], [-1, 0]])
    np.testing.assert_allclose(axes.directions, [[0, 1], [1, 0]], atol=1e-12)
    np.testing.assert_allclose(axes.shares, [0.8, 0.2])
    np.testing.assert_allclose(axes.project([3.0, 7.0]), [7, 3])


def test_one_axis_and_equal_rows_are_no_error() -> None:
    axes = principal_axes([[1.0], [3.0], [2.0]])
    assert axes.shares == (1.0, 0.0)
    np.testing.assert_allclose(axes.project([[4.0]]), [[2.0, 0.0]])
    assert principal_axes(np.ones((5, 3))).shares == (0.0, 0.0)
    ET.fromstring(latents_plot(np.ones((4, 3)), [0, 0, 1, 1], np.ones((2, 3))))


def test_a_frame_holds_prototypes_and_not_the_far_point() -> None:
    generator = np.random.default_rng(0)
    points = np.concatenate([generator.normal(size=(1000, 2)), [[1e6, 0]]])
    frame = square_frame(points, np.array([[8.0, 0.0]]))
    assert 8 < frame.high[0] < 10
    assert frame.holds(points).mean() > 0.97
    (corner,) = frame.at(np.array([frame.low]))
    np.testing.assert_allclose(corner, [frame.x, frame.y + frame.height])


def test_each_cluster_has_its_colour_and_mark() -> None:
    generator = np.random.default_rng(3)
    centres = generator.normal(size=(20, 4)) * 3
    labels = np.arange(400) % 20
    points = centres[labels] + 0.1 * generator.normal(size=(400, 4))
    svg = latents_plot(points, labels, centres)
    root = ET.fromstring(svg)
    paths = [p for p in root.iter(f"{NS}path") if p.get("stroke", "").startswith("#")]
    looks = {(p.get("stroke"), "l" in p.get("d", "")) for p in paths}
    assert len(paths) == len(looks) == 20
    numbers = [t.text for t in root.iter(f"{NS}text")][:20]
    assert numbers == [str(c) for c in range(20)]


def test_points_are_bounded_and_unlabelled_or_missing_ones_left_out() -> None:
    generator = np.random.default_rng(4)
    x = generator.normal(size=(20_000, 3))
    svg = latents_plot(x, np.zeros(20_000, dtype=int), x[:2])
    assert MOST_POINTS * 0.97 < svg.count("h0") <= MOST_POINTS
    x[0] = np.nan
    few = latents_plot(x[:4], [0, 0, -1, 0], x[1:3])
    assert few.count("h0") == 2
    with pytest.raises(ValueError, match="4 points but 3 labels"):
        latents_plot(x[:4], [0, 0, 0], x[1:3])


def test_paths_go_from_start_to_end_with_an_arrow() -> None:
    points = np.array([[-4.0, 0], [4, 0], [0, -1], [0, 1]])
    ways = np.array([[[-3.0, 0], [0, 0.5]], [[2, 0], [0, 0.5]], [[3, 0], [0, 0.5]]])
    svg = paths_plot(points, ways)
    lines = re.findall(r'<path d="M([^"]*)" fill="none" stroke="#', svg)
    assert len(lines) == 2
    xs = [float(pair.split()[0]) for pair in lines[0].split("L")]
    assert xs == sorted(xs)
    assert (xs[1] - xs[0]) / (xs[2] - xs[1]) == pytest.approx(5, abs=0.05)
    assert svg.count("rotate(") == 1  # the one that stands still has none
    assert "rotate(0)" in svg
    with pytest.raises(ValueError, match=r"\(3, 2, 2\) and points \(4, 3\)"):
        paths_plot(np.zeros((4, 3)), ways)


def seen(colours: np.ndarray, cones: np.ndarray) -> np.ndarray:
    """CIELAB of linear colours ``(n, 3)`` as an eye with these cones sees them."""
    xyz = np.clip(colours @ cones.T, 0, 1) @ np.array(
        [[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]]
    )
    xyz /= [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


EYES = {
    "all cones": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
}
"""Machado, Oliveira and Fernandes 2009, at full severity."""


@pytest.mark.parametrize("eye", EYES)
def test_colours_are_told_apart_and_from_either_page(eye: str) -> None:
    pages = ["#ffffff", "#1c2229"]
    values = np.array([[*bytes.fromhex(c[1:])] for c in [*COLOURS, *pages]]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    places = seen(linear, np.array(EYES[eye]))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert apart[: len(COLOURS), : len(COLOURS)].min() > 25
    assert apart[: len(COLOURS), len(COLOURS) :].min() > 25
