"""Columns that labels have on request: what a model says of each row beside its cluster.

Letters: ``n`` rows, ``d`` features, ``k`` clusters, ``m`` dimensions of the representation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from clam_dist.assign import Labeller
from clam_dist.errors import ConfigError
from clam_dist.models.base import Parameters


@dataclass(frozen=True)
class Column:
    """One such column.

    Parameters
    ----------
    method
        Of the model, which has to have it.
    of
        ``(labeller, rows (n,d)) -> (n,) or (n, width)``, float.
    """

    method: str
    of: Callable[[Labeller, np.ndarray], np.ndarray]


def _entropies(labeller: Labeller, x: np.ndarray) -> np.ndarray:
    return labeller.values(lambda model, *given: model.entropies(*given), x)


def _energies(labeller: Labeller, x: np.ndarray) -> np.ndarray:
    return labeller.values(lambda model, *given: model.energies(*given), x)


def _memberships(labeller: Labeller, x: np.ndarray) -> np.ndarray:
    return labeller.values(lambda model, *given: model.memberships(*given), x)


def _reconstruction_error(labeller: Labeller, x: np.ndarray) -> np.ndarray:
    """Root mean squared difference of rows from ``d(e(x))`` over the features seen."""

    def reconstructed(
        model: Any, parameters: Parameters, beta: float, rows: Tensor, observed: Tensor | None
    ) -> Tensor:
        del beta  # of the recursion, which would add how far a row lies from its prototype
        found: Tensor = model.reconstruct(parameters, rows, observed)
        return found

    away = np.square(labeller.values(reconstructed, x) - x)
    seen = np.maximum((~np.isnan(x)).sum(axis=1), 1)
    error: np.ndarray = np.sqrt(np.nansum(away, axis=1) / seen)
    return error


COLUMNS = {
    "entropy": Column("entropies", _entropies),
    "energy": Column("energies", _energies),
    "memberships": Column("memberships", _memberships),
    "latent": Column("represent", Labeller.represent),
    # One number, how far off it is: the reconstruction itself would be as large as the source.
    "reconstruction": Column("reconstruct", _reconstruction_error),
}
"""By the name that ``evaluate.columns`` has for it, and so have the labels' files."""


def check_columns(model: object, names: Sequence[str], kind: str) -> None:
    """Make sure that a model can give the columns asked for.

    Parameters
    ----------
    model
        Its equations; no parameters are needed.
    names
        As in ``evaluate.columns``.
    kind
        As in ``model.kind``, for the message.

    Raises
    ------
    ConfigError
        Naming the first column that it cannot give, or that there is not, and those it can.
    """
    able = [name for name, column in COLUMNS.items() if callable(getattr(model, column.method, 0))]
    for name in names:
        if name not in able:
            raise ConfigError(
                f"evaluate.columns: a {kind} model cannot give '{name}'; it can give "
                f"{', '.join(able)}. Ask for these, or leave evaluate.columns out"
            )


class AddedColumns:
    """The columns of one labels file.

    Parameters
    ----------
    labeller
        Whose model gives them.
    names
        As in ``evaluate.columns``.
    width
        Features ``d`` of a row.
    """

    def __init__(self, labeller: Labeller, names: Sequence[str], width: int) -> None:
        self._labeller = labeller
        self._columns = [COLUMNS[name] for name in names]
        # What a row of zeros gives tells how long the lists are.
        zeros = np.zeros((1, width), np.float32)
        self.fields = tuple(
            pa.field(name, _type(column.of(labeller, zeros)))
            for name, column in zip(names, self._columns, strict=True)
        )

    def of(self, x: np.ndarray) -> list[np.ndarray]:
        """Values of scaled rows ``(n, d)``, in the order of the fields."""
        return [column.of(self._labeller, x) for column in self._columns]


def _type(values: np.ndarray) -> pa.DataType:
    return pa.float32() if values.ndim == 1 else pa.list_(pa.float32(), values.shape[1])
