"""From settings to a model: the one place that knows the models by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clam_dist.errors import ConfigError
from clam_dist.models.clam import ClAM


def build_model(settings: Mapping[str, Any], member: Mapping[str, Any]) -> ClAM:
    """The equations of one member of a sweep.

    Parameters
    ----------
    settings
        What all members share: ``kind``, ``step_size``, ``mask_value`` ``(d,)`` in scaled units,
        ``seed``; and where they differ from their defaults ``geometry`` (euclidean), ``group_rows``
        (64) and ``precision`` (float32).
    member
        Its own: ``n_clusters``, ``steps``, ``objective``, ``mask_rate``.

    Raises
    ------
    ConfigError
        No model has that name.
    """
    if settings["kind"] != "clam":
        raise ConfigError(f"model.kind: {settings['kind']!r} is not available; use clam")
    return ClAM(
        n_clusters=int(member["n_clusters"]),
        steps=int(member["steps"]),
        step_size=settings["step_size"],
        objective=member["objective"],
        # Unmasked members hide nothing; any rate will do.
        mask_rate=float(member["mask_rate"]) or 0.15,
        mask_value=settings["mask_value"],
        group_rows=int(settings.get("group_rows", 64)),
        seed=int(settings["seed"]),
        geometry=settings.get("geometry", "euclidean"),
        precision=settings.get("precision", "float32"),
    )
