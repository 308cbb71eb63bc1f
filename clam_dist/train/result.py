"""The end of training: every candidate's score, the choice, and the files that hold them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from clam_dist.models.base import Equations
from clam_dist.train.history import HISTORY_FILE
from clam_dist.train.members import Member
from clam_dist.train.plan import FINAL_QUERIES
from clam_dist.train.population import Group
from clam_dist.train.selection import (
    FAITHFUL,
    Score,
    choose,
    describe,
    is_full,
    passed_over,
    unfaithful_words,
)
from clam_dist.train.state import TrainState

MODEL_FILE, RESULT_FILE = "model.safetensors", "result.json"


@dataclass(frozen=True)
class Candidate:
    """One member's parameters at one point of its life.

    Parameters
    ----------
    member, model
        Settings, and the equations they make.
    parameters
        By name, without the axis over members.
    loss
        Validation loss an entry.
    state
        ``trained`` on all rows, ``search`` as the search left it, ``start`` untrained.
    """

    member: Member
    model: Equations
    parameters: dict[str, torch.Tensor]
    loss: float
    state: str


def best_candidates(groups: Sequence[Group], state: str = "trained") -> list[Candidate]:
    """Every member of the groups at its best round."""
    return [
        Candidate(
            member,
            group.model,
            {name: group.best[name][position] for name in group.names},
            float(group.plateau.best[position]),
            state,
        )
        for group in groups
        for position, member in enumerate(group.members)
    ]


def found_candidates(state: TrainState) -> list[Candidate]:
    """The finalists as the search left them, so that training can only add to what it had."""
    return [
        Candidate(member, group.model, found, state.found_loss[member.index], "search")
        for group in state.groups
        for member in group.members
        if (found := state.found.get(member.index)) is not None
    ]


def start_groups(state: TrainState) -> list[Group]:
    """k-means as it came, for each number of clusters that is left: the sharpest of each start.

    At a large ``c`` the dynamics keep every row in its cell, so a sweep with these among its
    candidates never chooses less than k-means gave.
    """
    left = {member.n_clusters for member in state.members}
    sharpest: dict[tuple[int, int], Member] = {}
    for member in state.sweep:
        key = (member.n_clusters, member.restart)
        if member.n_clusters not in left or member.start != "kmeans":
            continue
        before = sharpest.get(key)
        if before is None or (member.scale, member.objective) > (before.scale, before.objective):
            sharpest[key] = member
    return [state.build_group([member]) for _, member in sorted(sharpest.items())]


def score_candidates(
    state: TrainState, candidates: Sequence[Candidate], queries: int
) -> list[Score]:
    """Score candidates on the sample.

    They are shared out over the ranks; labels are gathered and rank 0 scores them all.
    """
    labels = _labels(state, candidates)
    values: list[tuple[float, float]] | None = None
    if state.collective.rank == 0:
        values = _silhouettes(state, candidates, labels, queries)
    values = state.collective.broadcast_object(values)
    # Rows of zeros have no place on the sphere, whichever candidate is asked.
    placed = labels[0] >= 0
    labels = labels[:, placed]
    weight = None if state.sample_weight is None else state.sample_weight[placed]
    scores = []
    for row, candidate, (value, error) in zip(labels, candidates, values, strict=True):
        k = candidate.member.n_clusters
        sizes = np.bincount(row, minlength=k)
        held = np.bincount(row, weights=weight, minlength=k).astype(np.float64)
        shares = held / max(float(held.sum()), 1e-300)
        used, least = int((sizes > 0).sum()), float(shares.min())
        pretrained = state.pretrained_loss.get(candidate.member.restart, math.inf)
        faithful = not candidate.model.reconstructs or candidate.loss <= FAITHFUL * pretrained
        filled = is_full(k, used, least, state.plan.baselines[k].smallest_share)
        full, loss = filled and faithful, candidate.loss
        scores.append(Score(float(value), float(error), used, least, loss, full, faithful, filled))
    return scores


def _silhouettes(
    state: TrainState, candidates: Sequence[Candidate], labels: np.ndarray, queries: int
) -> list[tuple[float, float]]:
    """Silhouettes with their errors, each in the space of its candidate's prototypes."""
    x, observed = state.sample_tensors(slice(0, None))
    clusters = [candidate.member.n_clusters for candidate in candidates]
    plan, placed = state.plan, labels[0] >= 0
    weight = None if state.sample_weight is None else state.sample_weight[placed]

    def score(part: slice) -> list[tuple[float, float]]:
        first = candidates[part.start]
        z = first.model.judged(first.parameters, first.member.beta, x, observed)
        z = z.cpu().numpy()[placed]
        metric = first.model.metric_name
        found = labels[part][:, placed]
        return plan.score(z, found, clusters[part], weight, plan.seed, queries, metric=metric)

    if not candidates[0].model.own_space:
        return score(slice(0, len(candidates)))
    return [value for i in range(len(candidates)) for value in score(slice(i, i + 1))]


def _labels(state: TrainState, candidates: Sequence[Candidate]) -> np.ndarray:
    """Labels ``(M, S)`` int64 of the sample under each candidate, the same on every rank."""
    collective, count = state.collective, len(candidates)
    x, observed = state.sample_tensors(slice(0, None))

    def one(candidate: Candidate) -> torch.Tensor:
        beta = candidate.member.beta
        return candidate.model.predict(candidate.parameters, beta, x, observed)[0]

    mine = [candidates[i] for i in range(collective.rank, count, collective.world_size)]
    run = state.pool.map if state.pool is not None else map
    part = torch.zeros(-(-count // collective.world_size), len(x), dtype=torch.int32)
    for slot, row in enumerate(run(one, mine)):
        part[slot] = row.to(torch.int32).cpu()
    gathered = part[None] if collective.world_size == 1 else collective.all_gather(part)
    order = [
        gathered[position % collective.world_size, position // collective.world_size]
        for position in range(count)
    ]
    return torch.stack(order).numpy().astype(np.int64)


def write_result(state: TrainState, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Score the candidates, choose, write, return the result's JSON.

    Parameters
    ----------
    candidates
        What training on all rows, the search and k-means left; a member may be there several times.
    """
    state.say(f"choosing among {len(candidates)} candidates")
    scores = score_candidates(state, candidates, FINAL_QUERIES)
    members = [candidate.member for candidate in candidates]
    winner = choose(members, scores, state.plan.select)
    rivals = [p for p, m in enumerate(members) if m.n_clusters == members[winner].n_clusters]
    lowest = choose([members[p] for p in rivals], [scores[p] for p in rivals], "loss")
    table = [
        describe(candidate.member, score, candidate.state)
        for candidate, score in zip(candidates, scores, strict=True)
    ]
    pretrained = state.pretrained_loss.get(members[winner].restart, math.nan)
    told = []
    if not scores[winner].faithful and math.isfinite(scores[winner].loss):
        told = [unfaithful_words(table[winner], pretrained)]
    result = {
        "winner": table[winner],
        "warnings": told,
        "by_loss": table[rivals[lowest]],
        "members": [*table, *state.dropped],
        "passed_over": passed_over([*table, *state.dropped], table[winner]),
        "history": curve(state.history, members[winner].index),
        "reseeded": state.reseeded,
        "baselines": {str(k): asdict(b) for k, b in sorted(state.plan.baselines.items())},
    }
    if state.collective.rank == 0:
        folder = Path(state.plan.folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: value.detach().cpu().contiguous()
            for name, value in candidates[winner].parameters.items()
        }
        # Under names of this rank's own: one left from a lost attempt may be writing too.
        model_part, result_part = (
            folder / f".{state.writer}.{name}" for name in (MODEL_FILE, RESULT_FILE)
        )
        _save_history(state, candidates[winner])
        save_file(tensors, model_part)
        os.replace(model_part, folder / MODEL_FILE)
        result_part.write_text(json.dumps(result), encoding="utf-8")
        os.replace(result_part, folder / RESULT_FILE)
    state.collective.barrier()
    return result


def _save_history(state: TrainState, winner: Candidate) -> None:
    """The winner's prototypes through training, where snapshots of them were kept."""
    member, found = winner.member, state.found.get(winner.member.index)
    state.snapshots.save(
        Path(state.plan.folder) / HISTORY_FILE,
        member.index if winner.state == "trained" else -1,  # the others never saw all rows
        state.starts([member])[0] if state.snapshots.kept else None,
        None if found is None else found["prototypes"],
        winner.parameters["prototypes"],
    )


def curve(history: Sequence[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """The rounds with the losses of one member, of those that saw it."""
    rows = []
    for record in history:
        losses = record["losses"].get(str(index))
        if losses is not None:
            shown = {key: value for key, value in record.items() if key != "losses"}
            rows.append({**shown, "loss": losses[0], "validation_loss": losses[1]})
    return rows
