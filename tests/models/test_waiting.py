"""A training step on complete rows never waits for its device.

Tensors on the ``meta`` device have no values, so whatever must read one fails at once there, as it
would wait on a GPU: ``item``, ``nonzero``, boolean indexing, copies to the host.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clam_dist.models.clam import ClAM

WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "is_nonzero",
    "equal",
}


class Watch(TorchDispatchMode):
    """Records what would make the host wait: reads of values, blocking copies between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in WAITING:
            self.found.append(name)
        if name in {"_to_copy", "copy_"}:
            source = args[0] if name == "_to_copy" else args[1]
            target = kwargs.get("device") if name == "_to_copy" else args[0].device
            blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            if target is not None and source.device.type != torch.device(target).type and blocking:
                self.found.append(f"{name} from {source.device} to {target}")
        return func(*args, **kwargs)


def test_the_watch_sees_what_waits() -> None:
    x = torch.ones(3)
    with Watch() as watch:
        float(x.sum())
        x.nonzero()
        x.to("meta")
        x.to("meta", non_blocking=True)
        torch.empty(3, device="meta").copy_(x)
    assert watch.found == [
        "_local_scalar_dense", "nonzero", "_to_copy from cpu to meta", "copy_ from cpu to meta"
    ]  # fmt: skip
    with pytest.raises((RuntimeError, NotImplementedError)):
        x.to("meta")[x.to("meta") > 0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("objective", ["masked", "unmasked"])
@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
@pytest.mark.parametrize("group_rows", [1, 64])
@pytest.mark.parametrize("k", [3, 100])
def test_complete_rows(device: str, objective: str, geometry: str, group_rows: int, k: int) -> None:
    clam = ClAM(
        k, 4, objective=objective, geometry=geometry, group_rows=group_rows, mask_value=[0.0] * 7
    )  # type: ignore[arg-type]
    x, weight = torch.ones(200, 7, device=device), torch.ones(200, device=device)
    parameters = {
        "prototypes": torch.ones(2, k, 7, device=device),
        "log_epsilon": torch.zeros(2, k, device=device),
    }
    beta = torch.ones(2, device=device)

    def step() -> object:
        return clam.gradient_sums(parameters, beta, x, weight, None, (0,))

    step()  # the value of hidden features is uploaded once
    with Watch() as watch:
        sums = step()
    assert watch.found == []
    assert sums.entries.device.type == device  # type: ignore[attr-defined]


def test_missing_values_make_it_wait_for_which_rows_are_complete() -> None:
    """Two reads, and no more: the numbers of the complete and of the incomplete rows."""
    x, observed = torch.ones(20, 5), torch.ones(20, 5, dtype=torch.bool)
    observed[::3, 1] = False
    for objective in ("masked", "unmasked"):
        for geometry in ("euclidean", "spherical"):
            clam = ClAM(3, 4, objective=objective, geometry=geometry)  # type: ignore[arg-type]
            with Watch() as watch:
                clam.gradient_sums(
                    {"prototypes": torch.ones(1, 3, 5)}, torch.ones(1), x, None, observed, (0,)
                )
            assert watch.found == ["nonzero", "nonzero"]
