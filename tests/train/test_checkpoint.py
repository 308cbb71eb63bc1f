"""Checkpoints on disk: published by the driver, the last two kept, nothing else touched."""

import pytest
import torch

from clam_dist.train.checkpoint import (
    load_checkpoint,
    publish_checkpoint,
    read_current,
    save_checkpoint,
)


def save(folder, name, value=1.0):
    save_checkpoint(folder, name, {"w": torch.full((2, 3), value)}, {"epoch": 3, "loss": 0.1})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    value = 0.1 + 1e-9
    save_checkpoint(tmp_path, "a", {"w": torch.tensor([value])}, {"loss": 1 / 3})
    assert load_checkpoint(tmp_path, "d") is None  # not published
    publish_checkpoint(tmp_path, "a", "d")
    tensors, state = load_checkpoint(tmp_path, "d")
    assert torch.equal(tensors["w"], torch.tensor([value]))
    assert state == {"loss": 1 / 3}


def test_the_last_two_are_kept(tmp_path):
    for name in ("a", "b", "c", "d"):
        save(tmp_path, name)
        publish_checkpoint(tmp_path, name, "digest")
    assert names(tmp_path) == ["c.json", "c.safetensors", "current.json", "d.json", "d.safetensors"]
    publish_checkpoint(tmp_path, "d", "digest")  # told twice
    assert read_current(tmp_path) == {"name": "d", "digest": "digest", "previous": "c"}


@pytest.mark.parametrize("unfinished", [".next.json", ".next.safetensors", "next.safetensors"])
def test_publishing_never_touches_what_a_rank_is_writing(tmp_path, unfinished):
    for name in ("a", "b"):
        save(tmp_path, name)
        publish_checkpoint(tmp_path, name, "digest")
    save(tmp_path, "c")
    (tmp_path / unfinished).write_text("half")
    (tmp_path / "model.safetensors").write_text("result")
    publish_checkpoint(tmp_path, "c", "digest")
    assert {unfinished, "model.safetensors", "b.json"} <= set(names(tmp_path))
    assert "a.json" not in names(tmp_path)


def test_another_digest_is_not_used(tmp_path):
    save(tmp_path, "a")
    publish_checkpoint(tmp_path, "a", "one")
    assert load_checkpoint(tmp_path, "two") is None


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, suffix, damage, caplog):
    for value, name in enumerate(("a", "b")):
        save(tmp_path, name, float(value))
        publish_checkpoint(tmp_path, name, "d")
    path = tmp_path / f"b{suffix}"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:5])
    else:
        path.unlink()
    tensors, _ = load_checkpoint(tmp_path, "d")
    assert float(tensors["w"][0, 0]) == 0.0
    assert "cannot be read" in caplog.text
    (tmp_path / "a.json").unlink()
    assert load_checkpoint(tmp_path, "d") is None


def test_a_damaged_record_is_no_checkpoint(tmp_path, caplog):
    save(tmp_path, "a")
    publish_checkpoint(tmp_path, "a", "d")
    (tmp_path / "current.json").write_text("{")
    assert load_checkpoint(tmp_path, "d") is None
    assert "no checkpoint is taken up" in caplog.text
