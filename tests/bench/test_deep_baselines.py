"""DEC, IDEC and DCEC: their formulas by hand, and what they find in blobs."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import nn


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = Path(__file__).with_name("deep_baselines.py")
    spec = importlib.util.spec_from_file_location("deep_baselines", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


class Pair(nn.Module):
    """An encoder with its decoder."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """360 rows of 16 features in three groups."""
    generator = np.random.default_rng(0)
    classes = np.arange(360) % 3
    centers = 2.0 * generator.normal(size=(3, 16))
    return (centers[classes] + generator.normal(size=(360, 16))).astype(np.float32), classes


def pretrained(build: Callable[[], Pair], x: np.ndarray, steps: int = 300) -> Pair:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build()
    rows = torch.from_numpy(x)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        loss = (network.decoder(network.encoder(rows)) - rows).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def dense() -> Pair:
    return Pair(
        nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)),
        nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 16)),
    )


def convolutional() -> Pair:
    return Pair(
        nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(32, 3),
        ),
        nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 16)),
    )  # fmt: skip


@pytest.mark.parametrize("method", ["dec", "idec", "dcec"])
def test_finds_blobs(deep: ModuleType, method: str, blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, classes = blobs
    network = pretrained(convolutional if method == "dcec" else dense, x)
    before = copy.deepcopy(network.state_dict())
    settings = deep.Refinement(epochs=10, batch_rows=64, kmeans_starts=3)
    labels, latents, info = getattr(deep, method)(x, 3, network, 0, settings)
    assert adjusted_rand_score(classes, labels) > 0.9
    assert latents.shape == (360, 3)
    assert info["centroids"].shape == (3, 3)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    again = getattr(deep, method)(x, 3, network, 0, settings)
    assert np.array_equal(latents, again[1])


def test_memberships_sharpen_and_only_dec_forgets_the_rows(
    deep: ModuleType, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, _ = blobs
    network = pretrained(dense, x)
    rows = torch.from_numpy(x)
    with torch.no_grad():
        at_first = float((network.decoder(network.encoder(rows)) - rows).square().mean())
    settings = deep.Refinement(epochs=20, batch_rows=64, interval=10**6, kmeans_starts=3)
    _, z, dec = deep.dec(x, 3, network, 0, settings)
    _, _, idec = deep.idec(x, 3, network, 0, settings)
    assert dec["reconstruction"] > at_first
    assert idec["reconstruction"] < min(dec["reconstruction"], 1.5 * at_first)
    assert (dec["epochs"], dec["updates"]) == (20, 1)
    before = deep.in_blocks(network.encoder, rows)
    _, _, none = deep.dec(x, 3, network, 0, replace(settings, epochs=0))
    soft = deep.memberships(before, torch.from_numpy(none["centroids"])).amax(1).mean()
    sharp = deep.memberships(torch.from_numpy(z), torch.from_numpy(dec["centroids"]))
    assert sharp.amax(1).mean() > soft


def test_stops_when_labels_hardly_change(
    deep: ModuleType, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, _ = blobs
    settings = deep.Refinement(epochs=200, batch_rows=360, kmeans_starts=3)
    _, _, info = deep.dec(x, 3, pretrained(dense, x), 0, settings)
    assert info["epochs"] < 200
    assert info["changed"] < deep.ENOUGH


def test_formulas_by_hand(deep: ModuleType) -> None:
    z = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    q = deep.memberships(z, torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    # Kernels 1 and 1/2 for the first row, 1/5 and 1/2 for the second.
    torch.testing.assert_close(q, torch.tensor([[2 / 3, 1 / 3], [2 / 7, 5 / 7]]))
    p = deep.target(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    # q² over column sums 3/4 and 5/4: 1/3 and 1/5; 1/12 and 9/20.
    torch.testing.assert_close(p, torch.tensor([[5 / 8, 3 / 8], [5 / 32, 27 / 32]]))
    gap = deep.divergence(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]]))
    assert float(gap) == pytest.approx(0.5 * np.log(2.0) + 0.5 * np.log(2 / 3))


def test_dcec_wants_convolutions(deep: ModuleType) -> None:
    with pytest.raises(ValueError, match="no convolution"):
        deep.dcec(np.zeros((4, 16)), 2, dense())
