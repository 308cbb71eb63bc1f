"""What wrong rows and parameters are told: in the words of an estimator, not of a config."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

from clam_dist import TDCM, ClAM, DClAM
from clam_dist.estimators.parameters import in_parameters

HASTY: dict[str, Any] = {"restarts": 1, "epochs": 1, "random_state": 0, "n_jobs": 1}
NETWORK: dict[str, Any] = {
    "network": {"kind": "dense", "hidden": [4]},
    "latent": 2,
    "pretrain_epochs": 1,
}
KINDS: dict[str, Any] = {
    "clam": lambda k=3, **given: ClAM(k, **{**HASTY, "beta": 1.0, "objective": "masked", **given}),
    "dclam": lambda k=3, **given: DClAM(k, **{**HASTY, **NETWORK, "beta": 1.0, **given}),
    "tdcm": lambda k=3, **given: TDCM(k, **{**HASTY, **NETWORK, **given}),
}
ROWS = np.random.default_rng(0).normal(size=(30, 4))
KEY = re.compile(r"\b(?:model|train|prepare|source)\.[a-z]")


def changed(value: float) -> np.ndarray:
    rows = ROWS.copy()
    rows[3, 2] = value
    return rows


def frame(rows: np.ndarray, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list("abcd")).assign(**columns)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "one row": (ROWS[:1], None, r"n_samples=1 should be >= n_clusters=3"),
    "fewer rows than clusters": (ROWS[:2], None, r"n_samples=2 should be >= n_clusters=3"),
    "nothing seen": (ROWS * np.nan, None, r"in every one of 30 rows nothing is seen"),
    "infinite": (changed(np.inf), None, r"X contains infinity"),
    "huge": (changed(1e300), None, r"^feature number 2 has values .* Use smaller units, or leave"),
    "huge, named": (frame(changed(1e300)), None, r"^feature 'c' has .* for scaling='standard'"),
    "weights of 0": (ROWS, np.zeros(30), r"^sample_weight is zero for every row"),
    "weight below 0": (ROWS, -np.ones(30), r"^sample_weight is -1.0 at row 0"),
    "text": (frame(ROWS, name="x"), None, r"^column 'name' is of type .*not numbers: encode it"),
    "category": (
        frame(ROWS, name=pd.Categorical(["x", "y"] * 15)),
        None,
        r"^column 'name' is of type category, not numbers",
    ),
    "date": (
        frame(ROWS, at=pd.Timestamp("2020-01-01")),
        None,
        r"^column 'at' is of type datetime64.*, not numbers",
    ),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("case", list(WRONG))
def test_wrong_rows_are_told_in_an_estimators_words(kind: str, case: str) -> None:
    rows, weight, message = WRONG[case]
    with pytest.raises(ValueError, match=message) as found:
        KINDS[kind]().fit(rows, sample_weight=weight)
    assert not KEY.search(str(found.value))


def test_columns_of_objects_that_are_numbers_are_taken() -> None:
    rows = frame(ROWS).astype({"b": object})
    np.testing.assert_array_equal(
        KINDS["clam"]().fit(rows).labels_, KINDS["clam"]().fit(ROWS).labels_
    )
    rows.loc[5, "b"] = "five"
    with pytest.raises(ValueError, match=r"^column 'b' is of type object, not numbers"):
        KINDS["clam"]().fit(rows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scaling": "none"}, r"for scaling='none' .* or scaling='standard', or leave the feature"),
        ({"n_clusters": 0}, r"n_clusters: expected a whole number of at least 2.*got 0"),
        ({"metric": "full", "geometry": "spherical"}, r"^metric: .* or geometry='euclidean'"),
    ],
)
def test_wrong_parameters_have_their_own_names(given: dict[str, Any], message: str) -> None:
    model = KINDS["clam"]().set_params(**given)
    with pytest.raises(ValueError, match=message) as found:
        model.fit(changed(1e300) if "scaling" in given else ROWS)
    assert not KEY.search(str(found.value))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # 1 distinct row
def test_rows_without_a_direction() -> None:
    model = KINDS["clam"](geometry="spherical", scaling="none")
    with pytest.raises(ValueError, match=r"^geometry='spherical' needs .* or other features$"):
        model.fit(np.zeros((30, 4)))


def test_a_runs_words_become_an_estimators() -> None:
    told = in_parameters("source.uri: all alike; choose other columns with source.features")
    assert told == "X: all alike; give features that differ"
    assert in_parameters("raise train.epochs or model.beta") == "raise epochs or beta"
    assert in_parameters("feature number 1 is", ["a", "b"]) == "feature 'b' is"


def test_a_loss_far_from_the_pretrained_one_is_told_once() -> None:
    rows = np.repeat(4.0 * np.eye(3, 4), 40, axis=0) + np.tile(ROWS, (4, 1))
    # At so small a beta every latent is drawn to one place: nothing can be reconstructed.
    hasty = KINDS["dclam"](beta=1e-6, pretrain_epochs=60, latent=4)
    with pytest.warns(ConvergenceWarning, match=r"times the [\d.]+ of its pretrained") as found:
        hasty.fit(rows)
    assert len(found) == 1
    message = str(found[0].message)
    assert "greater epochs (and pretrain_epochs), or give a smaller beta" in message
    assert not KEY.search(message)
    assert found[0].filename == __file__
    winner = hasty._trained.member
    assert not winner["faithful"]
    assert f"loss is {winner['loss']:.3g}, " in message
    equal = [row for row in hasty.members_ if row["n_used"] == winner["n_used"]]
    assert not any(row["full"] for row in hasty.members_)
    filled = [row for row in equal if row["filled"]] or equal
    assert winner["loss"] == min(row["loss"] for row in filled)
