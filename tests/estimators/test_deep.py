"""DClAM and TDCM on arrays: latents there and back, adapting, files, scikit-learn's checks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from clam_dist import TDCM, ClAM, DClAM, load_model
from clam_dist.config import ModelConfig, TrainConfig
from clam_dist.data.arrays import Part
from clam_dist.estimators.latents import drawn

SMALL: dict[str, Any] = {
    "network": {"kind": "dense", "hidden": [8]},
    "latent": 2,
    "pretrain_epochs": 15,
    "epochs": 10,
    "restarts": 1,
    "random_state": 0,
    "n_jobs": 1,
    "device": "cpu",
}
KINDS = {
    "dclam": lambda k=3, **given: DClAM(k, **{**SMALL, "beta": 2.0, **given}),
    "tdcm": lambda k=3, **given: TDCM(k, **{**SMALL, **given}),
}
Make = Callable[..., Any]

# Fits of a second may reconstruct far worse than their pretrained networks; see test_messages.
pytestmark = pytest.mark.filterwarnings(
    "ignore:the chosen candidate:sklearn.exceptions.ConvergenceWarning"
)
# Sets of scikit-learn's checks with fewer distinct rows than clusters.
few_rows = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(params=sorted(KINDS))
def make(request: pytest.FixtureRequest) -> Make:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(240, n_features=5, centers=3, cluster_std=0.7, random_state=1)


TINY = SMALL | {
    "network": {"kind": "dense", "hidden": [4]},
    "pretrain_epochs": 2,
    "epochs": 2,
    "random_state": None,
}


@few_rows
@parametrize_with_checks(
    [
        DClAM(3, **{**TINY, "random_state": None}, beta=1.0),
        TDCM(3, **{**TINY, "random_state": None}),
    ]
)
def test_check(estimator: Any, check: Any) -> None:
    check(estimator)


def test_attributes(make: Make, blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, truth = blobs
    model = make(pretrain_epochs=60, epochs=60).fit(x)
    labels = model.labels_
    assert labels.dtype == np.int32
    assert adjusted_rand_score(truth, labels) > 0.95
    means = np.stack([x[labels == j].mean(axis=0) for j in range(3)])
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-5)
    np.testing.assert_array_equal(model.cluster_sizes_, np.bincount(labels))
    assert model.score(x) == pytest.approx(-model.inertia_)
    assert model.latent_prototypes_.shape == (3, 2)
    assert model.prototypes_.shape == (3, 5)
    decoded = model.inverse_transform(model.latent_prototypes_)
    np.testing.assert_allclose(decoded, model.prototypes_, rtol=1e-5, atol=1e-5)
    # The decoded prototypes are the clusters', not some rows'.
    near = np.linalg.norm(model.prototypes_[:, None] - means[None], axis=2).argmin(axis=1)
    np.testing.assert_array_equal(near, [0, 1, 2])
    assert model.latent_ == 2
    assert model.network_["hidden"] == [8]
    assert {"silhouette", "faithful", "state"} <= set(model.members_[0])
    assert model.n_iter_ >= 2
    name = type(model).__name__.lower()
    assert list(model.get_feature_names_out()) == [f"{name}0", f"{name}1"]


def test_silhouettes_say_in_which_space(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x = blobs[0]
    model = KINDS["dclam"]().fit(x)
    before = silhouette_score(model.transform(x), model.labels_)
    after = silhouette_score(model._trained.recall(x), model.labels_)
    assert model.silhouette_latents_ == pytest.approx(before, abs=1e-4)
    assert model.silhouette_ == pytest.approx(after, abs=1e-4)
    assert after > before
    other = KINDS["tdcm"]().fit(x)
    latents = other.transform(x)
    assert other.silhouette_ == pytest.approx(silhouette_score(latents, other.labels_), abs=1e-4)
    np.testing.assert_allclose(latents.mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(latents.std(axis=0), 1.0, atol=1e-3)


def test_there_and_back(make: Make, blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x = blobs[0]
    model = make(latent=5, network={"kind": "dense", "hidden": [32]}, pretrain_epochs=60).fit(x)
    z = model.transform(x)
    assert z.shape == (240, 5)
    assert model.transform(x.astype(np.float32)).dtype == np.float32
    again = model.inverse_transform(z)
    assert np.square(again - x).mean() < 0.1 * x.var(axis=0).mean()
    rebuilt = model.reconstruct(x)
    if isinstance(model, TDCM):
        np.testing.assert_allclose(rebuilt, again, rtol=1e-4, atol=1e-4)
    else:  # through the recursion, which is what the decoder was trained on
        assert np.square(rebuilt - x).mean() < 0.1 * x.var(axis=0).mean()
        assert not np.allclose(rebuilt, again, rtol=1e-2)
        known = model.inverse_transform(model._trained.recall(x))
        np.testing.assert_allclose(rebuilt, known, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="X has 4 numbers a row, and latents have 5"):
        model.inverse_transform(z[:, :4])


def test_missing_values(make: Make, blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x = np.where(np.random.default_rng(0).random((240, 5)) < 0.1, np.nan, blobs[0])
    x[7] = np.nan
    model = make().fit(pd.DataFrame(x, columns=list("abcde")))
    frame = pd.DataFrame(x, columns=list("abcde"))
    assert model.labels_[7] == -1
    assert np.isnan(model.transform(frame)[7]).all()
    rebuilt = model.reconstruct(frame)
    assert list(rebuilt.columns) == list("abcde")
    assert rebuilt.loc[7].isna().all()
    assert rebuilt.drop(7).notna().all().all()
    seen = np.delete(np.arange(240), 7)
    assert adjusted_rand_score(blobs[1][seen], model.labels_[seen]) > 0.8


@pytest.mark.parametrize("scaling", ["standard", "minmax", "unit", "none"])
def test_scalings(make: Make, blobs: tuple[np.ndarray, np.ndarray], scaling: str) -> None:
    x = blobs[0] + 1.0
    model = make(scaling=scaling, pretrain_epochs=100).fit(x)
    np.testing.assert_array_equal(model.predict(x), model.labels_)
    # In original units, also where each row was divided by its length.
    assert np.square(model.reconstruct(x) - x).mean() < 0.5 * x.var(axis=0).mean()


def test_a_stream(make: Make, blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, truth = blobs
    model = make(pretrain_epochs=60, epochs=40).partial_fit(x[:80])
    before = {name: value.copy() for name, value in model._trained.parameters.items()}
    model.partial_fit(x[80:160]).partial_fit(x[160:])
    after = model._trained.parameters
    assert not np.array_equal(before["encoder.0.weight"], after["encoder.0.weight"])
    assert model.cluster_sizes_.sum() == 240
    np.testing.assert_array_equal(model.latent_prototypes_, after["prototypes"])
    assert adjusted_rand_score(truth, model.predict(x)) > 0.9


def test_it_adapts_without_training(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, truth = blobs
    model = KINDS["tdcm"]().fit(x)
    trained = {name: value.copy() for name, value in model._trained.parameters.items()}
    before = model.labels_.copy()
    assert model.adapt(x) is model  # where it was fitted nothing moves
    np.testing.assert_allclose(model.latent_prototypes_, trained["prototypes"], atol=1e-4)
    np.testing.assert_array_equal(model.labels_, before)
    # Elsewhere and a third of one cluster: labels without adapting are wrong, with it right.
    kept = (truth > 0) | (np.arange(240) % 3 == 0)
    moved = 1.3 * x[kept] + 4.0
    carried = adjusted_rand_score(truth[kept], model.predict(moved))
    model.adapt(moved)
    assert adjusted_rand_score(truth[kept], model.labels_) > max(carried, 0.9)
    np.testing.assert_array_equal(model.predict(moved), model.labels_)
    assert model.cluster_sizes_.sum() == kept.sum()
    for name, value in trained.items():
        changed = name in ("prototypes", "center", "spread")
        assert np.array_equal(value, model._trained.parameters[name]) != changed
    latents = model.transform(moved)
    np.testing.assert_allclose(latents.mean(axis=0), 0.0, atol=1e-4)


def test_adapting_knows_weights_and_parts(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    import dask.array as da

    x = blobs[0].copy()
    x[5] = np.nan
    model = KINDS["tdcm"]().fit(x)
    weight = np.random.default_rng(0).integers(0, 3, 240).astype(float)
    weight[5] = 1.0
    target = x + 1.0
    repeated = np.repeat(target, weight.astype(int), axis=0)
    one = clone(model).fit(x).adapt(target, sample_weight=weight)
    two = clone(model).fit(x).adapt(repeated)
    three = clone(model).fit(x).adapt(da.from_array(target, chunks=(70, 5)), weight)
    for other in (two, three):
        np.testing.assert_allclose(one.latent_prototypes_, other.latent_prototypes_, atol=1e-5)
        np.testing.assert_allclose(one.cluster_sizes_, other.cluster_sizes_)
        np.testing.assert_allclose(one.cluster_means_, other.cluster_means_, rtol=1e-6)
    np.testing.assert_array_equal(one.labels_, three.labels_.compute())
    with pytest.raises(ValueError, match="no row with a value"):
        model.adapt(np.full((3, 5), np.nan))
    with pytest.raises(ValueError, match="has 4 features, but TDCM is expecting 5"):
        model.adapt(x[:, :4])


@pytest.mark.parametrize("kind", ["clam", "dclam", "tdcm"])
def test_pickled_cloned_saved(
    kind: str, blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x = np.where(np.random.default_rng(2).random((240, 5)) < 0.05, np.nan, blobs[0])
    if kind == "clam":
        model = ClAM(3, beta=2.0, objective="masked", restarts=1, epochs=5, random_state=0)
    else:
        model = KINDS[kind](3)
    model.fit(x)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x), model.labels_)
    np.testing.assert_array_equal(again.transform(x), model.transform(x))
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    np.testing.assert_array_equal(copy.fit(x).labels_, model.labels_)
    if kind == "tdcm":
        model.adapt(x[:100] + 0.5)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(x)[0], model.predict(x))
    if kind != "clam":
        np.testing.assert_allclose(loaded.transform(x), model.transform(x), rtol=1e-5, atol=1e-6)
    decoded = loaded.bundle.prototypes_in_units()
    np.testing.assert_allclose(decoded, model.prototypes_, rtol=1e-5, atol=1e-5)
    written = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert written
    for path in written:
        assert path.suffix not in (".pkl", ".pt", ".pth", ".joblib")
        assert path.read_bytes()[:1] != b"\x80"  # what a pickle begins with


def test_images_need_their_shape() -> None:
    x = np.random.default_rng(0).random((40, 64))
    model = KINDS["dclam"](2, network="convolutional", image_shape=(1, 8, 8), pretrain_epochs=1)
    assert model.set_params(epochs=1).fit(x).network_["image_shape"] == [1, 8, 8]
    with pytest.raises(ValueError, match=r"^image_shape: \[1, 9, 9\] holds 81 .* has 64 features"):
        model.set_params(image_shape=(1, 9, 9)).fit(x)


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("dclam", {"latent": 0}, r"latent: expected a whole number.*got 0"),
        ("dclam", {"beta": -1}, r"beta: expected"),
        ("tdcm", {"score_function": "relu"}, r"score_function: .*got 'relu'"),
        ("tdcm", {"temperature": 0}, r"temperature: expected a number above 0.*got 0"),
    ],
)
def test_wrong_parameters_are_named(
    kind: str,
    parameters: dict[str, Any],
    message: str,
    blobs: tuple[np.ndarray, np.ndarray],
) -> None:
    with pytest.raises(ValueError, match=message):
        KINDS[kind](**parameters).fit(blobs[0])


@pytest.mark.parametrize("kind", [DClAM, TDCM])
def test_parameters_are_those_of_a_config(kind: Any) -> None:
    sections = {**ModelConfig.model_fields, **TrainConfig.model_fields}
    defaults = {kind.renamed.get(name, name): v for name, v in kind().get_params().items()}
    for name in defaults.keys() & (sections.keys() - {"n_clusters", "network"}):
        assert defaults[name] == sections[name].default
    assert defaults["network"] == "dense"
    others = {"n_clusters", "scaling", "n_jobs", "verbose", "random_state"}
    assert defaults.keys() - sections.keys() | {"n_clusters"} == others


def test_rows_drawn_for_a_score() -> None:
    x = np.arange(100.0)[:, None]
    x[3] = np.nan
    weight = np.ones(100)
    weight[5] = 0.0
    whole, held = drawn([(x, weight)], 1000, 0)
    assert held is not None
    np.testing.assert_array_equal(whole[:, 0], np.delete(np.arange(100.0), [3, 5]))
    parts: list[Part] = [(x[:30], weight[:30]), (x[30:], weight[30:])]
    some, few = drawn([(x, weight)], 10, 0)
    again, _ = drawn(parts, 10, 0)
    assert few is not None
    assert len(few) == 10
    assert len(np.unique(some)) == 10
    assert np.isin(some, whole).all()
    assert again.shape == some.shape
    unweighted, none = drawn([(x, None)], 1000, 0)
    assert none is None
    assert len(unweighted) == 99
