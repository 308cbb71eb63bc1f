"""A model loaded from a run takes tables by column name, and arrays as they are."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clam_dist
from clam_dist.config import config_from_dict
from clam_dist.errors import ConfigError, DataError
from clam_dist.models.nearest import Nearest


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded")
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, 600)
    x = generator.normal(size=(600, 2)) + 5 * truth[:, None]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(generator.normal(size=1200)), 2)
    colours = pa.array(np.array(["red", "green", "blue"])[truth]).dictionary_encode()
    table = pa.table({"a": x[:, 0], "c": colours, "b": x[:, 1], "v": vectors, "id": range(600)})
    pq.write_table(table, folder / "data.parquet", row_group_size=250)
    config = {
        "source": {"uri": str(folder / "data.parquet"), "exclude": ["id"]},
        "model": {"n_clusters": 3, "beta": 1.0, "objective": "unmasked"},
        "train": {"restarts": 1, "epochs": 2},
        "output": {"uri": str(folder / "out")},
    }
    clam_dist.run(config_from_dict(config))
    labels = pq.read_table(folder / "out" / "labels" / "data.parquet")["cluster"].to_numpy()
    return folder / "out", table, labels


@pytest.mark.parametrize("form", ["table", "reversed", "batch", "frame"])
def test_tables_are_taken_by_name(trained, form):
    out, table, labels = trained
    model = clam_dist.load_model(out)  # the run's folder, or model/ in it
    rows = {
        "table": table,
        "reversed": table.select(table.column_names[::-1]),
        "batch": table.combine_chunks().to_batches()[0],
        "frame": table.to_pandas() if form == "frame" else None,
    }[form]
    predicted, distances = model.predict(rows)
    assert np.array_equal(predicted, labels)
    assert distances.shape == (600,)
    assert np.isfinite(distances).all()


def test_a_table_without_a_column_is_told(trained):
    out, table, _ = trained
    with pytest.raises(DataError, match=r"lacks the column\(s\) 'b'"):
        clam_dist.load_model(out / "model").predict(table.drop(["b"]))


def test_an_array_of_another_width_is_told(trained):
    with pytest.raises(ConfigError, match="7 features"):
        clam_dist.load_model(trained[0]).predict(np.zeros((3, 4)))


def test_representations_and_shares_of_tables_and_arrays(trained, monkeypatch):
    out, table, _ = trained
    model = clam_dist.load_model(out)
    x = model.encode(table)
    x[7, 1] = np.nan
    x[9] = np.nan
    z, shares = model.transform(x), model.predict_proba(x)
    expected = (x - model.dataset["center"].values) / model.dataset["scale"].values
    np.testing.assert_allclose(z, expected, rtol=1e-5, atol=1e-6)  # rows themselves, nan kept
    known = np.arange(600) != 9
    assert np.isnan(shares[9]).all()
    np.testing.assert_allclose(shares[known].sum(1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(shares.argmax(1)[known], model.predict(x)[0][known])
    monkeypatch.setattr("clam_dist.loaded.PREDICT_ROWS", 64)
    np.testing.assert_array_equal(model.predict_proba(x), shares)
    np.testing.assert_array_equal(model.transform(table).shape, (600, 7))
    assert model.transform(table.slice(0, 0)).shape == (0, 7)


def test_what_a_model_cannot_transform_or_share_is_told(trained, monkeypatch):
    model = clam_dist.load_model(trained[0])
    with pytest.raises(ConfigError, match="7 features"):
        model.transform(np.zeros((3, 4)))
    whole = Nearest(3)
    monkeypatch.setattr(type(model.bundle), "model", lambda _: whole)
    with pytest.raises(ConfigError, match="gives each row to one cluster alone"):
        model.predict_proba(np.zeros((3, 7)))
