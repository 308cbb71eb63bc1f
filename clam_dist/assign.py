"""Rows to labels: the trained model applied to rows from anywhere.

Letters: ``n`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from clam_dist.models.clam import ClAM
from clam_dist.models.factory import build_model
from clam_dist.models.rows import to_tensors


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


class Labeller:
    """Gives rows the cluster whose prototype lies nearest to where the recursion takes them.

    Torch computes with one intra-op thread, since products differ by thread count; results do not
    depend on how rows are cut into calls.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._device = torch.device(assignment.device)
        self._parameters = load_file(assignment.path, device=str(self._device))
        self._model = build_model(assignment.settings, assignment.member)
        self._beta = float(assignment.member["beta"])

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """The parameters by name; ``prototypes`` is ``(k, d)`` float32 in scaled units."""
        return {name: value.cpu().numpy() for name, value in self._parameters.items()}

    def label(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Label rows.

        Parameters
        ----------
        x
            ``(n, d)`` float32 in scaled units, nan where missing.

        Returns
        -------
        labels
            ``(n,)`` int64; -1 where every feature is missing.
        distances
            ``(n,)`` float32 to the prototype over the seen features, in scaled units; nan where
            the label is -1.
        """
        torch.set_num_threads(1)
        return label_rows(self._model, self._parameters, self._beta, x, self._device)


def label_rows(
    model: ClAM,
    parameters: Mapping[str, torch.Tensor],
    beta: float,
    x: np.ndarray,
    device: torch.device | str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and distances of scaled rows, as :meth:`Labeller.label` gives them."""
    rows, observed = to_tensors(x, device=device)
    found, far = model.predict(parameters, beta, rows, observed)
    labels, distances = found.cpu().numpy(), far.cpu().numpy()
    if observed is not None:
        unseen = ~observed.any(dim=1).cpu().numpy()
        labels = np.where(unseen, -1, labels)
        distances = np.where(unseen, np.float32(np.nan), distances)
    return labels, distances
