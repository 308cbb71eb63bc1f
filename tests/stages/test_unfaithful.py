"""A network that forgot the rows is told of, wherever a run speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clam_dist
from clam_dist.config import config_from_dict
from clam_dist.train import result


@pytest.mark.parametrize(("faithful", "told"), [(0.0, True), (1e9, False)])
def test_a_run_says_that_its_network_forgot_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faithful: float, told: bool
) -> None:
    monkeypatch.setattr(result, "FAITHFUL", faithful)
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, 600)
    x = generator.normal(size=(600, 4)) + 6 * truth[:, None]
    pq.write_table(pa.table({f"x{i}": x[:, i] for i in range(4)}), tmp_path / "rows.parquet")
    config = {
        "source": {"uri": str(tmp_path / "rows.parquet")},
        "model": {"kind": "dclam", "n_clusters": 3, "latent": 2, "pretrain_epochs": 2},
        "train": {"restarts": 1, "epochs": 1},
        "work": {"keep": True},
        "cluster": {"kind": "serial"},
        "output": {"uri": str(tmp_path / "out")},
    }
    events: list[Mapping[str, Any]] = []
    clam_dist.run(config_from_dict(config), on_event=events.append)
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    found = [message for message in warnings if "of its pretrained network" in message]
    assert len(found) == int(told)
    manifest = (tmp_path / "out/_work/manifests/train.json").read_text(encoding="utf-8")
    assert json.loads(manifest)["data"]["warnings"] == found
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert ("of its pretrained network" in page) is told
