"""A trained model in memory, applied to plain arrays in original units, block by block.

Letters: ``n`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from clam_dist.assign import Recursive, label_rows
from clam_dist.data.statistics import Scaling, Statistics
from clam_dist.evaluation.scores import AssignSums
from clam_dist.loaded import Graded
from clam_dist.models.base import Equations, Parameters
from clam_dist.models.clam import ClAM
from clam_dist.models.completion import complete
from clam_dist.models.factory import build_model
from clam_dist.models.rows import to_tensors
from clam_dist.train.loop import one_thread_each

BLOCK_ROWS = 16_384
"""Rows that a thread scales and labels at a time."""


@runtime_checkable
class Decoder(Protocol):
    """A model that makes rows of latents, as its ``represent`` gives them."""

    def decode(self, parameters: Parameters, z: torch.Tensor) -> torch.Tensor:
        """Rows ``(n,d)`` in scaled units of latents ``(n,m)``."""
        ...


@dataclass(frozen=True)
class Trained:
    """What prediction needs, as plain arrays, numbers and JSON.

    Parameters
    ----------
    parameters
        ``prototypes (k, m)``, in scaled units or among latents, and what else the model has.
    settings, member
        As the factory takes them.
    statistics, scaling
        Of the rows it was trained on, original units.
    device, threads
        Where to compute.
    """

    parameters: dict[str, np.ndarray]
    settings: dict[str, Any]
    member: dict[str, Any]
    statistics: Statistics
    scaling: Scaling
    device: str
    threads: int

    @property
    def n_clusters(self) -> int:
        """``k``."""
        return len(self.parameters["prototypes"])

    def model(self) -> Equations:
        """The equations."""
        return build_model(self.settings, self.member)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters on the device."""
        return {
            name: torch.from_numpy(value).to(self.device) for name, value in self.parameters.items()
        }

    def label_scaled(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels int32 (-1 without any value) and distances float32 (nan there) of scaled rows."""
        labels, distances = label_rows(
            self.model(), self.tensors(), float(self.member["beta"]), x, self.device
        )
        return labels.astype(np.int32), distances

    def labels(self, x: np.ndarray) -> np.ndarray:
        """Labels ``(n,)`` int32 of rows in original units."""
        return self._map(x, lambda part: self.label_scaled(self.scale(part))[0], (), np.int32)

    def scale(self, x: np.ndarray) -> np.ndarray:
        """Rows in scaled units, float32."""
        return self.scaling.apply(np.asarray(x, dtype=np.float64))

    def prototypes_in_units(self) -> np.ndarray:
        """Prototypes in original units, ``(k, d)`` float64; those among latents decoded."""
        if isinstance(self.model(), Decoder):
            return self.decode(self.parameters["prototypes"])
        return self.scaling.invert(self.parameters["prototypes"])

    def decode(self, z: np.ndarray) -> np.ndarray:
        """Rows ``(n, d)`` float64 in original units of latents ``(n, m)``."""
        model, tensors = self.model(), self.tensors()
        width = len(self.statistics.mean)
        assert isinstance(model, Decoder)

        def of(part: np.ndarray) -> np.ndarray:
            latents = torch.from_numpy(np.array(part, dtype=np.float32)).to(self.device)
            return self.scaling.invert(model.decode(tensors, latents).cpu().numpy())

        return self._map(z, of, (width,), np.float64)

    def recall(self, x: np.ndarray) -> np.ndarray:
        """Latents ``(n, m)`` float32 as the decoder sees them: after the recursion, if any."""
        model, tensors = self.model(), self.tensors()
        if not isinstance(model, Recursive):
            return self.represent(x, np.float32)
        beta = float(self.member["beta"])

        def of(part: np.ndarray) -> np.ndarray:
            rows, observed = to_tensors(self.scale(part), device=self.device)
            found = model.recursed(tensors, beta, rows, observed).cpu().numpy()
            return _unless_unseen(found, observed)

        return self._map(x, of, (tensors["prototypes"].shape[1],), np.float32)

    def reconstruct(self, x: np.ndarray) -> np.ndarray:
        """Rows ``(n, d)`` as the network gives them back; nan where every feature is missing."""
        found = self.decode(self.recall(x))
        if self.scaling.kind == "unit":  # back from directions: by the length of what is seen
            found *= _lengths(x)
        return found

    def memberships(self, x: np.ndarray, dtype: Any) -> np.ndarray:
        """Shares ``(n, k)`` of the clusters in each row; nan where every feature is missing."""
        model, tensors = self.model(), self.tensors()
        assert isinstance(model, Graded)
        beta = float(self.member["beta"])

        def of(part: np.ndarray) -> np.ndarray:
            rows, observed = to_tensors(self.scale(part), device=self.device)
            return _unless_unseen(
                model.memberships(tensors, beta, rows, observed).cpu().numpy(), observed
            )

        return self._map(x, of, (self.n_clusters,), dtype)

    def represent(self, x: np.ndarray, dtype: Any) -> np.ndarray:
        """Rows in the space of the prototypes, ``(n, m)``; nan where every feature is missing."""

        def of(part: np.ndarray) -> np.ndarray:
            rows, observed = to_tensors(self.scale(part), device=self.device)
            z, seen = model.represent(tensors, rows, observed)
            found = z.cpu().numpy()
            if seen is not None:
                found = np.where(seen.cpu().numpy(), found, np.nan)
            return _unless_unseen(found, observed)

        model, tensors = self.model(), self.tensors()
        return self._map(x, of, (tensors["prototypes"].shape[1],), dtype)

    def distances(self, x: np.ndarray, dtype: Any) -> np.ndarray:
        """Distances ``(n, k)`` to the prototypes over what is seen; one minus the cosine."""
        model, tensors = self.model(), self.tensors()
        prototypes = model.placed(tensors).cpu().numpy().astype(np.float64)

        def of(part: np.ndarray) -> np.ndarray:
            z = self.represent(part, np.float64)
            seen = ~np.isnan(z)
            whole = bool(seen.all())
            z = z if whole else np.where(seen, z, 0.0)
            if model.metric_name == "cosine":
                found = 1.0 - z @ prototypes.T
                found[~z.any(axis=1)] = np.nan
                return found
            squares = np.square(prototypes)
            lengths = squares.sum(axis=1) if whole else seen.astype(np.float64) @ squares.T
            found = np.square(z).sum(axis=1)[:, None] - 2.0 * (z @ prototypes.T) + lengths
            found = np.sqrt(np.maximum(found, 0.0))
            found[~seen.any(axis=1)] = np.nan
            return found

        return self._map(x, of, (self.n_clusters,), dtype)

    def check_complete(self) -> None:
        """Make sure that the dynamics are those that fill missing values.

        Raises
        ------
        ValueError
            They are not.
        """
        model = self.model()
        if not isinstance(model, ClAM) or (model.geometry, model.metric) != ("euclidean", "none"):
            raise ValueError(
                "complete: only a Euclidean ClAM without a learned metric recalls missing values; "
                "fit one with geometry='euclidean' and metric='none'"
            )

    def complete(self, x: np.ndarray) -> np.ndarray:
        """Rows with missing values filled, in original units; the others bit for bit."""
        if not np.issubdtype(x.dtype, np.floating):
            return x.copy()
        return self._map(x, self._complete, (x.shape[1],), x.dtype)

    def _complete(self, x: np.ndarray) -> np.ndarray:
        missing = np.isnan(x)
        if not missing.any():
            return x
        model = self.model()
        assert isinstance(model, ClAM)
        rows, observed = to_tensors(self.scale(x), device=self.device)
        if observed is None:  # pragma: no cover - scaling neither adds nor removes a value
            return x
        tensors = self.tensors()
        epsilon = tensors.get("log_epsilon")
        filled = complete(
            rows,
            observed,
            tensors["prototypes"],
            float(self.member["beta"]),
            model.alpha,
            model.steps,
            model.mask_value.to(rows.device),
            objective=str(self.member["objective"]),
            log_epsilon=epsilon,
        )
        values = filled.cpu().numpy().astype(np.float64)
        if self.scaling.kind == "unit":  # back from directions: by the length of what is seen
            values *= _lengths(x)
        known = self.statistics
        values = np.clip(self.scaling.invert(values), known.minimum, known.maximum)
        values[missing.all(axis=1)] = known.mean
        values[:, known.count == 0] = np.nan
        return np.where(missing, values, x)

    def sums(self, x: np.ndarray, weight: np.ndarray | None) -> AssignSums:
        """Sums over rows in original units by the clusters they are put in."""
        found = AssignSums.zeros(self.n_clusters, x.shape[1])
        with one_thread_each(1):
            for rows in _blocks(len(x)):
                part = self.scale(x[rows])
                labels, distances = self.label_scaled(part)
                held = None if weight is None else weight[rows]
                if held is not None:
                    labels = np.where(held > 0, labels, -1)
                new = AssignSums.of(part, labels, self.n_clusters, distances=distances, weight=held)
                found = found.merge(new)
        return found

    def _map(
        self,
        x: np.ndarray,
        function: Callable[[np.ndarray], np.ndarray],
        shape: tuple[int, ...],
        dtype: Any,
    ) -> np.ndarray:
        """``function`` of blocks of rows, put together."""
        found = np.empty((len(x), *shape), dtype=dtype)
        parts = list(_blocks(len(x)))

        def one(rows: slice) -> None:
            found[rows] = function(x[rows])

        with one_thread_each(min(self.threads, len(parts))) as pool:
            list(map(one, parts) if pool is None else pool.map(one, parts))
        return found


def _blocks(rows: int) -> Iterator[slice]:
    for first in range(0, rows, BLOCK_ROWS):
        yield slice(first, min(first + BLOCK_ROWS, rows))


def _unless_unseen(found: np.ndarray, observed: torch.Tensor | None) -> np.ndarray:
    """Results ``(n, …)`` with nan for rows without any value."""
    if observed is None:
        return found
    unseen = ~observed.any(1).cpu().numpy()
    return np.where(unseen[:, None], np.nan, found)


def _lengths(x: np.ndarray) -> np.ndarray:
    """Euclidean length ``(n, 1)`` of what is seen of each row."""
    lengths: np.ndarray = np.sqrt(np.nansum(np.square(np.asarray(x, np.float64)), axis=1))
    return lengths[:, None]
