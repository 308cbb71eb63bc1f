"""Rows to labels: the trained model applied to rows from anywhere.

Letters: ``n`` rows, ``d`` features, ``k`` clusters, ``m`` dimensions of the space that prototypes
live in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from clam_dist.models.base import Equations, Metric, Parameters
from clam_dist.models.factory import build_model
from clam_dist.models.rows import to_tensors

Values = Callable[[Any, Parameters, float, Tensor, "Tensor | None"], Tensor]
"""Of ``(model, parameters, beta, rows (n,d), observed (n,d) or None)``, one for each row."""


@runtime_checkable
class Recursive(Protocol):
    """A model whose recursion can be told apart from what comes before it."""

    def recursed(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """``(B,m)``: where the recursion takes the representations of rows."""
        ...


@dataclass(frozen=True)
class Assignment:
    """A trained model as paths and settings, small enough to send anywhere.

    Parameters
    ----------
    path
        The parameters, a safetensors file of one member.
    settings
        The model's settings, as the factory takes them.
    member
        The winning member's own settings: ``n_clusters``, ``steps``, ``objective``,
        ``mask_rate`` and ``beta``.
    device
        Where to compute.
    """

    path: str
    settings: dict[str, Any]
    member: dict[str, Any]
    device: str = "cpu"

    @property
    def n_clusters(self) -> int:
        """``k``."""
        return int(self.member["n_clusters"])

    def model(self) -> Equations:
        """The equations, without parameters."""
        return build_model(self.settings, self.member)


class Labeller:
    """Gives rows the cluster whose prototype lies nearest to where the recursion takes them.

    Torch computes with one intra-op thread, since products differ by thread count; results do not
    depend on how rows are cut into calls.

    Attributes
    ----------
    model : Equations
    parameters : mapping of str to ndarray
        By name, float32, without a leading axis.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._device = torch.device(assignment.device)
        self._parameters = load_file(assignment.path, device=str(self._device))
        self.model = assignment.model()
        self._beta = float(assignment.member["beta"])
        self._identity: bool | None = None

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """The parameters by name; ``prototypes`` is ``(k, m)`` float32, scaled units or latent."""
        return {name: value.cpu().numpy() for name, value in self._parameters.items()}

    @property
    def metric(self) -> Metric:
        """Of silhouettes in the space of :meth:`represent`."""
        return self.model.metric_name

    def label(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Label rows.

        Parameters
        ----------
        x
            ``(n, d)`` float32 in scaled units, nan where missing.

        Returns
        -------
        labels
            ``(n,)`` int64; -1 where every feature is missing, and where the model finds none.
        distances
            ``(n,)`` float32 to the prototype in the space it lives in; nan where the label is -1.
        """
        torch.set_num_threads(1)
        return label_rows(self.model, self._parameters, self._beta, x, self._device)

    def represent(self, x: np.ndarray) -> np.ndarray:
        """Rows in the space that prototypes live in and silhouettes are measured in.

        Parameters
        ----------
        x
            As in :meth:`label`.

        Returns
        -------
        ndarray of float32, shape (n, m)
            ``x`` itself where prototypes are rows; else 0 where nothing is known.
        """
        torch.set_num_threads(1)
        if self._is_identity(x.shape[1]):
            return x
        return represent_rows(self.model, self._parameters, x, self._device)

    def label_and_represent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What :meth:`label` and :meth:`represent` give, from one encoding of the rows."""
        torch.set_num_threads(1)
        if self._is_identity(x.shape[1]):
            return *self.label(x), x
        rows, observed = to_tensors(x, device=self._device)
        found, (z, seen) = self.model.predict_and_represent(
            self._parameters, self._beta, rows, observed
        )
        return *_as_labels(*found, observed), _as_rows(z, seen)

    def _is_identity(self, width: int) -> bool:
        if self._identity is None:
            self._identity = represents_itself(self.model, self._parameters, width)
        return self._identity

    def recursed(self, x: np.ndarray) -> np.ndarray | None:
        """Where the recursion takes rows, ``(n, m)`` float32; None of a model that cannot tell."""
        model = self.model
        if not isinstance(model, Recursive):
            return None
        return self.values(lambda _, *given: model.recursed(*given), x)

    def values(self, of: Values, x: np.ndarray) -> np.ndarray:
        """What a function of the model gives for rows, ``(n, …)``; ``x`` as in :meth:`label`."""
        torch.set_num_threads(1)
        rows, observed = to_tensors(x, device=self._device)
        return of(self.model, self._parameters, self._beta, rows, observed).cpu().numpy()


def label_rows(
    model: Equations,
    parameters: Mapping[str, Tensor],
    beta: float,
    x: np.ndarray,
    device: torch.device | str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and distances of scaled rows, as :meth:`Labeller.label` gives them."""
    rows, observed = to_tensors(x, device=device)
    return _as_labels(*model.predict(parameters, beta, rows, observed), observed)


def _as_labels(
    found: Tensor, far: Tensor, observed: Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and distances as arrays; a row without values has none."""
    labels, distances = found.cpu().numpy(), far.cpu().numpy()
    if observed is not None:
        unseen = ~observed.any(dim=1).cpu().numpy()
        labels = np.where(unseen, -1, labels)
        distances = np.where(unseen, np.float32(np.nan), distances)
    return labels, distances


def represents_itself(model: Equations, parameters: Parameters, width: int) -> bool:
    """Whether a model's prototypes live among the rows themselves, ``width`` features each."""
    some = next(iter(parameters.values()))
    probe = torch.zeros((1, width), dtype=torch.float32, device=some.device)
    return model.represent(parameters, probe, None)[0] is probe


def represent_rows(
    model: Equations,
    parameters: Mapping[str, Tensor],
    x: np.ndarray,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """Representations ``(n, m)`` float32 of scaled rows, 0 where they are not known."""
    rows, observed = to_tensors(x, device=device)
    return _as_rows(*model.represent(parameters, rows, observed))


def _as_rows(z: Tensor, seen: Tensor | None) -> np.ndarray:
    return (z if seen is None else torch.where(seen, z, 0.0)).cpu().numpy()
