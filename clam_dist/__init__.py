"""Distributed clustering with associative memories: Parquet in, a label for every row out.

The names below are imported on first use, so that ``import clam_dist`` and the command's
``--help`` cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clam_dist.estimators import TDCM, ClAM, DClAM
    from clam_dist.evaluation.silhouette import silhouette_sampled
    from clam_dist.loaded import load_model
    from clam_dist.stages import run

__all__ = ["TDCM", "ClAM", "DClAM", "__version__", "load_model", "run", "silhouette_sampled"]

try:
    __version__ = version("clam-dist")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

_WHERE = {
    "ClAM": ("clam_dist.estimators", "ClAM"),
    "DClAM": ("clam_dist.estimators", "DClAM"),
    "TDCM": ("clam_dist.estimators", "TDCM"),
    "load_model": ("clam_dist.loaded", "load_model"),
    "run": ("clam_dist.stages", "run"),
    "silhouette_sampled": ("clam_dist.evaluation.silhouette", "silhouette_sampled"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'clam_dist' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
