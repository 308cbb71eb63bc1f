"""The pipeline's own train stage on clusters whose workers come late, and whose ranks fail."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from clam_dist.config import Config, Stage, config_from_dict
from clam_dist.demo import write_demo
from clam_dist.errors import RunError
from clam_dist.launch import dask
from clam_dist.launch.gang import Patience
from clam_dist.launch.workers import DaskExecutor
from clam_dist.stages.context import STAGE_NAMES
from clam_dist.stages.pipeline import open_run, run

sys.path.insert(0, str(Path(__file__).parent))
from by_hand import HandCluster, hand_cluster


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    with hand_cluster(
        tmp_path_factory.mktemp("hand"), 1, worker_options=["--memory-limit", "2GiB"]
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "vowels.parquet"
    write_demo("vowels", path, rows=60_000)
    return path


def config(data: Path, out: Path, **cluster: Any) -> Config:
    return config_from_dict(
        {
            "source": {"uri": str(data), "label": "label"},
            # So deep that an epoch takes a while: a worker has to join before the last one ends.
            "model": {"n_clusters": 9, "beta": 1.0, "objective": "unmasked", "steps": 60},
            "train": {"restarts": 4, "epochs": 12, "batch_rows": 16384},
            "cluster": cluster,
            "output": {"uri": str(out)},
            "work": {"keep": True},
        }
    )


def on_cluster(address: str, patience: Patience) -> Callable[..., DaskExecutor]:
    """In the place of ``make_executor``: as it does it, with time limits for a test."""

    def make(settings: Any, *, work_folder: str, log_folder: str, on_event: Any, **_: Any) -> Any:
        del settings
        link = dask.connected(address, 60.0)
        executor = DaskExecutor(link, patience=patience, on_event=on_event, logs=Path(log_folder))
        executor.wait_for_workers(1)
        executor.preflight(work_folder)
        return executor

    return make


def run_on(
    address: str,
    settings: Config,
    on_event: Callable[[Any], None],
    patience: Patience,
    stages: Sequence[Stage] = STAGE_NAMES,
) -> dict[str, Any]:
    """Stages on a cluster; the facts that each found."""
    with open_run(settings, on_event=on_event) as opened:
        opened._context.make_executor = on_cluster(address, patience)
        return {name: opened.stage(name).manifest["data"] for name in stages}


def test_ranks_grow_with_workers_that_join_while_training(
    by_hand: HandCluster, data: Path, tmp_path: Path
) -> None:
    """To the number that has work, and to the labels of a run without any of it."""
    run(config(data, tmp_path / "alone", kind="serial"))
    (first,) = by_hand.workers
    events: list[Any] = []

    def on_event(event: Any) -> None:
        events.append(event)
        if event["event"] == "epoch" and len(by_hand.workers) == 1:
            # The one that trains waits for the one that comes, however busy this machine is.
            first.send_signal(signal.SIGSTOP)
            by_hand.add_worker("--memory-limit", "2GiB")
            link = dask.connected(by_hand.address, 60.0)
            while len(link.workers()) < 2:
                time.sleep(0.05)
            link.close()
            first.send_signal(signal.SIGCONT)

    settings = config(data, tmp_path / "grown", kind="address", address=by_hand.address)
    patience = Patience(wait=60.0, settle=5.0, grow=0.0)
    assert run_on(by_hand.address, settings, on_event, patience)["train"]["ranks"] == 2
    told = [event["message"] for event in events if event["event"] == "log"]
    assert told == ["1 more worker(s) joined: going on with them from here"]
    notes = [event["message"] for event in events if event["event"] == "note"]
    assert any("training goes on from its checkpoint" in note for note in notes)
    labels = [pq.read_table(tmp_path / name / "labels") for name in ("alone", "grown")]
    assert labels[0].equals(labels[1])


def test_workers_that_would_have_no_work_are_named(
    by_hand: HandCluster, data: Path, tmp_path: Path
) -> None:
    while len(by_hand.workers) < 2:
        by_hand.add_worker("--memory-limit", "2GiB")
    link = dask.connected(by_hand.address, 60.0)
    while len(link.workers()) < 2:
        time.sleep(0.05)
    link.close()
    events: list[Any] = []
    settings = config(data, tmp_path / "out", kind="address", address=by_hand.address)
    train = settings.train.model_copy(update={"batch_rows": 512, "epochs": 1})
    settings = settings.model_copy(update={"train": train})
    patience = Patience(wait=60.0)
    found = run_on(by_hand.address, settings, events.append, patience, STAGE_NAMES[:3])
    assert found["train"]["ranks"] == 1
    told = [event["message"] for event in events if event["event"] == "log"]
    assert told == [
        "training uses 1 of 2 workers: a batch of 512 rows has 1 micro-batch(es)",
    ]


def test_a_rank_that_raises_leaves_its_last_lines(
    by_hand: HandCluster, data: Path, tmp_path: Path
) -> None:
    events: list[Any] = []
    cut: list[Path] = []

    def on_event(event: Any) -> None:
        events.append(event)
        if event["event"] == "epoch" and not cut:
            cut.extend((tmp_path / "out" / "_work" / "shards").glob("*.x.npy"))
            for path in cut:
                if "sample" not in path.name:
                    os.truncate(path, 4096)

    settings = config(data, tmp_path / "out", kind="address", address=by_hand.address)
    settings = settings.model_copy(
        update={"train": settings.train.model_copy(update={"epochs": 2000})}
    )
    with pytest.raises(RunError) as caught:
        run_on(by_hand.address, settings, on_event, Patience(wait=60.0))
    assert cut
    logs = sorted((tmp_path / "out" / "logs").iterdir())
    assert [path.name for path in logs] == [
        f"attempt-1-worker-{number}.log" for number in range(len(logs))
    ]
    text = "\n".join(path.read_text() for path in logs)
    assert 'reported {"event": "epoch"' in text
    assert str(caught.value).split(";")[0] in text
    assert f"(logs: {tmp_path}/out/logs/attempt-1-*.log)" in caught.value.__notes__[-1]


def test_the_limit_of_workers_that_someone_else_started(by_hand: HandCluster) -> None:
    executor = DaskExecutor(dask.connected(by_hand.address, 60.0))
    try:
        assert executor.memory_limit == 2 * 2**30
        assert executor.device == "cpu"
    finally:
        executor.close()
