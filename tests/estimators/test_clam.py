"""ClAM on arrays: attributes, parameters, weights, missing values, files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clam_dist import ClAM, load_model
from clam_dist.config import ModelConfig, TrainConfig

Make = Callable[..., ClAM]


def test_attributes(quick: Make, iris: np.ndarray) -> None:
    model = quick().fit(iris)
    labels = model.labels_
    assert labels.dtype == np.int32
    scaled = StandardScaler().fit_transform(iris)
    means = np.stack([iris[labels == j].mean(axis=0) for j in range(3)])
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-6)
    np.testing.assert_allclose(model.cluster_means_, means, rtol=1e-6)
    np.testing.assert_array_equal(model.cluster_sizes_, np.bincount(labels))
    within = sum(((scaled[labels == j] - scaled[labels == j].mean(0)) ** 2).sum() for j in range(3))
    assert model.inertia_ == pytest.approx(within, rel=1e-5)
    assert model.score(iris) == pytest.approx(-model.inertia_)
    assert model.silhouette_ == pytest.approx(silhouette_score(scaled, labels), abs=1e-4)
    assert 0 < model.silhouette_standard_error_ < 0.1
    assert (model.n_clusters_, model.beta_, model.objective_) == (3, 2.0, "masked")
    assert model.n_iter_ >= 1
    assert len(model.members_) >= 1
    assert {"silhouette", "beta", "state"} <= set(model.members_[0])
    assert all(np.isfinite(record["loss"]) for record in model.history_)
    # The distances are to the prototypes, which attract further than the means lie.
    distances = model.transform(iris)
    prototypes = (model.prototypes_ - iris.mean(0)) / iris.std(0)
    expected = np.linalg.norm(scaled[:, None] - prototypes[None], axis=2)
    np.testing.assert_allclose(distances, expected, rtol=1e-4, atol=1e-5)
    assert list(model.get_feature_names_out()) == ["clam0", "clam1", "clam2"]


def test_untouched_it_does_at_least_as_well_as_k_means(iris: np.ndarray) -> None:
    model = ClAM(3, random_state=0).fit(iris)
    assert model.silhouette_ > 0.46
    assert len(np.unique(model.labels_)) == 3
    assert len(model.members_) >= 64


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 0}, r"n_clusters: expected a whole number of at least 2.*got 0"),
        ({"n_clusters": "many"}, r"n_clusters: expected .*auto; got 'many'"),
        ({"mask_rate": 1.5}, r"mask_rate: expected a number above 0 and below 1.*got 1\.5"),
        ({"objective": "maskd"}, r"objective: .*did you mean masked\?"),
        ({"scaling": "standart"}, r"scaling: .*did you mean standard\?"),
        ({"scaling": "robust"}, r"scaling=.robust. is not available.*use standard or minmax"),
        ({"select": "silhuette"}, r"select: .*did you mean silhouette\?"),
        ({"n_jobs": 0}, r"n_jobs: expected a whole number but 0.*got 0"),
        ({"beta": -1, "restarts": 0}, r"(?s)beta: expected .*restarts: expected .*got 0"),
    ],
)
def test_wrong_parameters_are_named(
    quick: Make, iris: np.ndarray, parameters: dict[str, object], message: str
) -> None:
    model = quick().set_params(**parameters)
    with pytest.raises(ValueError, match=message) as caught:
        model.fit(iris)
    assert "model." not in str(caught.value)
    assert "prepare." not in str(caught.value)


def test_an_unknown_parameter_names_the_known(quick: Make) -> None:
    with pytest.raises(ValueError, match=r"(?s)Invalid parameter 'betas'.*'beta'"):
        quick().set_params(betas=1)


def test_parameters_from_numpy(quick: Make, iris: np.ndarray) -> None:
    model = quick(np.int64(3), beta=np.array([1.0, 2.0]), steps=np.int32(5)).fit(iris)
    assert model.beta_ in (1.0, 2.0)
    search = GridSearchCV(quick(epochs=2), {"n_clusters": np.arange(2, 4)}, cv=2).fit(iris)
    assert search.best_params_["n_clusters"] == 3


def test_several_numbers_of_clusters(quick: Make) -> None:
    x = np.random.default_rng(0).normal(size=(120, 2)) + np.repeat(
        [[0, 0], [30, 0], [0, 30]], 40, 0
    )
    model = quick([2, 3, 4]).fit(x)
    assert model.n_clusters_ == 3
    assert model.transform(x).shape == (120, 3)
    assert quick("auto").fit(x[::6]).n_clusters_ == 3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fewer_distinct_rows_than_clusters(quick: Make) -> None:
    x = np.repeat([[0.0, 1.0], [2.0, 3.0]], 5, axis=0)
    assert quick(4).fit(x).n_clusters_ == 2
    assert quick("auto").fit(x).n_clusters_ == 2
    same = quick(4).fit(np.ones((6, 2)))
    assert same.n_clusters_ == 1
    assert (same.labels_ == 0).all()
    assert np.isnan(same.silhouette_)


def test_of_fewer_distinct_rows_a_warning_tells(quick: Make) -> None:
    x = np.repeat([[0.0, 1.0], [2.0, 3.0]], 5, axis=0)
    with pytest.warns(ConvergenceWarning, match="2 distinct rows .* n_clusters=4"):
        quick(4).fit(x)
    with pytest.raises(ValueError, match=r"n_samples=10 should be >= n_clusters=11"):
        quick(11).fit(x)


def test_one_cluster(quick: Make, iris: np.ndarray) -> None:
    model = quick(1).fit(iris)
    np.testing.assert_allclose(model.cluster_centers_[0], iris.mean(axis=0), rtol=1e-6)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_weight_is_the_row_as_many_times(quick: Make, iris: np.ndarray, data) -> None:
    rows = iris[::5].copy()
    rows[3, 1] = np.nan
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=30, max_size=30)))
    if np.count_nonzero(weight) < 5:
        return
    repeated = np.repeat(rows, weight, axis=0)
    order = np.random.default_rng(1).permutation(len(repeated))
    scaling = data.draw(st.sampled_from(["standard", "minmax"]))
    one = quick(2, scaling=scaling).fit(rows, sample_weight=weight)
    two = quick(2, scaling=scaling).fit(repeated[order])
    np.testing.assert_array_equal(one.prototypes_, two.prototypes_)
    np.testing.assert_array_equal(one.predict(iris), two.predict(iris))
    np.testing.assert_allclose(one.cluster_sizes_, two.cluster_sizes_)
    assert one.inertia_ == pytest.approx(two.inertia_)
    assert one.score(rows, sample_weight=weight) == pytest.approx(two.score(repeated))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(150), "sample_weight is zero for every row"),
        (np.ones(10), "sample_weight has 10 values for 150 rows"),
        (np.ones((150, 2)), "one value a row, not shape"),
        (np.where(np.arange(150) == 4, -1.0, 1.0), "sample_weight is -1.0 at row 4"),
    ],
)
def test_wrong_weights(quick: Make, iris: np.ndarray, weight: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick().fit(iris, sample_weight=weight)


def test_missing_values(quick: Make, iris: np.ndarray, holes: np.ndarray) -> None:
    model = quick().fit(holes)
    assert model.labels_[7] == -1
    assert (np.delete(model.labels_, 7) >= 0).all()
    assert np.isnan(model.transform(holes)[7]).all()
    whole = quick().fit(iris)
    agreement = adjusted_rand_score(np.delete(whole.labels_, 7), np.delete(model.labels_, 7))
    assert agreement > 0.6
    assert model.cluster_sizes_.sum() == 149


def test_nothing_to_cluster(quick: Make) -> None:
    with pytest.raises(ValueError, match="nothing to cluster"):
        quick().fit(np.full((5, 2), np.nan))
    with pytest.raises(ValueError, match="infinity"):
        quick().fit(np.array([[1.0, np.inf], [1, 2], [3, 4]]))


@pytest.mark.parametrize("scaling", ["standard", "minmax", "unit", "none"])
def test_scalings(quick: Make, iris: np.ndarray, scaling: str) -> None:
    model = quick(2, scaling=scaling, beta=5.0).fit(iris)
    assert len(np.unique(model.labels_)) == 2
    np.testing.assert_array_equal(model.predict(iris), model.labels_)


def test_a_seed_is_a_result_and_threads_are_not(quick: Make, iris: np.ndarray) -> None:
    one = quick(restarts=4).fit(iris)
    two = quick(restarts=4, n_jobs=2).fit(iris[np.random.default_rng(0).permutation(150)])
    np.testing.assert_array_equal(one.prototypes_, two.prototypes_)
    other = quick(restarts=4, random_state=np.random.RandomState(3)).fit(iris)
    assert not np.array_equal(one.prototypes_, other.prototypes_)


def test_names(quick: Make, iris: np.ndarray) -> None:
    frame = pd.DataFrame(iris, columns=list("abcd"))
    model = quick().fit(frame)
    assert list(model.feature_names_in_) == list("abcd")
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["b", "a", "c", "d"]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(pa.Table.from_pandas(frame.rename(columns={"a": "x"})))
    with pytest.raises(ValueError, match="has 3 features, but ClAM is expecting 4"):
        quick().fit(iris).predict(iris[:, :3])
    distances = model.set_output(transform="pandas").transform(frame)
    assert list(distances.columns) == ["clam0", "clam1", "clam2"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"weighted": True},
        {"weighted": True, "objective": "unmasked"},
        {"group_rows": 1, "mask_value": "min"},
        {"precision": "bfloat16", "step_size": 0.4, "select": "loss", "restarts": 2},
        {
            "batch_rows": 50,
            "learning_rate": [0.01, 0.05],
            "steps": [5, 10],
            "mask_rate": [0.2, 0.3],
        },
    ],
)
def test_other_settings(quick: Make, holes: np.ndarray, parameters: dict[str, object]) -> None:
    model = quick(**parameters).fit(holes).partial_fit(holes)
    assert len(np.unique(np.delete(model.labels_, 7))) == 3
    assert np.isfinite(model.complete(holes)).all()


def test_parameters_are_those_of_a_config() -> None:
    sections = {**ModelConfig.model_fields, **TrainConfig.model_fields}
    defaults = ClAM().get_params()
    for name in defaults.keys() & (sections.keys() - {"n_clusters"}):
        assert defaults[name] == sections[name].default
    others = {"n_clusters", "scaling", "n_jobs", "verbose", "random_state"}
    assert defaults.keys() - sections.keys() | {"n_clusters"} == others


def test_in_a_pipeline(quick: Make, iris: np.ndarray) -> None:
    pipeline = make_pipeline(StandardScaler(), quick(scaling="none"))
    labels = pipeline.fit_predict(iris)
    np.testing.assert_array_equal(pipeline.predict(iris), labels)
    np.testing.assert_allclose(pipeline[-1].cluster_sizes_, np.bincount(labels))


def test_more_rows_than_the_sample(
    quick: Make, monkeypatch: pytest.MonkeyPatch, iris: np.ndarray
) -> None:
    """Beyond the sample rows are not merged: weights count all the same."""
    import clam_dist.estimators.prepare as prepare
    import clam_dist.stages.fitting as fitting

    for module in (prepare, fitting):
        monkeypatch.setattr(module, "sample_rows", lambda _: 100)
    weight = np.random.default_rng(0).integers(0, 3, 150).astype(float)
    model = quick(2).fit(iris, sample_weight=weight)
    assert model.cluster_sizes_.sum() == weight.sum()
    again = quick(2).fit(np.repeat(iris, weight.astype(int), axis=0))
    assert adjusted_rand_score(model.predict(iris), again.predict(iris)) > 0.9
    np.testing.assert_array_equal(model.labels_, model.predict(iris))


def test_saved_and_loaded(quick: Make, holes: np.ndarray, tmp_path: Path) -> None:
    frame = pd.DataFrame(holes, columns=list("abcd"))
    model = quick().fit(frame)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    labels, distances = loaded.predict(frame)
    np.testing.assert_array_equal(labels, model.labels_)
    nearest = np.take_along_axis(
        model.transform(frame), np.maximum(labels, 0)[:, None].astype(int), axis=1
    )[:, 0]
    np.testing.assert_allclose(distances, nearest, rtol=1e-4, atol=1e-5)
    assert loaded.columns == ("a", "b", "c", "d")
    np.testing.assert_array_equal(loaded.dataset.cluster_sizes, model.cluster_sizes_)
    quick().fit(holes).save(tmp_path / "unnamed")
    assert load_model(tmp_path / "unnamed").columns == ("x0", "x1", "x2", "x3")


def test_pickled(quick: Make, holes: np.ndarray) -> None:
    model = quick().fit(holes)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(holes), model.labels_)
    np.testing.assert_array_equal(again.complete(holes), model.complete(holes))


def test_verbose(quick: Make, iris: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    quick(verbose=2).fit(iris)
    said = capsys.readouterr().out
    assert "[ClAM] choosing among" in said
    assert "train pass 1/10" in said
    quick().fit(iris)
    assert capsys.readouterr().out == ""


def test_torch_keeps_its_threads(quick: Make, iris: np.ndarray) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = quick().fit(iris)
        model.partial_fit(iris).score(iris)
        model.complete(model.transform(iris)[:, :1].repeat(4, axis=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
