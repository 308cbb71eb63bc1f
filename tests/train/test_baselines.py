"""The three baselines on shards, as scikit-learn and plain NumPy have them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from clam_dist.data.arrays import write_rows
from clam_dist.errors import ConfigError, DataError
from clam_dist.models.nearest import Nearest
from clam_dist.models.rows import to_tensors
from clam_dist.train.baselines import (
    draw_starts,
    fit_baseline,
    geometry_of,
    in_memory,
)
from clam_dist.train.lloyd import Lloyd
from clam_dist.train.shard_rows import ShardRows

KINDS = ["kmeans", "minibatch_kmeans", "spherical_kmeans"]


def groups(missing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """2400 rows of four groups that differ in direction too, sorted by group."""
    generator = np.random.default_rng(0)
    classes = np.sort(np.arange(2400) % 4)
    centers = 8.0 * np.eye(4, 6)
    x = centers[classes] + generator.normal(size=(2400, 6))
    x[generator.random(x.shape) < missing] = np.nan
    return x, classes


def laid_down(
    folder: Path, x: np.ndarray, weight: np.ndarray | None = None, parts: int = 3
) -> ShardRows:
    cuts = np.array_split(np.arange(len(x)), parts)
    written = write_rows(
        lambda: [(x[cut], None if weight is None else weight[cut]) for cut in cuts],
        str(folder),
        scaling="none",
        sample_rows=800,
        weighted=weight is not None,
        seed=0,
    )
    return ShardRows(
        str(folder), written.shards, x.shape[1], weight is not None, written.has_missing
    )


def labels_of(kind: str, found: Lloyd, x: np.ndarray) -> np.ndarray:
    best = torch.from_numpy(found.prototypes[found.inertia.argmin()])
    model = Nearest(len(best), geometry_of(kind))
    rows, observed = to_tensors(x.astype(np.float32))
    return model.predict({"prototypes": best}, 1.0, rows, observed)[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_finds_the_groups(tmp_path: Path, kind: str, missing: float, weighted: bool) -> None:
    x, classes = groups(missing)
    weight = np.random.default_rng(1).uniform(0.0, 2.0, len(x)) if weighted else None
    if weight is not None:
        weight[::7] = 0.0
    rows = laid_down(tmp_path, x, weight)
    found = fit_baseline(kind, rows, 4, seed=1, restarts=3)
    assert found.prototypes.shape == (3, 4, 6)
    assert found.prototypes.dtype == np.float32
    total = len(x) if weight is None else weight[~np.isnan(x).all(1)].sum()
    assert found.weight == pytest.approx(total)
    whole = groups()[0]  # a row that misses what tells its group cannot be placed
    assert adjusted_rand_score(classes, labels_of(kind, found, whole)) > 0.97
    if kind == "spherical_kmeans":
        np.testing.assert_allclose(np.linalg.norm(found.prototypes, axis=2), 1.0, rtol=1e-6)


def test_streamed_equals_in_memory(tmp_path: Path) -> None:
    rows = laid_down(tmp_path, groups()[0] * 0.3)
    memory = fit_baseline("kmeans", rows, 9, seed=2, restarts=4, tolerance=0.0)
    streamed = fit_baseline("kmeans", rows, 9, seed=2, restarts=4, tolerance=0.0, memory_bytes=0)
    np.testing.assert_allclose(memory.inertia, streamed.inertia, rtol=1e-5)
    exact, _ = in_memory(draw_starts("kmeans", rows, 9, 4, 2), *rows.all(), 0.0, 300)
    assert np.array_equal(exact, memory.prototypes)


def test_inertia_is_scikit_learns_a_row(tmp_path: Path) -> None:
    x, _ = groups()
    weight = np.random.default_rng(3).uniform(0.5, 2.0, len(x))
    rows = laid_down(tmp_path, x, weight)
    found = fit_baseline("kmeans", rows, 4, seed=0, restarts=2)
    best = KMeans(4, n_init=5, random_state=0).fit(x, sample_weight=weight)
    assert found.inertia.min() * found.weight == pytest.approx(best.inertia_, rel=1e-4)


def test_mini_batches_come_near_full_passes(tmp_path: Path) -> None:
    rows = laid_down(tmp_path, groups()[0])
    full = fit_baseline("kmeans", rows, 4, seed=0, restarts=3)
    few = fit_baseline("minibatch_kmeans", rows, 4, seed=0, restarts=3, passes=4)
    assert few.iterations.tolist() == [12, 12, 12]  # 4 passes of 3 batches of about 1024 rows
    assert few.inertia.min() < 1.05 * full.inertia.min()


def test_more_clusters_than_the_first_batch_has_rows(tmp_path: Path) -> None:
    rows = laid_down(tmp_path, groups()[0][::4])
    found = fit_baseline("minibatch_kmeans", rows, 590, seed=0, passes=1)
    assert found.prototypes.shape == (1, 590, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_workers(tmp_path: Path, kind: str) -> None:
    rows = laid_down(tmp_path, groups(0.05)[0])
    alone = fit_baseline(kind, rows, 4, seed=5, restarts=2)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        shared = fit_baseline(kind, rows, 4, seed=5, restarts=2, map_parts=pool.map)
    assert np.array_equal(alone.prototypes, shared.prototypes)
    assert np.array_equal(alone.inertia, shared.inertia)


def test_a_pass_holds_one_block_of_a_shard_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = laid_down(tmp_path, groups()[0], parts=1)
    part = replace(rows.parts()[0], shard=replace(rows.shards[1], rows=100))
    whole = [x for x, _ in part.blocks()]
    monkeypatch.setattr("clam_dist.train.shard_rows.BLOCK_BYTES", 4 * 6 * 30)
    blocks = [x for x, _ in part.blocks()]
    assert [len(x) for x in blocks] == [30, 30, 30, 10]
    assert np.array_equal(np.concatenate(blocks), whole[0])
    assert np.array_equal(whole[0], rows.all()[0][rows.shards[0].rows :][:100])


def test_a_pass_over_shards_asks_the_executor_for_each(tmp_path: Path) -> None:
    rows = laid_down(tmp_path, groups()[0])
    asked: list[int] = []

    def counting(function: Any, parts: Any) -> Iterable[Any]:
        asked.append(len(parts))
        return map(function, parts)

    found = fit_baseline("spherical_kmeans", rows, 4, seed=0, map_parts=counting)
    assert asked == [len(rows.shards)] * int(found.iterations[0])


def test_fewer_distinct_rows_than_clusters(tmp_path: Path) -> None:
    x = np.repeat(np.eye(3), 50, axis=0)
    rows = laid_down(tmp_path, x)
    for kind in KINDS:
        assert fit_baseline(kind, rows, 5, seed=0).inertia[0] == pytest.approx(0.0, abs=1e-4)


def test_errors(tmp_path: Path) -> None:
    rows = laid_down(tmp_path, np.zeros((6, 2)))
    with pytest.raises(ConfigError, match=r"model.kind: 'k-means' is unknown; use kmeans, mini"):
        fit_baseline("k-means", rows, 2, seed=0)
    with pytest.raises(DataError, match="7 clusters were asked for and there are 6 rows"):
        fit_baseline("kmeans", rows, 7, seed=0)
    with pytest.raises(DataError, match="none of the 6 rows sampled has a direction"):
        fit_baseline("spherical_kmeans", rows, 2, seed=0)
