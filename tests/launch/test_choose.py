"""Which executor a run gets: the contract's rules, value by value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from clam_dist.errors import ConfigError
from clam_dist.launch import SerialExecutor, make_executor
from clam_dist.launch.choose import choose_kind, plan_memory_limit, plan_workers

GIB = 2**30
SMALL, LARGE = 256 * 2**20 - 1, 256 * 2**20


@dataclass(frozen=True)
class Settings:
    kind: str = "auto"
    workers: Any = "auto"
    memory_limit: Any = "auto"
    address: str | None = None
    cluster_class: str | None = None
    cluster_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wait: float = 5.0
    max_restarts: int = 5
    collective_interface: str | None = None
    collective_host: str | None = None
    collective_port: int = 0


@pytest.mark.parametrize(
    ("settings", "decoded", "kind"),
    [
        (Settings(), SMALL, "serial"),
        (Settings(), LARGE, "local"),
        (Settings(workers=1), SMALL, "serial"),
        (Settings(workers=1), LARGE, "local"),
        (Settings(workers=2), 0, "local"),
        (Settings(kind="local"), 0, "local"),
        (Settings(kind="serial"), 10**12, "serial"),
        (Settings(address="tcp://a:1"), 0, "address"),
        (Settings(cluster_class="dask_cuda.LocalCUDACluster"), 0, "class"),
    ],
)
def test_kind(settings: Settings, decoded: int, kind: str) -> None:
    assert choose_kind(settings, decoded) == kind


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(kind="address"), "cluster.address is not set"),
        (Settings(kind="class"), "cluster.cluster_class is not set"),
        (Settings(kind="local", address="tcp://a:1"), "cluster.kind is local"),
        (Settings(kind="serial", workers=2), "cluster.workers is 2"),
        (Settings(collective_interface="lo", collective_host="::1"), "are both set"),
    ],
)
def test_settings_that_contradict_one_another(settings: Settings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_kind(settings, 0)


@pytest.mark.parametrize(
    ("asked", "cores", "memory", "shards", "workers"),
    [
        ("auto", 8, 64 * GIB, 64, 8),
        ("auto", 8, 3 * GIB + 1, 64, 3),
        ("auto", 8, 64 * GIB, 2, 2),
        ("auto", 8, GIB // 2, 64, 1),
        (7, 2, GIB, 1, 7),
    ],
)
def test_workers(asked: Any, cores: int, memory: int, shards: int, workers: int) -> None:
    planned = plan_workers(asked, cores=cores, memory_bytes=memory, n_shards=shards)
    assert planned == workers


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(workers=4097, address="tcp://a:1"), "4097 is more than 4096"),
        (Settings(workers=4096, kind="local"), r"4096 processes on \d+ core\(s\) are more than 64"),
    ],
)
def test_a_number_of_workers_that_must_be_a_mistake(settings: Settings, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^cluster\.workers: {words}"):
        make_executor(settings, decoded_bytes=0, n_shards=1)


def test_the_most_workers_a_core() -> None:
    assert plan_workers(128, cores=2, memory_bytes=GIB, n_shards=1) == 128
    with pytest.raises(ConfigError, match=r"129 processes on 2 core\(s\)"):
        plan_workers(129, cores=2, memory_bytes=GIB, n_shards=1)


def test_memory_limits() -> None:
    assert plan_memory_limit("auto", workers=4, memory_bytes=40 * GIB) == 9 * GIB
    assert plan_memory_limit("auto", workers=4, memory_bytes=GIB) == GIB
    assert plan_memory_limit(2 * GIB, workers=4, memory_bytes=GIB) == 2 * GIB
    with pytest.raises(ConfigError, match=r"cluster\.memory_limit: 300 MiB .* 512 MiB"):
        plan_memory_limit(300 * 2**20, workers=1, memory_bytes=40 * GIB)


def test_a_small_run_is_serial_and_says_so() -> None:
    events: list[Any] = []
    executor = make_executor(Settings(), decoded_bytes=1, n_shards=1, on_event=events.append)
    assert isinstance(executor, SerialExecutor)
    assert events == [{"event": "cluster", "workers": 1, "dashboard": None}]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("dask_cuda.LocalCUDACluster", r"pip install dask-cuda$"),
        ("LocalCUDACluster", r"pip install dask-cuda$"),
        ("SLURMCluster", r"dask_jobqueue\.SLURMCluster needs .* pip install dask-jobqueue$"),
        ("KubeCluster", r"pip install dask-kubernetes$"),
        ("GatewayCluster", r"pip install dask-gateway$"),
        ("no_such_jobqueue.SLURMCluster", r"pip install no-such-jobqueue$"),
        ("distributed.NoSuchCluster", "there is no class distributed.NoSuchCluster"),
        ("distributed.no_such_module.Cluster", "there is no class distributed.no_such_module"),
        ("LocalCluster", "write package.module.Class"),
    ],
)
def test_a_cluster_class_that_is_not_there(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_executor(Settings(cluster_class=path), decoded_bytes=0, n_shards=1)


def test_arguments_that_a_class_refuses() -> None:
    settings = Settings(cluster_class="fractions.Fraction", cluster_kwargs={"numerator": "x"})
    with pytest.raises(ConfigError, match=r"cluster\.cluster_kwargs: .* ValueError"):
        make_executor(settings, decoded_bytes=0, n_shards=1)


def test_an_address_where_nobody_answers() -> None:
    settings = Settings(address="tcp://127.0.0.1:9", wait=1.0)
    with pytest.raises(ConfigError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9"):
        make_executor(settings, decoded_bytes=0, n_shards=1)
