"""The trainer on ranks that are threads: world sizes, resuming, weights, missing values."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from clam_dist.data.shards import ShardFile
from clam_dist.evaluation.labelings import score_labelings
from clam_dist.models.factory import build_model
from clam_dist.train.checkpoint import load_checkpoint, publish_checkpoint, read_current
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


def parameters(plan):
    return load_file(f"{plan.folder}/model.safetensors")["prototypes"]


@pytest.mark.parametrize(("missing", "weighted"), [(0.0, False), (0.1, True)])
def test_any_number_of_ranks_gives_the_same_bits(tmp_path, missing, weighted):
    plan = make_plan(tmp_path, missing=missing, weighted=weighted)
    assert plan.lanes("train") == 4
    alone = run_ranks(plan, 1)[0]
    reference = parameters(plan)
    for world_size in (2, 3, 7):
        other = replace(plan, folder=str(tmp_path / f"train-{world_size}"))
        results = run_ranks(other, world_size)
        assert all(result == alone for result in results)
        assert torch.equal(parameters(other), reference)


def test_threads_do_not_change_the_bits(tmp_path, monkeypatch):
    plan = make_plan(tmp_path)
    run_ranks(plan, 1)
    monkeypatch.setattr(ThreadCollective, "threads", 3)
    other = replace(plan, folder=str(tmp_path / "threads"))
    run_ranks(other, 1)
    assert torch.equal(parameters(other), parameters(plan))


@pytest.mark.parametrize("crash_at", [1, 2, 4])
def test_kill_and_resume_equals_uninterrupted_also_on_other_ranks(tmp_path, monkeypatch, crash_at):
    monkeypatch.setattr("clam_dist.train.state.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("clam_dist.train.loop.ROUND_STEPS", 1)
    plan = make_plan(tmp_path, batch_rows=1024)
    whole = run_ranks(plan, 1)[0]
    other = replace(plan, folder=str(tmp_path / "crashed"))
    seen = []

    def crash(event):
        if event["event"] == "checkpoint":
            publish_checkpoint(other.folder, event["name"], other.digest)
            seen.append(event["name"])
            if len(seen) == crash_at:
                raise Stop

    with pytest.raises(Stop):
        run_ranks(other, 1, crash)
    said = []
    resumed = run_ranks(other, 2, said.append)[0]
    assert any("goes on from its checkpoint" in e.get("message", "") for e in said)
    assert resumed["members"] == whole["members"]
    assert resumed["history"] == whole["history"]
    assert torch.equal(parameters(other), parameters(plan))


def test_a_long_round_writes_checkpoints_on_its_way_and_resumes_from_them(tmp_path, monkeypatch):
    monkeypatch.setattr("clam_dist.train.loop.LONGEST_SECONDS", 0.0)
    plan = make_plan(tmp_path, batch_rows=256, segments=(Segment("train", 2, 0, 1),))
    whole = run_ranks(plan, 1)[0]
    other = replace(plan, folder=str(tmp_path / "crashed"))

    def crash(event):
        if event["event"] == "checkpoint":
            publish_checkpoint(other.folder, event["name"], other.digest)
            if event["epoch"] == 1 and event["step"] == 3:  # of 8, in the middle of a round
                raise Stop

    with pytest.raises(Stop):
        run_ranks(other, 1, crash)
    assert run_ranks(other, 2)[0]["history"] == whole["history"]
    assert torch.equal(parameters(other), parameters(plan))


def test_a_checkpoint_that_the_driver_did_not_publish_changes_nothing(tmp_path):
    plan = make_plan(tmp_path)
    run_ranks(plan, 1)  # nobody published
    assert read_current(plan.folder) is None
    assert load_checkpoint(plan.folder, plan.digest) is None


def test_a_checkpoint_of_another_config_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("clam_dist.train.state.CHECKPOINT_SECONDS", 0.0)
    plan = make_plan(tmp_path)

    def publish(event):
        if event["event"] == "checkpoint":
            publish_checkpoint(plan.folder, event["name"], plan.digest)

    run_ranks(plan, 1, publish)
    assert load_checkpoint(plan.folder, plan.digest) is not None
    assert load_checkpoint(plan.folder, "another") is None


def test_training_finds_the_blobs_and_the_search_keeps_full_members(tmp_path):
    plan = make_plan(tmp_path)
    result = run_ranks(plan, 1)[0]
    winner = result["winner"]
    assert winner["n_used"] == 4
    assert winner["full"]
    assert winner["silhouette"] > 0.5
    final = [m for m in result["members"] if m["state"] != "dropped"]
    assert winner["silhouette"] == max(m["silhouette"] for m in final if m["full"])
    # Four finalists, each trained and as the search found it, and the two k-means starts.
    assert [m["state"] for m in final].count("start") == 2
    assert len(final) == 10
    assert {m["index"] for m in result["members"]} == set(range(8))


def test_validation_loss_falls(tmp_path):
    result = run_ranks(make_plan(tmp_path), 1)[0]
    losses = [h["validation_loss"] for h in result["history"] if h["phase"] == "train"]
    assert losses[-1] <= losses[0]


def test_a_dead_prototype_is_placed_on_a_row(tmp_path):
    plan = make_plan(tmp_path, segments=(Segment("train", 4, 0, 1),), batch_rows=512)
    starts = np.load(plan.starts[4])
    starts[:, 3] = 1e4  # so far away that no row chooses it
    np.save(plan.starts[4], starts)
    result = run_ranks(plan, 1)[0]
    assert result["reseeded"] > 0
    assert result["winner"]["n_used"] == 4
    assert float(parameters(plan).abs().max()) < 100
