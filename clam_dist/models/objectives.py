"""Which kernel computes which objective: from ClAM's settings to sums over rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.masked import masked_sums
from clam_dist.models.masks import draw_masks
from clam_dist.models.metric import Form, Warped
from clam_dist.models.moving import moving_sums
from clam_dist.models.noise import draw_noise
from clam_dist.models.products import Precision, check_precision
from clam_dist.models.residual import Recursion, clamped_sums, grouped_sums
from clam_dist.models.robust import Penalty
from clam_dist.models.rows import upload
from clam_dist.models.rowwise import rowwise_sums
from clam_dist.models.spherical import (
    spherical_masked_sums,
    spherical_rowwise_sums,
    spherical_unmasked_sums,
)
from clam_dist.models.sums import Sums, filled
from clam_dist.models.unmasked import unmasked_sums

Name = Literal["masked", "unmasked", "noise"]
Geometry = Literal["euclidean", "spherical"]
Parameters = Mapping[str, Tensor]

SMALL_GROUP = 8
"""Groups of fewer rows than this go row by row: one small product a group costs more (measured)."""


@dataclass(frozen=True)
class Objective:
    """The loss of one setting of ClAM.

    Parameters
    ----------
    alpha, steps, name, mask_rate, group_rows, seed, geometry, precision, noise, metric
        As :class:`clam_dist.models.clam.ClAM` describes them.
    mask_value : Tensor (d,) or ()
        ``v``, what hidden and missing features start from.
    penalty : Penalty
        The cost of a difference.
    """

    alpha: float
    steps: int
    name: Name
    mask_rate: float
    mask_value: Tensor
    group_rows: int
    seed: int
    geometry: Geometry
    precision: Precision
    penalty: Penalty
    noise: float
    metric: Form
    _values: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict)

    def check(self) -> None:
        """Make sure that values are known and in range, and go together.

        Raises
        ------
        ConfigError
            Naming the key, or both.
        """
        if not 0.0 < self.alpha < 2.0:
            raise ConfigError(
                f"model.step_size: {self.alpha} is outside (0, 2), where the energy falls; "
                "leave it null for 1 / steps"
            )
        if self.group_rows < 1:
            raise ConfigError(f"model.group_rows: {self.group_rows} is too few; use 1 or more")
        if not 0.0 < self.noise < math.inf:
            raise ConfigError(
                f"model.noise: {self.noise} is no standard deviation above 0; use about 0.3"
            )
        check_precision(self.precision)
        known: dict[str, Any] = {"objective": Name, "geometry": Geometry, "metric": Form}
        chosen = {"objective": self.name, "geometry": self.geometry, "metric": self.metric}
        for key, value in chosen.items():
            if value not in get_args(known[key]):
                raise ConfigError(
                    f"model.{key}: {value!r} is unknown; use {' or '.join(get_args(known[key]))}"
                )
        on_sphere = {
            "objective": (self.name, ("masked", "unmasked")),
            "loss": (self.penalty.loss, ("squared",)),
            "metric": (self.metric, ("none",)),
        }
        for key, (own, able) in on_sphere.items():
            if self.geometry == "spherical" and own not in able:
                raise ConfigError(
                    f"model.{key}: {own} is not available with model.geometry: spherical; "
                    f"use {' or '.join(able)}, or model.geometry: euclidean"
                )
        if self.metric == "full" and self.name == "masked":
            raise ConfigError(
                "model.metric: full mixes features, so model.objective: masked cannot hide one "
                "alone; use model.objective: unmasked or noise, or model.metric: diagonal"
            )

    def value(self, x: Tensor) -> Tensor:
        """The start of hidden features as a ``(d,)`` tensor like ``x``."""
        key = (x.device, x.dtype)
        if key not in self._values:  # once a device: copying there waits for it
            self._values[key] = self.mask_value.to(x.device, x.dtype)
        return self._values[key].expand(x.shape[1])

    @property
    def _plain(self) -> bool:
        """Whether the squared losses' own kernels serve."""
        return self.penalty.loss == "squared" and self.metric == "none"

    def sums(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],
    ) -> Sums:
        """As :meth:`clam_dist.models.clam.ClAM.gradient_sums`."""
        if self.name == "noise":
            return self._noisy(parameters, beta, x, weight, observed, key)
        parts = []
        for rows, seen in _by_completeness(observed):
            parts.append(
                (
                    x if rows is None else x[rows],
                    weight if rows is None or weight is None else weight[rows],
                    seen,
                )
            )
        if self.name == "unmasked":
            sums = [self._unmasked(parameters, beta, *part) for part in parts]
        else:
            counts = [-(-len(rows) // self.group_rows) for rows, _, _ in parts]
            masks = draw_masks(self.seed, key, sum(counts), x.shape[1], self.mask_rate)
            hidden = upload(torch.from_numpy(masks), x.device).split(counts)
            sums = [
                self._masked(parameters, beta, *part, mask) for part, mask in zip(parts, hidden)
            ]
        total = sums[0]
        for other in sums[1:]:
            total = total + other
        return total

    def _held(self, parameters: Parameters, beta: Tensor, origin: Tensor | None = None) -> Warped:
        prototypes = parameters["prototypes"]
        if origin is not None:
            prototypes = prototypes - origin
        log_epsilon = parameters.get("log_epsilon")
        metric = None if self.metric == "none" else parameters["metric"]
        return Warped(prototypes, beta, log_epsilon, self.precision, metric)

    @property
    def _recursion(self) -> Recursion:
        return Recursion(self.alpha, self.steps, self.penalty)

    def _noisy(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],
    ) -> Sums:
        drawn = torch.from_numpy(draw_noise(self.seed, key, *x.shape))
        noise = upload(drawn.to(x.dtype), x.device).mul_(self.noise)
        start = x + noise if observed is None else filled(x + noise, observed, self.value(x))
        held = self._held(parameters, beta)
        return moving_sums(start, x, weight, held, self._recursion, observed)

    def _unmasked(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
    ) -> Sums:
        function = unmasked_sums
        if self.geometry == "spherical":
            function = spherical_unmasked_sums
        elif observed is not None:
            x = filled(x, observed, self.value(x))
        if not self._plain:
            held = self._held(parameters, beta)
            return moving_sums(x, x, weight, held, self._recursion, observed)
        return function(
            x,
            weight,
            parameters["prototypes"],
            beta,
            self.alpha,
            self.steps,
            observed=observed,
            log_epsilon=parameters.get("log_epsilon"),
            precision=self.precision,
        )

    def _masked(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        hidden: Tensor,
    ) -> Sums:
        common = (x, weight, parameters["prototypes"], beta, self.alpha, self.steps)
        log_epsilon, precision = parameters.get("log_epsilon"), self.precision
        spherical, value = self.geometry == "spherical", self.value(x)
        if observed is None and self.group_rows >= SMALL_GROUP:
            groups = (hidden, self.group_rows)
            if not self._plain:
                held = self._held(parameters, beta)
                return grouped_sums(x, weight, held, self._recursion, *groups, value)
            if spherical:
                return spherical_masked_sums(
                    *common, *groups, log_epsilon=log_epsilon, precision=precision
                )
            return masked_sums(
                *common, *groups, value, log_epsilon=log_epsilon, precision=precision
            )
        masks = torch.zeros((len(hidden), x.shape[1]), dtype=torch.bool, device=x.device)
        masks.scatter_(1, hidden, True)
        own = masks.repeat_interleave(self.group_rows, 0)[: len(x)]
        moving = own if observed is None else own | ~observed
        scored = own if observed is None else own & observed
        if not self._plain:
            held = self._held(parameters, beta, value)
            return clamped_sums(x - value, weight, held, self._recursion, moving, scored)
        if spherical:
            return spherical_rowwise_sums(
                *common, ~moving, scored, log_epsilon=log_epsilon, precision=precision
            )
        return rowwise_sums(
            *common, moving, scored, value, log_epsilon=log_epsilon, precision=precision
        )


def _by_completeness(
    observed: Tensor | None,
) -> list[tuple[Tensor | None, Tensor | None]]:
    """Complete rows first, then incomplete ones: (row numbers or None for all, what is seen).

    Complete rows take the cheap shared form; masks are drawn by group, so their order is free.
    """
    if observed is None:
        return [(None, None)]
    whole = observed.all(1)
    complete, incomplete = whole.nonzero()[:, 0], (~whole).nonzero()[:, 0]
    if len(incomplete) == 0:
        return [(None, None)]
    if len(complete) == 0:
        return [(None, observed)]
    return [(complete, None), (incomplete, observed[incomplete])]
