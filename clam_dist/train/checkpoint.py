"""Checkpoints: tensors as safetensors, the rest as JSON, published as current by the driver alone.

A rank writes ``NAME.safetensors`` and ``NAME.json``, and nothing reads them until the driver has
replaced ``current.json``. A name carries the writer: two ranks that stand at the same place, of
which one is left from a lost attempt, never write to the same file, whole or temporary. So a stale
rank can write what it likes, when it likes, and change nothing.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

CURRENT = "current.json"

logger = logging.getLogger("clam_dist")


def new_writer() -> str:
    """A name for one rank of one attempt, unlike any other's."""
    return uuid.uuid4().hex[:12]


def save_checkpoint(
    folder: str | Path,
    place: str,
    tensors: dict[str, torch.Tensor],
    state: dict[str, Any],
    *,
    writer: str = "",
) -> str:
    """Write the two files of a checkpoint, each whole under its final name or not at all.

    Parameters
    ----------
    place
        Where training stands, ``checkpoint-00-00001-0000002``.
    writer
        Who writes it, from :func:`new_writer`, once for each rank that begins.

    Returns
    -------
    str
        The checkpoint's name, for `publish_checkpoint`: ``PLACE.WRITER``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{place}.{writer}" if writer else place
    target = folder / f"{name}.safetensors"
    temporary = folder / f".{name}.safetensors"
    save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, temporary)
    os.replace(temporary, target)
    _write_json(folder / f"{name}.json", state)
    return name


def publish_checkpoint(folder: str | Path, name: str, digest: str) -> None:
    """Make a checkpoint the current one, and delete the one before the one before.

    Called by the driver only. What other writers left, and was never published, is deleted too;
    nothing else: the writer of this checkpoint may be writing the next one.
    """
    folder = Path(folder)
    before = read_current(folder)
    if before is not None and before["name"] == name:
        return
    previous = None if before is None else before["name"]
    _write_json(folder / CURRENT, {"name": name, "digest": digest, "previous": previous})
    stale = None if before is None else before["previous"]
    if stale is not None and stale not in (name, previous):
        for suffix in (".safetensors", ".json"):
            (folder / f"{stale}{suffix}").unlink(missing_ok=True)
    writer = _writer_of(name)
    for path in folder.iterdir() if writer else ():
        left = path.stem.lstrip(".")
        others = _writer_of(left) not in ("", writer)
        if others and left != previous and path.suffix in (".safetensors", ".json"):
            path.unlink(missing_ok=True)


def _writer_of(name: str) -> str:
    """The part of a checkpoint's name that says who wrote it; empty where it has none."""
    return name.partition(".")[2] if name.startswith("checkpoint-") else ""


def read_current(folder: str | Path) -> dict[str, Any] | None:
    """The published record, None where there is none or it is damaged."""
    path = Path(folder) / CURRENT
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        logger.warning("%s cannot be read (%s): no checkpoint is taken up", path, error)
        return None
    return record


def load_checkpoint(
    folder: str | Path, digest: str
) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The current checkpoint of this very plan, the one before where it is damaged, or None.

    A record of another digest (an older config in the same folder) is not used.
    """
    record = read_current(folder)
    if record is None or record["digest"] != digest:
        return None
    for name in (record["name"], record["previous"]):
        if name is None:
            continue
        try:
            text = (Path(folder) / f"{name}.json").read_text("utf-8")
            return load_file(Path(folder) / f"{name}.safetensors"), json.loads(text)
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("checkpoint %s in %s cannot be read (%s)", name, folder, error)
    return None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
