"""Nearest prototype over the features seen: how k-means and its relatives label rows.

Letters: ``B`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.base import Equations, Parameters
from clam_dist.models.inference import BLOCK_ROWS, first_greatest
from clam_dist.models.spherical import inverse_lengths
from clam_dist.models.workspace import Workspace

Geometry = Literal["euclidean", "spherical"]

SPACE = Workspace()


class Nearest(Equations):
    """A model whose prototypes label rows by distance alone: nothing moves, nothing is trained.

    Its prototypes come from :func:`clam_dist.train.baselines.fit_baseline`; ``beta`` has no effect.

    Parameters
    ----------
    n_clusters : int
        ``k``.
    geometry : {'euclidean', 'spherical'}
        Least squared distance, or largest cosine.

    Raises
    ------
    ConfigError
        No geometry has that name.
    """

    reseeds = False

    def __init__(self, n_clusters: int, geometry: Geometry = "euclidean") -> None:
        if geometry not in get_args(Geometry):
            raise ConfigError(
                f"model.geometry: {geometry!r} is unknown; use {' or '.join(get_args(Geometry))}"
            )
        self.n_clusters = n_clusters
        self.geometry = geometry
        self.metric_name = "cosine" if geometry == "spherical" else "euclidean"

    def predict(
        self,
        parameters: Parameters,
        beta: float,  # noqa: ARG002
        x: Tensor,
        observed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Labels and distances, see :func:`nearest`.

        Parameters
        ----------
        parameters : mapping of str to Tensor
            ``prototypes`` ``(k,d)``, perhaps with a leading axis of length 1.
        beta : float
            Without effect.
        x : Tensor (B,d)
        observed : Tensor (B,d) bool, optional

        Returns
        -------
        labels : Tensor (B,) int64
        distances : Tensor (B,)
        """
        prototypes = parameters["prototypes"].reshape(-1, x.shape[1])
        return nearest(x, observed, prototypes, self.geometry)

    def placed(self, parameters: Parameters) -> Tensor:
        """The prototypes ``(k,d)``, at length 1 on the sphere."""
        prototypes = parameters["prototypes"].flatten(0, -2)
        if self.geometry == "spherical":
            return prototypes * inverse_lengths(prototypes).unsqueeze(1)
        return prototypes

    def represent(
        self,
        parameters: Parameters,  # noqa: ARG002
        x: Tensor,
        observed: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The rows themselves; on the sphere their directions over the features seen."""
        if self.geometry == "euclidean":
            return x, observed
        rows = x if observed is None else torch.where(observed, x, 0.0)
        return rows * inverse_lengths(rows).unsqueeze(1), observed


def nearest(
    x: Tensor, observed: Tensor | None, prototypes: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """Label rows by the prototype nearest over the features seen, the first of equals.

    A row's result does not depend on which rows it comes with: rows go through blocks of one fixed
    size, complete and incomplete rows apart, since they are computed differently.

    A cosine is taken over the features seen, in the row and in the prototype. Against prototypes of
    full length, rows of digits with 30 % of their cells removed get labels of NMI .57, not .68.

    Parameters
    ----------
    x : Tensor (B,d)
        Rows; what a missing entry holds does not matter, as long as it is finite.
    observed : Tensor (B,d) bool, optional
        False where a value is missing; all seen by default.
    prototypes : Tensor (k,d)
        On the sphere of any length.
    geometry : {'euclidean', 'spherical'}

    Returns
    -------
    labels : Tensor (B,) int64
        On the sphere -1 for a row without a direction, which shows nothing but zeros.
    distances : Tensor (B,) of ``x``'s dtype
        Euclidean distance to the prototype over the features seen; on the sphere ``1 - cos`` over
        the features seen, 0 … 2, and nan where the label is -1.
    """
    labels = torch.empty(len(x), dtype=torch.int64, device=x.device)
    distances = torch.empty(len(x), dtype=x.dtype, device=x.device)
    function = _spherical if geometry == "spherical" else _euclidean
    rows = prototypes
    if geometry == "spherical":
        rows = prototypes * inverse_lengths(prototypes).unsqueeze(1)
    if observed is None:
        parts = [(part, False) for part in _row_numbers(x).split(BLOCK_ROWS)]
    else:
        whole = observed.all(1)
        parts = [(part, False) for part in whole.nonzero()[:, 0].split(BLOCK_ROWS)]
        parts += [(part, True) for part in (~whole).nonzero()[:, 0].split(BLOCK_ROWS)]
    for part, incomplete in parts:
        padded = SPACE.take("rows", (BLOCK_ROWS, x.shape[1]), x)
        padded[len(part) :] = 0.0
        padded[: len(part)] = x[part]
        seen = None
        if incomplete and observed is not None:
            seen = SPACE.take("seen", padded.shape, x)
            seen[len(part) :] = 1.0
            seen[: len(part)] = observed[part]
            padded *= seen
        found, far = function(padded, seen, rows)
        labels[part], distances[part] = found[: len(part)], far[: len(part)]
    return labels, distances


def _row_numbers(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


def _euclidean(x: Tensor, seen: Tensor | None, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """A whole block; ``x (B,d)`` is 0 where ``seen (B,d)``, of 0 and 1, is 0."""
    # About their own mean: far from the origin products lose the digits that tell them apart.
    middle = prototypes.mean(0)
    centred = prototypes - middle
    rows = x - middle if seen is None else torch.addcmul(x, seen, middle, value=-1.0)
    scores = torch.mm(2.0 * centred, rows.T)  # (k,B): 2 x·rho, to which -|rho|² is added
    if seen is None:
        scores -= centred.square().sum(1, keepdim=True)
    else:
        scores -= torch.mm(centred.square(), seen.T)
    labels = first_greatest(scores)
    difference = x - prototypes[labels]
    if seen is not None:
        difference *= seen
    return labels, torch.linalg.vector_norm(difference, dim=1)


def _spherical(x: Tensor, seen: Tensor | None, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`_euclidean`, for ``prototypes`` of length 1 or 0."""
    inverse = inverse_lengths(x)
    scores = torch.mm(prototypes, x.T).mul_(inverse)  # (k,B)
    if seen is not None:  # a prototype that shows nothing in these features has no cosine: 0
        lengths = torch.mm(prototypes.square(), seen.T).sqrt_()
        scores = torch.where(lengths > 0, scores / lengths, 0.0)
    labels = first_greatest(scores)
    chosen = prototypes[labels]
    if seen is not None:
        chosen *= seen
    cosines = (x * chosen).sum(1) * inverse * inverse_lengths(chosen)
    lost = inverse == 0
    labels = torch.where(lost, -1, labels)
    return labels, torch.where(lost, torch.nan, 1.0 - cosines)
