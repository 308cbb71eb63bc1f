"""The end of training: every candidate's score, the choice, and the files that hold them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file

from clam_dist.train.members import Member
from clam_dist.train.plan import FINAL_QUERIES
from clam_dist.train.selection import Score, full, passed_over, rank_members

if TYPE_CHECKING:
    from clam_dist.train.loop import Trainer

MODEL_FILE, RESULT_FILE = "model.safetensors", "result.json"


def score_candidates(
    trainer: Trainer, stores: Sequence[dict[str, torch.Tensor]], queries: int
) -> list[Score]:
    """Score parameters of every group (``stores`` in the order of the groups) on the sample.

    Members are shared out over the ranks; labels are gathered and rank 0 scores them all.
    """
    pairs = [(g, p) for g, group in enumerate(trainer.groups) for p in range(len(group.members))]
    labels = _labels(trainer, stores, pairs)
    losses = [loss for group in trainer.groups for loss in group.plateau.best.tolist()]
    clusters = [trainer.groups[g].members[p].n_clusters for g, p in pairs]
    values: list[float] | None = None
    if trainer.collective.rank == 0:
        x = np.nan_to_num(np.asarray(trainer.sample), nan=0.0)
        weight, seed = trainer.sample_weight, trainer.plan.seed
        values = trainer.plan.score(x, labels, clusters, weight, seed, queries)
    values = trainer.collective.broadcast_object(values)
    weight = trainer.sample_weight
    scores = []
    for row, k, value, loss in zip(labels, clusters, values, losses, strict=True):
        sizes = np.bincount(row, minlength=k)
        held = np.bincount(row, weights=weight, minlength=k).astype(np.float64)
        shares = held / max(float(held.sum()), 1e-300)
        scores.append(Score(float(value), int((sizes > 0).sum()), float(shares.min()), loss))
    return scores


def _labels(
    trainer: Trainer,
    stores: Sequence[dict[str, torch.Tensor]],
    pairs: Sequence[tuple[int, int]],
) -> np.ndarray:
    """Labels ``(M, S)`` int64 of the sample under each candidate, the same on every rank."""
    collective = trainer.collective
    x, observed = trainer.sample_tensors(slice(0, None))

    def one(pair: tuple[int, int]) -> torch.Tensor:
        g, p = pair
        group = trainer.groups[g]
        parameters = {name: value[p] for name, value in stores[g].items()}
        return group.model.predict(parameters, group.members[p].beta, x, observed)[0]

    mine = list(range(collective.rank, len(pairs), collective.world_size))
    run = trainer.pool.map if trainer.pool is not None else map
    part = torch.zeros(-(-len(pairs) // collective.world_size), len(x), dtype=torch.int32)
    for slot, row in enumerate(run(one, [pairs[position] for position in mine])):
        part[slot] = row.to(torch.int32).cpu()
    gathered = part[None] if collective.world_size == 1 else collective.all_gather(part)
    order = [
        gathered[position % collective.world_size, position // collective.world_size]
        for position in range(len(pairs))
    ]
    return torch.stack(order).numpy().astype(np.int64)


def write_result(trainer: Trainer) -> dict[str, Any]:
    """Score what the search found and what training made of it, choose, write, return the JSON.

    A member is a candidate twice: as training on all rows left it, and as the search found it,
    so that training can only add to what the search had.
    """
    members: list[Member] = list(trainer.members)
    trained = score_candidates(trainer, [group.best for group in trainer.groups], FINAL_QUERIES)
    scores, states = list(trained), ["trained"] * len(members)
    candidates = [(group, p) for group in trainer.groups for p in range(len(group.members))]
    parameters = [{n: g.best[n][p] for n in g.names} for g, p in candidates]
    if trainer.found:
        stores = [
            {
                name: torch.stack([trainer.found[m.index][name] for m in group.members])
                for name in group.names
            }
            for group in trainer.groups
        ]
        scores += score_candidates(trainer, stores, FINAL_QUERIES)
        states += ["search"] * len(members)
        parameters += [{n: s[n][p] for n in s} for s, (g, p) in _with_store(stores, candidates)]
        members = members * 2
    ranked = rank_members(members, scores, trainer.plan.select)
    by_loss = rank_members(members, scores, "loss")[0]
    winner = ranked[0]
    table = [
        {**member.to_json(), **score.to_json(), "state": state, "full": full(member, score)}
        for member, score, state in zip(members, scores, states, strict=True)
    ]
    result = {
        "winner": table[winner],
        "by_loss": table[by_loss],
        "members": table,
        "passed_over": passed_over(members, scores, winner),
        "history": trainer.history,
        "reseeded": trainer.reseeded,
    }
    if trainer.collective.rank == 0:
        folder = Path(trainer.plan.folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {n: v.detach().cpu().contiguous() for n, v in parameters[winner].items()}
        save_file(tensors, folder / f".{MODEL_FILE}")
        os.replace(folder / f".{MODEL_FILE}", folder / MODEL_FILE)
        (folder / f".{RESULT_FILE}").write_text(json.dumps(result), encoding="utf-8")
        os.replace(folder / f".{RESULT_FILE}", folder / RESULT_FILE)
    trainer.collective.barrier()
    return result


def _with_store(
    stores: Sequence[dict[str, torch.Tensor]], candidates: Sequence[tuple[Any, int]]
) -> list[tuple[dict[str, torch.Tensor], tuple[Any, int]]]:
    repeated = [store for store in stores for _ in range(len(next(iter(store.values()))))]
    return list(zip(repeated, candidates, strict=True))
