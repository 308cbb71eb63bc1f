"""Tiles and strips: how many, of which clusters, in which order."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.reporting.image_plots import (
    history_plot,
    prototypes_plot,
    reconstructions_plot,
    thinned,
)
from clam_dist.reporting.plots import WIDTH

NS = "{http://www.w3.org/2000/svg}"
KEY = 1
"""Pictures in a plot that are its scale."""


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{NS}text")]


def tiles(svg: str) -> list[dict[str, str]]:
    return [element.attrib for element in ET.fromstring(svg).iter(f"{NS}image")]


@given(st.integers(1, 300), st.integers(2, 50))
def test_thinning_keeps_the_ends_and_even_gaps(count: int, most: int) -> None:
    kept = thinned(count, most)
    assert len(kept) == min(count, most)
    assert (kept[0], kept[-1]) == (0, count - 1)
    gaps = np.diff(kept)
    assert len(gaps) == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)


def test_a_tile_for_each_prototype_the_largest_first() -> None:
    table = np.random.default_rng(0).random((7, 12))
    svg = prototypes_plot(table, (1, 3, 4), [5, 900, 0, 12, 7, 1, 1_234_567_8], "Prototypes")
    assert len(tiles(svg)) == 7 + KEY
    shown = [t for t in texts(svg) if ":" in t]
    assert shown == ["6: 100 %", "1: 900", "3: 12", "4: 7", "0: 5", "5: 1", "2: 0"]
    first = tiles(svg)[0]
    assert float(first["height"]) / float(first["width"]) == pytest.approx(3 / 4, abs=0.01)


def test_tiles_stay_in_the_box_and_apart() -> None:
    for k in (1, 2, 5, 11, 40):
        svg = prototypes_plot(np.eye(k, 16), (1, 4, 4), [1.0] * k, "Prototypes")
        height = float(ET.fromstring(svg).get("height", "0"))
        boxes = [tuple(float(t[a]) for a in ("x", "y", "width", "height")) for t in tiles(svg)]
        assert len(boxes) == min(k, 24) + KEY
        for i, (x, y, w, h) in enumerate(boxes):
            assert x >= 0
            assert x + w <= WIDTH
            assert y + h <= height
            for u, v, a, b in boxes[:i]:
                assert x >= u + a or u >= x + w or y >= v + b or v >= y + h


def test_rounds_are_rows_and_the_largest_clusters_columns() -> None:
    rounds = [{"epoch": float(e), "prototypes": np.full((14, 4), e)} for e in range(21)]
    svg = history_plot(rounds, (1, 2, 2), list(range(14)))
    assert len(tiles(svg)) == 6 * 12 + KEY
    assert texts(svg)[:12] == [str(c) for c in range(13, 1, -1)]
    assert texts(svg)[12:18] == ["0", "4", "8", "12", "16", "20"]
    rows = sorted({float(t["y"]) for t in tiles(svg)})
    assert len(rows) == 6 + KEY


def test_reconstructions_stand_beside_their_rows() -> None:
    x = np.random.default_rng(1).random((30, 16))
    svg = reconstructions_plot(x, x, (1, 4, 4), list(range(30)))
    found = tiles(svg)
    assert len(found) == 16 + KEY
    for left, right in zip(found[:16:2], found[1:16:2], strict=True):
        assert left["href"] == right["href"]  # the same row, drawn the same
        assert left["y"] == right["y"]
        assert float(left["x"]) < float(right["x"])
    assert texts(svg)[:8] == [f"cluster {c}" for c in (0, 4, 8, 12, 17, 21, 25, 29)]


def test_without_a_shape_rows_are_strips() -> None:
    x = np.random.default_rng(2).normal(size=(3, 300))
    svg = reconstructions_plot(x, x + 1, None, None)
    assert len(tiles(svg)) == 6 + KEY
    assert texts(svg)[:3] == ["row 1", "row 2", "row 3"]
    svg = prototypes_plot(x, None, [1, 2, 3], "Decoded prototypes")
    assert len(tiles(svg)) == 3 + KEY
    assert texts(svg)[:3] == ["2: 3", "1: 2", "0: 1"]


def test_pairs_that_do_not_match_are_told() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\) and outputs \(2, 4\)"):
        reconstructions_plot(np.zeros((3, 4)), np.zeros((2, 4)), None, None)
