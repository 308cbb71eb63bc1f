"""The stages of a run, and the run itself; imported on first use of a name.

A stage is a plain function of the context, which holds the config, the manifests of earlier
stages and the executor. Manifests are the only truth about what is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clam_dist.stages.context import STAGE_NAMES
    from clam_dist.stages.pipeline import Run, StageOutcome, open_run, run

__all__ = ["STAGE_NAMES", "Run", "StageOutcome", "open_run", "run"]


def __getattr__(name: str) -> Any:
    if name == "STAGE_NAMES":
        from clam_dist.stages.context import STAGE_NAMES

        return STAGE_NAMES
    if name in __all__:
        from clam_dist.stages import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'clam_dist.stages' has no attribute {name!r}")
