"""The end of training: every candidate's score, the choice, and the files that hold them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from clam_dist.train.members import Member
from clam_dist.train.plan import FINAL_QUERIES
from clam_dist.train.selection import Score, choose, describe, is_full, passed_over
from clam_dist.train.state import TrainState

MODEL_FILE, RESULT_FILE = "model.safetensors", "result.json"


def score_candidates(
    state: TrainState, stores: Sequence[dict[str, torch.Tensor]], queries: int
) -> list[Score]:
    """Score parameters of every group (``stores`` in the order of the groups) on the sample.

    Members are shared out over the ranks; labels are gathered and rank 0 scores them all.
    """
    pairs = [(g, p) for g, group in enumerate(state.groups) for p in range(len(group.members))]
    labels = _labels(state, stores, pairs)
    losses = [loss for group in state.groups for loss in group.plateau.best.tolist()]
    clusters = [state.groups[g].members[p].n_clusters for g, p in pairs]
    values: list[tuple[float, float]] | None = None
    if state.collective.rank == 0:
        x = np.nan_to_num(np.asarray(state.sample), nan=0.0)
        weight, seed = state.sample_weight, state.plan.seed
        values = state.plan.score(x, labels, clusters, weight, seed, queries)
    values = state.collective.broadcast_object(values)
    weight = state.sample_weight
    scores = []
    for row, k, (value, error), loss in zip(labels, clusters, values, losses, strict=True):
        sizes = np.bincount(row, minlength=k)
        held = np.bincount(row, weights=weight, minlength=k).astype(np.float64)
        shares = held / max(float(held.sum()), 1e-300)
        used, least = int((sizes > 0).sum()), float(shares.min())
        full = is_full(k, used, least, state.plan.baselines[k].smallest_share)
        scores.append(Score(float(value), float(error), used, least, loss, full))
    return scores


def _labels(
    state: TrainState,
    stores: Sequence[dict[str, torch.Tensor]],
    pairs: Sequence[tuple[int, int]],
) -> np.ndarray:
    """Labels ``(M, S)`` int64 of the sample under each candidate, the same on every rank."""
    collective = state.collective
    x, observed = state.sample_tensors(slice(0, None))

    def one(pair: tuple[int, int]) -> torch.Tensor:
        g, p = pair
        group = state.groups[g]
        parameters = {name: value[p] for name, value in stores[g].items()}
        return group.model.predict(parameters, group.members[p].beta, x, observed)[0]

    mine = list(range(collective.rank, len(pairs), collective.world_size))
    run = state.pool.map if state.pool is not None else map
    part = torch.zeros(-(-len(pairs) // collective.world_size), len(x), dtype=torch.int32)
    for slot, row in enumerate(run(one, [pairs[position] for position in mine])):
        part[slot] = row.to(torch.int32).cpu()
    gathered = part[None] if collective.world_size == 1 else collective.all_gather(part)
    order = [
        gathered[position % collective.world_size, position // collective.world_size]
        for position in range(len(pairs))
    ]
    return torch.stack(order).numpy().astype(np.int64)


def write_result(state: TrainState) -> dict[str, Any]:
    """Score what the search found and what training made of it, choose, write, return the JSON.

    A member is a candidate twice: as training on all rows left it, and as the search found it,
    so that training can only add to what the search had.
    """
    members: list[Member] = list(state.members)
    state.say(f"choosing among {len(members)} trained candidates")
    trained = score_candidates(state, [group.best for group in state.groups], FINAL_QUERIES)
    scores, states = list(trained), ["trained"] * len(members)
    candidates = [(group, p) for group in state.groups for p in range(len(group.members))]
    parameters = [{n: g.best[n][p] for n in g.names} for g, p in candidates]
    if state.found:
        stores = [
            {
                name: torch.stack([state.found[m.index][name] for m in group.members])
                for name in group.names
            }
            for group in state.groups
        ]
        scores += score_candidates(state, stores, FINAL_QUERIES)
        states += ["search"] * len(members)
        parameters += [{n: s[n][p] for n in s} for s, (g, p) in _with_store(stores, candidates)]
        members = members * 2
    winner = choose(members, scores, state.plan.select)
    rivals = [p for p, m in enumerate(members) if m.n_clusters == members[winner].n_clusters]
    lowest = choose([members[p] for p in rivals], [scores[p] for p in rivals], "loss")
    by_loss = rivals[lowest]
    table = [
        describe(member, score, origin)
        for member, score, origin in zip(members, scores, states, strict=True)
    ]
    result = {
        "winner": table[winner],
        "by_loss": table[by_loss],
        "members": [*table, *state.dropped],
        "passed_over": passed_over([*table, *state.dropped], table[winner]),
        "history": curve(state.history, members[winner].index),
        "reseeded": state.reseeded,
        "baselines": {str(k): asdict(b) for k, b in sorted(state.plan.baselines.items())},
    }
    if state.collective.rank == 0:
        folder = Path(state.plan.folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {n: v.detach().cpu().contiguous() for n, v in parameters[winner].items()}
        save_file(tensors, folder / f".{MODEL_FILE}")
        os.replace(folder / f".{MODEL_FILE}", folder / MODEL_FILE)
        (folder / f".{RESULT_FILE}").write_text(json.dumps(result), encoding="utf-8")
        os.replace(folder / f".{RESULT_FILE}", folder / RESULT_FILE)
    state.collective.barrier()
    return result


def curve(history: Sequence[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """The rounds with the losses of one member, of those that saw it."""
    rows = []
    for record in history:
        losses = record["losses"].get(str(index))
        if losses is not None:
            shown = {key: value for key, value in record.items() if key != "losses"}
            rows.append({**shown, "loss": losses[0], "validation_loss": losses[1]})
    return rows


def _with_store(
    stores: Sequence[dict[str, torch.Tensor]], candidates: Sequence[tuple[Any, int]]
) -> list[tuple[dict[str, torch.Tensor], tuple[Any, int]]]:
    repeated = [store for store in stores for _ in range(len(next(iter(store.values()))))]
    return list(zip(repeated, candidates, strict=True))
