"""Memory as a contract: what a worker will hold is known before the run, and it holds no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from clam_dist.config import config_from_dict
from clam_dist.data.reader import ShardFile, ShardReader
from clam_dist.errors import ConfigError
from clam_dist.evaluation.labelings import score_labelings
from clam_dist.evaluation.references import ReferenceCollector
from clam_dist.evaluation.scores import AssignSums
from clam_dist.models.clam import ClAM
from clam_dist.models.factory import build_model, initial_parameters
from clam_dist.models.metric import initial_metric
from clam_dist.models.sums import SPACE
from clam_dist.stages import budget, memory, training_memory
from clam_dist.stages.budget import AIM, BUFFER_BYTES, MOST_OF_LIMIT
from clam_dist.stages.forms import form_of
from clam_dist.stages.live_memory import Live
from clam_dist.stages.pipeline import open_run, run
from clam_dist.stages.settings import network_settings, shared_settings, sweep
from clam_dist.stages.sizes import MIB, Crowd, Form, Sizes
from clam_dist.stages.sizing import TEXT_BYTES, sizes_of, stored_bytes
from clam_dist.train.members import Member
from clam_dist.train.population import build_group
from clam_dist.train.reduction import lanes_to_read
from clam_dist.train.schedule import lanes_of

SIZES = Sizes(
    n_rows=1_000_000,
    width=14,
    columns=15,
    stored_bytes=56,
    nested_bytes=0,
    kept_bytes=8,
    group_rows=131_072,
    shard_rows=15_625,
    sample_rows=16_384,
    query_rows=10_000,
    gathered_rows=0,
    missing=False,
    weighted=False,
    weighted_model=False,
    references=2000,
    search=(Crowd(32, 9, 10, 2), Crowd(32, 9, 10, 0)),
    finalists=(Crowd(4, 9, 10, 0),),
    batch_rows=8192,
    search_batch_rows=256,
    workers=2,
    threads=1,
    buffer_bytes=64 * MIB,
)


def total(sizes: Sizes, stage: str) -> int:
    return sum(memory.stages(sizes)[stage].values())


def traced(function) -> int:
    """Peak bytes of NumPy's arrays and Python's objects that a call makes."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- the sums are those of the arrays ------------------------------------------------------------


@pytest.mark.parametrize("objective", ["masked", "unmasked"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("members", "k", "width", "steps", "rows"),
    [
        (16, 9, 14, 10, 2048),
        (4, 9, 256, 10, 2048),
        (64, 9, 14, 10, 256),
        (2, 100, 20, 5, 2048),
        (2, 100, 200, 5, 512),
    ],
)
def test_kernels_scratch_is_what_is_projected(members, k, width, steps, rows, missing, objective):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator)
    observed = None
    if missing:  # in every second row
        observed = torch.rand(rows, width, generator=generator) > 0.1
        observed[::2] = True
    model = ClAM(k, steps, objective=objective)
    prototypes = torch.randn(members, k, width, generator=generator)
    SPACE._buffers.clear()
    model.gradient_sums({"prototypes": prototypes}, torch.ones(members), x, None, observed, (0,))
    taken = sum(buffer.numel() * buffer.element_size() for buffer in SPACE._buffers.values())
    SPACE._buffers.clear()
    hidden = max(1, round(0.15 * width)) if objective == "masked" else 0
    crowd = Crowd(members, k, steps, hidden)
    sizes = replace(SIZES, width=width, missing=missing, batch_rows=rows, sample_rows=4 * rows)
    projected = training_memory.workspace(sizes, crowd)
    # With missing values complete rows take other scratch than incomplete ones, some of it shared.
    assert (0.3 if missing else 0.6) * projected <= taken <= 1.1 * projected + 2 * MIB * missing


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("objective", "metric", "loss"),
    [
        ("unmasked", "full", "squared"),
        ("unmasked", "diagonal", "squared"),
        ("unmasked", "none", "huber"),
        ("noise", "none", "squared"),
        ("masked", "diagonal", "squared"),
    ],
)
@pytest.mark.parametrize(("members", "k", "width", "rows"), [(16, 9, 14, 2048), (4, 9, 128, 2048)])
def test_scratch_of_kernels_in_the_rows_space(
    members, k, width, rows, objective, metric, loss, missing
):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator)
    observed = torch.rand(rows, width, generator=generator) > 0.1 if missing else None
    model = ClAM(k, 10, objective=objective, metric=metric, loss=loss)
    parameters = {"prototypes": torch.randn(members, k, width, generator=generator)}
    if metric != "none":
        parameters["metric"] = initial_metric(metric, members, width)
    SPACE._buffers.clear()
    with Live() as live:
        model.gradient_sums(parameters, torch.ones(members), x, None, observed, (0,))
    SPACE._buffers.clear()
    numbers = sum(value[0].numel() for value in parameters.values())
    hidden = max(1, round(0.15 * width)) if objective == "masked" else 0
    crowd = Crowd(members, k, 10, hidden)
    form = Form(own_kernels=False, metric=numbers - k * width)
    sizes = replace(SIZES, width=width, missing=missing, batch_rows=rows, form=form)
    parts = training_memory._steps(sizes, [crowd], 1)
    projected = parts["kernel workspaces"]
    # Rows with the noise on them, and what is seen as numbers, are held by the step.
    assert 0.4 * projected <= live.most <= 1.15 * projected + 12 * x.nbytes


def to_its_end(steps) -> None:
    """Exchange sums with nobody."""
    total = next(steps)
    while True:
        try:
            total = steps.send(total.clone())
        except StopIteration:
            return


def deep(kind: str, **network):
    config = config_from_dict(
        {
            "source": {"uri": "x"},
            "model": {"kind": kind, "n_clusters": 5, "network": network},
            "train": {"restarts": 3},
        }
    )
    members = sweep(config.model, config.train, {5: 1.0})
    return config, members


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", ["dclam", "tdcm"])
def test_a_networks_pass_is_walked_as_it_will_be(kind, missing):
    """On the meta device as on the processor, byte by byte."""
    config, members = deep(kind, hidden=[32, 16])
    form = form_of(config, members, 12, [5], 1500, missing)
    settings = shared_settings(config.model, config.train) | {"mask_value": [0.0] * 12, "seed": 0}
    settings |= network_settings(config.model, config.train, 12, [5])
    network = initial_parameters(settings, [member.to_json() for member in members[:1]], None)
    model = build_model(settings, members[0].to_json())
    x = torch.randn(1500, 12, generator=torch.Generator().manual_seed(0))
    observed = torch.ones_like(x, dtype=torch.bool) if missing else None
    own = {n: value[0] for n, value in network.items() if n != "prototypes"}
    begun, _ = model.begin(own, x, None, observed, 0)
    parameters = {name: value[None] for name, value in (own | begun).items()}
    given = (parameters, torch.ones(1), x, None, observed, (0,))
    with Live() as live:
        if kind == "dclam":
            model.gradient_sums(*given)
        else:
            to_its_end(model.gradient_exchange(*given))
    assert abs(live.most - form.pass_bytes) <= 64  # single numbers are elsewhere
    numbers = sum(value.numel() for value in own.values())
    assert form.network == numbers
    assert form.networks == 3
    every = sum(value.numel() for value in parameters.values())
    assert form.network + form.derived + 5 * form.latent == every
    # A population is at most four arrays of all that; the derived ones have no moments.
    sizes = replace(SIZES, width=12, form=form)
    tensors = build_group([members[0]], model, parameters).tensors()
    taken = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert 12 * every <= taken <= 16 * sizes.numbers([Crowd(1, 5, 10, 0)])


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("buffer_bytes", [1 << 16, 1 << 20, 1 << 26])
def test_shard_buffers_are_what_the_reader_takes(workers, buffer_bytes):
    sizes = replace(SIZES, workers=workers, buffer_bytes=buffer_bytes)
    files = [ShardFile(f"{i}.x.npy", sizes.shard_rows) for i in range(64)]
    lanes = lanes_of(sizes.batch_rows)
    taken = [
        ShardReader(
            "nowhere",
            files,
            width=sizes.width,
            lanes=lanes,
            owned=lanes_to_read(lanes, rank, workers),
            batch_rows=sizes.batch_rows,
            seed=0,
            buffer_bytes=buffer_bytes,
        ).allocated_bytes
        for rank in range(workers)
    ]
    projected = training_memory.shard_buffers(sizes)
    assert 0.6 * projected <= max(taken) <= 1.05 * projected + (1 << 16)


def test_a_population_is_four_arrays_of_its_parameters():
    member = Member(0, 9, 10, "masked", 0.15, 1.0, 1.0, 0.1, 0, "kmeans")
    parameters = {"prototypes": torch.zeros(5, 9, 14), "log_epsilon": torch.zeros(5, 9)}
    tensors = build_group([member] * 5, ClAM(9, 10), parameters).tensors()
    taken = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert taken == 16 * Crowd(5, 9, 10, 2).numbers(14, weighted=True)


@pytest.mark.parametrize(("members", "queries"), [(64, 2048), (10, 8192)])
def test_scoring_is_what_is_projected(members, queries, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)  # as many threads as there are at most
    x = np.random.default_rng(0).standard_normal((16_384, 14), dtype=np.float32)
    labels = np.random.default_rng(1).integers(9, size=(members, len(x)))
    score_labelings(x[:200], labels[:1, :200], [9])
    taken = traced(lambda: score_labelings(x, labels, [9] * members, queries=queries))
    (projected,) = training_memory.scoring(SIZES, members, 9, queries).values()
    # Labels of all members are there before: 20 bytes of each.
    assert 0.75 * projected <= taken + 20 * labels.size <= 1.1 * projected


@pytest.mark.parametrize("width", [14, 64])
def test_references_of_a_task_are_what_is_projected(width):
    sizes = replace(SIZES, width=width, stored_bytes=4 * width, references=500, shard_rows=40_000)
    sizes = replace(sizes, finalists=(Crowd(1, 9, 10, 0),))
    x = np.random.default_rng(0).standard_normal((sizes.shard_rows, width), dtype=np.float32)
    labels = np.random.default_rng(1).integers(9, size=len(x))
    hashes = np.random.default_rng(2).integers(2**63, size=len(x)).astype(np.uint64)

    def collect():
        collector = ReferenceCollector(9, width, 500)
        for first in range(3):
            collector.update(x, labels, hashes + np.uint64(first), np.arange(len(x)))
        collector.finish()

    taken = traced(collect)
    parts = memory.references(sizes)
    # The shard itself, with its rows and their hashes, is there before.
    projected = parts["references"] + parts["a shard"] - x.nbytes - 32 * len(x)
    assert 0.5 * projected <= taken <= 1.1 * projected


@pytest.mark.parametrize("missing", [False, True])
def test_sums_over_a_batch_are_what_is_projected(missing):
    x = np.random.default_rng(0).standard_normal((65_536, 14), dtype=np.float32)
    if missing:
        x[::7, 3] = np.nan
    labels = np.random.default_rng(1).integers(9, size=len(x))
    AssignSums.of(x[:100], labels[:100], 9)
    taken = traced(lambda: AssignSums.of(x, labels, 9, distances=x[:, 0]))
    projected = memory.labels(replace(SIZES, missing=missing))["sums over a batch"]
    assert 0.6 * projected <= taken <= 1.1 * projected


def test_reading_is_what_arrow_hands_out(tmp_path):
    path = tmp_path / "wide.parquet"
    x = np.random.default_rng(0).standard_normal((60, 50_000), dtype=np.float32)
    table = pa.table({f"f{i}": column for i, column in enumerate(x)})
    pq.write_table(table, path, use_dictionary=False)
    del table
    code = (
        "import sys, pyarrow as pa\n"
        "from clam_dist.data.parquet import open_parquet, read_batches\n"
        "from clam_dist.data.source import plan_fragments\n"
        "source = open_parquet(sys.argv[1])\n"
        "names = [column.name for column in source.columns]\n"
        "for _ in read_batches(source, plan_fragments(source, 1)[0], names, None, 34952): pass\n"
        "del _\n"
        "pool = pa.default_memory_pool()\n"
        "print(pool.max_memory(), pool.bytes_allocated())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    taken, left = map(int, done.stdout.split())
    sizes = replace(SIZES, width=60, columns=60, stored_bytes=240, kept_bytes=0, group_rows=50_000)
    (projected,) = memory.decode(sizes).values()
    assert 0.6 * projected <= memory.ARROW_SLACK * taken <= 1.1 * projected
    assert left == 0


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (pa.float32(), 4),
        (pa.int64(), 8),
        (pa.bool_(), 1),
        (pa.list_(pa.float32(), 256), 1024),
        (pa.list_(pa.float64()), 4 + 8 * 20),
        (pa.dictionary(pa.int32(), pa.string()), 4),
        (pa.string(), TEXT_BYTES),
    ],
)
def test_stored_bytes(kind, size):
    assert stored_bytes(kind, 20) == size


# -- what the whole depends on -------------------------------------------------------------------


def test_rows_alone_do_not_matter():
    many = replace(SIZES, n_rows=10**9, shard_rows=299_593, batch_rows=65_536)
    assert memory.stages(many).keys() == {"profile", "shards", "train", "assign"}
    for stage in memory.stages(many):
        assert total(many, stage) < total(SIZES, stage) + 200 * MIB
        assert total(replace(many, n_rows=10**11), stage) <= 1.01 * total(many, stage)


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("profile", {"missing": True}),
        ("profile", {"columns": 500, "stored_bytes": 2000}),
        ("profile", {"nested_bytes": 56}),
        ("shards", {"gathered_rows": 10**6}),
        ("train", {"search": (Crowd(64, 2000, 10, 2),)}),
        ("train", {"finalists": (Crowd(4, 5000, 10, 2),)}),
        ("train", {"batch_rows": 65_536, "width": 256}),
        ("assign", {"references": 20_000}),
        ("assign", {"group_rows": 10**6}),
        ("assign", {"kept_bytes": 4000}),
        ("assign", {"references": None, "query_rows": 10**6}),
        ("assign", {"form": Form(columns=1000)}),
        ("assign", {"form": Form(columns=1, reconstructs=True)}),
        ("train", {"form": Form(metric=10**5, own_kernels=False)}),
        ("train", {"form": Form(latent=9, network=10**6, networks=4)}),
        ("train", {"form": Form(latent=9, network=10**3, networks=4, pass_bytes=100 * MIB)}),
    ],
)
def test_what_makes_a_stage_larger(stage, changes):
    assert total(replace(SIZES, **changes), stage) > total(SIZES, stage)


def test_one_process_holds_what_the_driver_does_too():
    alone = memory.stages(SIZES, alone=True)["assign"]
    assert alone == memory.stages(SIZES)["assign"] | memory.driver_parts(SIZES)


# -- limits --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4000, 6)) + 4 * generator.integers(3, size=(4000, 1))
    pq.write_table(pa.table({f"f{i}": column for i, column in enumerate(x.T)}), path)
    return path


def settings(folder: Path, data: Path, **cluster):
    return config_from_dict(
        {
            "source": {"uri": str(data)},
            "model": {"n_clusters": 3, "beta": 1.0, "objective": "unmasked"},
            "train": {"restarts": 2, "epochs": 2},
            "cluster": {"kind": "serial", **cluster},
            "output": {"uri": str(folder)},
        }
    )


def needed(config) -> tuple[int, int]:
    """Bytes projected with the largest and with the smallest buffers."""
    found = []
    with open_run(config, force=True) as opened:
        opened.stage("profile")
        context = opened._context
        for buffer_bytes in (BUFFER_BYTES[0], BUFFER_BYTES[-1]):
            sizes = sizes_of(config, 1, context.source, context.schema, missing=False)
            parts = memory.stages(replace(sizes, buffer_bytes=buffer_bytes), alone=True)
            found.append(max(sum(stage.values()) for stage in parts.values()))
        return context.budget.base + found[0], context.budget.base + found[1]


def test_a_run_says_what_it_will_need_and_keeps_the_number(tmp_path, data):
    events = []
    config = settings(tmp_path / "out", data)
    metrics = run(config, on_event=events.append)
    said = [event["message"] for event in events if event["event"] == "note"]
    assert sum("projected peak: " in message for message in said) == 1
    record = json.loads((tmp_path / "out" / "run.json").read_text())["memory"]
    assert metrics["projected_rss_bytes"] == {"driver": record["projected_rss_bytes"]}
    assert record["projected_rss_bytes"] <= AIM * record["limit"]
    assert record["buffer_bytes"] == BUFFER_BYTES[0]
    parts = record["stages"][record["stage"]]
    assert record["base"] + sum(parts.values()) == record["projected_rss_bytes"]
    assert list(json.loads((tmp_path / "out" / "metrics.json").read_text())).count(
        "projected_rss_bytes"
    )


def test_more_than_the_limit_is_refused_before_any_work(tmp_path, data):
    stages = []
    config = settings(tmp_path / "out", data, memory_limit="300MiB")
    with (
        pytest.raises(ConfigError) as refused,
        open_run(config, on_event=lambda event: stages.append(event.get("stage"))) as opened,
    ):
        opened.stage("profile")
    message = str(refused.value)
    assert "this process would need " in message
    assert "may use 300.0 MiB" in message
    assert "Set cluster.memory_limit to " in message
    assert refused.value.exit_code == 2
    assert not list((tmp_path / "out").rglob("*.json"))


def test_a_population_that_cannot_fit_names_itself(tmp_path, data):
    config = settings(tmp_path / "out", data, memory_limit="2GiB")
    model = config.model.model_copy(update={"n_clusters": 4000, "beta": "auto"})
    train = config.train.model_copy(update={"restarts": 64})
    config = config.model_copy(update={"model": model, "train": train})
    with pytest.raises(ConfigError, match=r"512 candidates, up to 4000 clusters, 6 features"):
        run(config)


@pytest.mark.parametrize("kind", ["dclam", "tdcm"])
def test_a_network_that_cannot_fit_is_refused_before_any_work(tmp_path, data, kind):
    config = settings(tmp_path / "out", data, memory_limit="1GiB")
    given = {"kind": kind, "n_clusters": 3, "network": {"kind": "dense", "hidden": [4096, 4096]}}
    model = config_from_dict({"source": {"uri": str(data)}, "model": given}).model
    config = config.model_copy(update={"model": model})
    with pytest.raises(ConfigError) as refused:
        run(config)
    message = str(refused.value)
    assert "networks of 33" in message
    assert "may use 1.0 GiB" in message
    assert "or ask for a smaller network (model.network)" in message
    assert not list((tmp_path / "out").rglob("*.json"))


def test_buffers_shrink_to_fit_and_labels_stay(tmp_path, data):
    wide = settings(tmp_path / "wide", data)
    most, least = needed(wide)
    tight = int((most + least) / 2 / AIM) if least < most else int(most / AIM) + 1
    run(wide, force=True)
    run(settings(tmp_path / "tight", data, memory_limit=tight + 64 * MIB))
    labels = [
        pq.read_table(tmp_path / name / "labels" / "rows.parquet") for name in ("wide", "tight")
    ]
    assert labels[0].equals(labels[1])


def test_the_smallest_buffers_are_tried_before_a_refusal(monkeypatch, tmp_path, data):
    def project(sizes, *, alone):
        assert alone
        return {"train": {"shard buffers": sizes.buffer_bytes, "population": 100 * MIB}}

    monkeypatch.setattr(memory, "stages", project)
    monkeypatch.setattr(budget, "_stand", lambda number: (100 * MIB, 1000 * MIB + number))
    for limit, chosen in ((1000, 64), (300, 32), (260, 16), (246, 8), (230, 1)):
        config = settings(tmp_path / str(limit), data, memory_limit=f"{limit}MiB")
        with open_run(config) as opened:
            opened.stage("profile")
            assert opened._context.budget.buffer_bytes == chosen * MIB
    assert MOST_OF_LIMIT * 211 < 201
    with pytest.raises(ConfigError, match=r"need 201.0 MiB and may use 211.0 MiB"):
        run(settings(tmp_path / "211", data, memory_limit="211MiB"))


class TwoWorkers:
    """An executor whose workers Dask ends at ``memory_limit``."""

    workers = 2
    device = "cpu"

    def __init__(self, memory_limit):
        self.memory_limit = memory_limit


@pytest.mark.parametrize(
    ("kind", "asked", "told", "limit"),
    [
        ("address", "auto", 700 * MIB, 700 * MIB),
        ("address", "2GiB", 700 * MIB, 700 * MIB),
        ("class", "2GiB", 700 * MIB, 700 * MIB),
        ("address", "2GiB", None, 5 * MIB),
        ("local", "2GiB", None, 2048 * MIB),
        ("serial", "2GiB", None, 2048 * MIB),
        ("serial", "auto", None, 5 * MIB),
    ],
)
def test_whose_limit_counts(kind, asked, told, limit):
    cluster = config_from_dict(
        {
            "source": {"uri": "x"},
            "model": {"n_clusters": 2},
            "cluster": {"memory_limit": asked},
        }
    ).cluster
    assert budget.limit_of(cluster, kind, TwoWorkers(told), 5 * MIB) == limit


def test_workers_of_someone_else_are_held_to_their_own_limit(monkeypatch, tmp_path, data):
    """What the config asks for is named as of no effect, and the remedy is theirs."""
    monkeypatch.setattr(memory, "stages", lambda *_, **__: {"train": {"x": 300 * MIB}})
    config = settings(
        tmp_path / "out", data, kind="address", address="tcp://nowhere:1", memory_limit="2GiB"
    )
    events = []
    with open_run(config, on_event=events.append) as opened:
        executor = TwoWorkers(350 * MIB)
        executor.map = lambda _, items: iter([(100 * MIB, 10**12) for _ in items])
        executor.peak_rss_bytes, executor.close = dict, lambda: None
        opened._context.make_executor = lambda *_, **__: executor
        with pytest.raises(ConfigError) as refused:
            opened.stage("profile")
    message = str(refused.value)
    assert "each worker would need 400.0 MiB and may use 350.0 MiB" in message
    assert "Start the workers with a memory limit of 422MiB or more" in message
    assert "Set cluster.memory_limit" not in message
    (warning,) = [e["message"] for e in events if e["event"] == "warning"]
    assert "cluster.memory_limit: 2.0 GiB has no effect" in warning
    assert "one of them may use is 350.0 MiB" in warning


# -- measured ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "case", ["300000x14", "150000x128", "dclam:100000x64", "tdcm:100000x64", "kmeans:300000x14"]
)
def test_workers_hold_what_was_projected(case, tmp_path):
    script = Path(__file__).parents[1] / "bench" / "memory.py"
    command = [sys.executable, str(script), "--case", case, "--json", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (record,) = found["cases"]
    assert record["measured"] <= record["limit"]
    assert 0.7 <= record["ratio"] <= 1.1
    assert record["restarted"] == []
    assert "would need" in found["refused"]["message"]
    assert "may use 1.0 GiB" in found["refused"]["message"]
    assert found["refused"]["files"] == []
