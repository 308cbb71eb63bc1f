"""Training on arrays: the result, its sums, and what is left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from clam_dist.config import ModelConfig, TrainConfig
from clam_dist.errors import DataError
from clam_dist.stages.fitting import fit_parts

MODEL = ModelConfig(n_clusters=3, beta=1.0, objective="masked")
TRAIN = TrainConfig(restarts=1, epochs=5, device="cpu")


def blobs() -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.repeat([[0.0, 0], [9, 0], [0, 9]], 100, axis=0) + generator.normal(size=(300, 2))


def test_sums_are_over_all_rows_that_have_a_value(tmp_path: Path) -> None:
    x = blobs()
    x[3, 1], x[7] = np.nan, np.nan
    weight = np.where(np.arange(300) % 10 == 0, 0.0, 2.0)
    parts = [(x[:250], weight[:250]), (x[250:], weight[250:])]
    said: list[str] = []
    threads = torch.get_num_threads()
    fitted = fit_parts(
        lambda: iter(parts),
        2,
        MODEL,
        TRAIN,
        weighted=True,
        threads=1,
        folder=str(tmp_path),
        on_event=lambda event: said.append(event["event"]),
    )
    assert list(tmp_path.iterdir()) == []  # the temporary folder is gone
    assert torch.get_num_threads() == threads
    assert {"epoch", "note"} <= set(said)
    kept = (weight > 0) & ~np.isnan(x).all(axis=1)
    assert fitted.sums.count.sum() == kept.sum()
    assert fitted.sums.weight.sum() == weight[kept].sum()
    means = fitted.scaling.invert(fitted.sums.means)
    order = np.argsort(means[:, 0] - means[:, 1])
    np.testing.assert_allclose(means[order], [[0, 9], [0, 0], [9, 0]], atol=0.5)
    assert fitted.parameters["prototypes"].shape == (3, 2)
    assert fitted.winner["n_clusters"] == 3
    np.testing.assert_allclose(
        fitted.statistics.mean, np.ma.average(np.ma.masked_invalid(x), axis=0, weights=weight)
    )


def test_parts_and_threads_change_nothing_but_the_order_of_rows() -> None:
    x = blobs()
    one = fit_parts(lambda: iter([(x, None)]), 2, MODEL, TRAIN, threads=1)
    two = fit_parts(lambda: iter([(x, None)]), 2, MODEL, TRAIN, threads=2)
    np.testing.assert_array_equal(one.parameters["prototypes"], two.parameters["prototypes"])


def test_rows_that_are_all_alike() -> None:
    with pytest.raises(DataError, match="nothing to cluster"):
        fit_parts(lambda: iter([(np.ones((20, 2)), None)]), 2, MODEL, TRAIN)
