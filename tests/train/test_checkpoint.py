"""Checkpoints on disk: published by the driver, the last two kept, nothing else touched."""

import itertools
import os
import threading

import pytest
import torch

from clam_dist.train import checkpoint
from clam_dist.train.checkpoint import (
    load_checkpoint,
    new_writer,
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


PLACE = "checkpoint-00-00001-0000002"


class Turns:
    """Threads that take their steps in a given order; what follows the last one is free."""

    def __init__(self, order):
        self._order, self._changed = list(order), threading.Condition()

    def step(self, do):
        me = threading.current_thread().name
        with self._changed:
            self._changed.wait_for(lambda: not self._order or self._order[0] == me, 20)
            try:
                return do()
            finally:
                if self._order:
                    self._order.pop(0)
                self._changed.notify_all()

    def leave(self):
        me = threading.current_thread().name
        with self._changed:
            self._order = [name for name in self._order if name != me]
            self._changed.notify_all()


STEPS = 4
"""Of a checkpoint: the tensors written, put in place, the state written, put in place."""


@pytest.mark.parametrize("same", [False, True], ids=["", "as if both had one name"])
def test_a_stale_writer_at_the_same_place_changes_nothing(tmp_path, monkeypatch, same):
    """Every order of the steps of two writers: never the tensors of one and the state of the other.

    With one name for both, some order does mix them, so that the test could tell.
    """
    turns = Turns([])

    def stepping(function):
        def call(*args, **kwargs):
            return turns.step(lambda: function(*args, **kwargs))

        return call

    monkeypatch.setattr(checkpoint, "save_file", stepping(checkpoint.save_file))
    monkeypatch.setattr(checkpoint.json, "dump", stepping(checkpoint.json.dump))
    replace = os.replace
    monkeypatch.setattr(checkpoint.os, "replace", stepping(replace))
    mixed = 0
    for number, places in enumerate(itertools.combinations(range(2 * STEPS), STEPS)):
        order = ["stale" if position in places else "new" for position in range(2 * STEPS)]
        folder = tmp_path / str(number)
        turns = Turns(order)
        names, lost = {}, []

        def write(value, folder=folder, names=names, lost=lost, turns=turns):
            me = threading.current_thread().name
            try:
                names[me] = save_checkpoint(
                    folder,
                    PLACE,
                    {"w": torch.full((2,), value)},
                    {"value": value},
                    writer="" if same else new_writer(),
                )
            except OSError as error:  # one's temporary was put in place by the other
                lost.append(error)
            finally:
                turns.leave()

        threads = [
            threading.Thread(target=write, name=name, args=(value,))
            for name, value in (("stale", 1.0), ("new", 2.0))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        turns = Turns([])
        if same:
            text = folder / f"{PLACE}.json"
            if lost or not text.exists():
                mixed += 1
            continue
        assert not lost
        assert names["stale"] != names["new"]
        publish_checkpoint(folder, names["new"], "d")
        tensors, state = load_checkpoint(folder, "d")
        assert (tensors["w"].tolist(), state) == ([2.0, 2.0], {"value": 2.0})
        assert names["stale"] not in " ".join(os.listdir(folder)), "cleared, as never published"
    assert (mixed > 0) == same


def test_what_other_writers_left_unpublished_is_cleared(tmp_path):
    def write(place, writer):
        return save_checkpoint(tmp_path, place, {"w": torch.zeros(1)}, {}, writer=writer)

    first = write("checkpoint-1", "one")
    publish_checkpoint(tmp_path, first, "d")
    left = write("checkpoint-2", "one")
    (tmp_path / ".checkpoint-3.one.safetensors").write_text("half")
    (tmp_path / "model.safetensors").write_text("result")
    (tmp_path / "starts.9.json").write_text("other")
    second = write("checkpoint-2", "two")
    being_written = write("checkpoint-3", "two")
    (tmp_path / ".checkpoint-4.two.json").write_text("half")
    publish_checkpoint(tmp_path, second, "d")
    assert first in " ".join(names(tmp_path)), "the one before is kept"
    assert left not in " ".join(names(tmp_path))
    assert ".checkpoint-3.one.safetensors" not in names(tmp_path)
    kept = {f"{being_written}.json", ".checkpoint-4.two.json", "model.safetensors", "starts.9.json"}
    assert kept <= set(names(tmp_path))
    assert read_current(tmp_path)["name"] == "checkpoint-2.two"


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
