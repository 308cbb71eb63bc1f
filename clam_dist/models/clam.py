"""ClAM behind the face that training and labelling see: gradient sums and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.dynamics import resolve_step_size
from clam_dist.models.inference import infer
from clam_dist.models.masked import masked_sums
from clam_dist.models.masks import draw_masks
from clam_dist.models.products import Precision, check_precision
from clam_dist.models.rows import upload
from clam_dist.models.rowwise import rowwise_sums
from clam_dist.models.spherical import (
    spherical_masked_sums,
    spherical_rowwise_sums,
    spherical_unmasked_sums,
)
from clam_dist.models.spherical_inference import infer_spherical
from clam_dist.models.sums import Sums, filled
from clam_dist.models.unmasked import unmasked_sums

Objective = Literal["masked", "unmasked"]
Geometry = Literal["euclidean", "spherical"]
Parameters = Mapping[str, Tensor]


SMALL_GROUP = 8
"""Groups of fewer rows than this go row by row: one small product a group costs more (measured)."""


class ClAM:
    """Clustering with associative memories (Saha et al., ICML 2023): the equations, no state.

    The parameters are a mapping with ``prototypes`` ``(P,k,d)`` and, for the weighted form
    (equation 10), ``log_epsilon`` ``(P,k)``. Every method may be called from several threads at
    once; results depend on the arguments alone, at one intra-op thread to the last bit.

    Parameters
    ----------
    n_clusters : int
        Number of prototypes ``k``.
    steps : int
        Depth ``T`` of the recursion.
    step_size : float, optional
        ``α`` in (0, 2); ``1 / T`` as in the paper where None.
    objective : {'masked', 'unmasked'}
        Loss on hidden features (9) or on all features (8).
    mask_rate : float
        Share of the features hidden under (9).
    mask_value : array (d,)
        What hidden and missing features start from, in scaled units; of no use on the sphere,
        where they start from 0.
    group_rows : int
        Rows that share one mask; 1 is Algorithm 1 as printed.
    seed : int
        Keys the masks together with the ``key`` of each call.
    geometry : {'euclidean', 'spherical'}
        Distances, or cosines of normalised rows and prototypes (equation 12).
    precision : {'float32', 'tf32', 'bfloat16'}
        Of the two products of the rows' size, see :mod:`clam_dist.models.products`.
    """

    def __init__(
        self,
        n_clusters: int,
        steps: int,
        step_size: float | None = None,
        objective: Objective = "masked",
        mask_rate: float = 0.15,
        mask_value: ArrayLike = 0.0,
        group_rows: int = 64,
        seed: int = 0,
        geometry: Geometry = "euclidean",
        precision: Precision = "float32",
    ) -> None:
        alpha = resolve_step_size(step_size, steps)
        if not 0.0 < alpha < 2.0:
            raise ConfigError(
                f"model.step_size: {alpha} is outside (0, 2), where the energy falls; "
                "leave it null for 1 / steps"
            )
        if geometry not in get_args(Geometry):
            raise ConfigError(
                f"model.geometry: {geometry!r} is unknown; use {' or '.join(get_args(Geometry))}"
            )
        if group_rows < 1:
            raise ConfigError(f"model.group_rows: {group_rows} is too few; use 1 or more")
        check_precision(precision)
        self.geometry, self.precision = geometry, precision
        self.n_clusters, self.steps, self.alpha = n_clusters, steps, alpha
        self.objective, self.mask_rate = objective, mask_rate
        self.mask_value = torch.from_numpy(np.array(mask_value, dtype=np.float32))
        self.group_rows, self.seed = group_rows, seed
        self._values: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def _value(self, x: Tensor) -> Tensor:
        """The start of hidden features as a ``(d,)`` tensor like ``x``."""
        key = (x.device, x.dtype)
        if key not in self._values:  # once a device: copying there waits for it
            self._values[key] = self.mask_value.to(x.device, x.dtype)
        return self._values[key].expand(x.shape[1])

    def gradient_sums(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],
    ) -> Sums:
        """Loss and gradients of all members, summed over the rows of a micro-batch.

        Parameters
        ----------
        parameters : mapping of str to Tensor (P,...)
        beta : Tensor (P,)
            Inverse temperature of each member.
        x : Tensor (B,d)
            Rows, finite everywhere; what a missing entry holds does not matter.
        weight : Tensor (B,), optional
            Row weights.
        observed : Tensor (B,d) bool, optional
            False where a value is missing; None if all are there.
        key : tuple of int
            Non-negative numbers that key the masks, such as (phase, epoch, step, lane).

        Returns
        -------
        Sums
            Divide loss and gradients by the ``entries`` of the whole global batch.
        """
        parts = []
        for rows, seen in _by_completeness(observed):
            parts.append(
                (
                    x if rows is None else x[rows],
                    weight if rows is None or weight is None else weight[rows],
                    seen,
                )
            )
        if self.objective == "unmasked":
            sums = [self._unmasked(parameters, beta, *part) for part in parts]
        else:
            counts = [-(-len(rows) // self.group_rows) for rows, _, _ in parts]
            width = x.shape[1]
            masks = draw_masks(self.seed, key, sum(counts), width, self.mask_rate)
            hidden = upload(torch.from_numpy(masks), x.device).split(counts)
            sums = [
                self._masked(parameters, beta, *part, mask) for part, mask in zip(parts, hidden)
            ]
        total = sums[0]
        for other in sums[1:]:
            total = total + other
        return total

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
            x = filled(x, observed, self._value(x))
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
        spherical = self.geometry == "spherical"
        if observed is None and self.group_rows >= SMALL_GROUP:
            if spherical:
                return spherical_masked_sums(
                    *common, hidden, self.group_rows, log_epsilon=log_epsilon, precision=precision
                )
            return masked_sums(
                *common,
                hidden,
                self.group_rows,
                self._value(x),
                log_epsilon=log_epsilon,
                precision=precision,
            )
        masks = torch.zeros((len(hidden), x.shape[1]), dtype=torch.bool, device=x.device)
        masks.scatter_(1, hidden, True)
        own = masks.repeat_interleave(self.group_rows, 0)[: len(x)]
        moving = own if observed is None else own | ~observed
        scored = own if observed is None else own & observed
        if spherical:
            return spherical_rowwise_sums(
                *common, ~moving, scored, log_epsilon=log_epsilon, precision=precision
            )
        return rowwise_sums(
            *common, moving, scored, self._value(x), log_epsilon=log_epsilon, precision=precision
        )

    def predict(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Labels and distances of rows under one member's parameters.

        On the sphere every feature moves in every row, see :func:`infer_spherical`. Otherwise
        nothing is hidden but what is missing (InferClAM). In an incomplete row only the missing
        features move, under either objective: with a tenth of the cells removed this agrees with
        the complete rows' labels at least as well as letting all move, in 17 of 24 settings tried
        on digits, segment and ecoli, by 0.4 % of the rows on average. Labels do not depend on how
        the rows are cut into calls.

        Parameters
        ----------
        parameters : mapping of str to Tensor
            ``prototypes`` ``(k,d)`` and perhaps ``log_epsilon`` ``(k,)``; a leading axis of
            length 1 is allowed.
        beta : float
            The member's inverse temperature.
        x, observed
            As in :meth:`gradient_sums`.

        Returns
        -------
        labels : Tensor (B,) int64
            On the sphere -1 for a row of zeros.
        distances : Tensor (B,)
            Euclidean distance to the label's prototype over the features seen; on the sphere one
            minus the cosine, and nan for a row of zeros.
        """
        prototypes = parameters["prototypes"].reshape(-1, x.shape[1])
        weights = parameters.get("log_epsilon")
        common = (x, observed, prototypes, float(beta), self.alpha, self.steps)
        log_epsilon = None if weights is None else weights.reshape(-1)
        if self.geometry == "spherical":
            return infer_spherical(*common, log_epsilon)
        return infer(*common, self._value(x), True, log_epsilon)


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
