"""One rank's state of a training run: the population, where it stands, how it is kept.

All ranks hold the whole population and apply the same updates; only rows are shared out. Rank 0
alone writes checkpoints, and the driver alone publishes them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clam_dist.executor import Collective
from clam_dist.models.rows import to_tensors
from clam_dist.train.checkpoint import load_checkpoint, save_checkpoint
from clam_dist.train.members import Member, group_members
from clam_dist.train.plan import TrainPlan
from clam_dist.train.population import Group, build_group

CHECKPOINT_SECONDS = 1.0
"""Rounds that follow sooner than this after a checkpoint do not write another."""
COUNTERS = ("segment", "epoch", "step", "rounds", "history", "reseeded", "dropped")


class TrainState:
    """What training changes, and the rank's ways to the others and to its threads.

    Attributes
    ----------
    segment, epoch, step, rounds
        Where training stands: the plan's segment, the epoch in it, the step in that, and the
        rounds done since the segment's phase began.
    groups
        The population.
    found, found_loss
        For each finalist, by its index, its parameters as the search left them, and its loss.
    bytes_read
        By this rank since it started, in each phase.
    running
        For each group the sums of losses and entries since the last round, ``(P + 1,)`` float64.
    history
        One record a round.
    """

    def __init__(
        self, collective: Collective, plan: TrainPlan, pool: ThreadPoolExecutor | None
    ) -> None:
        self.collective, self.plan, self.pool = collective, plan, pool
        self.device = torch.device(plan.device)
        self.segment = self.epoch = self.step = self.rounds = 0
        self.history: list[dict[str, Any]] = []
        self.running: list[torch.Tensor] = []
        self.found: dict[int, dict[str, torch.Tensor]] = {}
        self.found_loss: dict[int, float] = {}
        self.reseeded = 0
        self.bytes_read = {"search": 0, "train": 0}
        self.dropped: list[dict[str, Any]] = []
        self.groups: list[Group] = []
        self.saved_at = time.monotonic()
        self.sample = np.load(Path(plan.shards_folder) / "sample.x.npy", mmap_mode="r")
        self.sample_weight = (
            np.load(Path(plan.shards_folder) / "sample.w.npy") if plan.weighted else None
        )
        self.restore()

    def build_group(
        self,
        members: list[Member],
        state: dict[str, Any] | None = None,
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> Group:
        """Members of equal settings at their starts, or as a checkpoint left them."""
        if tensors is None:
            starts = np.load(self.plan.starts[members[0].n_clusters])
            first = torch.from_numpy(np.stack([starts[m.restart] for m in members]))
            parameters = {"prototypes": first.to(self.device)}
            if self.plan.model_settings.get("weighted"):
                # All prototypes weigh the same at first (equation 10); training tells them apart.
                parameters["log_epsilon"] = torch.zeros(first.shape[:2], device=self.device)
        else:
            parameters = {
                name.removeprefix("parameters."): value.to(self.device)
                for name, value in tensors.items()
                if name.startswith("parameters.")
            }
            tensors = {name: value.to(self.device) for name, value in tensors.items()}
        model = self.plan.build_model(self.plan.model_settings, members[0].to_json())
        return build_group(members, model, parameters, state, tensors)

    def restore(self) -> None:
        """Begin at the plan's start, or where the published checkpoint of this plan stands."""
        loaded = load_checkpoint(self.plan.folder, self.plan.digest)
        if loaded is None:
            rows = min(self.plan.search_batch_rows, self.plan.batch_rows)
            groups = group_members(self.plan.members, rows)
            self.groups = [self.build_group(members) for members in groups]
            return
        tensors, state = loaded
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.running = [
            torch.tensor(total, dtype=torch.float64, device=self.device)
            for total in state["running"]
        ]
        for position, group_state in enumerate(state["groups"]):
            prefix = f"{position}."
            mine = {
                name.removeprefix(prefix): value
                for name, value in tensors.items()
                if name.startswith(prefix)
            }
            members = [Member(**member) for member in group_state["members"]]
            self.groups.append(self.build_group(members, group_state, mine))
        self.found = {
            int(index): {
                name.removeprefix(f"found.{index}."): value
                for name, value in tensors.items()
                if name.startswith(f"found.{index}.")
            }
            for index in state["found"]
        }
        self.found_loss = {int(index): loss for index, loss in state["found_loss"].items()}
        where = f"{self.plan.segments[self.segment].phase}, epoch {self.epoch}, step {self.step}"
        self.say(f"training goes on from its checkpoint: {where}")

    def checkpoint(self, *, force: bool = False) -> None:
        """Rank 0 writes the state and tells the driver, which publishes it."""
        if self.collective.rank != 0:
            return
        if not force and time.monotonic() - self.saved_at < CHECKPOINT_SECONDS:
            return
        tensors = {
            f"{position}.{name}": value
            for position, group in enumerate(self.groups)
            for name, value in group.tensors().items()
        }
        for index, parameters in self.found.items():
            tensors |= {f"found.{index}.{name}": value for name, value in parameters.items()}
        state: dict[str, Any] = {name: getattr(self, name) for name in COUNTERS}
        state["groups"] = [group.state() for group in self.groups]
        state["running"] = [total.tolist() for total in self.running]
        state["found"] = sorted(self.found)
        state["found_loss"] = self.found_loss
        name = f"checkpoint-{self.segment:02d}-{self.epoch:05d}-{self.step:07d}"
        save_checkpoint(self.plan.folder, name, tensors, state)
        self.collective.report(
            {"event": "checkpoint", "name": name, "epoch": self.epoch, "step": self.step}
        )
        self.saved_at = time.monotonic()

    def say(self, message: str) -> None:
        """A line for the run's log, from rank 0."""
        if self.collective.rank == 0:
            self.collective.report({"event": "note", "message": message})

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all members but those of these indices."""
        wanted = set(indices)
        for group in self.groups:
            group.keep([p for p, m in enumerate(group.members) if m.index in wanted])
        self.groups = [group for group in self.groups if group.members]

    @property
    def members(self) -> list[Member]:
        """The members still in training, in the order of their groups."""
        return [member for group in self.groups for member in group.members]

    def synchronise(self) -> None:
        """Rank 0's parameters everywhere: unlike processors must not drift apart."""
        if self.collective.world_size == 1:
            return
        for group in self.groups:
            for store in (group.parameters, group.first, group.second):
                for name in group.names:
                    store[name] = self.collective.broadcast(store[name].contiguous())

    def sample_tensors(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of the sample as ``x (n, d)`` and what is observed (None for all)."""
        x = np.array(self.sample[rows])
        return to_tensors(x, has_missing=self.plan.has_missing, device=self.device)
