"""k-means and its relatives as runs: fitted over the shards, chosen and written as models are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from clam_dist.executor import Event, Executor
from clam_dist.launch.collectives import LocalCollective
from clam_dist.stages.planning import TrainingRows
from clam_dist.train.baselines import fit_baseline
from clam_dist.train.loop import one_thread_each
from clam_dist.train.plan import TrainPlan
from clam_dist.train.result import Candidate, write_result
from clam_dist.train.shard_rows import ShardRows
from clam_dist.train.state import TrainState


def train_baseline(
    plan: TrainPlan,
    rows: TrainingRows,
    executor: Executor,
    on_event: Callable[[Event], None] | None = None,
) -> dict[str, Any]:
    """Fit every number of clusters and restart, choose by inertia, write the result's files.

    Parameters
    ----------
    plan
        Its members are the restarts of each number of clusters.
    rows
        The same rows as the plan's.
    executor
        Passes over the shards are mapped over its workers.
    on_event
        Takes progress.

    Returns
    -------
    dict
        As :func:`clam_dist.train.loop.train_rank` gives it.
    """
    kind: str = plan.model_settings["kind"]
    held = ShardRows(rows.folder, rows.shards, rows.width, rows.weighted, rows.has_missing)
    collective = LocalCollective(1, _sender(on_event))
    candidates: list[Candidate] = []
    with one_thread_each(1):
        state = TrainState(collective, replace(plan, select="loss"), None)
        for k in sorted({member.n_clusters for member in plan.members}):
            members = [member for member in plan.members if member.n_clusters == k]
            state.say(f"{kind}: {k} clusters from {len(members)} starts")
            found = fit_baseline(
                kind,
                held,
                k,
                seed=plan.seed,
                restarts=len(members),
                map_parts=partial(_map, executor),
            )
            for position, member in enumerate(members):
                model = plan.build_model(plan.model_settings, member.to_json())
                prototypes = torch.from_numpy(found.prototypes[position])
                inertia = float(found.inertia[position])
                candidates.append(
                    Candidate(member, model, {"prototypes": prototypes}, inertia, "trained")
                )
        return write_result(state, candidates)


def _map(executor: Executor, function: Callable[[Any], Any], parts: Iterable[Any]) -> Any:
    return executor.map(function, list(parts))


def _sender(on_event: Callable[[Event], None] | None) -> Callable[[str], None]:
    def send(text: str) -> None:
        if on_event is not None:
            on_event(json.loads(text))

    return send
