"""A finished run's model in memory, for rows that are arrays or tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from clam_dist.data.features import FeatureSchema, encode
from clam_dist.errors import ConfigError, DataError
from clam_dist.models.base import Parameters
from clam_dist.models.bundle import PREDICT_ROWS, Bundle, load_bundle
from clam_dist.models.rows import to_tensors


@runtime_checkable
class Graded(Protocol):
    """A model that gives shares of a row to several clusters."""

    def memberships(
        self, parameters: Parameters, beta: float, x: Tensor, observed: Tensor | None
    ) -> Tensor:
        """``(B,k)``, each row of sum 1."""
        ...


class LoadedModel:
    """A trained model that labels rows given in their original units. Made by :func:`load_model`.

    Attributes
    ----------
    bundle : Bundle
        Prototypes, cluster means and scaling as a labelled data set; settings and schema.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._schema = FeatureSchema.from_json(bundle.schema)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return self._schema.columns

    @property
    def dataset(self) -> Any:
        """The bundle's ``xarray.Dataset``."""
        return self.bundle.dataset

    def predict(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Label rows.

        Parameters
        ----------
        rows : pyarrow Table or RecordBatch, pandas DataFrame, or array (n, d)
            A table's columns are taken by name and encoded as in training; others are ignored.
            An array holds encoded features in the order of ``dataset.feature``, nan where missing.

        Returns
        -------
        labels : ndarray (n,) int32
            0 … k-1, or -1 where every feature is missing, and where the model finds no cluster.
        distances : ndarray (n,) float32
            To the label's prototype, in the space of :meth:`transform`; nan where -1.

        Raises
        ------
        DataError
            A table lacks a column, or holds an infinity.
        ConfigError
            An array has another number of features.
        """
        return self.bundle.predict(self._rows(rows))

    def transform(self, rows: Any) -> np.ndarray:
        """Rows in the space that prototypes live in and silhouettes are measured in.

        Parameters
        ----------
        rows
            As in :meth:`predict`, and the same errors.

        Returns
        -------
        ndarray (n, m) float32
            Rows in scaled units, their directions, or latents, as the model has it; nan where
            nothing is known.
        """
        model, parameters = self.bundle.model(), self.bundle.parameters

        def represented(x: Tensor, observed: Tensor | None) -> Tensor:
            z, seen = model.represent(parameters, x, observed)
            return z if seen is None else torch.where(seen, z, torch.nan)

        return self._by_blocks(rows, represented)

    def predict_proba(self, rows: Any) -> np.ndarray:
        """How much of each row belongs to each cluster.

        Parameters
        ----------
        rows
            As in :meth:`predict`, and the same errors.

        Returns
        -------
        ndarray (n, k) float32
            Each row's sum is 1; nan where every feature is missing.

        Raises
        ------
        ConfigError
            The model has no memberships.
        """
        model, parameters = self.bundle.model(), self.bundle.parameters
        if not isinstance(model, Graded):
            raise ConfigError(
                f"predict_proba: a {self.bundle.settings['kind']} model gives each row to one "
                "cluster alone; use predict"
            )
        beta = float(self.bundle.settings["beta"])

        def shares(x: Tensor, observed: Tensor | None) -> Tensor:
            found = model.memberships(parameters, beta, x, observed)
            return found if observed is None else found.where(observed.any(1)[:, None], torch.nan)

        return self._by_blocks(rows, shares)

    def _rows(self, rows: Any) -> np.ndarray:
        """Encoded features ``(n, d)`` in original units."""
        return self.encode(rows) if _is_table(rows) else np.asarray(rows)

    def _by_blocks(
        self, rows: Any, function: Callable[[Tensor, Tensor | None], Tensor]
    ) -> np.ndarray:
        """A function of scaled rows and of what is seen of them, a bounded number at a time."""
        x = self._rows(rows)
        if x.ndim != 2 or x.shape[1] != self.bundle.n_features:
            raise ConfigError(
                f"rows of shape {x.shape} do not fit the model, which has "
                f"{self.bundle.n_features} features: give an array (n, {self.bundle.n_features})"
            )
        parts = [
            function(*to_tensors(self.bundle.scale_rows(x[first : first + PREDICT_ROWS])))
            for first in range(0, max(len(x), 1), PREDICT_ROWS)
        ]
        return torch.cat(parts).numpy()

    def encode(self, table: Any) -> np.ndarray:
        """A table's rows as encoded features ``(n, d)`` float64 in original units."""
        if not isinstance(table, (pa.Table, pa.RecordBatch)):
            table = pa.Table.from_pandas(table, preserve_index=False)
        lacking = [name for name in self.columns if name not in table.schema.names]
        if lacking:
            raise DataError(
                f"the table lacks the column(s) {', '.join(map(repr, lacking))} of the model; "
                f"it needs {', '.join(map(repr, self.columns))}"
            )
        chosen = table.select(list(self.columns))
        batches = [chosen] if isinstance(chosen, pa.RecordBatch) else chosen.to_batches()
        parts, first = [np.empty((0, self._schema.width))], 0
        for batch in batches:
            parts.append(encode(batch, self._schema, where="the table", first_row=first))
            first += batch.num_rows
        return np.concatenate(parts)


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a model from a run's output folder, or from the ``model/`` folder in it.

    Raises
    ------
    ConfigError
        There is no model, or a newer version of this package wrote it.
    """
    return LoadedModel(load_bundle(path))


def _is_table(rows: Any) -> bool:
    return isinstance(rows, (pa.Table, pa.RecordBatch)) or hasattr(rows, "columns")
