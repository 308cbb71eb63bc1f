"""Which pictures a report gets, that nothing breaks out of them, and that they stay small."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from clam_dist.reporting.model_plots import KEYS, MOST_BYTES, model_pictures
from clam_dist.reporting.report import render, write_report

TITLES = [
    "Prototypes",
    "Prototypes through training",
    "Decoded prototypes",
    "Rows and their reconstructions",
    "Latents and prototypes",
    "Centroids through the blocks",
    "Basins of attraction",
    "Entropy of the assignment",
]


def inputs(k: int = 4, side: int = 6, n: int = 40, channels: int = 1) -> dict[str, Any]:
    """All parts at once, of noise, which no compression makes smaller."""
    generator = np.random.default_rng(0)
    d = channels * side * side
    table = generator.random((k, d))
    return {
        "image_shape": [channels, side, side],
        "sizes": list(range(k)),
        "prototypes": table,
        "prototype_history": [{"epoch": e, "prototypes": table} for e in range(9)],
        "decoded_prototypes": table,
        "reconstructions": {"inputs": generator.random((40, d)), "outputs": np.zeros((40, d))},
        "latents": {
            "points": generator.normal(size=(n, 5)),
            "labels": np.arange(n) % k,
            "prototypes": generator.normal(size=(k, 5)),
        },
        "paths": {
            "points": generator.normal(size=(n, 5)),
            "paths": generator.normal(size=(4, k, 5)),
        },
        "basins": {
            "labels": generator.integers(0, k, (3, 8 * side, 8 * side)),
            "betas": [0.1, 1.0, 10.0],
            "extent": [-3, 3, -3, 3],
            "prototypes": generator.normal(size=(k, 2)),
            "points": generator.normal(size=(n, 2)),
            "names": ["a <b>", "c & d"],
        },
        "entropies": {"counts": np.arange(n), "edges": np.linspace(0, 1, n + 1), "n_clusters": k},
    }


def titles(pictures: dict[str, Any]) -> list[str]:
    return [picture.title for picture in model_pictures(pictures)]


def test_all_parts_in_order_each_whole_and_explained() -> None:
    found = model_pictures(inputs())
    assert [picture.title for picture in found] == TITLES
    for picture in found:
        root = ET.fromstring(picture.svg)
        assert root.get("role") == "img"
        assert root[0].text
        assert root[1].text  # what those hear who do not see
        assert picture.caption.count(".") >= 2


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("nothing", ["absent", "none", "empty"])
def test_a_part_with_nothing_is_left_out(key: str, nothing: str) -> None:
    given = inputs()
    if nothing == "absent":
        del given[key]
    else:
        given[key] = None if nothing == "none" else []
    gone = {
        "image_shape": TITLES[:2],
        "sizes": [],
        "prototypes": TITLES[:1],
        "prototype_history": TITLES[1:2],
        "decoded_prototypes": TITLES[2:3],
        "reconstructions": TITLES[3:4],
        "latents": TITLES[4:5],
        "paths": TITLES[5:6],
        "basins": TITLES[6:7],
        "entropies": TITLES[7:],
    }
    assert titles(given) == [title for title in TITLES if title not in gone[key]]


def test_rows_of_none_are_nothing() -> None:
    assert titles({"latents": {"points": [], "labels": [], "prototypes": [[1.0]]}}) == []
    assert titles({"reconstructions": {"inputs": np.zeros((0, 3)), "outputs": []}}) == []
    assert titles({"paths": {"points": [], "paths": np.zeros((2, 3, 4))}}) == []
    basins = inputs()["basins"] | {"points": [], "names": None, "chosen": None}
    assert titles({"basins": basins}) == ["Basins of attraction"]
    assert titles({}) == []


def test_unknown_keys_and_sizes_that_do_not_fit_are_told() -> None:
    with pytest.raises(ValueError, match="'prototype'; known are image_shape"):
        model_pictures({"prototype": [[1.0]]})
    with pytest.raises(ValueError, match="3 sizes but 4 prototypes"):
        model_pictures(inputs() | {"sizes": [1, 2, 3]})


def test_captions_count_what_is_not_shown() -> None:
    captions = {p.title: p.caption for p in model_pictures(inputs(k=30))}
    assert "The 24 largest of 30 clusters." in captions["Prototypes"]
    assert "The 12 largest of 30 clusters." in captions["Prototypes through training"]
    assert "The first 24 of 30 centroids." in captions["Centroids through the blocks"]
    assert "Across a <b>, upwards c & d." in captions["Basins of attraction"]
    captions = {p.title: p.caption for p in model_pictures(inputs())}
    assert "largest of" not in captions["Prototypes"]


def test_the_page_holds_them_escaped_and_fetches_nothing(report_inputs, tmp_path) -> None:
    page = render(**report_inputs, pictures=inputs())
    assert "What the model learned" in page
    assert "a &lt;b&gt;, upwards c &amp; d" in page
    assert "a <b>" not in page
    addresses = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert len(addresses) > 50
    for address in addresses:
        assert address.startswith("data:")
        if address.startswith("data:image/png;base64,"):
            assert base64.b64decode(address.split(",", 1)[1]).startswith(b"\x89PNG")
    bare = render(**report_inputs)
    assert "What the model learned" not in bare
    assert bare == render(**report_inputs, pictures={})
    write_report(tmp_path / "report.html", **report_inputs, pictures=inputs())
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_anything_stay_small(channels: int) -> None:
    given = inputs(k=60, side=95, n=5_000, channels=channels)
    given["reconstructions"]["outputs"] = given["reconstructions"]["inputs"] + 1
    basins = given["basins"]
    given["basins"] = basins | {"labels": np.concatenate([basins["labels"]] * 4)}
    given["basins"]["betas"] = [float(b) for b in range(12)]
    found = model_pictures(given)
    assert [picture.title for picture in found] == TITLES
    total = sum(len(p.svg.encode()) + len(p.caption.encode()) for p in found)
    assert 0.2 * MOST_BYTES < total < MOST_BYTES
