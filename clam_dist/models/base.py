"""What every model is to the trainer and to labelling, with what most models leave as it is.

Letters: ``P`` members of a sweep, ``B`` rows, ``d`` features, ``m`` dimensions of the space that
prototypes live in, ``k`` clusters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import Literal

from torch import Tensor

from clam_dist.models.sums import Sums

Parameters = Mapping[str, Tensor]
"""By name, each with a leading axis over members."""
Metric = Literal["euclidean", "cosine"]


class Equations(ABC):
    """One model: its equations and settings, no state.

    Every method may be called from several threads at once; at one intra-op thread results depend
    on the arguments alone, to the last bit. A new model is one subclass and its entry in
    :mod:`clam_dist.models.factory`.

    Attributes
    ----------
    n_clusters : int
        ``k``.
    metric_name : {'euclidean', 'cosine'}
        Of silhouettes in the space of :meth:`represent`.
    derived : frozenset of str
        Parameters that :meth:`derive` gives and no gradient changes.
    by_cluster : tuple of str
        Parameters ``(P,k,...)`` that belong to one prototype each.
    reseeds : bool
        Whether a prototype that no row chooses may be put on a row's representation.
    own_space : bool
        Whether :meth:`represent` depends on the parameters.
    reconstructs : bool
        Whether the loss is a reconstruction of rows, comparable to that of a pretrained network.
    exchanges : bool
        Whether sums over the whole global batch enter the loss: then :meth:`gradient_exchange`
        takes the place of :meth:`gradient_sums`.
    """

    n_clusters: int
    metric_name: Metric = "euclidean"
    derived: frozenset[str] = frozenset()
    by_cluster: tuple[str, ...] = ("prototypes", "log_epsilon")
    reseeds: bool = True
    own_space: bool = False
    reconstructs: bool = False
    exchanges: bool = False

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
            Non-negative numbers that key whatever is drawn, such as (phase, epoch, step, lane).

        Returns
        -------
        Sums
            Divide loss and gradients by the ``entries`` of the whole global batch.
        """
        raise NotImplementedError(f"{type(self).__name__} exchanges sums: use gradient_exchange")

    def gradient_exchange(
        self,
        parameters: Parameters,
        beta: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        key: tuple[int, ...],
    ) -> Generator[Tensor, Tensor, Sums]:
        """As :meth:`gradient_sums`, where the loss needs sums over the whole global batch.

        ``total = yield partial`` hands over this micro-batch's sums, ``(n,)`` float64, and takes
        up those of the global batch. Every micro-batch yields the same shapes in the same order,
        one without rows too. The adjoint of such a sum is a sum again: on the way back derivatives
        by a total are exchanged likewise. Returns this micro-batch's share of the sums.
        """
        raise NotImplementedError(f"{type(self).__name__} exchanges nothing: use gradient_sums")

    @abstractmethod
    def predict(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Labels and distances of rows under one member's parameters.

        Returns
        -------
        labels : Tensor (B,) int64
            -1 for a row that has no cluster.
        distances : Tensor (B,)
            To the label's prototype, nan where there is none.
        """

    def represent(
        self, parameters: Parameters, x: Tensor, observed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Rows in the space that one member's prototypes live in and silhouettes are taken in.

        Returns
        -------
        z : Tensor (B,m)
        seen : Tensor (B,m) bool, optional
            False where ``z`` is not known; None if all of it is.
        """
        return x, observed

    def predict_and_represent(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor | None]]:
        """What :meth:`predict` and :meth:`represent` give, to the bit.

        To be overridden where both encode the rows, which then need be encoded only once.
        """
        found = self.predict(parameters, beta, x, observed)
        return found, self.represent(parameters, x, observed)

    def judged(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """Rows ``(B,m)`` as members of a sweep are compared on them: :meth:`represent`'s."""
        return self.represent(parameters, x, observed)[0]

    def placed(self, parameters: Parameters) -> Tensor:
        """One member's prototypes ``(k,m)`` in the space of :meth:`represent`."""
        return parameters["prototypes"]

    def derive(
        self, parameters: Parameters, x: Tensor, weight: Tensor | None, observed: Tensor | None
    ) -> dict[str, Tensor]:
        """The :attr:`derived` parameters of all members, from a sample of rows."""
        return {}

    def starting(self, network: Parameters, start: Tensor) -> dict[str, Tensor]:
        """All parameters of members: their networks', and what this model has beside them.

        Parameters
        ----------
        network : mapping of str to Tensor (P,...)
        start : Tensor (P,k,m)
            Where prototypes start.
        """
        return {**network, "prototypes": start}

    def begin(
        self,
        network: Parameters,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
        seed: int,
    ) -> tuple[dict[str, Tensor], float]:
        """One member's other parameters, from its pretrained network and a sample of rows.

        Returns
        -------
        parameters : dict of str to Tensor
            Without the axis over members.
        inertia : float
            Of k-means on the latents, a row: the unit of beta.
        """
        raise NotImplementedError(f"{type(self).__name__} has no network to begin from")

    def rate(self, name: str) -> float:
        """Factor on the members' learning rates for one parameter."""
        return 1.0
