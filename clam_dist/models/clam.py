"""ClAM behind the face that training and labelling see: gradient sums and predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from clam_dist.models import energy
from clam_dist.models.base import Equations
from clam_dist.models.dynamics import resolve_step_size
from clam_dist.models.inference import infer
from clam_dist.models.memberships import settled_memberships, settled_spherical_memberships
from clam_dist.models.metric import Form, map_rows, unit_factor
from clam_dist.models.objectives import SMALL_GROUP as SMALL_GROUP
from clam_dist.models.objectives import Geometry, Name, Objective, Parameters
from clam_dist.models.products import Precision
from clam_dist.models.robust import Loss, Penalty
from clam_dist.models.spherical import inverse_lengths
from clam_dist.models.spherical_inference import infer_spherical
from clam_dist.models.sums import Sums

METRIC_RATE = 3.0
"""Of a metric's learning rate to the prototypes'."""


@dataclass(frozen=True)
class _Space:
    """Rows and one member's prototypes where the recursion is Euclidean or spherical.

    Parameters
    ----------
    rows : Tensor (B,d)
    observed : Tensor (B,d) bool, optional
    prototypes : Tensor (k,d)
    value : Tensor (d,)
        Where missing features start.
    log_epsilon : Tensor (k,), optional
    """

    rows: Tensor
    observed: Tensor | None
    prototypes: Tensor
    value: Tensor
    log_epsilon: Tensor | None


class ClAM(Equations):
    """Clustering with associative memories (Saha et al., ICML 2023): the equations, no state.

    The parameters are a mapping with ``prototypes`` ``(P,k,d)`` in scaled units, for the weighted
    form (equation 10) ``log_epsilon`` ``(P,k)``, and with a learned metric ``metric`` ``(P,d)`` or
    ``(P,d,d)``, see :mod:`clam_dist.models.metric`. Every method may be called from several threads
    at once; results depend on the arguments alone, at one intra-op thread to the last bit.

    Parameters
    ----------
    n_clusters : int
        Number of prototypes ``k``.
    steps : int
        Depth ``T`` of the recursion.
    step_size : float, optional
        ``α`` in (0, 2); ``1 / T`` as in the paper where None.
    objective : {'masked', 'unmasked', 'noise'}
        Loss on hidden features (9), on all features (8), or on all features of rows that start
        with noise (5).
    mask_rate : float
        Share of the features hidden under (9).
    mask_value : array (d,)
        What hidden and missing features start from, in scaled units; of no use on the sphere,
        where they start from 0.
    group_rows : int
        Rows that share one mask; 1 is Algorithm 1 as printed.
    seed : int
        Keys masks and noise together with the ``key`` of each call.
    geometry : {'euclidean', 'spherical'}
        Distances, or cosines of normalised rows and prototypes (equation 12).
    precision : {'float32', 'tf32', 'bfloat16'}
        Of the products of the rows' size, see :mod:`clam_dist.models.products`.
    loss : {'squared', 'huber', 'manhattan'}
        What a difference costs, see :class:`clam_dist.models.robust.Penalty`.
    huber : float
        Where Huber's loss turns from square to line, in scaled units.
    noise : float
        Standard deviation of the noise under (5), in scaled units.
    metric : {'none', 'diagonal', 'full'}
        What is learned of the metric: nothing, a scale for each feature, or a linear map. A full
        one asks for objective (8) or (5): the energy falls when some features alone move as long
        as each has a scale of its own, but not under a map that mixes them.

    Raises
    ------
    ConfigError
        A value is unknown or out of range, or two of them do not go together.
    """

    def __init__(
        self,
        n_clusters: int,
        steps: int,
        step_size: float | None = None,
        objective: Name = "masked",
        mask_rate: float = 0.15,
        mask_value: ArrayLike = 0.0,
        group_rows: int = 64,
        seed: int = 0,
        geometry: Geometry = "euclidean",
        precision: Precision = "float32",
        *,
        loss: Loss = "squared",
        huber: float = 1.0,
        noise: float = 0.3,
        metric: Form = "none",
    ) -> None:
        alpha = resolve_step_size(step_size, steps)
        self.geometry, self.precision, self.metric = geometry, precision, metric
        self.n_clusters, self.steps, self.alpha = n_clusters, steps, alpha
        self.objective, self.mask_rate = objective, mask_rate
        self.loss, self.huber, self.noise = loss, huber, noise
        self.mask_value = torch.from_numpy(np.array(mask_value, dtype=np.float32))
        self.group_rows, self.seed = group_rows, seed
        self.metric_name = "cosine" if geometry == "spherical" else "euclidean"
        # Under a metric rows are represented by their images, prototypes are not.
        self.own_space, self.reseeds = metric != "none", metric == "none"
        self._objective = Objective(
            alpha=alpha, steps=steps, name=objective, mask_rate=mask_rate,
            mask_value=self.mask_value, group_rows=group_rows, seed=seed, geometry=geometry,
            precision=precision, penalty=Penalty(loss, huber), noise=noise, metric=metric,
        )  # fmt: skip
        self._objective.check()

    def rate(self, name: str) -> float:
        """A metric learns faster than prototypes, or they settle before it has turned.

        On two elongated clusters, turned by 30°, the rate of 3 finds them with an adjusted Rand
        index of .95 by either choice among members, the rate of 1 with .91 by silhouette and .73 by
        loss.
        """
        return METRIC_RATE if name == "metric" else 1.0

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

        See :meth:`~clam_dist.models.base.Equations.gradient_sums`.
        """
        return self._objective.sums(parameters, beta, x, weight, observed, key)

    def predict(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Labels and distances of rows under one member's parameters.

        On the sphere every feature moves in every row, see :func:`infer_spherical`. Otherwise
        nothing is hidden but what is missing (InferClAM). In an incomplete row only the missing
        features move, under either objective: with a tenth of the cells removed this agrees with
        the complete rows' labels at least as well as letting all move, in 17 of 24 settings tried
        on digits, segment and ecoli, by 0.4 % of the rows on average. Under a full metric, which
        mixes features, all of them move. Labels do not depend on how the rows are cut into calls.

        Parameters
        ----------
        parameters : mapping of str to Tensor
            ``prototypes`` ``(k,d)`` and what goes with them; a leading axis of length 1 is allowed.
        beta : float
            The member's inverse temperature.
        x, observed
            As in :meth:`gradient_sums`.

        Returns
        -------
        labels : Tensor (B,) int64
            On the sphere -1 for a row of zeros.
        distances : Tensor (B,)
            Distance, by the metric, to the label's prototype over the features seen; on the sphere
            one minus the cosine, and nan for a row of zeros.
        """
        space = self._space(parameters, x, observed)
        common = (space.rows, space.observed, space.prototypes, float(beta), self.alpha, self.steps)
        if self.geometry == "spherical":
            return infer_spherical(*common, space.log_epsilon)
        labels, distances = infer(*common, space.value, True, space.log_epsilon)
        if self.metric == "full":  # over features seen, also where a call has complete rows alone
            away = x - parameters["prototypes"].reshape(-1, x.shape[1])[labels]
            away = away if observed is None else away * observed
            image = map_rows(away, self._factor(parameters, x.shape[1]))
            distances = torch.linalg.vector_norm(image, dim=1)
        return labels, distances

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Rows as silhouettes see them: as they are, their directions, or images by the metric.

        On the sphere missing values are 0 in a direction; a full metric maps rows with the mask
        value in place of what is missing, so that all of an image is known.
        """
        if self.geometry == "spherical":
            rows = x if observed is None else torch.where(observed, x, 0.0)
            return rows * inverse_lengths(rows).unsqueeze(1), observed
        space = self._space(parameters, x, observed)
        return space.rows, space.observed

    def placed(self, parameters: Parameters) -> Tensor:
        """One member's prototypes as :meth:`represent` shows rows: directions, or images."""
        prototypes = parameters["prototypes"].flatten(0, -2)
        if self.geometry == "spherical":
            return prototypes * inverse_lengths(prototypes).unsqueeze(1)
        if self.metric == "none":
            return prototypes
        return map_rows(prototypes, self._factor(parameters, prototypes.shape[1]))

    def memberships(
        self,
        parameters: Parameters,
        beta: float,
        x: Tensor,
        observed: Tensor | None,
        *,
        settled: bool = True,
    ) -> Tensor:
        """Shares of the prototypes in each row, ``(B,k)``.

        ``settled`` are those of ``x_T`` without weights, whose greatest is the label of
        :meth:`predict`; see :mod:`clam_dist.models.memberships`. Otherwise those of the row itself,
        with weights, which the entropy (equation 13) is of; see :func:`energy.memberships`.
        """
        if not settled:
            return self._read(energy.memberships, parameters, beta, x, observed)
        space = self._space(parameters, x, observed)
        common = (space.rows, space.observed, space.prototypes, float(beta), self.alpha, self.steps)
        if self.geometry == "spherical":
            return settled_spherical_memberships(*common, space.log_epsilon)
        return settled_memberships(*common, space.value, True, space.log_epsilon)

    def energies(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """Energy of each row (equation 1), ``(B,)``; see :func:`energy.energies`."""
        return self._read(energy.energies, parameters, beta, x, observed)

    def entropies(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """Entropy of each row (equation 13), ``(B,)``; see :func:`energy.entropies`."""
        return self._read(energy.entropies, parameters, beta, x, observed)

    def _read(
        self,
        function: energy.Reading,
        parameters: Parameters,
        beta: float,
        x: Tensor,
        observed: Tensor | None,
    ) -> Tensor:
        space = self._space(parameters, x, observed)
        return function(
            space.rows,
            space.prototypes,
            float(beta),
            space.log_epsilon,
            space.observed,
            spherical=self.geometry == "spherical",
        )

    def _factor(self, parameters: Parameters, width: int) -> Tensor:
        """One member's map, ``(d,)`` or ``(d,d)``."""
        shape = (1, width) if self.metric == "diagonal" else (1, width, width)
        return unit_factor(parameters["metric"].reshape(shape))[0]

    def _space(self, parameters: Parameters, x: Tensor, observed: Tensor | None) -> _Space:
        prototypes = parameters["prototypes"].reshape(-1, x.shape[1])
        weights = parameters.get("log_epsilon")
        log_epsilon = None if weights is None else weights.reshape(-1)
        value = self._objective.value(x)
        if self.metric == "none":
            return _Space(x, observed, prototypes, value, log_epsilon)
        factor = self._factor(parameters, x.shape[1])
        if self.metric == "full" and observed is not None:
            x, observed = torch.where(observed, x, value), None
        mapped = (map_rows(lines, factor) for lines in (prototypes, value[None]))
        return _Space(map_rows(x, factor), observed, next(mapped), next(mapped)[0], log_epsilon)
