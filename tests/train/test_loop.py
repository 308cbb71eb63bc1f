"""The trainer on ranks that are threads: world sizes, resuming, weights, missing values."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from clam_dist.train.checkpoint import load_checkpoint, publish_checkpoint, read_current
from clam_dist.train.plan import Segment

sys.path.insert(0, str(Path(__file__).parent))
from thread_ranks import Stop, ThreadCollective, make_plan, run_ranks


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
