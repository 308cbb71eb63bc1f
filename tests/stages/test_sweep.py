"""The sweep as a labelled array, and the curve over numbers of clusters, by hand and in a run."""

import json
import math

import numpy as np
import pytest
import xarray as xr

from clam_dist.stages.clusters import cluster_choices
from clam_dist.stages.sweep import cluster_curve, save_sweep, sweep_dataset


def member(index, silhouette, **changes):
    row = {
        "index": index,
        "n_clusters": 3,
        "steps": 10,
        "objective": "masked",
        "mask_rate": 0.15,
        "beta": 0.5,
        "scale": 2.0,
        "learning_rate": 0.03,
        "restart": 0,
        "start": "kmeans",
        "silhouette": silhouette,
        "standard_error": 0.01,
        "n_used": 3,
        "smallest_share": 0.2,
        "loss": 1.0,
        "full": True,
        "state": "dropped",
    }
    return row | changes


BASELINES = {
    "3": {"silhouette": 0.3, "standard_error": 0.01, "inertia": 4.0, "smallest_share": 0.1},
    "4": {"silhouette": 0.2, "standard_error": 0.01, "inertia": 3.0, "smallest_share": 0.1},
}
MEMBERS = [
    member(0, 0.31, state="trained"),
    member(0, 0.29, state="search"),
    member(0, 0.9, state="start"),
    member(1, 0.25, objective="unmasked", mask_rate=0.0, restart=1, start="rows"),
    member(2, math.nan, n_clusters=4, beta=2 / 3, n_used=1, full=False),
]


def test_every_member_has_its_place_and_the_rest_is_nan(tmp_path):
    made = sweep_dataset(MEMBERS, BASELINES, by_beta=False)
    save_sweep(tmp_path / "sweep.nc", made)
    sweep = xr.load_dataset(tmp_path / "sweep.nc")
    assert dict(sweep.sizes) == {
        "n_clusters": 2,
        "steps": 1,
        "objective": 2,
        "mask_rate": 2,
        "scale": 1,
        "learning_rate": 1,
        "restart": 2,
    }
    masked = sweep.sel(objective="masked", n_clusters=3, mask_rate=0.15, restart=0).squeeze()
    assert float(masked.silhouette) == 0.31  # the better of trained and found, not the start
    assert int(masked.state) == 3
    other = sweep.sel(objective="unmasked", n_clusters=3, mask_rate=0.0, restart=1).squeeze()
    assert float(other.silhouette) == 0.25
    assert int(sweep.silhouette.notnull().sum()) == 2
    assert int((sweep.member >= 0).sum()) == 3
    assert sweep.start.values.tolist() == ["kmeans", "rows"]
    assert sweep.kmeans_silhouette.values.tolist() == [0.3, 0.2]
    assert sweep.full.dtype == bool
    assert float(sweep.beta.sel(n_clusters=4).max()) == pytest.approx(2 / 3)


def test_given_inverse_temperatures_are_the_dimension():
    sweep = sweep_dataset(MEMBERS[:4], BASELINES, by_beta=True)
    assert sweep.beta.dims == ("beta",)
    assert "scale" in sweep.data_vars


def test_the_curve_names_best_candidate_and_k_means_of_each_number():
    far = BASELINES["4"] | {"silhouette": 0.01}
    curve = cluster_curve(MEMBERS, BASELINES | {"5": far}, MEMBERS[0])
    assert [row["n_clusters"] for row in curve] == [3, 4, 5]
    assert [row["chosen"] for row in curve] == [True, False, False]
    assert curve[0]["silhouette"] == 0.31
    assert curve[2]["state"] == "k-means"
    assert [row["kmeans_silhouette"] for row in curve] == [0.3, 0.2, 0.01]


def test_numbers_of_clusters_to_try():
    assert cluster_choices(7, 100) == [7]
    assert cluster_choices((5, 3, 3), 100) == [3, 5]
    assert cluster_choices("auto", 16_384) == list(range(2, 21))
    assert cluster_choices("auto", 5) == [2, 3, 4, 5]
    assert cluster_choices("auto", 2) == [2]


@pytest.mark.parametrize("asked", ["auto", [2, 4, 6]])
def test_a_run_finds_the_number_of_blobs_and_says_so(make_blobs_run, asked):
    metrics, output = make_blobs_run(4, asked)
    assert metrics["n_clusters"] == 4
    chosen = [row for row in metrics["by_n_clusters"] if row["chosen"]]
    assert [row["n_clusters"] for row in chosen] == [4]
    tried = [row["n_clusters"] for row in metrics["by_n_clusters"]]
    assert tried == (list(range(2, 21)) if asked == "auto" else asked)
    assert metrics["ari"] > 0.99
    sweep = xr.load_dataset(output / "sweep.nc")
    assert 4 in sweep.n_clusters
    best = sweep.silhouette.where(sweep.full).max(
        [name for name in sweep.silhouette.dims if name != "n_clusters"]
    )
    assert int(best.n_clusters[int(np.nanargmax(best))]) == 4
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "Silhouette by Number of clusters k" in page
    record = json.loads((output / "run.json").read_text(encoding="utf-8"))
    assert record["resolved"]["model.n_clusters"] == 4


@pytest.fixture
def make_blobs_run(tmp_path):
    def make(k, n_clusters):
        import pyarrow as pa
        import pyarrow.parquet as pq

        from clam_dist import run
        from clam_dist.config import config_from_dict

        generator = np.random.default_rng(k)
        centres = np.array([[0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9]], dtype=float)
        labels = generator.integers(0, k, 800)
        x = centres[labels] + generator.normal(size=(800, 3))
        columns = {f"x{i}": x[:, i] for i in range(3)} | {"label": labels}
        pq.write_table(pa.table(columns), tmp_path / "blobs.parquet")
        output = tmp_path / "out"
        values = {
            "source": {"uri": str(tmp_path / "blobs.parquet"), "label": "label"},
            "model": {"n_clusters": n_clusters},
            "output": {"uri": str(output)},
        }
        return run(config_from_dict(values)), output

    return make
