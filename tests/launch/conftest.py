"""One small embedded cluster for all tests of the launcher."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import cloudpickle
import psutil
import pytest

from clam_dist.launch import dask
from clam_dist.launch.gang import Patience
from clam_dist.launch.workers import DaskExecutor

PATIENCE = Patience(wait=60.0, settle=30.0, grace=3.0, rendezvous=60.0, max_restarts=2)
"""Generous where a busy machine is slow; nothing here waits for these limits to pass."""


@pytest.fixture(scope="session")
def link() -> Iterator[dask.Link]:
    """Two worker processes of one thread each."""
    environment = dict(os.environ)
    levels = [(handler, handler.level) for handler in logging.getLogger("distributed").handlers]
    link = dask.embedded(2, 2**30, 1)
    for handler, level in levels:  # pytest's own, which Dask takes for its console and turns down
        handler.setLevel(level)
    assert dict(os.environ) == environment, "nannies set OMP_NUM_THREADS and more"
    yield link
    pids = [nanny.pid for nanny in link.cluster.workers.values()]
    link.close()
    assert not [pid for pid in pids if pid and psutil.pid_exists(pid)]


@pytest.fixture
def cluster(link: dask.Link) -> DaskExecutor:
    """An executor on it, two workers at hand whatever the test before did to them."""
    executor = DaskExecutor(link, patience=PATIENCE)
    executor.wait_for_workers(2)
    return executor


@pytest.fixture(autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers cannot import test modules, so their functions are sent as code."""
    module = request.module
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)
