"""The examples in the estimators' docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["clam", "deep", "tdcm"])
def test_examples(name: str) -> None:
    module = importlib.import_module(f"clam_dist.estimators.{name}")
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0
