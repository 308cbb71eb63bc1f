"""Tensors are counted from when they are made to when nothing refers to them."""

from __future__ import annotations

import pytest
import torch

from clam_dist.stages.live_memory import Live, like, peak_bytes

KIB = 1024


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_sums_of_arrays_worked_out_by_hand(device):
    x = torch.zeros(256, device=device)  # 1 KiB, there before

    def chain():
        first = x + 1  # 1 KiB
        second = torch.cat([first, first])  # 3 KiB
        del first  # 2 KiB
        return second.view(2, 256)[0] * 2  # 3 KiB

    assert peak_bytes(chain) == 3 * KIB


def test_views_and_steps_in_place_take_nothing():
    x = torch.zeros(256)
    assert peak_bytes(lambda: x.view(16, 16).t().add_(1.0)) == 0


def test_what_autograd_keeps_for_the_way_back_is_held():
    x = torch.zeros(256, device="meta").requires_grad_()
    with Live() as live:
        loss = x.exp().exp().sum()  # both results are kept, and 4 bytes
        assert live.held == 2 * KIB + 4
        loss.backward()
    # The derivative of the sum is a view of one number; a gradient of either exponential at a time.
    assert 3 * KIB <= live.most <= 4 * KIB + 16
    del loss
    assert live.held <= KIB + 16  # the gradient


def test_parameters_of_several_members():
    found = like({"a": torch.Size([2, 3]), "b": torch.Size([])}, 4, "meta")
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "a": (4, 2, 3),
        "b": (4,),
    }
