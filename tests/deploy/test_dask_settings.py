"""dask.yaml: what Dask's own schema allows, keys that Dask reads, values that take effect."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import distributed
import jsonschema
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deployed import DEPLOY, ROOT, documents

SETTINGS = documents(DEPLOY / "dask.yaml")[0]
PACKAGE = Path(distributed.__file__).parent


def keys(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value with its path of keys."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from keys(value, (*path, key))
    else:
        yield path, node


def test_dask_s_schema_allows_it():
    schema = yaml.safe_load((PACKAGE / "distributed-schema.yaml").read_text())
    jsonschema.validate(SETTINGS, schema)


def test_every_key_is_one_that_dask_reads():
    known = {path for path, _ in keys(documents(PACKAGE / "distributed.yaml")[0])}
    assert {path for path, _ in keys(SETTINGS)} <= known


def test_dask_takes_it_and_keeps_the_rest(monkeypatch):
    monkeypatch.setenv("DASK_CONFIG", str(DEPLOY / "dask.yaml"))
    found: dict[str, Any] = {}
    for layer in dask.config.collect_yaml(
        [str(PACKAGE / "distributed.yaml"), str(DEPLOY / "dask.yaml")]
    ):
        found = dict(dask.config.merge(found, layer))
    for path, value in keys(SETTINGS):
        assert dask.config.get(".".join(path), config=found) == value
    # A mapping of the file is merged: what it leaves out stays Dask's own.
    assert dask.config.get("distributed.nanny.pre-spawn-environ.MKL_NUM_THREADS", config=found) == 1


def test_it_says_what_embedded_clusters_are_given():
    """A cluster started by hand behaves as one that a run starts by itself."""
    source = (ROOT / "clam_dist" / "launch" / "dask.py").read_text(encoding="utf-8")
    assert '_MEMORY_STEPS = ("target", "spill", "pause")' in source
    worker = SETTINGS["distributed"]["worker"]
    memory = worker["memory"]
    assert (memory["target"], memory["spill"], memory["pause"]) == (False, False, False)
    assert worker["profile"]["enabled"] is False


def test_a_silent_worker_is_given_up_by_the_run_first():
    from dask.utils import parse_timedelta

    from clam_dist.launch.pool import Patience

    patience = Patience().silent
    assert parse_timedelta(SETTINGS["distributed"]["scheduler"]["worker-ttl"]) > patience
