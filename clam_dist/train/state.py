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
from clam_dist.train.checkpoint import load_checkpoint, new_writer, save_checkpoint
from clam_dist.train.history import PrototypeHistory
from clam_dist.train.members import Member, group_members
from clam_dist.train.plan import TrainPlan
from clam_dist.train.population import Group, build_group
from clam_dist.train.pretraining import Place, first_parameters, pretrained_members, rescaled

CHECKPOINT_SECONDS = 1.0
"""Rounds that follow sooner than this after a checkpoint do not write another."""
PHASES = ("pretrain", "search", "train")
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
    networks, pretrained_loss
        For each restart its network as pretraining left it, and its loss.
    begun, inertia
        For each number of clusters and restart the other parameters that members begin from, and
        the k-means inertia of a row of latents.
    bytes_read
        By this rank since it started, in each phase.
    running
        For each group the sums of losses and entries since the last round, ``(P + 1,)`` float64.
    history
        One record a round.
    snapshots
        Of the finalists' prototypes.
    """

    def __init__(
        self, collective: Collective, plan: TrainPlan, pool: ThreadPoolExecutor | None
    ) -> None:
        self.collective, self.plan, self.pool = collective, plan, pool
        self.writer = new_writer()
        # Which of its GPUs a rank computes on is agreed before it starts.
        self.device = torch.device(collective.device if plan.device == "cuda" else "cpu")
        self.segment = self.epoch = self.step = self.rounds = 0
        self.history: list[dict[str, Any]] = []
        self.snapshots = PrototypeHistory()
        self.running: list[torch.Tensor] = []
        self.found: dict[int, dict[str, torch.Tensor]] = {}
        self.found_loss: dict[int, float] = {}
        self.networks: dict[int, dict[str, torch.Tensor]] = {}
        self.pretrained_loss: dict[int, float] = {}
        self.begun: dict[Place, dict[str, torch.Tensor]] = {}
        self.inertia: dict[Place, float] = {}
        self.reseeded = 0
        self.bytes_read = dict.fromkeys(PHASES, 0)
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
            parameters = first_parameters(self, members)
        else:
            parameters = {
                name.removeprefix("parameters."): value.to(self.device)
                for name, value in tensors.items()
                if name.startswith("parameters.")
            }
            tensors = {name: value.to(self.device) for name, value in tensors.items()}
        settings = self.plan.model_settings
        if self.pretraining:
            settings = settings | {"pretraining": True}
        model = self.plan.build_model(settings, members[0].to_json())
        if tensors is None and model.derived:
            sample = self.sample_tensors(slice(0, None))
            parameters |= model.derive(parameters, sample[0], self.sample_weights(), sample[1])
        return build_group(members, model, parameters, state, tensors)

    @property
    def pretraining(self) -> bool:
        """Whether networks are being trained on reconstruction, for all members to come."""
        pretrains = self.plan.segments[0].phase == "pretrain"
        return pretrains and self.segment == 0 and not self.networks

    @property
    def sweep(self) -> list[Member]:
        """The planned members; where they begin in latents, with beta in the latents' unit."""
        if not self.networks:
            return list(self.plan.members)
        return rescaled(self.plan.members, self.inertia, self.plan.fixed_beta)

    def build_groups(self) -> None:
        """The population at its start: the sweep, or the networks that it will begin from."""
        rows = min(self.plan.search_batch_rows, self.plan.batch_rows)
        if self.pretraining:
            self.groups = [self.build_group(pretrained_members(self.plan.members))]
            return
        self.groups = [self.build_group(members) for members in group_members(self.sweep, rows)]

    def starts(self, members: Sequence[Member]) -> np.ndarray:
        """Starting prototypes ``(P, k, d)`` float32 in scaled units."""
        drawn = np.load(self.plan.starts[members[0].n_clusters])
        return np.stack([drawn[member.restart] for member in members])

    def restore(self) -> None:
        """Begin at the plan's start, or where the published checkpoint of this plan stands."""
        loaded = load_checkpoint(self.plan.folder, self.plan.digest)
        if loaded is None:
            self.build_groups()
            return
        tensors, state = loaded
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.snapshots.restore(tensors, state.get("snapshots"))
        self._restore_begun(tensors, state)
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
        segments, left = self.plan.segments, sum(len(group.members) for group in self.groups)
        at = f"round {self.segment + 1} of {len(segments)} ({segments[self.segment].phase})"
        at += f", {left} candidate{'' if left == 1 else 's'}, epoch {self.epoch}, step {self.step}"
        self.say(f"training goes on from its checkpoint: {at}")

    def _restore_begun(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """What pretraining left; before the groups, which begin from it."""

        def under(prefix: str) -> dict[str, torch.Tensor]:
            return {
                name.removeprefix(prefix): value.to(self.device)
                for name, value in tensors.items()
                if name.startswith(prefix)
            }

        for k, restart, unit in state["inertia"]:
            self.inertia[k, restart] = unit
            self.begun[k, restart] = under(f"begun.{k}.{restart}.")
        for restart, loss in state["pretrained_loss"]:
            self.pretrained_loss[restart] = loss
            self.networks[restart] = under(f"network.{restart}.")

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
        for restart, network in self.networks.items():
            tensors |= {f"network.{restart}.{name}": value for name, value in network.items()}
        for (k, restart), begun in self.begun.items():
            tensors |= {f"begun.{k}.{restart}.{name}": value for name, value in begun.items()}
        tensors |= self.snapshots.tensors()
        state: dict[str, Any] = {name: getattr(self, name) for name in COUNTERS}
        state["snapshots"] = self.snapshots.state()
        state["groups"] = [group.state() for group in self.groups]
        state["running"] = [total.tolist() for total in self.running]
        state["found"] = sorted(self.found)
        state["found_loss"] = self.found_loss
        state["inertia"] = [[k, restart, unit] for (k, restart), unit in self.inertia.items()]
        state["pretrained_loss"] = [[r, loss] for r, loss in self.pretrained_loss.items()]
        place = f"checkpoint-{self.segment:02d}-{self.epoch:05d}-{self.step:07d}"
        name = save_checkpoint(self.plan.folder, place, tensors, state, writer=self.writer)
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
                for name, value in store.items():
                    store[name] = self.collective.broadcast(value.contiguous())

    def sample_weights(self) -> torch.Tensor | None:
        """Weights of the sample's rows ``(S,)`` float32, None where rows have none."""
        if self.sample_weight is None:
            return None
        return torch.from_numpy(self.sample_weight).to(self.device, torch.float32)

    def sample_tensors(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of the sample as ``x (n, d)`` and what is observed (None for all)."""
        x = np.array(self.sample[rows])
        return to_tensors(x, has_missing=self.plan.has_missing, device=self.device)
