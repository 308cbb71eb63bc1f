"""Which device each rank takes and what ranks speak over, from made-up facts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.launch.devices import Facts, choose_backend, choose_devices, visible

A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"


def seen(*each: tuple[str, ...], host: str = "h", nccl: str = "2.29.3") -> list[Facts]:
    return [Facts(host, gpus, nccl if gpus else "") for gpus in each]


@pytest.mark.parametrize(
    ("facts", "devices", "backend"),
    [
        # One worker for each GPU, the visible ones rotated.
        (seen((A, B), (B, A)), ["cuda:0", "cuda:0"], "nccl"),
        # Nobody rotates: by their place on the machine.
        (seen((A, B), (A, B)), ["cuda:0", "cuda:1"], "nccl"),
        # Each is shown its own alone.
        (seen((A,), (B,), (C,)), ["cuda:0", "cuda:0", "cuda:0"], "nccl"),
        # Two machines, whose workers come in any order.
        (
            [*seen((A, B)), *seen((C, D), host="g"), *seen((A, B)), *seen((C, D), host="g")],
            ["cuda:0", "cuda:0", "cuda:1", "cuda:1"],
            "nccl",
        ),
        # More workers than GPUs.
        (seen((A, B), (A, B), (A, B)), ["cuda:0", "cuda:1", "cuda:0"], "gloo"),
        (seen((A,), (A,)), ["cuda:0", "cuda:0"], "gloo"),
        # One has none.
        (seen((A,), ()), ["cuda:0", "cpu"], "gloo"),
        (seen((), ()), ["cpu", "cpu"], "gloo"),
        # NCCL is missing, or another.
        (seen((A,), (B,), nccl=""), ["cuda:0", "cuda:0"], "gloo"),
        ([*seen((A,)), *seen((B,), nccl="2.21.5")], ["cuda:0", "cuda:0"], "gloo"),
        # Alone there is nobody to speak with.
        (seen((A, B)), ["cuda:0"], "gloo"),
        ([], [], "gloo"),
    ],
)
def test_hand_computed(facts: list[Facts], devices: list[str], backend: str) -> None:
    assert choose_devices(facts) == devices
    assert choose_backend(facts) == backend


@given(
    st.lists(st.lists(st.sampled_from([A, B, C, D]), unique=True, max_size=4), max_size=9),
    st.lists(st.sampled_from(["", "2.29.3", "2.21.5"]), min_size=9, max_size=9),
)
def test_against_what_must_hold(gpus: list[list[str]], nccl: list[str]) -> None:
    facts = [Facts("h", tuple(each), version) for each, version in zip(gpus, nccl, strict=False)]
    devices = choose_devices(facts)
    taken = []
    for each, device in zip(facts, devices, strict=True):
        assert (device == "cpu") == (not each.gpus)
        if each.gpus:
            taken.append(each.gpus[int(device.removeprefix("cuda:"))])
    if choose_backend(facts) == "nccl":
        assert max(Counter(taken).values()) == 1
        assert len(taken) == len(facts) > 1
        assert len({each.nccl for each in facts}) == 1


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 7))
def test_workers_that_see_the_same_share_out_evenly(workers: int, gpus: int, turn: int) -> None:
    """Rotated or not."""
    names = [f"GPU-{i}" for i in range(gpus)]
    orders = [
        tuple(names[(r * (turn > 3) + i) % gpus] for i in range(gpus)) for r in range(workers)
    ]
    devices = choose_devices(seen(*orders))
    taken = Counter(o[int(d.removeprefix("cuda:"))] for o, d in zip(orders, devices, strict=True))
    assert max(taken.values()) - (min(taken.values()) if len(taken) == gpus else 0) <= 1


def test_without_a_driver_torch_is_not_asked(tmp_path: Path) -> None:
    facts = visible([str(tmp_path / "nvidiactl")])
    assert facts.host
    assert (facts.gpus, facts.nccl) == ((), "")
