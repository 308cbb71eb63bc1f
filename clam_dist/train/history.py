"""Prototypes through training: a few snapshots of the finalists, for those who watch them settle.

Letters: ``P`` members of a group, ``s`` snapshots, ``k`` prototypes, ``m`` their width.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from clam_dist.train.population import Group

HISTORY_FILE = "prototypes-history.safetensors"
MOST_SNAPSHOTS = 12
MOST_BYTES = 2 * 2**20
"""Of one member's snapshots: 12 of 55 prototypes of 784 features. Larger ones are not kept, since
checkpoints hold those of all finalists."""
PREFIX = "snapshots."
START, FOUND, CHOSEN = "start", "search", "chosen"
"""Moments without an epoch: before training, as the search left it, and at the best round."""


class PrototypeHistory:
    """At most twelve snapshots of each member's prototypes, evenly spaced over the rounds so far.

    Every ``stride``-th round is kept; when there are twelve, every second one goes and ``stride``
    doubles. What is kept depends on the number of rounds alone, so a run that was resumed has what
    an uninterrupted one has.

    Attributes
    ----------
    stride : int
        Rounds from one snapshot to the next.
    epochs : list of float
        When the snapshots were taken.
    kept : dict of int to list of Tensor (k,m)
        By the members' indices, float32 on the CPU.
    """

    def __init__(self) -> None:
        self.stride = 1
        self.epochs: list[float] = []
        self.kept: dict[int, list[torch.Tensor]] = {}

    def observe(self, groups: Sequence[Group], number: int, epoch: float, width: int) -> None:
        """Take a snapshot of all members at the end of a round, if it is one's turn.

        Parameters
        ----------
        groups
            The population.
        number : int
            Of the round in this phase, from 1.
        epoch : float
            Where training stands.
        width : int
            Features of a row: only prototypes that are rows are kept.
        """
        if (number - 1) % self.stride or not all(is_small(group, width) for group in groups):
            return
        self.epochs.append(epoch)
        for group in groups:
            prototypes = group.parameters["prototypes"].detach().cpu()
            for member, own in zip(group.members, prototypes, strict=True):
                self.kept.setdefault(member.index, []).append(own.clone())
        if len(self.epochs) == MOST_SNAPSHOTS:
            self.stride *= 2
            self.epochs = self.epochs[::2]
            self.kept = {index: taken[::2] for index, taken in self.kept.items()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The snapshots ``(s,k,m)`` by name, for a checkpoint."""
        return {f"{PREFIX}{index}": torch.stack(taken) for index, taken in self.kept.items()}

    def state(self) -> dict[str, Any]:
        """The rest, as JSON."""
        return {"stride": self.stride, "epochs": self.epochs}

    def restore(self, tensors: dict[str, torch.Tensor], state: dict[str, Any] | None) -> None:
        """Take up what a checkpoint holds; one from before there were snapshots holds none."""
        if state is None:
            return
        self.stride, self.epochs = int(state["stride"]), list(state["epochs"])
        self.kept = {
            int(name.removeprefix(PREFIX)): list(value.unbind())
            for name, value in tensors.items()
            if name.startswith(PREFIX)
        }

    def save(
        self,
        path: Path,
        index: int,
        start: np.ndarray | None,
        found: torch.Tensor | None,
        chosen: torch.Tensor,
    ) -> None:
        """Write one member's way, or nothing where it has no snapshots; an older file goes.

        Parameters
        ----------
        path
            A safetensors file of ``prototypes (n,k,m)`` float32, whose metadata have ``moments``:
            a JSON list of ``n`` epochs or words.
        index : int
            Of the member.
        start : ndarray (k,m), optional
            Where it began.
        found : Tensor (k,m), optional
            As the search left it.
        chosen : Tensor (k,m)
            As it was chosen.
        """
        taken = self.kept.get(index)
        if not taken:
            path.unlink(missing_ok=True)
            return
        way: list[tuple[float | str, torch.Tensor]] = []
        if start is not None:
            way.append((START, torch.from_numpy(start)))
        if found is not None:
            way.append((FOUND, found))
        way += [*zip(self.epochs, taken, strict=True), (CHOSEN, chosen)]
        moments = [moment for moment, _ in way]
        stacked = torch.stack([value.detach().to("cpu", torch.float32) for _, value in way])
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        save_file({"prototypes": stacked}, temporary, {"moments": json.dumps(moments)})
        os.replace(temporary, path)


def is_small(group: Group, width: int) -> bool:
    """Whether a group's prototypes are rows, and few enough for snapshots."""
    shape = group.parameters["prototypes"].shape[1:]
    return shape[1] == width and 4 * MOST_SNAPSHOTS * shape.numel() <= MOST_BYTES


def load_history(path: Path) -> list[tuple[float | str, np.ndarray]]:
    """Moments and prototypes ``(k,m)``, in their order; empty where nothing was kept."""
    if not path.exists():
        return []
    with safe_open(path, "np") as file:
        moments = json.loads(file.metadata()["moments"])
        return list(zip(moments, file.get_tensor("prototypes"), strict=True))
