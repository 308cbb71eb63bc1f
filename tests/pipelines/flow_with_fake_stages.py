"""Runs the real flow, in a process of its own, over stages that only pretend.

``python flow_with_fake_stages.py SCRIPT CONFIG [--set ...]`` with SCRIPT a JSON object:
``reused`` (names of stages), ``fail`` ({stage: [error class, message]}), ``sleep`` ({stage:
seconds}), ``already_done``, ``force`` (what the flow is to pass on).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from clam_dist import errors

STAGE_NAMES = ("profile", "shards", "train", "assign", "evaluate", "report")
METRICS = {
    "n_rows": 1000,
    "n_clusters": 3,
    "n_used": 3,
    "silhouette": {"value": 0.25, "standard_error": 0.001},
}

DATA = {
    "profile": {"n_rows": 1000},
    "evaluate": {
        "clusters": {
            "features": ["a"],
            "clusters": [
                {"cluster": 0, "rows": 300, "share": 0.3, "distance": 1.0, "silhouette": None}
                | {"means": [None]},
                {"cluster": 1, "rows": 700, "share": 0.7, "distance": 1.0, "silhouette": 0.5}
                | {"means": [2.0]},
            ],
        }
    },
}


@dataclass(frozen=True)
class StageOutcome:
    name: str
    manifest: dict[str, Any]
    reused: bool
    seconds: float


@dataclass
class FakeRun:
    output: str
    script: dict[str, Any]
    on_event: Any
    run_id: str = "fake"
    done: list[str] = field(default_factory=list)
    finished: bool = False

    @property
    def already_done(self) -> bool:
        return bool(self.script.get("already_done"))

    def stage(self, name: str) -> StageOutcome:
        assert name == STAGE_NAMES[len(self.done)]
        if name == "train":
            self.on_event({"event": "cluster", "workers": 2, "dashboard": "http://dask:8787"})
            for epoch in range(1, 4):
                self.on_event(
                    {"event": "epoch", "stage": "train", "phase": "train", "epoch": epoch}
                    | {"epochs": 3, "loss": 1.0 / epoch, "rows_per_second": 1e6}
                    | {"learning_rate": 0.01, "members": 4}
                )
        if name in self.script.get("sleep", {}):
            print(f"sleeping in {name}", flush=True)
            time.sleep(self.script["sleep"][name])
        if name in self.script.get("fail", {}):
            kind, message = self.script["fail"][name]
            raise getattr(errors, kind, ZeroDivisionError)(message)
        self.done.append(name)
        manifest = {"stage": name, "data": DATA.get(name, {})}
        return StageOutcome(name, manifest, name in self.script.get("reused", ()), 0.1)

    def finish(self) -> dict[str, Any]:
        assert self.done == list(STAGE_NAMES)
        self.finished = True
        return METRICS

    def markdown_report(self) -> str:
        assert self.done[-1] == "report"
        assert not self.finished  # which removes what the report is made of
        return "# three clusters"


def fake_stages(script: dict[str, Any]) -> types.ModuleType:
    """A module of the shape of ``clam_dist.stages``."""

    @contextlib.contextmanager
    def open_run(config: Any, *, force: bool, on_event: Any) -> Iterator[FakeRun]:
        assert force == script.get("force", False)
        try:
            yield FakeRun(config.output.uri, script, on_event)
        finally:
            print("closed", flush=True)

    module = types.ModuleType("clam_dist.stages")
    module.STAGE_NAMES = STAGE_NAMES  # type: ignore[attr-defined]
    module.open_run = open_run  # type: ignore[attr-defined]
    return module


if __name__ == "__main__":
    sys.modules["clam_dist.stages"] = fake_stages(json.loads(sys.argv[1]))
    from pipelines.cluster import main

    sys.exit(main(sys.argv[2:]))
