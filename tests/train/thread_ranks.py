"""Ranks that are threads, and a plan to run on them."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import torch

from clam_dist.data.shards import ShardFile
from clam_dist.evaluation.labelings import score_labelings
from clam_dist.models.factory import build_model
from clam_dist.train.loop import train_rank
from clam_dist.train.members import plan_members
from clam_dist.train.plan import Baseline, Segment, TrainPlan


class Stop(Exception):
    """Ends a rank as a crash would."""


class ThreadCollective:
    """Ranks as threads; tensors pass through a list all of them see."""

    threads = 1

    def __init__(self, rank, world_size, shared, on_event=None):
        self.rank, self.world_size = rank, world_size
        self._shared, self._on_event = shared, on_event

    def all_gather(self, tensor):
        board, barrier = self._shared
        board[self.rank] = tensor.clone()
        barrier.wait(60)
        gathered = torch.stack(list(board))
        barrier.wait(60)
        return gathered

    def broadcast(self, tensor):
        return self.all_gather(tensor)[0]

    def broadcast_object(self, value):
        board, barrier = self._shared
        board[self.rank] = value
        barrier.wait(60)
        first = board[0]
        barrier.wait(60)
        return first

    def barrier(self):
        self._shared[1].wait(60)

    def report(self, event):
        if self._on_event is not None:
            self._on_event(event)


def run_ranks(plan, world_size, on_event=None):
    shared = [None] * world_size, threading.Barrier(world_size)
    results, errors = [None] * world_size, []

    def run(rank):
        try:
            collective = ThreadCollective(rank, world_size, shared, on_event)
            results[rank] = train_rank(collective, plan)
        except BaseException as error:
            errors.append(error)
            shared[1].abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return results


def make_plan(folder, *, missing=0.0, weighted=False, uneven=(700, 300, 1, 0, 999, 48), **changes):
    """A plan over blobs in shards of uneven sizes, one of them empty."""
    generator = np.random.default_rng(5)
    n = sum(uneven)
    centres = generator.normal(size=(4, 5)) * 4
    x = centres[generator.integers(0, 4, n)] + generator.normal(size=(n, 5))
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    if missing:
        x[generator.random(x.shape) < missing] = np.nan
        x[np.isnan(x).all(1), 0] = 0.0
    w = generator.integers(1, 4, n).astype(np.float64)
    shards, first = [], 0
    for index, rows in enumerate(uneven):
        path = f"shard-{index:05d}.x.npy"
        np.save(folder / path, x[first : first + rows])
        np.save(folder / f"shard-{index:05d}.w.npy", w[first : first + rows])
        if rows:
            shards.append(ShardFile(path, rows, has_missing=missing > 0))
        first += rows
    order = generator.permutation(n)[:500]
    np.save(folder / "sample.x.npy", x[order])
    np.save(folder / "sample.w.npy", w[order])
    filled = np.nan_to_num(x)
    starts = np.stack([filled[generator.choice(n, 4, replace=False)] for _ in range(2)])
    np.save(folder / "starts-4.npy", starts)
    members = plan_members(
        n_clusters=[4],
        steps=[4],
        objectives=["masked", "unmasked"],
        mask_rates=[0.3],
        betas=[0.3, 1.0],
        learning_rates=[0.05],
        restarts=2,
        inertia={4: 1.0},
    )
    settings = {"kind": "clam", "step_size": None, "mask_value": [0.0] * 5, "seed": 3}
    plan = TrainPlan(
        shards_folder=str(folder),
        shards=tuple(shards),
        folder=str(folder / "train"),
        sample_rows=500,
        width=5,
        weighted=weighted,
        has_missing=missing > 0,
        seed=3,
        batch_rows=8192,
        search_batch_rows=64,
        members=tuple(members),
        segments=(Segment("search", 1, 0, 4), Segment("train", 4, 0, 1)),
        model_settings=settings,
        build_model=build_model,
        score=score_labelings,
        select="silhouette",
        starts={4: str(folder / "starts-4.npy")},
        baselines={4: Baseline(1.0, 0.3, 0.01, 0.2)},
        device="cpu",
        digest="d",
    )
    return replace(plan, **changes)
