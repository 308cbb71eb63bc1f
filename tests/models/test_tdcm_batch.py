"""A micro-batch goes through its rows in blocks, and holds little while it waits for sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clam_dist.models.autoencoders import initial_parameters
from clam_dist.models.coder import Coder
from clam_dist.models.tdcm import TDCM
from clam_dist.models.tdcm_batch import MicroBatch
from clam_dist.stages.live_memory import Live

WIDTH, LATENT, CLUSTERS, MEMBERS = 6, 3, 3, 2


def setting(hidden, blocks=2):
    model = TDCM(
        Coder({"kind": "dense", "hidden": hidden}, WIDTH, LATENT), LATENT, CLUSTERS, blocks
    )
    drawn = [
        initial_parameters({"kind": "dense", "hidden": hidden}, WIDTH, LATENT, 1, restart)
        for restart in range(MEMBERS)
    ]
    network = {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]}
    return model, model.starting(network)


def finish(steps):
    total = next(steps)
    while True:
        try:
            total = steps.send(total.clone())
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_blocks_of_rows_add_up(monkeypatch, weighted, missing):
    model, parameters = setting([8])
    parameters = {name: value.double() for name, value in parameters.items()}
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(50, WIDTH)))
    weight = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    observed = torch.from_numpy(np.random.default_rng(2).random((50, WIDTH)) > 0.2)
    given = (weight if weighted else None, observed if missing else None, ())
    beta = torch.ones(MEMBERS)
    whole = finish(model.gradient_exchange(parameters, beta, x, *given))
    monkeypatch.setattr("clam_dist.models.tdcm_batch.TRAINED_ROWS", 8)
    blocks = finish(model.gradient_exchange(parameters, beta, x, *given))
    torch.testing.assert_close(blocks.loss, whole.loss)
    for name, value in whole.gradients.items():
        torch.testing.assert_close(blocks.gradients[name], value, rtol=1e-9, atol=1e-12)


def test_what_waits_are_latents_however_wide_the_network():
    held = []
    for hidden in ([8], [512, 512]):
        model, parameters = setting(hidden)
        x = torch.zeros(2000, WIDTH)
        with Live() as live:
            batch = MicroBatch(model, parameters, x, None, None)
            batch.encode()
            held.append(live.held)
    assert held[0] == held[1]
    # Weights and numbers of entries, one each a row, go once they are summed.
    assert held[0] <= 4 * 2000 * MEMBERS * LATENT + 4096
