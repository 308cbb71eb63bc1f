from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from clam_dist.data.statistics import Scaling
from clam_dist.errors import ConfigError
from clam_dist.models import bundle as bundle_module
from clam_dist.models.bundle import FORMAT_VERSION, Bundle, load_bundle, save_bundle

SETTINGS = {
    "kind": "clam",
    "n_clusters": 3,
    "steps": 6,
    "step_size": None,
    "beta": 0.4,
    "objective": "masked",
    "mask_rate": 0.15,
    "restarts": [1, 2],
}


@pytest.fixture
def parts() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "parameters": {"prototypes": generator.normal(size=(3, 4)).astype(np.float32)},
        "mask_value": np.zeros(4, np.float32),
        "settings": SETTINGS,
        "schema": {"features": [{"column": "größe", "kind": "numeric"}], "skipped": []},
        "scaling": {
            "kind": "standard",
            "center": [1.0, -2.0, 1e6, 0.0],
            "scale": [2.0, 0.5, 1e3, 1.0],
        },
        "names": ["größe", "b", "c[0]", "d=x"],
        "cluster_means": np.full((3, 4), 7.0),
        "cluster_sizes": np.array([5, 0, 2]),
    }


def rows(count: int = 50) -> np.ndarray:
    generator = np.random.default_rng(1)
    return generator.normal(size=(count, 4)) * [2.0, 0.5, 1e3, 1.0] + [1.0, -2.0, 1e6, 0.0]


def test_round_trip(tmp_path: Path, parts: dict[str, Any]) -> None:
    saved = save_bundle(tmp_path / "model", **parts)
    loaded = load_bundle(tmp_path / "model")
    for bundle in (saved, loaded):
        assert bundle.settings == SETTINGS
        assert bundle.schema == parts["schema"]
        assert bundle.scaling == parts["scaling"]
        assert (bundle.n_clusters, bundle.n_features) == (3, 4)
        assert bundle.dataset["feature"].values.tolist() == parts["names"]
        assert bundle.dataset["cluster_sizes"].values.tolist() == [5, 0, 2]
        assert (bundle.dataset["cluster_means"].values == 7.0).all()
        assert bundle.dataset["prototypes"].dtype == np.float32
        np.testing.assert_array_equal(
            bundle.parameters["prototypes"], parts["parameters"]["prototypes"]
        )
    xr.testing.assert_identical(saved.dataset, loaded.dataset)
    np.testing.assert_allclose(
        loaded.prototypes_in_units(),
        parts["parameters"]["prototypes"] * np.array([2.0, 0.5, 1e3, 1.0]) + [1.0, -2.0, 1e6, 0.0],
    )


def test_predicts_rows_in_original_units(tmp_path: Path, parts: dict[str, Any]) -> None:
    bundle = save_bundle(tmp_path / "model", **parts)
    x = rows()
    labels, distances = bundle.predict(x)
    assert labels.dtype == np.int32
    assert distances.dtype == np.float32
    scaled = Scaling.from_json(parts["scaling"]).apply(x)
    np.testing.assert_array_equal(bundle.scale_rows(x), scaled)
    found = bundle.model().predict(bundle.parameters, 0.4, torch.from_numpy(scaled), None)
    np.testing.assert_array_equal(labels, found[0])
    np.testing.assert_array_equal(distances, found[1])
    difference = scaled - parts["parameters"]["prototypes"][labels]
    np.testing.assert_allclose(distances, np.linalg.norm(difference, axis=1), rtol=1e-5)


def test_missing_values(tmp_path: Path, parts: dict[str, Any]) -> None:
    bundle = save_bundle(tmp_path / "model", **parts)
    x = rows()
    x[3, 1] = np.nan
    x[7] = np.nan
    labels, distances = bundle.predict(x)
    assert labels[7] == -1
    assert np.isnan(distances[7])
    assert (np.delete(labels, 7) >= 0).all()
    assert np.isfinite(np.delete(distances, 7)).all()
    complete = bundle.predict(rows())
    kept = [i for i in range(50) if i not in (3, 7)]
    np.testing.assert_array_equal(labels[kept], complete[0][kept])
    np.testing.assert_array_equal(distances[kept], complete[1][kept])


def test_rows_labelled_in_parts(
    tmp_path: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save_bundle(tmp_path / "model", **parts)
    x = rows()
    whole = bundle.predict(x)
    monkeypatch.setattr(bundle_module, "PREDICT_ROWS", 7)
    np.testing.assert_array_equal(bundle.predict(x), whole)


def test_unit_scaling_and_the_weighted_form(tmp_path: Path, parts: dict[str, Any]) -> None:
    parts["scaling"] = parts["scaling"] | {"kind": "unit", "center": [0.0] * 4, "scale": [1.0] * 4}
    parts["parameters"]["log_epsilon"] = np.array([0.0, 1.0, -1.0], np.float32)
    save_bundle(tmp_path / "model", **parts)
    bundle = load_bundle(tmp_path / "model")
    x = rows()
    x[0] = 0.0
    x[1, 2] = np.nan
    scaled = Scaling.from_json(parts["scaling"]).apply(x)
    np.testing.assert_array_equal(bundle.scale_rows(x), scaled)
    assert bundle.parameters["log_epsilon"].tolist() == [0.0, 1.0, -1.0]
    assert (bundle.predict(x)[0] >= 0).all()


def test_replaces_an_older_bundle_and_leaves_nothing_beside_it(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    save_bundle(tmp_path / "model", **parts)
    parts["parameters"]["prototypes"] = np.zeros((2, 4), np.float32)
    parts["cluster_means"] = parts["cluster_sizes"] = None
    save_bundle(tmp_path / "model", **parts)
    assert load_bundle(tmp_path / "model").n_clusters == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_write_keeps_the_older_bundle(
    tmp_path: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_bundle(tmp_path / "model", **parts)

    def fail(_: xr.Dataset, path: Path, **__: object) -> None:
        Path(path).mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_zarr", fail)
    with pytest.raises(OSError, match="No space left"):
        save_bundle(tmp_path / "model", **parts)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert isinstance(load_bundle(tmp_path / "model"), Bundle)


def test_messages(tmp_path: Path, parts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no model at '.*nowhere': give the model/ folder"):
        load_bundle(tmp_path / "nowhere")
    bundle = save_bundle(tmp_path / "model", **parts)
    with pytest.raises(ConfigError, match=r"\(2, 3\) do not fit the model, which has 4 features"):
        bundle.predict(np.zeros((2, 3)))
    xr.Dataset({"a": ("b", [1.0])}).to_zarr(tmp_path / "other", zarr_format=3, consolidated=False)
    with pytest.raises(ConfigError, match="not a model that clam_dist wrote"):
        load_bundle(tmp_path / "other")
    described = tmp_path / "model" / "zarr.json"
    text = json.loads(described.read_text())
    text["attributes"]["format_version"] = FORMAT_VERSION + 1
    described.write_text(json.dumps(text))
    with pytest.raises(ConfigError, match="format version 3, this clam_dist reads up to 2"):
        load_bundle(tmp_path / "model")


def test_a_model_never_takes_the_place_of_anything_else(tmp_path):
    from clam_dist.models.bundle_folder import _refuse_others

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("1")
    (tmp_path / "file").write_text("x")
    (tmp_path / "other.zarr").mkdir()
    (tmp_path / "other.zarr" / "zarr.json").write_text('{"attributes": {}}')
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for name in ("data", "file", "other.zarr", "link"):
        with pytest.raises(ConfigError, match="nothing was written"):
            _refuse_others(tmp_path / name)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        _refuse_others(tmp_path / name)
    assert (tmp_path / "data" / "rows.csv").read_text() == "1"
