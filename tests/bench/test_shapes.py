"""The bench of shapes draws what it says, scores what has a class, and prints its table."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parent


def load() -> ModuleType:
    """The script as a module, with its neighbours importable."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("bench_shapes", FOLDER / "shapes.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_shapes"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


shapes = load()


@pytest.mark.parametrize("name", list(shapes.SETS))
def test_draws_depend_on_the_seed_alone(name: str) -> None:
    x, classes = shapes.SETS[name](3)
    again, same = shapes.SETS[name](3)
    np.testing.assert_array_equal(x, again)
    np.testing.assert_array_equal(classes, same)
    assert x.shape == (len(classes), 2)
    assert not np.array_equal(x, shapes.SETS[name](4)[0])


def test_shapes_by_their_numbers() -> None:
    x, classes = shapes.discs(0, 0.05)
    assert np.bincount(classes + 1).tolist() == [20, 200, 200]
    centres = np.array([[0.0, 0.0], [5.0, 0.0]])
    for one in (0, 1):  # so a line between them parts the discs without an error
        assert np.linalg.norm(x[classes == one] - centres[one], axis=1).max() <= 2.0
    assert np.bincount(shapes.unequal(0)[1]).tolist() == [900, 90, 10]
    for count in (2, 3):
        x, classes = shapes.bands(count, 0)
        long, wide = np.linalg.svd(x[classes == 0] - x[classes == 0].mean(0))[1]
        assert long > 7 * wide


def test_outliers_do_not_count() -> None:
    classes, labels = np.array([0, 0, 1, 1, -1, -1]), np.array([1, 1, 0, 0, 0, 1])
    assert shapes.agreement(classes, labels) == 1.0
    assert shapes.agreement(classes, np.array([1, 0, 0, 1, 0, 1])) < 0.1


def test_prototypes_are_in_the_rows_units() -> None:
    x, classes = shapes.discs(0, 0.0)
    labels, prototypes = shapes.kmeans(x, 2, 0)
    assert prototypes is not None
    means = np.array([x[labels == one].mean(0) for one in (0, 1)])
    np.testing.assert_allclose(prototypes, means, atol=1e-6)
    assert shapes.agreement(classes, shapes.deep(x, 2, 0)[0]) == 1.0


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_full_metric_parts_bands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    shapes.main(["--seeds", "1", "--set", "two bands", "--folder", str(tmp_path), "--json"])
    torch.set_num_threads(threads)
    found = {line["method"]: line for line in json.loads(capsys.readouterr().out)}
    assert set(found) == {"k-means", "DEC", "ClAM", "ClAM full metric"}
    assert found["k-means"]["ari"] < 0.1
    assert found["ClAM full metric"]["ari"] > 0.9
    picture = (tmp_path / "two_bands.svg").read_text(encoding="utf-8")
    assert "ClAM full metric" in picture
