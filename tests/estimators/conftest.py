"""A fit of a tenth of a second, and rows to fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.datasets import load_iris

from clam_dist import ClAM

QUICK = {
    "beta": 2.0,
    "objective": "masked",
    "restarts": 1,
    "epochs": 10,
    "random_state": 0,
    "n_jobs": 1,
    "device": "cpu",
}


@pytest.fixture
def quick() -> Callable[..., ClAM]:
    """Makes an estimator without a search."""
    return lambda k=3, **parameters: ClAM(k, **{**QUICK, **parameters})


@pytest.fixture
def iris() -> np.ndarray:
    return load_iris().data


@pytest.fixture
def holes(iris: np.ndarray) -> np.ndarray:
    """Iris with a tenth of the cells missing, and one row without any value."""
    missing = np.random.default_rng(0).random(iris.shape) < 0.1
    missing[7] = True
    return np.where(missing, np.nan, iris)
