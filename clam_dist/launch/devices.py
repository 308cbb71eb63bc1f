"""Which device each rank computes on, and what ranks speak over: rules over what workers see."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
"""One of them is there where NVIDIA's driver is (the second under WSL); without, no process needs
torch only to find that it has no GPU."""


@dataclass(frozen=True)
class Facts:
    """What one process sees.

    Attributes
    ----------
    host : str
        Name of the machine.
    gpus : tuple of str
        Unique identifier of each visible CUDA device; the first is ``cuda:0``.
    nccl : str
        Version of NCCL, empty where this build of torch has none.
    """

    host: str = ""
    gpus: tuple[str, ...] = ()
    nccl: str = ""


def visible(drivers: Sequence[str] = DRIVERS) -> Facts:
    """What this process sees."""
    host = socket.gethostname()
    if not any(os.path.exists(path) for path in drivers):
        return Facts(host)
    import torch

    if not torch.cuda.is_available():
        return Facts(host)
    count = torch.cuda.device_count()
    gpus = tuple(str(torch.cuda.get_device_properties(i).uuid) for i in range(count))
    built = torch.distributed.is_nccl_available()
    return Facts(host, gpus, ".".join(map(str, torch.cuda.nccl.version())) if built else "")


def choose_devices(facts: Sequence[Facts]) -> list[str]:
    """``cuda:N`` or ``cpu`` for each of several processes, the ranks in order.

    Each takes, of the devices that it sees, the one that fewest ranks before it have taken, the
    first of several. So processes of one machine that all see the same devices share them out by
    their place on it, and where each sees them in an order of its own (``CUDA_VISIBLE_DEVICES``
    rotated or cut to one device by whoever started it), each takes its ``cuda:0``.
    """
    return ["cpu" if number is None else f"cuda:{number}" for number in _numbers(facts)]


def choose_backend(facts: Sequence[Facts]) -> Literal["nccl", "gloo"]:
    """``nccl`` where every rank has a GPU of its own and the same NCCL; otherwise ``gloo``.

    Two ranks on one GPU would block each other for ever in NCCL.
    """
    numbers = _numbers(facts)
    taken = {each.gpus[number] for each, number in zip(facts, numbers) if number is not None}
    versions = {each.nccl for each in facts}
    alike = len(versions) == 1 and "" not in versions
    return "nccl" if len(facts) > 1 and alike and len(taken) == len(facts) else "gloo"


def _numbers(facts: Sequence[Facts]) -> list[int | None]:
    """Position, among the devices that it sees, of the one that each process takes."""
    ranks: Counter[str] = Counter()
    numbers: list[int | None] = []
    for each in facts:
        number = min(range(len(each.gpus)), key=lambda i: ranks[each.gpus[i]], default=None)
        if number is not None:
            ranks[each.gpus[number]] += 1
        numbers.append(number)
    return numbers
