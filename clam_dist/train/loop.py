"""The trainer: what every rank runs, the same code at world size 1 with no Dask.

A segment is a run of epochs on the sample or on all rows; rounds judge it on the way; between
segments the worse members are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from clam_dist.data.reader import ShardFile, ShardReader
from clam_dist.executor import Collective
from clam_dist.train.device_memory import prefetch
from clam_dist.train.plan import Segment, TrainPlan, rung_queries
from clam_dist.train.population import Group
from clam_dist.train.pretraining import begin_members
from clam_dist.train.reduction import lanes_to_read
from clam_dist.train.reseeding import reseed
from clam_dist.train.result import (
    best_candidates,
    found_candidates,
    score_candidates,
    start_groups,
    write_result,
)
from clam_dist.train.schedule import ROUND_STEPS
from clam_dist.train.selection import describe, keep_best
from clam_dist.train.state import TrainState
from clam_dist.train.step import batch_sums

VALIDATION_ROWS = 4096
"""Rows of the sample on which every round is judged, always under the same masks."""
LONGEST_SECONDS = 300.0
"""A round that takes longer writes a checkpoint on its way."""
TRAIN_RATE = 0.3
"""Share of the first learning rate at which members found by the search go on on all rows."""
SEARCH, TRAIN, VALIDATE, PRETRAIN = 1, 2, 3, 5
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
        return run(TrainState(collective, plan, pool))


def run(state: TrainState) -> dict[str, Any]:
    """All segments that are left, then the choice."""
    segments = state.plan.segments
    while state.segment < len(segments):
        segment = segments[state.segment]
        with _reader(state, segment.phase) as reader:
            _run_segment(state, segment, reader)
            state.bytes_read[segment.phase] += reader.bytes_read
        if segment.phase == "pretrain":
            state.say(f"placing prototypes in the latents of {len(state.members)} networks")
            begin_members(state)
        elif state.segment + 1 < len(segments):
            _next_segment(state, segment, segments[state.segment + 1])
        state.segment += 1
        state.epoch = state.step = 0
        state.checkpoint(force=state.segment < len(segments))
    starts = start_groups(state)
    for group, losses in zip(starts, _validate(state, starts), strict=True):
        group.plateau.observe(losses)
    candidates = [
        *best_candidates(state.groups),
        *found_candidates(state),
        *best_candidates(starts, "start"),
    ]
    result = write_result(state, candidates)
    state.collective.report({"event": "read", "stage": "train", **state.bytes_read})
    return result


def _next_segment(state: TrainState, segment: Segment, following: Segment) -> None:
    members = state.members
    several = len({member.n_clusters for member in members}) > 1
    if len(members) > segment.keep or several:
        state.say(f"choosing the best of {len(members)} candidates to go on with")
        queries = rung_queries(len(members))
        scores = score_candidates(state, best_candidates(state.groups), queries)
        final = following.phase == "train"
        kept = set(keep_best(members, scores, segment.keep, state.plan.select, final=final))
        state.dropped += [
            describe(member, score, "dropped")
            for position, (member, score) in enumerate(zip(members, scores, strict=True))
            if position not in kept
        ]
        state.keep([members[position].index for position in sorted(kept)])
    if following.phase == "train":
        state.rounds = 0
        for group in state.groups:
            for position, member in enumerate(group.members):
                state.found_loss[member.index] = float(group.plateau.best[position])
                state.found[member.index] = {
                    name: group.best[name][position].clone() for name in group.names
                }
            group.restart_from_best(TRAIN_RATE)


def _reader(state: TrainState, phase: str) -> ShardReader:
    plan, lanes = state.plan, state.plan.lanes(phase)
    files: Sequence[ShardFile] = plan.shards
    if phase == "search":
        files = sample_files(plan.sample_rows, lanes)
    return ShardReader(
        plan.shards_folder,
        files,
        width=plan.width,
        lanes=lanes,
        owned=lanes_to_read(lanes, state.collective.rank, state.collective.world_size),
        batch_rows=_batch_rows(plan, phase),
        seed=plan.seed,
        weighted=plan.weighted,
        buffer_bytes=plan.buffer_bytes,
    )


def _run_segment(state: TrainState, segment: Segment, reader: ShardReader) -> None:
    lanes = state.plan.lanes(segment.phase)
    phase_key = {"pretrain": PRETRAIN, "search": SEARCH, "train": TRAIN}[segment.phase]
    batch_rows = _batch_rows(state.plan, segment.phase)
    began, rows = time.monotonic(), 0
    while state.epoch < segment.epochs:
        epoch = segment.first_epoch + state.epoch
        for step, batches in prefetch(reader.epoch(epoch, start_step=state.step), state.device):
            sums = batch_sums(
                state.groups,
                batches,
                lanes=lanes,
                key=(phase_key, epoch, step),
                has_missing=state.plan.has_missing,
                device=state.device,
                collective=state.collective,
                pool=state.pool,
                say=state.say,
            )
            _update(state, sums)
            rows += batch_rows
            state.step = step + 1
            if state.step == reader.steps or state.step % ROUND_STEPS == 0:
                seconds = max(time.monotonic() - began, 1e-9)
                if _end_round(state, segment, reader.steps, rows / seconds):
                    return
                if state.step < reader.steps:
                    state.checkpoint()
            elif time.monotonic() - state.saved_at > LONGEST_SECONDS:
                state.checkpoint(force=True)
        state.epoch, state.step = state.epoch + 1, 0
        state.checkpoint()


def _update(state: TrainState, sums: Sequence[torch.Tensor]) -> None:
    first = len(state.running) != len(state.groups)
    for position, (group, total) in enumerate(zip(state.groups, sums, strict=True)):
        found = total[: len(group.members) + 1]  # losses, then entries; they stay on the device
        if first:
            state.running.append(found.clone())
        else:
            state.running[position] += found
        group.update(total)


def _end_round(state: TrainState, segment: Segment, steps: int, rows_per_second: float) -> bool:
    """Judge a round; True when every member has stopped."""
    _derive(state)
    state.synchronise()
    losses = _validate(state, state.groups)
    for group, loss in zip(state.groups, losses, strict=True):
        group.remember(group.plateau.observe(loss))
    state.rounds += 1
    planned = segment.epochs * max(1, -(-steps // ROUND_STEPS))
    if state.rounds * 2 <= planned:
        state.reseeded += reseed(state)
        state.synchronise()
    running = [total.tolist() for total in state.running]
    curves = {
        str(member.index): [total[position] / max(total[-1], 1e-300), float(loss[position])]
        for group, total, loss in zip(state.groups, running, losses, strict=True)
        for position, member in enumerate(group.members)
    }
    state.running = []
    training, validation = min(curves.values(), key=lambda pair: pair[1])
    record = {
        "phase": segment.phase,
        "epoch": segment.first_epoch + state.epoch + state.step / steps,
        "loss": training,
        "validation_loss": validation,
        "learning_rate": float(max(group.plateau.rates.max() for group in state.groups)),
        "members": len(state.members),
    }
    state.history.append({**record, "losses": curves})
    # Among latents prototypes mean nothing without the network of that round.
    if segment.phase == "train" and state.collective.rank == 0 and not state.networks:
        epoch = float(record["epoch"])
        state.snapshots.observe(state.groups, state.rounds, epoch, state.plan.width)
    if state.collective.rank == 0:
        state.collective.report(
            {"event": "epoch", "stage": "train", **record, "epochs": segment.epochs}
            | {"epoch": state.epoch + 1, "rows_per_second": rows_per_second}
            | {"step": state.step, "steps": steps, "reseeded": state.reseeded}
        )
    return all(bool(group.plateau.stopped.all()) for group in state.groups)


def _derive(state: TrainState) -> None:
    """Set the parameters that follow from the others and the sample, where a model has such."""
    derived = [group for group in state.groups if group.model.derived]
    if derived:
        x, observed = state.sample_tensors(slice(0, None))
        for group in derived:
            group.derive(x, state.sample_weights(), observed)


def _validate(state: TrainState, groups: Sequence[Group]) -> list[np.ndarray]:
    """Each group's validation losses ``(P,)`` a loss entry, float64."""
    lanes = lanes_of_rows(min(state.plan.sample_rows, VALIDATION_ROWS))
    batches = []
    for lane in lanes_to_read(lanes, state.collective.rank, state.collective.world_size):
        rows = slice_of_lane(min(state.plan.sample_rows, VALIDATION_ROWS), lanes, lane)
        weight = None if state.sample_weight is None else state.sample_weight[rows]
        batches.append((lane, np.array(state.sample[rows]), weight))
    sums = batch_sums(
        groups,
        batches,
        lanes=lanes,
        key=(VALIDATE,),
        has_missing=state.plan.has_missing,
        device=state.device,
        collective=state.collective,
        pool=state.pool,
    )
    losses = []
    for group, total in zip(groups, sums, strict=True):
        members = len(group.members)
        loss = (total[:members] / total[members]).cpu().numpy()
        losses.append(np.where(np.isfinite(loss), loss, np.inf))
    return losses


def _batch_rows(plan: TrainPlan, phase: str) -> int:
    return plan.search_batch_rows if phase == "search" else plan.batch_rows


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
