"""Who runs the work: this process, or the workers of a Dask cluster.

``make_executor`` chooses; everything else implements the Protocols of ``clam_dist.executor``.
Nothing here knows of training.
"""

from __future__ import annotations

from clam_dist.launch.choose import make_executor
from clam_dist.launch.serial import SerialExecutor

__all__ = ["SerialExecutor", "make_executor"]
