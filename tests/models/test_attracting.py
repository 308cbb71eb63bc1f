"""Labels and latents from one encoding are those of two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clam_dist.models.clam import ClAM
from clam_dist.models.coder import Coder
from clam_dist.models.dclam import DClAM
from clam_dist.models.tdcm import TDCM

WIDTH, LATENT, CLUSTERS = 6, 3, 3


def models():
    network = {"kind": "dense", "hidden": [8]}
    dclam = DClAM(CLUSTERS, 5, width=WIDTH, latent=LATENT, network=network, mask_value=0.1)
    drawn = dclam.initial_parameters(0)
    tdcm = TDCM(Coder(network, WIDTH, LATENT), LATENT, CLUSTERS)
    rows = torch.from_numpy(np.random.default_rng(3).normal(size=(CLUSTERS, WIDTH))).float()
    metric = {"prototypes": rows, "metric": torch.linspace(-1, 1, WIDTH)}
    started = tdcm.starting({name: value[None] for name, value in drawn.items()})
    return {
        "dclam": (dclam, {**drawn, "prototypes": rows[:, :LATENT]}),
        "tdcm": (tdcm, {name: value[0] for name, value in started.items()}),
        "metric": (ClAM(CLUSTERS, 5, objective="unmasked", metric="diagonal"), metric),
        "spherical": (ClAM(CLUSTERS, 5, geometry="spherical"), {"prototypes": rows}),
    }


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", ["dclam", "tdcm", "metric", "spherical"])
def test_one_encoding_gives_what_two_give(name, missing):
    model, parameters = models()[name]
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(300, WIDTH))).float()
    observed = torch.from_numpy(np.random.default_rng(1).random((300, WIDTH)) > 0.3)
    seen = observed if missing else None
    (labels, distances), (z, known) = model.predict_and_represent(parameters, 2.0, x, seen)
    wanted = (*model.predict(parameters, 2.0, x, seen), *model.represent(parameters, x, seen))
    assert len(labels.unique()) > 1
    for found, value in zip((labels, distances, z, known), wanted, strict=True):
        assert (found is None and value is None) or torch.equal(found, value)
        assert value is None or found.dtype == value.dtype


@pytest.mark.parametrize("name", ["dclam", "tdcm"])
def test_rows_are_encoded_once(name, monkeypatch):
    model, parameters = models()[name]
    calls = []
    encode = torch.nn.Sequential.forward

    def counted(self, x):
        calls.append(x.shape[1])
        return encode(self, x)

    monkeypatch.setattr(torch.nn.Sequential, "forward", counted)
    model.predict_and_represent(parameters, 2.0, torch.zeros(100, WIDTH), None)
    assert calls == [WIDTH]
