"""The members in training: groups of them as stacked tensors, one Adam step for all at once.

Letters: ``P`` members of a group, ``k`` prototypes, ``d`` features, ``B`` rows of a micro-batch.
A model is known here by its face (:class:`clam_dist.models.base.Equations`) and by its parameters'
names and shapes, each with a leading axis over members.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from clam_dist.models.base import Equations
from clam_dist.models.sums import Sums
from clam_dist.train.members import Member
from clam_dist.train.schedule import Plateau

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
"""Adam's constants (Kingma and Ba 2015), as the paper's authors left them."""


@dataclass
class Group:
    """Members of equal settings, stacked: the unit of one product.

    Parameters
    ----------
    members
        Their descriptions, ``P`` of them, in the order of the leading axis.
    model
        The equations.
    parameters, best
        Tensors ``(P, ...)`` float32 by name: as they stand, and at each member's best round.
    plateau
        Learning rates and their rule.
    """

    members: list[Member]
    model: Equations
    parameters: dict[str, torch.Tensor]
    plateau: Plateau

    def __post_init__(self) -> None:
        self.names = sorted(self.parameters)
        self.trained = [name for name in self.names if name not in self.model.derived]
        self.best = {name: value.clone() for name, value in self.parameters.items()}
        self.first = {name: torch.zeros_like(self.parameters[name]) for name in self.trained}
        self.second = {name: torch.zeros_like(self.parameters[name]) for name in self.trained}
        device = self.parameters[self.names[0]].device
        self.beta = torch.tensor([m.beta for m in self.members], device=device)
        self.updates = 0

    @property
    def length(self) -> int:
        """Length of the flattened sums: losses, entries and gradients."""
        return len(self.members) + 1 + sum(self.parameters[n].numel() for n in self.trained)

    def work(self, rows: int) -> float:
        """About how many multiply-adds :meth:`sums` takes for so many rows."""
        member = self.members[0]
        width = sum(self.parameters[name][0].numel() for name in self.names) / member.n_clusters
        each = 2 * width + 2 * member.n_clusters * member.steps
        return len(self.members) * member.n_clusters * rows * each

    def sums(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        observed: torch.Tensor | None,
        key: tuple[int, ...],
    ) -> torch.Tensor:
        """Loss, entries and gradient sums of one micro-batch, flattened to float64."""
        return self.flatten(
            self.model.gradient_sums(self.parameters, self.beta, x, weight, observed, key)
        )

    def exchange(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        observed: torch.Tensor | None,
        key: tuple[int, ...],
    ) -> Generator[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As :meth:`sums`, of a model that exchanges sums on its way."""
        found = yield from self.model.gradient_exchange(
            self.parameters, self.beta, x, weight, observed, key
        )
        return self.flatten(found)

    def flatten(self, sums: Sums) -> torch.Tensor:
        """Losses ``(P,)``, entries, then gradients by name, in one line of float64."""
        entries = torch.as_tensor(sums.entries, dtype=torch.float64, device=sums.loss.device)
        parts = [sums.loss.to(torch.float64), entries.reshape(1)]
        parts += [sums.gradients[name].reshape(-1).to(torch.float64) for name in self.trained]
        return torch.cat(parts)

    def update(self, sums: torch.Tensor) -> None:
        """One Adam step from the global batch's sums; stopped members stay as they are.

        Nothing here waits for the device. Where nothing is observed among the hidden cells of a
        whole batch, the gradient is 0.
        """
        members = len(self.members)
        entries = sums[members]
        scored = torch.where(entries > 0, entries, torch.inf)
        self.updates += 1
        rates = np.where(self.plateau.stopped, 0.0, self.plateau.rates)
        correction = np.sqrt(1 - SECOND_DECAY**self.updates) / (1 - FIRST_DECAY**self.updates)
        step = torch.as_tensor(rates * correction, dtype=torch.float32, device=sums.device)
        start = members + 1
        for name in self.trained:
            value = self.parameters[name]
            flat = sums[start : start + value.numel()] / scored
            start += value.numel()
            gradient = flat.to(value.dtype).reshape(value.shape)
            self.first[name].mul_(FIRST_DECAY).add_(gradient, alpha=1 - FIRST_DECAY)
            self.second[name].mul_(SECOND_DECAY).addcmul_(
                gradient, gradient, value=1 - SECOND_DECAY
            )
            scale = step.reshape(-1, *([1] * (value.ndim - 1)))
            scale = scale * self.model.rate(name)
            value.sub_(scale * self.first[name] / (self.second[name].sqrt() + EPSILON))

    def remember(self, improved: np.ndarray) -> None:
        """Keep the parameters of members that are at their best as the ones to choose from."""
        chosen = torch.as_tensor(np.flatnonzero(improved))
        for name in self.names:
            self.best[name][chosen] = self.parameters[name][chosen]

    def keep(self, positions: Sequence[int]) -> None:
        """Drop all members but those at ``positions``."""
        chosen = torch.as_tensor(list(positions), dtype=torch.int64)
        self.members = [self.members[position] for position in positions]
        self.beta = self.beta[chosen]
        for store in self.stores().values():
            for name, value in store.items():
                store[name] = value[chosen].clone()
        self.plateau.keep(np.asarray(positions, dtype=np.int64))

    def restart_from_best(self, rate_factor: float) -> None:
        """Begin a new phase from each member's best state, at a share of its first rate."""
        for name in self.names:
            self.parameters[name] = self.best[name].clone()
        for name in self.trained:
            self.first[name].zero_()
            self.second[name].zero_()
        self.updates = 0
        rates = np.asarray([m.learning_rate for m in self.members]) * rate_factor
        self.plateau = Plateau(rates)

    def stores(self) -> dict[str, dict[str, torch.Tensor]]:
        """Everything that training changes: parameters now and at their best, Adam's moments."""
        return {
            "parameters": self.parameters,
            "best": self.best,
            "first": self.first,
            "second": self.second,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that training changes, by name, for a checkpoint."""
        return {
            f"{s}.{n}": value for s, store in self.stores().items() for n, value in store.items()
        }

    def derive(
        self, x: torch.Tensor, weight: torch.Tensor | None, observed: torch.Tensor | None
    ) -> None:
        """Set the parameters that follow from the others and from a sample of rows."""
        if self.model.derived:
            self.parameters.update(self.model.derive(self.parameters, x, weight, observed))

    def state(self) -> dict[str, Any]:
        """The rest of the state, as JSON."""
        return {
            "members": [member.to_json() for member in self.members],
            "updates": self.updates,
            "plateau": self.plateau.state(),
        }


def build_group(
    members: list[Member],
    model: Equations,
    parameters: dict[str, torch.Tensor],
    state: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> Group:
    """A group at its start, or as a checkpoint's ``state`` and ``tensors`` left it."""
    group = Group(members, model, parameters, Plateau(np.array([m.learning_rate for m in members])))
    if state is not None and tensors is not None:
        group.updates = int(state["updates"])
        group.plateau.restore(state["plateau"])
        for name, store in group.stores().items():
            for parameter in store:
                store[parameter] = tensors[f"{name}.{parameter}"].clone()
    return group
