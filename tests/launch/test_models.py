"""Every kind of model trained by the pipeline on real workers: the same numbers on any number."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from clam_dist.config import config_from_dict
from clam_dist.stages.pipeline import open_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS, BATCH_ROWS, EPOCHS = 16_384, 8192, 12
MODELS: dict[str, dict[str, Any]] = {
    "metric": {"kind": "clam", "metric": "full", "objective": "unmasked", "beta": 1.0},
    "noise": {"kind": "clam", "objective": "noise", "beta": 1.0},
    "dclam": {"kind": "dclam", "beta": 4.0, "latent": 4, "pretrain_epochs": 4},
    "tdcm": {"kind": "tdcm", "latent": 4, "pretrain_epochs": 4},
    "kmeans": {"kind": "kmeans"},
    "minibatch_kmeans": {"kind": "minibatch_kmeans"},
    "spherical_kmeans": {"kind": "spherical_kmeans"},
}
Event = dict[str, Any]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four overlapping clouds in eight dimensions."""
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    generator = np.random.default_rng(5)
    centres = 2.5 * generator.standard_normal((4, 8))
    x = generator.standard_normal((ROWS, 8)) + centres[generator.integers(4, size=ROWS)]
    pq.write_table(pa.table({f"f{i}": column for i, column in enumerate(x.T)}), path)
    return path


def train(
    folder: Path,
    data: Path,
    name: str,
    workers: int,
    on_event: Callable[[Event], None] | None = None,
    epochs: int = EPOCHS,
) -> tuple[dict[str, torch.Tensor], list[Event]]:
    """The pipeline up to training, on a cluster of its own: parameters, and what was told."""
    config = config_from_dict(
        {
            "source": {"uri": str(data)},
            "model": {"n_clusters": 4} | MODELS[name],
            "train": {"restarts": 2, "epochs": epochs, "batch_rows": BATCH_ROWS},
            "cluster": {"kind": "local", "workers": workers, "memory_limit": "2GiB"},
            "output": {"uri": str(folder)},
            "work": {"keep": True},
        }
    )
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    with open_run(config, on_event=take) as opened:
        for stage in ("profile", "shards", "train"):
            found = opened.stage(stage).manifest["data"]
    return load_file(folder / "_work" / found["model"]), events


def steps_of(events: list[Event]) -> int:
    """Steps on all rows."""
    trained = [e for e in events if e["event"] == "epoch" and e["phase"] == "train"]
    return max((e["epoch"] * e["steps"] for e in trained), default=0)


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The greatest difference of two models' parameters."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def worker_processes() -> list[psutil.Process]:
    """Of the clusters that this process has started."""
    family = psutil.Process().children(recursive=True)
    return [child for child in family if "spawn_main" in " ".join(child.cmdline())]


IN_CI = ("metric",)
"""The others take minutes and are run by hand."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in IN_CI else [pytest.mark.exhaustive]) for n in MODELS],
)
def test_one_two_and_three_workers_give_the_same_bits(
    tmp_path: Path, data: Path, name: str
) -> None:
    runs = {workers: train(tmp_path / str(workers), data, name, workers) for workers in (1, 2, 3)}
    alone, events = runs[1]
    if not name.endswith("kmeans"):
        assert steps_of(events) >= 20
    apart = {workers: farthest(alone, runs[workers][0]) for workers in (2, 3)}
    print(f"{name}: {steps_of(events)} steps, greatest difference from one worker {apart}")
    for workers in (2, 3):
        for parameter, value in alone.items():
            assert torch.equal(value, runs[workers][0][parameter]), (workers, parameter)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["dclam", "tdcm"])
def test_a_worker_killed_in_training_changes_nothing(tmp_path: Path, data: Path, name: str) -> None:
    undisturbed, _ = train(tmp_path / "whole", data, name, 2, epochs=40)
    killed: list[int] = []

    def kill(event: Event) -> None:
        if event["event"] == "epoch" and event["phase"] == "train" and not killed:
            killed.append(worker_processes()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    found, events = train(tmp_path / "killed", data, name, 2, kill, epochs=40)
    lost = [e["message"] for e in events if "was lost" in str(e.get("message", ""))]
    print(f"{name}: killed {killed}, {lost}, difference {farthest(undisturbed, found)}")
    assert killed
    assert lost
    for parameter, value in undisturbed.items():
        assert torch.equal(value, found[parameter]), parameter
