"""The bench of texts takes docstrings as it says and scores every method."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parent


def load() -> ModuleType:
    """The script as a module, with its neighbours importable."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("bench_text", FOLDER / "text.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_text"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


text = load()


def test_docstrings_in_the_order_of_names() -> None:
    found = list(text.texts(["numpy.linalg"]))
    assert all(len(said) >= text.SHORTEST for said in found)
    assert sum("Cholesky" in said for said in found) >= 1
    assert found == list(text.texts(["numpy.linalg"]))


def test_names_of_packages_are_taken_out() -> None:
    assert text.NAMES.sub("", "import NumPy as np; np.npz").split() == ["import", "as", ";", ".npz"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {name: text.TOPICS[name] for name in ("scipy.stats", "scipy.signal", "pyarrow")}
    monkeypatch.setattr(text, "TOPICS", topics)
    monkeypatch.setattr(text, "STARTS", 2)
    data = text.corpus(40, 8, 0)
    assert data.x.shape == (120, 8)
    np.testing.assert_allclose(np.linalg.norm(data.x, axis=1), 1.0, rtol=1e-5)
    again = text.corpus(40, 8, 0)
    np.testing.assert_array_equal(data.classes, again.classes)
    found = {record.method: record for record in text.measure(data, 0)}
    assert set(found) == set(text.METHODS)
    for record in found.values():
        assert record.used == 3
        assert record.nmi > 0.5
    assert found["ClAM"].silhouette > 0.95 * found["spherical k-means"].silhouette
