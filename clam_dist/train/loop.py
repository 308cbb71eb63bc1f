"""The trainer: what every rank runs, the same code at world size 1 with no Dask.

All ranks hold the whole population and apply the same updates; only rows are shared out. Rank 0
alone writes checkpoints, and the driver alone publishes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clam_dist.data.reader import ShardFile, ShardReader
from clam_dist.executor import Collective
from clam_dist.models.rows import to_tensors
from clam_dist.train.checkpoint import load_checkpoint, save_checkpoint
from clam_dist.train.members import Member, group_members
from clam_dist.train.plan import SEARCH_QUERIES, Segment, TrainPlan
from clam_dist.train.population import Group, build_group
from clam_dist.train.reduction import owned_lanes
from clam_dist.train.reseeding import reseed
from clam_dist.train.result import score_candidates, write_result
from clam_dist.train.schedule import ROUND_STEPS
from clam_dist.train.selection import keep_best
from clam_dist.train.step import batch_sums

VALIDATION_ROWS = 4096
"""Rows of the sample on which every round is judged, always under the same masks."""
CHECKPOINT_SECONDS = 1.0
"""Rounds that follow sooner than this after a checkpoint do not write another."""
TRAIN_RATE = 0.3
"""Share of the first learning rate at which members found by the search go on on all rows."""
SEARCH, TRAIN, VALIDATE = 1, 2, 3
"""First parts of the keys of masks."""


@contextmanager
def one_thread_each(threads: int) -> Iterator[ThreadPoolExecutor | None]:
    """A pool of ``threads`` threads, torch at one intra-op thread in each and here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if threads <= 1:
            yield None
            return
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def train_rank(collective: Collective, plan: TrainPlan) -> dict[str, Any]:
    """Train from the published checkpoint, or from the start, to the result's files.

    Returns
    -------
    dict
        The result's JSON (the same on every rank): winner, members' table, history.
    """
    with one_thread_each(collective.threads) as pool:
        return Trainer(collective, plan, pool).run()


class Trainer:
    """One rank's state of a training run."""

    def __init__(
        self, collective: Collective, plan: TrainPlan, pool: ThreadPoolExecutor | None
    ) -> None:
        self.collective, self.plan, self.pool = collective, plan, pool
        self.device = torch.device(plan.device)
        self.segment = self.epoch = self.step = self.rounds = 0
        self.history: list[dict[str, Any]] = []
        self.running: list[list[float]] = []
        self.found: dict[int, dict[str, torch.Tensor]] = {}
        self.reseeded = 0
        self.groups: list[Group] = []
        self.saved_at = time.monotonic()
        self.sample = np.load(Path(plan.shards_folder) / "sample.x.npy", mmap_mode="r")
        self.sample_weight = (
            np.load(Path(plan.shards_folder) / "sample.w.npy") if plan.weighted else None
        )
        self._restore()

    # -- state ---------------------------------------------------------------------------------

    def _group(
        self,
        members: list[Member],
        state: dict[str, Any] | None = None,
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> Group:
        if tensors is None:
            starts = np.load(self.plan.starts[members[0].n_clusters])
            first = torch.from_numpy(np.stack([starts[m.restart] for m in members]))
            parameters = {"prototypes": first.to(self.device)}
        else:
            parameters = {
                name.removeprefix("parameters."): value.to(self.device)
                for name, value in tensors.items()
                if name.startswith("parameters.")
            }
            tensors = {name: value.to(self.device) for name, value in tensors.items()}
        model = self.plan.build_model(self.plan.model_settings, members[0].to_json())
        return build_group(members, model, parameters, state, tensors)

    def _restore(self) -> None:
        loaded = load_checkpoint(self.plan.folder, self.plan.digest)
        if loaded is None:
            self.groups = [self._group(members) for members in group_members(self.plan.members)]
            return
        tensors, state = loaded
        for name in ("segment", "epoch", "step", "rounds", "history", "running", "reseeded"):
            setattr(self, name, state[name])
        for position, group_state in enumerate(state["groups"]):
            prefix = f"{position}."
            mine = {
                name.removeprefix(prefix): value
                for name, value in tensors.items()
                if name.startswith(prefix)
            }
            members = [Member(**member) for member in group_state["members"]]
            self.groups.append(self._group(members, group_state, mine))
        self.found = {
            int(index): {
                name.removeprefix(f"found.{index}."): value
                for name, value in tensors.items()
                if name.startswith(f"found.{index}.")
            }
            for index in state["found"]
        }
        where = f"{self.plan.segments[self.segment].phase}, epoch {self.epoch}, step {self.step}"
        self._say(f"training goes on from its checkpoint: {where}")

    def _checkpoint(self, *, force: bool = False) -> None:
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
        names = ("segment", "epoch", "step", "rounds", "history", "running", "reseeded")
        state = {name: getattr(self, name) for name in names}
        state["groups"] = [group.state() for group in self.groups]
        state["found"] = sorted(self.found)
        name = f"checkpoint-{self.segment:02d}-{self.epoch:05d}-{self.step:07d}"
        save_checkpoint(self.plan.folder, name, tensors, state)
        self.collective.report(
            {"event": "checkpoint", "name": name, "epoch": self.epoch, "step": self.step}
        )
        self.saved_at = time.monotonic()

    def _say(self, message: str) -> None:
        if self.collective.rank == 0:
            self.collective.report({"event": "log", "level": "INFO", "message": message})

    # -- course --------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """All segments that are left, then the choice."""
        segments = self.plan.segments
        while self.segment < len(segments):
            segment = segments[self.segment]
            with self._reader(segment.phase) as reader:
                self._run_segment(segment, reader)
            if self.segment + 1 < len(segments):
                self._next_segment(segment, segments[self.segment + 1])
            self.segment += 1
            self.epoch = self.step = 0
            self._checkpoint(force=self.segment < len(segments))
        return write_result(self)

    def _next_segment(self, segment: Segment, following: Segment) -> None:
        members = self.members
        if len(members) > segment.keep:
            scores = score_candidates(self, [g.best for g in self.groups], SEARCH_QUERIES)
            kept = set(keep_best(members, scores, segment.keep, self.plan.select))
            self._keep([members[position].index for position in sorted(kept)])
        if following.phase == "train":
            self.rounds = 0
            for group in self.groups:
                group.restart_from_best(TRAIN_RATE)
                for position, member in enumerate(group.members):
                    self.found[member.index] = {
                        name: group.best[name][position].clone() for name in group.names
                    }

    def _keep(self, indices: Sequence[int]) -> None:
        wanted = set(indices)
        for group in self.groups:
            group.keep([p for p, m in enumerate(group.members) if m.index in wanted])
        self.groups = [group for group in self.groups if group.members]

    @property
    def members(self) -> list[Member]:
        """The members still in training, in the order of their groups."""
        return [member for group in self.groups for member in group.members]

    def _reader(self, phase: str) -> ShardReader:
        plan, lanes = self.plan, self.plan.lanes(phase)
        files: Sequence[ShardFile] = plan.shards
        if phase == "search":
            files = sample_files(plan.sample_rows, lanes)
        return ShardReader(
            plan.shards_folder,
            files,
            width=plan.width,
            lanes=lanes,
            owned=owned_lanes(lanes, self.collective.rank, self.collective.world_size),
            batch_rows=_batch_rows(plan, phase),
            seed=plan.seed,
            weighted=plan.weighted,
            buffer_bytes=plan.buffer_bytes,
        )

    def _run_segment(self, segment: Segment, reader: ShardReader) -> None:
        lanes = self.plan.lanes(segment.phase)
        phase_key = SEARCH if segment.phase == "search" else TRAIN
        batch_rows = _batch_rows(self.plan, segment.phase)
        began, rows = time.monotonic(), 0
        while self.epoch < segment.epochs:
            epoch = segment.first_epoch + self.epoch
            for step, batches in reader.epoch(epoch, start_step=self.step):
                sums = batch_sums(
                    self.groups,
                    batches,
                    lanes=lanes,
                    key=(phase_key, epoch, step),
                    has_missing=self.plan.has_missing,
                    device=self.device,
                    collective=self.collective,
                    pool=self.pool,
                )
                self._update(sums)
                rows += batch_rows
                self.step = step + 1
                if self.step == reader.steps or self.step % ROUND_STEPS == 0:
                    seconds = max(time.monotonic() - began, 1e-9)
                    if self._end_round(segment, reader.steps, rows / seconds):
                        return
                    if self.step < reader.steps:
                        self._checkpoint()
            self.epoch, self.step = self.epoch + 1, 0
            self._checkpoint()

    def _update(self, sums: Sequence[torch.Tensor]) -> None:
        if len(self.running) != len(self.groups):
            self.running = [[0.0, 0.0] for _ in self.groups]
        for group, total, running in zip(self.groups, sums, self.running, strict=True):
            members = len(group.members)
            running[0] += float(total[:members].mean())
            running[1] += float(total[members])
            group.update(total)

    def _end_round(self, segment: Segment, steps: int, rows_per_second: float) -> bool:
        """Judge a round; True when every member has stopped."""
        self._synchronise()
        losses = self._validate()
        for group, loss in zip(self.groups, losses, strict=True):
            group.remember(group.plateau.observe(loss))
        self.rounds += 1
        planned = segment.epochs * max(1, -(-steps // ROUND_STEPS))
        if self.rounds * 2 <= planned:
            self.reseeded += reseed(self)
            self._synchronise()
        training = [total / entries for total, entries in self.running if entries > 0]
        self.running = []
        best = int(np.argmin([float(loss.min()) for loss in losses]))
        record = {
            "phase": segment.phase,
            "epoch": segment.first_epoch + self.epoch + self.step / steps,
            "loss": float(min(training)) if training else float("nan"),
            "validation_loss": float(losses[best].min()),
            "learning_rate": float(max(group.plateau.rates.max() for group in self.groups)),
            "members": len(self.members),
        }
        self.history.append(record)
        if self.collective.rank == 0:
            self.collective.report(
                {"event": "epoch", "stage": "train", **record, "epochs": segment.epochs}
                | {"epoch": self.epoch + 1, "rows_per_second": rows_per_second}
                | {"step": self.step, "steps": steps, "reseeded": self.reseeded}
            )
        return all(bool(group.plateau.stopped.all()) for group in self.groups)

    def _synchronise(self) -> None:
        """Rank 0's parameters everywhere: unlike processors must not drift apart."""
        if self.collective.world_size == 1:
            return
        for group in self.groups:
            for store in (group.parameters, group.first, group.second):
                for name in group.names:
                    store[name] = self.collective.broadcast(store[name].contiguous())

    def _validate(self) -> list[np.ndarray]:
        """Each group's validation losses ``(P,)`` a loss entry, float64."""
        lanes = lanes_of_rows(min(self.plan.sample_rows, VALIDATION_ROWS))
        batches = []
        for lane in owned_lanes(lanes, self.collective.rank, self.collective.world_size):
            rows = slice_of_lane(min(self.plan.sample_rows, VALIDATION_ROWS), lanes, lane)
            weight = None if self.sample_weight is None else self.sample_weight[rows]
            batches.append((lane, np.array(self.sample[rows]), weight))
        sums = batch_sums(
            self.groups,
            batches,
            lanes=lanes,
            key=(VALIDATE,),
            has_missing=self.plan.has_missing,
            device=self.device,
            collective=self.collective,
            pool=self.pool,
        )
        losses = []
        for group, total in zip(self.groups, sums, strict=True):
            members = len(group.members)
            loss = (total[:members] / total[members]).cpu().numpy()
            losses.append(np.where(np.isfinite(loss), loss, np.inf))
        return losses

    def sample_tensors(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of the sample as ``x (n, d)`` and what is observed (None for all)."""
        x = np.array(self.sample[rows])
        return to_tensors(x, has_missing=self.plan.has_missing, device=self.device)


def _batch_rows(plan: TrainPlan, phase: str) -> int:
    return plan.batch_rows if phase == "train" else plan.search_batch_rows


def lanes_of_rows(rows: int) -> int:
    """Lanes for a pass over a fixed set of rows: four, fewer for a handful of rows."""
    return 4 if rows >= 64 else 1


def slice_of_lane(rows: int, lanes: int, lane: int) -> slice:
    """The consecutive rows of one lane."""
    return slice(lane * rows // lanes, (lane + 1) * rows // lanes)


def sample_files(rows: int, lanes: int) -> list[ShardFile]:
    """The sample's one file as a virtual shard for each lane."""
    slices = [slice_of_lane(rows, lanes, lane) for lane in range(lanes)]
    return [ShardFile("sample.x.npy", part.stop - part.start, part.start) for part in slices]
