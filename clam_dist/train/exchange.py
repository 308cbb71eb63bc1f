"""Sums over the whole global batch in the midst of a model's loss, and their adjoints.

A model that exchanges is a generator for each micro-batch (see
:meth:`clam_dist.models.base.Equations.gradient_exchange`): all step together, what they yield is
added in the fixed order of :mod:`clam_dist.train.reduction`, and all go on with the total. So such
models too give the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import torch

from clam_dist.executor import Collective
from clam_dist.train.population import Group
from clam_dist.train.reduction import combine, tree_sum

Rows = tuple[torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"]
Step = Generator[torch.Tensor, torch.Tensor, torch.Tensor]


def exchange_sums(
    group: Group,
    prepared: Mapping[int, Rows],
    key: tuple[int, ...],
    lanes: int,
    collective: Collective | None,
    mapper: Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]] = map,
) -> dict[int, torch.Tensor]:
    """Flattened sums of each of this rank's micro-batches.

    Parameters
    ----------
    group
        Members of a model that exchanges.
    prepared
        Rows, weights and what is observed of each owned lane, also of those without rows.
    key
        Keys draws together with the lane.
    lanes
        Micro-batches of the global batch.
    collective
        The ranks; None where this rank has all lanes of the group. A rank without lanes takes
        part too; the others tell it how many numbers are exchanged.
    mapper
        ``map``, perhaps on threads.

    Raises
    ------
    RuntimeError
        Micro-batches did not exchange the same number of times.
    """
    running: dict[int, Step] = {
        lane: group.exchange(*rows, (*key, lane)) for lane, rows in prepared.items()
    }
    finished: dict[int, torch.Tensor] = {}
    totals: dict[int, torch.Tensor | None] = dict.fromkeys(running)

    def advance(lane: int) -> tuple[int, torch.Tensor, bool]:
        try:
            return lane, running[lane].send(totals[lane]), False  # type: ignore[arg-type]
        except StopIteration as end:
            return lane, end.value, True

    while True:
        partial: dict[int, torch.Tensor] = {}
        for lane, value, ended in mapper(advance, list(running)):
            (finished if ended else partial)[lane] = value
        if partial and finished:
            raise RuntimeError("micro-batches exchange sums a different number of times")
        length = len(next(iter(partial.values()))) if partial else 0
        if collective is not None and collective.world_size > lanes:
            length = int(collective.all_gather(torch.tensor([length])).max())
        if not length:
            return finished
        if collective is not None:
            total = combine(partial, lanes, length, collective)
        else:
            total = tree_sum({(lane, lane + 1): v for lane, v in partial.items()}, (0, lanes))
        totals = {lane: total.clone() for lane in running}
