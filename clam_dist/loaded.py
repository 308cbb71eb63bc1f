"""A finished run's model in memory, for rows that are arrays or tables."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa

from clam_dist.data.features import FeatureSchema, encode
from clam_dist.errors import DataError
from clam_dist.models.bundle import Bundle, load_bundle


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
            0 … k-1, or -1 where every feature is missing.
        distances : ndarray (n,) float32
            To the label's prototype over the features seen, in scaled units; nan where -1.

        Raises
        ------
        DataError
            A table lacks a column, or holds an infinity.
        ConfigError
            An array has another number of features.
        """
        return self.bundle.predict(self.encode(rows) if _is_table(rows) else np.asarray(rows))

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
