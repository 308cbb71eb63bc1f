"""A trained model that goes on learning from a stream, chunk by chunk.

Letters: ``n`` rows of a chunk, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from clam_dist.data.statistics import LARGEST_SCALED
from clam_dist.estimators.trained import Trained
from clam_dist.models.rows import to_tensors
from clam_dist.train.exchange import exchange_sums
from clam_dist.train.loop import one_thread_each
from clam_dist.train.members import Member
from clam_dist.train.plan import search_batch_rows
from clam_dist.train.population import build_group

STREAM = 201
"""First part of the keys of masks and of the order of rows: none that training uses."""
FIRST_RATE, LAST_RATE, SLOW_STEPS = 0.3, 0.05, 100
"""Shares of the first learning rate: where a stream begins, which is where training goes on from a
search; and where it stays, since a stream may drift. After so many steps it begins to fall as one
over the square root of the steps. (Six overlapping blobs, a first chunk of 60 rows: the ARI rises
from .843 to .899; from 500 rows on it stays within .01 of what it was, as there is little to gain.)
"""


@dataclass(frozen=True)
class Adam:
    """What the optimiser remembers from step to step.

    Parameters
    ----------
    first, second
        Moments of each parameter, by name.
    updates, step
        Updates made, and batches seen (which key their masks).
    """

    first: dict[str, np.ndarray]
    second: dict[str, np.ndarray]
    updates: int
    step: int

    @classmethod
    def begin(cls, parameters: Mapping[str, np.ndarray]) -> Adam:
        """Nothing remembered."""
        zeros = {name: np.zeros_like(value) for name, value in parameters.items()}
        return cls(zeros, {name: value.copy() for name, value in zeros.items()}, 0, 0)


def learn(
    trained: Trained, adam: Adam, x: np.ndarray, weight: np.ndarray | None, batch_rows: int | None
) -> tuple[Trained, Adam]:
    """The model after Adam steps on the rows of one chunk, each row once, in an order by key.

    Parameters
    ----------
    x : ndarray (n, d)
        Original units, nan where missing.
    weight : ndarray (n,), optional
    batch_rows
        Rows of a step; by default about 1/32 of the chunk, between 8 and 256.
    """
    usable = ~np.isnan(x).all(axis=1)
    if weight is not None:
        usable &= weight > 0
    seed = int(trained.settings["seed"])
    order = _generator(seed, adam.step).permutation(np.flatnonzero(usable))
    size = batch_rows or search_batch_rows(len(order))
    member = Member(**{field.name: trained.member[field.name] for field in fields(Member)})
    stacked = {name: value[None].clone() for name, value in trained.tensors().items()}
    group = build_group([member], trained.model(), stacked)
    for name in group.trained:
        group.first[name] = torch.from_numpy(adam.first[name][None].copy()).to(trained.device)
        group.second[name] = torch.from_numpy(adam.second[name][None].copy()).to(trained.device)
    group.updates = adam.updates
    step = adam.step
    with one_thread_each(1):
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            scaled = trained.scale(x[chosen])
            if np.nanmax(np.abs(scaled)) >= LARGEST_SCALED:
                row = chosen[int(np.argmax(np.nanmax(np.abs(scaled), axis=1)))]
                raise ValueError(
                    f"row {row} has a value further than {LARGEST_SCALED:.0e} deviations from "
                    "those fitted: nothing was learned from these rows; leave it out"
                )
            rows, observed = to_tensors(scaled, device=trained.device)
            held = None
            if weight is not None:
                held = torch.from_numpy(weight[chosen]).to(trained.device, torch.float32)
            group.plateau.rates = np.array([member.learning_rate * rate_share(step)])
            key = (STREAM, step)
            if group.model.exchanges:
                sums = exchange_sums(group, {0: (rows, held, observed)}, key, 1, None)[0]
            else:
                sums = group.sums(rows, held, observed, key)
            group.update(sums)
            step += 1
        if group.model.derived and len(order):
            scaled = trained.scale(x[order])
            rows, observed = to_tensors(scaled, device=trained.device)
            held = None if weight is None else torch.from_numpy(weight[order]).to(rows)
            group.derive(rows, held, observed)
    after = replace(trained, parameters=_arrays(group.parameters))
    return after, Adam(_arrays(group.first), _arrays(group.second), group.updates, step)


def rate_share(step: int) -> float:
    """Share of the first learning rate at a step of a stream."""
    return max(LAST_RATE, FIRST_RATE / float(np.sqrt(1.0 + step / SLOW_STEPS)))


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: value[0].cpu().numpy().copy() for name, value in tensors.items()}


def _generator(seed: int, step: int) -> np.random.Generator:
    key = np.random.SeedSequence(seed, spawn_key=(STREAM, step))
    return np.random.Generator(np.random.Philox(key))
