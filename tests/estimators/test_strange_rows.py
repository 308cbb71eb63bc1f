"""Rows that are odd but legal: masked arrays, copies, values far beyond those fitted."""

import numpy as np
import pytest

from clam_dist import ClAM, load_model

CHEAP = {"beta": 1.0, "restarts": 1, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(60, 3)) + np.repeat([[0.0], [9.0]], 30, axis=0)


@pytest.fixture(scope="module")
def model(rows):
    return ClAM(2, **CHEAP).fit(rows)


def test_what_a_masked_array_masks_is_missing(rows, model):
    masked = np.ma.masked_array(rows, mask=rows > 9)
    ours = ClAM(2, **CHEAP).fit(masked)
    assert ours.inertia_ == ClAM(2, **CHEAP).fit(masked.filled(np.nan)).inertia_
    assert model.predict(np.ma.masked_array(rows[:4], mask=True)).tolist() == [-1] * 4
    whole = np.ma.masked_array(np.arange(12).reshape(4, 3), mask=np.eye(4, 3, dtype=bool))
    assert np.isfinite(model.complete(whole)).all()


def test_copies_count_in_the_silhouette_and_in_the_number_of_clusters():
    copies = np.repeat(np.eye(3), 40, axis=0)
    assert ClAM(3, **CHEAP).fit(copies).silhouette_ == pytest.approx(1.0)
    assert ClAM("auto", restarts=1, random_state=0).fit(copies).n_clusters_ == 3


@pytest.mark.parametrize("far", [1e39, 1e200, -1e300])
def test_one_row_far_beyond_the_rest_costs_the_others_nothing(rows, model, tmp_path, far):
    strange = rows[[0, 1, 40]].copy()
    strange[0, 0] = far
    labels = model.predict(strange)
    assert labels[0] in (0, 1)
    assert labels[1:].tolist() == model.predict(rows[[1, 40]]).tolist()
    assert np.isfinite(model.transform(strange)).all()
    model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").predict(strange)[0].tolist() == labels.tolist()
    before = model.prototypes_.copy()
    with pytest.raises(ValueError, match="nothing was learned"):
        model.partial_fit(strange)
    assert np.array_equal(model.prototypes_, before)


def test_saving_leaves_what_is_no_model_alone(rows, model, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="not a saved model"):
        model.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"
    for _ in range(2):  # a model of ours is replaced
        model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").predict(rows)[0].tolist() == model.labels_.tolist()
