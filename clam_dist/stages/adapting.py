"""A finished model moved to another source without training: passes over all of its rows.

Each pass maps fragments to sums and adds them up in the order of the fragments, so that it does not
matter who read which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from clam_dist.assign import Assignment
from clam_dist.data.rows import read_scaled
from clam_dist.data.source import Fragment
from clam_dist.errors import ConfigError, DataError
from clam_dist.models.adaptation import CentroidSums, LatentSums, merge, next_centroids
from clam_dist.models.base import Parameters
from clam_dist.models.rows import to_tensors
from clam_dist.stages.context import Context
from clam_dist.stages.labels import LabelPlan
from clam_dist.stages.profile import fragments_of

Sums = TypeVar("Sums", LatentSums, CentroidSums)
Rows = tuple[Tensor, "Tensor | None", "Tensor | None"]
"""Rows ``(n,d)``, weights ``(n,)``, what is observed ``(n,d)``."""


@runtime_checkable
class Adaptive(Protocol):
    """A model that finds its centroids in the rows at hand, in passes over them (TDCM)."""

    blocks: int

    def latent_sums(
        self, parameters: Parameters, x: Tensor, weight: Tensor | None, observed: Tensor | None
    ) -> LatentSums:
        """Of some rows, for the first pass."""
        ...

    def adapt_sums(
        self,
        parameters: Parameters,
        statistics: LatentSums,
        centroids: Tensor,
        x: Tensor,
        weight: Tensor | None,
        observed: Tensor | None,
    ) -> CentroidSums:
        """Of some rows, for each further pass."""
        ...

    def adapted(
        self, parameters: Parameters, statistics: LatentSums, centroids: Tensor, like: Tensor
    ) -> dict[str, Tensor]:
        """The parameters that the passes come to."""
        ...


def adaptive(model: object, kind: str) -> Adaptive:
    """The model, if it can adapt.

    Raises
    ------
    ConfigError
        It cannot.
    """
    if not isinstance(model, Adaptive):
        raise ConfigError(
            f"--adapt: the prototypes of a {kind} model are trained and do not adapt to rows; "
            "leave --adapt out, or train on the new source with `clam-dist run`"
        )
    return model


def adapt(context: Context, plan: LabelPlan) -> dict[str, Tensor]:
    """All parameters of the plan's model, adapted to the plan's source.

    Reads the source ``1 + blocks`` times.

    Returns
    -------
    dict of str to Tensor
        Without a leading axis.

    Raises
    ------
    ConfigError
        The model cannot adapt.
    DataError
        No row has a value.
    """
    model, parameters = _loaded(plan.assignment)
    fragments = fragments_of(plan.source)

    def total(function: Callable[[Fragment], Sums | None], name: str) -> Sums:
        parts = context.executor.map(function, fragments)
        rows = [fragment.n_rows for fragment in fragments]
        found = [part for part in context.track(name, parts, rows) if part is not None]
        if not found:
            raise DataError(
                f"source.uri: '{plan.source.uri}' has no row with a value, and --adapt needs some"
            )
        return merge(found)

    statistics = total(partial(latent_sums, plan=plan), "adapt")
    start = parameters["start"].to(torch.float64)
    centroids = start
    for _ in range(model.blocks):
        task = partial(centroid_sums, plan=plan, statistics=statistics, centroids=centroids)
        centroids = next_centroids(total(task, "adapt"), start)
    changed = model.adapted(parameters, statistics, centroids, parameters["prototypes"])
    return {name: value[0].contiguous() for name, value in {**parameters, **changed}.items()}


def latent_sums(fragment: Fragment, *, plan: LabelPlan) -> LatentSums | None:
    """The first pass over one fragment; None where it has no row with a value."""
    model, parameters = _loaded(plan.assignment)
    return _sum([model.latent_sums(parameters, *rows) for rows in _rows(fragment, plan)])


def centroid_sums(
    fragment: Fragment, *, plan: LabelPlan, statistics: LatentSums, centroids: Tensor
) -> CentroidSums | None:
    """One further pass over one fragment; None where it has no row with a value."""
    model, parameters = _loaded(plan.assignment)
    rows = _rows(fragment, plan)
    return _sum([model.adapt_sums(parameters, statistics, centroids, *part) for part in rows])


def _sum(parts: Sequence[Sums]) -> Sums | None:
    return merge(parts) if parts else None


def _loaded(assignment: Assignment) -> tuple[Adaptive, dict[str, Tensor]]:
    """The model, and one member's parameters on the CPU with a leading axis."""
    parameters = {name: value[None] for name, value in load_file(assignment.path).items()}
    return adaptive(assignment.model(), assignment.settings["kind"]), parameters


def _rows(fragment: Fragment, plan: LabelPlan) -> Iterator[Rows]:
    """Rows that have a value, a batch at a time."""
    torch.set_num_threads(1)
    for rows in read_scaled(
        plan.source,
        fragment,
        plan.schema,
        plan.scaling,
        missing=plan.missing,
        fill=plan.fill,
        weight_column=plan.weight,
        storage_options=plan.storage_options,
    ):
        usable = slice(None) if rows.usable is None else rows.usable
        x, observed = to_tensors(np.ascontiguousarray(rows.x[usable]))
        if len(x):
            yield x, None if rows.w is None else torch.from_numpy(rows.w[usable]), observed
