"""Maps and gangs on the workers of a Dask cluster: embedded, at an address, or made by a class.

The only file that imports ``distributed``. What is decided without it lies in ``gang``,
``window``, ``preflight`` and ``choose``.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client, Lock, get_worker
from distributed.scheduler import KilledWorker

from clam_dist.errors import RunError
from clam_dist.executor import Collective, Event, Item, Result
from clam_dist.launch import machine, preflight, ranks
from clam_dist.launch.clusters import Link
from clam_dist.launch.gang import TELL_SECONDS, Handle, Patience, run_gang
from clam_dist.launch.seat import Outcome, Seat
from clam_dist.launch.window import in_order
