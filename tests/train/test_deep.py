"""Models with networks in the trainer: pretrained first, the same bits on any number of ranks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from clam_dist.models.factory import MODELS
from clam_dist.train.checkpoint import publish_checkpoint
from clam_dist.train.members import plan_members
from clam_dist.train.plan import plan_segments
from clam_dist.train.pretraining import pretrained_members, rescaled

sys.path.insert(0, str(Path(__file__).parent))
from thread_ranks import Stop, make_plan, run_ranks

SETTINGS = {
    "step_size": None,
    "mask_value": [0.0] * 5,
    "seed": 3,
    "latent": 4,
    "network": {"kind": "dense", "hidden": [6]},
    "encoder_rate": 0.01,
    "decoder_rate": 0.01,
    "blocks": 2,
    "score": "identity",
    "temperature": 1.0,
    "balance": 1.0,
    "reconstruction": 1.0,
}


def deep_plan(folder, kind, *, betas=None, search=True, **changes):
    """A plan of pretraining, perhaps a search, and training, over blobs in uneven shards."""
    base = make_plan(folder, batch_rows=8192)
    spec = MODELS[kind]
    members = plan_members(
        n_clusters=[4],
        steps=[3],
        objectives=spec.objectives,
        mask_rates=[0.15],
        betas=spec.betas if betas is None else betas,
        learning_rates=[0.02, 0.03, 0.01] if search else [0.02],
        restarts=2,
        inertia={4: 1.0},
        scales=(1.0, 4.0),
        starts=("kmeans",),
    )
    segments = plan_segments(
        members,
        n_rows=base.n_rows,
        sample_rows=base.sample_rows,
        batch_rows=base.batch_rows,
        epochs=3,
        pretrain_epochs=4,
    )
    if search:
        segments = tuple(
            replace(segment, epochs=1) if segment.phase == "search" else segment
            for segment in segments
        )
    return replace(
        base,
        members=tuple(members),
        segments=segments,
        model_settings=SETTINGS | {"kind": kind},
        fixed_beta=spec.betas is not None or betas is not None,
        **changes,
    )


@pytest.mark.parametrize("kind", ["dclam", "tdcm"])
def test_any_number_of_ranks_gives_the_same_bits(tmp_path, kind):
    plan = deep_plan(tmp_path, kind, search_batch_rows=8192)
    assert [segment.phase for segment in plan.segments][:2] == ["pretrain", "search"]
    tensors, results = [], []
    for world_size in (1, 2, 3):
        folder = tmp_path / f"ranks-{world_size}"
        results.append(run_ranks(replace(plan, folder=str(folder)), world_size)[0])
        tensors.append(load_file(folder / "model.safetensors"))
    for result, found in zip(results[1:], tensors[1:], strict=True):
        assert result["winner"] == results[0]["winner"]
        assert found.keys() == tensors[0].keys()
        for name, value in tensors[0].items():
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("kind", ["dclam", "tdcm"])
def test_a_run_that_is_stopped_anywhere_ends_as_if_it_were_not(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("clam_dist.train.state.CHECKPOINT_SECONDS", 0.0)
    plan = deep_plan(tmp_path, kind)
    whole = tmp_path / "whole"
    run_ranks(replace(plan, folder=str(whole)), 1)
    published = []

    def count(event):
        if event["event"] == "checkpoint":
            published.append(event["name"])

    run_ranks(replace(plan, folder=str(tmp_path / "count")), 1, count)
    assert len(published) > 8
    wanted = load_file(whole / "model.safetensors")

    for stop in range(1, len(published), 3):
        folder, seen = tmp_path / f"stopped-{stop}", []

        def on_event(event, folder=folder, seen=seen, stop=stop):
            if event["event"] == "checkpoint":
                publish_checkpoint(folder, event["name"], plan.digest)
                seen.append(event["name"])
                if len(seen) == stop:
                    raise Stop

        with pytest.raises(Stop):
            run_ranks(replace(plan, folder=str(folder)), 1, on_event)
        run_ranks(replace(plan, folder=str(folder)), 1)
        found = load_file(folder / "model.safetensors")
        for name, value in wanted.items():
            assert torch.equal(found[name], value), (stop, name)


def test_one_network_a_restart_is_pretrained(tmp_path):
    plan = deep_plan(tmp_path, "dclam")
    members = pretrained_members(plan.members)
    assert [member.restart for member in members] == [0, 1]


def test_beta_is_in_the_unit_of_each_restarts_latents(tmp_path):
    plan = deep_plan(tmp_path, "dclam")
    units = {(4, 0): 2.0, (4, 1): 0.5}
    by_scale = rescaled(plan.members, units, fixed=False)
    assert {(m.restart, m.scale, m.beta) for m in by_scale} == {
        (0, 1.0, 0.5),
        (0, 4.0, 2.0),
        (1, 1.0, 2.0),
        (1, 4.0, 8.0),
    }
    fixed = rescaled(plan.members, units, fixed=True)
    assert [m.beta for m in fixed] == [m.beta for m in plan.members]
    assert all(np.isclose(m.scale, m.beta * units[4, m.restart]) for m in fixed)


def test_pretraining_is_told_and_its_loss_bounds_the_winners(tmp_path):
    plan = deep_plan(tmp_path, "dclam")
    events = []
    result = run_ranks(replace(plan, folder=str(tmp_path / "out")), 1, events.append)[0]
    phases = [event["phase"] for event in events if event["event"] == "epoch"]
    assert phases[:4] == ["pretrain"] * 4
    assert {"search", "train"} <= set(phases)
    for row in result["members"]:
        assert row["faithful"] or not row["full"]


def test_a_start_far_from_the_pretrained_loss_is_never_chosen_by_its_silhouette(tmp_path):
    # At so small a beta every latent is drawn to one place: nothing can be reconstructed.
    plan = deep_plan(tmp_path, "dclam", betas=[1e-6], search=False)
    segments = (replace(plan.segments[0], epochs=60), *plan.segments[1:])
    plan = replace(plan, segments=segments)
    result = run_ranks(replace(plan, folder=str(tmp_path / "out")), 1)[0]
    assert not any(row["faithful"] for row in result["members"])
    most = max(row["n_used"] for row in result["members"])
    equal = [row for row in result["members"] if row["n_used"] == most]
    equal = [row for row in equal if row["filled"]] or equal
    assert result["winner"]["loss"] == min(row["loss"] for row in equal)
    assert len(result["warnings"]) == 1
    assert f"loss is {result['winner']['loss']:.3g}, " in result["warnings"][0]


@pytest.mark.parametrize("kind", ["tdcm"])
def test_a_model_that_is_not_judged_by_reconstruction_warns_of_nothing(tmp_path, kind):
    plan = deep_plan(tmp_path, kind, search=False)
    assert run_ranks(replace(plan, folder=str(tmp_path / "out")), 1)[0]["warnings"] == []
