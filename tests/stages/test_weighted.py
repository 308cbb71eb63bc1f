"""Weighted ClAM from config to labels: prototypes learn weights of their own (equation 10)."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clam_dist import load_model, run
from clam_dist.config import config_from_dict


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weighted")
    generator = np.random.default_rng(0)
    labels = generator.choice(3, 1500, p=[0.9, 0.08, 0.02])
    centres = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
    x = centres[labels] + generator.normal(size=(1500, 2))
    x[::50, 1] = np.nan
    table = pa.table({"a": x[:, 0], "b": pa.array(x[:, 1], from_pandas=True), "label": labels})
    pq.write_table(table, folder / "rows.parquet")
    values = {
        "source": {"uri": str(folder / "rows.parquet"), "label": "label"},
        "model": {"n_clusters": 3, "weighted": True, "beta": 0.5},
        "output": {"uri": str(folder / "out")},
    }
    return table, run(config_from_dict(values)), folder / "out"


def test_the_weights_are_trained_and_kept_with_the_model(finished):
    _, metrics, output = finished
    model = load_model(output)
    weights = model.bundle.parameters["log_epsilon"].numpy()
    assert weights.shape == (3,)
    assert np.ptp(weights) > 0.05  # all started equal
    assert metrics["ari"] > 0.95


def test_a_loaded_model_gives_the_labels_of_the_run(finished):
    table, _, output = finished
    labels, distances = load_model(output).predict(table)
    written = pq.read_table(output / "labels" / "rows.parquet")
    assert np.array_equal(labels, written["cluster"].to_numpy())
    assert np.array_equal(distances, written["distance"].to_numpy())
