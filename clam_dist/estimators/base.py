"""What estimators share: parameters checked, rows opened, seed, threads, progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from clam_dist.config import ModelConfig, TrainConfig
from clam_dist.errors import ConfigError
from clam_dist.estimators.inputs import Rows, checked, open_rows, wrong_column
from clam_dist.estimators.parameters import resolve
from clam_dist.executor import Event
from clam_dist.launch.machine import usable_cores
from clam_dist.launch.serial import SerialExecutor
from clam_dist.stages.planning import choose_device


class Estimator(BaseEstimator):
    """Base of the estimators.

    The classes over it have the parameters ``n_jobs``, ``random_state`` and ``verbose``, and those
    that :func:`~clam_dist.estimators.parameters.resolve` takes.
    """

    kind: ClassVar[str] = "clam"
    """As ``model.kind`` in a config."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Parameters that have another name in a config, where theirs is a method's here."""
    n_jobs: int | None
    random_state: Any
    verbose: int

    def _resolve(self) -> tuple[ModelConfig, TrainConfig, str]:
        values = self.get_params(deep=False) | {"kind": self.kind}
        model, train, scaling = resolve(type(self).__name__, values, self.renamed)
        choose_device(train.device, SerialExecutor().device)  # told before any work
        return model, train, scaling

    def _open(self, X: Any, *, reset: bool) -> Rows:
        """Recognise and check rows; features are counted, and named, where ``reset``."""
        rows = open_rows(X)
        if rows.plain:
            try:
                values = validate_data(
                    self, rows.values, reset=reset, dtype="numeric", ensure_all_finite="allow-nan"
                )
            except (TypeError, ValueError) as error:
                wrong = wrong_column(X)
                if wrong is None:
                    raise
                raise ValueError(wrong) from error
            # Frames with categories come back as objects, not looked at.
            wrong = wrong_column(X) if values.dtype.kind == "O" else None
            if wrong is not None:
                raise ValueError(wrong)
            return replace(rows, values=values)
        names = rows.names
        empty: Any = np.empty((0, rows.width))
        if names is not None:
            empty = pa.Table.from_arrays([pa.array([], pa.float64())] * len(names), list(names))
        validate_data(self, empty, reset=reset, skip_check_array=True)
        return rows if rows.lazy else replace(rows, values=checked(rows.values))

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _threads(self) -> int:
        jobs = self.n_jobs
        if jobs is None:
            return usable_cores()
        if isinstance(jobs, bool) or not isinstance(jobs, (int, np.integer)) or jobs == 0:
            raise ConfigError(
                f"n_jobs: expected a whole number but 0, or None for all cores; got {jobs!r}"
            )
        return int(jobs) if jobs > 0 else max(1, usable_cores() + 1 + int(jobs))

    def _tell(self, event: Event) -> None:
        if event["event"] == "note":
            print(f"[{type(self).__name__}] {event['message']}")
        elif event["event"] == "epoch" and self.verbose > 1:
            print(
                f"[{type(self).__name__}] {event['phase']} pass {event['epoch']}/{event['epochs']}"
                f": {event['members']} candidates, least validation loss "
                f"{event['validation_loss']:.4f}"
            )
