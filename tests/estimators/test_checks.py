"""scikit-learn's own checks of an estimator, every one of them."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from clam_dist import ClAM

# Sets of theirs with fewer distinct rows than clusters.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = ClAM(3, beta=1.0, restarts=1, objective="masked", epochs=5, n_jobs=1, device="cpu")


@parametrize_with_checks([QUICK])
def test_check(estimator: ClAM, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_all_checks_with_the_defaults() -> None:
    found = check_estimator(ClAM(), on_skip=None)
    assert {entry["status"] for entry in found} <= {"passed", "skipped"}
    skipped = [entry["check_name"] for entry in found if entry["status"] == "skipped"]
    assert skipped in ([], ["check_array_api_input"])  # scipy's switch is off


def test_clones() -> None:
    copy = clone(QUICK.set_params(n_clusters=4))
    assert copy.get_params() == QUICK.get_params()
    QUICK.set_params(n_clusters=3)
