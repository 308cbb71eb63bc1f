"""Networks have the sizes they promise, start by key, and learn; the user's own are checked."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from clam_dist.errors import ConfigError
from clam_dist.models.autoencoders import (
    bound,
    build_network,
    initial_parameters,
    network_cost,
    resolve_network,
)

IMAGES = [(1, 8, 8), (1, 16, 16), (1, 28, 28), (3, 7, 5), (2, 1, 9), (1, 1, 1)]
OTHERS: list[tuple[dict[str, Any], int]] = [
    ({"kind": "dense"}, 14),
    ({"kind": "dense", "hidden": []}, 3),
    ({"kind": "dense", "hidden": [9], "activation": "tanh"}, 1),
    ({"kind": "transformer"}, 64),
    ({"kind": "transformer", "patches": 5, "embedding": 6, "heads": 3, "layers": 1}, 13),
    ({"kind": "transformer", "patches": 1}, 1),
]
CASES = OTHERS + [
    ({"kind": kind, "image_shape": list(shape)}, int(np.prod(shape)))
    for kind in ("convolutional", "residual")
    for shape in IMAGES
]


@pytest.mark.parametrize("latent", [1, 10])
@pytest.mark.parametrize(("network", "width"), CASES, ids=str)
def test_sizes(network: dict[str, Any], width: int, latent: int) -> None:
    built = build_network(network, width, latent)
    assert all(value.device.type == "meta" for value in built.parameters())
    parameters = initial_parameters(network, width, latent, 0, 0)
    assert parameters.keys() == dict(built.named_parameters()).keys()
    assert all(name.startswith(("encoder.", "decoder.")) for name in parameters)
    x = torch.randn(5, width, generator=torch.Generator().manual_seed(0))
    z = built.encode(parameters, x)
    back = built.decode(parameters, z)
    assert z.shape == (5, latent)
    assert back.shape == (5, width)
    # A row's result is its own.
    torch.testing.assert_close(built.encode(parameters, x[3:4]), z[3:4])
    torch.testing.assert_close(built.decode(parameters, z[3:4]), back[3:4])
    # Signals neither vanish nor explode on the way.
    if width >= 64 and latent > 1:
        assert 0.05 < float(z.std()) < 3.0
        assert 0.05 < float(back.std()) < 5.0


@pytest.mark.parametrize(("network", "width"), CASES, ids=str)
def test_descriptions_are_json_and_stable(network: dict[str, Any], width: int) -> None:
    resolved = resolve_network(network, width, 4)
    assert json.loads(json.dumps(resolved)) == resolved
    assert resolve_network(resolved, width, 4) == resolved
    built, again = build_network(network, width, 4), build_network(resolved, width, 4)
    assert [(n, v.shape) for n, v in built.named_parameters()] == [
        (n, v.shape) for n, v in again.named_parameters()
    ]


@pytest.mark.parametrize(("network", "width"), CASES, ids=str)
def test_starts_are_keyed(network: dict[str, Any], width: int) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = initial_parameters(network, width, 4, 5, 1)
    again = initial_parameters(network, width, 4, 5, 1)
    restart = initial_parameters(network, width, 4, 5, 2)
    seed = initial_parameters(network, width, 4, 6, 1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert all(torch.equal(first[name], again[name]) for name in first)
    weights = [name for name in first if first[name].ndim > 1]
    assert weights
    for name in weights:
        assert not torch.equal(first[name], restart[name])
        assert not torch.equal(first[name], seed[name])


def test_default_sizes() -> None:
    assert resolve_network({}, 784, 10)["hidden"] == [256, 64]
    assert resolve_network({}, 14, 9)["hidden"] == [64, 64]
    assert resolve_network({}, 64, 10)["hidden"] == [128, 64]
    assert resolve_network({}, 64, 200)["hidden"] == [400, 400]
    images = {"kind": "residual", "image_shape": [1, 28, 28]}
    assert resolve_network(images, 784, 10)["channels"] == [16, 32, 64]
    assert resolve_network({"kind": "transformer"}, 784, 10)["patches"] == 28


def test_start_of_a_dense_layer() -> None:
    found = initial_parameters({"hidden": [400], "activation": "relu"}, 500, 10, 0, 0)
    assert float(found["encoder.0.weight"].std()) == pytest.approx((2 / 500) ** 0.5, rel=0.02)
    assert float(found["encoder.2.weight"].std()) == pytest.approx((1 / 400) ** 0.5, rel=0.05)
    assert not found["encoder.0.bias"].any()


def test_cost_by_hand() -> None:
    # 6 → 5 → 2 → 5 → 6 with biases
    cost = network_cost({"hidden": [5]}, 6, 2)
    assert cost.multiply_adds == 30 + 10 + 10 + 30
    assert cost.parameters == cost.multiply_adds + 5 + 2 + 5 + 6
    # 1×4×4 → 3×2×2 → 2 → 3×2×2 → 1×4×4, nine weights a pair of channels
    image = {"kind": "convolutional", "image_shape": [1, 4, 4], "channels": [3]}
    cost = network_cost(image, 16, 2)
    assert cost.parameters == (27 + 3) + (24 + 2) + (24 + 12) + (27 + 1)
    assert cost.multiply_adds == 4 * 27 + 24 + 24 + 4 * 27


def test_bound_by_hand() -> None:
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e6, 4e6]])
    expected = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]])
    expected[0] /= (1 + 25 / 2) ** 0.5
    expected[2] *= 2**0.5 / 5
    torch.testing.assert_close(bound(z), expected)


def test_latents_are_bounded_unless_told_otherwise() -> None:
    x = 1e4 * torch.ones(1, 6)
    for bounded in (True, False):
        network = {"kind": "dense", "bounded": bounded}
        parameters = initial_parameters(network, 6, 3, 0, 0)
        z = build_network(network, 6, 3).encode(parameters, x)
        assert (float(z.norm()) <= 3**0.5 * (1 + 1e-6)) is bounded


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"kind": "forest"}, r"model\.network: 'forest' is unknown; use one of dense, conv"),
        ({"kind": "dense", "channels": [3]}, r"model\.network\.channels: unknown for a dense"),
        ({"hidden": [0]}, r"model\.network\.hidden: \[0\] is not a list of sizes"),
        ({"activation": "step"}, r"model\.network\.activation: 'step' is unknown; use one of relu"),
        ({"bounded": "yes"}, r"model\.network\.bounded: 'yes' is neither"),
        ({"kind": "residual"}, r"model\.image_shape: a residual network needs it.*64 features"),
        (
            {"kind": "convolutional", "image_shape": [1, 8, 9]},
            r"model\.image_shape: \[1, 8, 9\] holds 72 numbers, a row has 64 features",
        ),
        (
            {"kind": "convolutional", "image_shape": [8, 8]},
            r"model\.image_shape: \[8, 8\] is not \[channels, height, width\]",
        ),
        (
            {"kind": "residual", "image_shape": [1, 8, 8], "channels": []},
            r"model\.network\.channels: no stages",
        ),
        ({"kind": "transformer", "patches": 65}, r"patches: 65 patches of 64 features"),
        ({"kind": "transformer", "heads": 5}, r"heads: 5 heads do not divide an embedding of 32"),
        ({"kind": "transformer", "layers": 0}, r"model\.network\.layers: 0 is not 1 or more"),
        ({"kind": "module"}, r"model\.network\.factory: '' is not a factory's name"),
        ({"kind": "module", "factory": "math"}, r"'math' is not a factory's name; write"),
        ({"kind": "module", "factory": "no_such_package:f"}, r"importing no_such_package failed"),
        ({"kind": "module", "factory": "math:f"}, r"math has nothing by the name f"),
        ({"kind": "module", "factory": "math:pi"}, r"math has a float by the name pi"),
        ({"kind": "module", "factory": "math:gcd"}, r"returned int; return \(encoder, decoder\)"),
        ({"kind": "module", "factory": "math:comb"}, r"returned int"),
    ],
    ids=str,
)
def test_refusals(network: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_network(network, 64, 3)


class Centred(nn.Module):
    """Takes the batch's mean off: what no row may depend on."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Counting(nn.Module):
    """Keeps a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Noisy(nn.Module):
    """Draws without saying so."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def frozen(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs).requires_grad_(False)


OWN: dict[str, tuple[Callable[[int, int], Any], str | None]] = {
    "fine": (lambda d, m: (nn.Linear(d, m), nn.Linear(m, d)), None),
    "still": (
        lambda d, m: (nn.Sequential(nn.Linear(d, m), nn.Dropout(0.0)), nn.Linear(m, d)),
        None,
    ),
    "wide": (lambda d, m: (nn.Linear(d, m + 1), nn.Linear(m, d)), r"encoder.*\(3, 4\).*\(3, 3\)"),
    "turned": (lambda d, m: (nn.Linear(m, d), nn.Linear(d, m)), r"encoder failed on \(3, 8\)"),
    "batch": (
        lambda d, m: (nn.Linear(d, m), nn.Sequential(nn.Linear(m, d), nn.BatchNorm1d(d))),
        r"decoder\.1 is BatchNorm1d, which normalises over a batch",
    ),
    "dropout": (
        lambda d, m: (nn.Sequential(nn.Linear(d, m), nn.Dropout(0.1)), nn.Linear(m, d)),
        r"encoder\.1 is Dropout, which draws at random",
    ),
    "buffer": (
        lambda d, m: (nn.Sequential(nn.Linear(d, m), Counting()), nn.Linear(m, d)),
        r"encoder keeps the buffer 1\.seen",
    ),
    "noise": (
        lambda d, m: (nn.Sequential(nn.Linear(d, m), Noisy()), nn.Linear(m, d)),
        r"encoder returns other numbers each time",
    ),
    "others": (
        lambda d, m: (nn.Linear(d, m), nn.Sequential(Centred(), nn.Linear(m, d))),
        r"decoder gives a row other numbers among other rows",
    ),
    "frozen": (lambda d, m: (frozen(d, m), nn.Linear(m, d)), r"encoder\.weight is frozen"),
    "double": (
        lambda d, m: (nn.Linear(d, m).double(), nn.Linear(m, d)),
        r"encoder\.weight is torch\.float64",
    ),
    "one": (nn.Linear, r"returned Linear; return \(encoder, decoder\)"),
    "broken": (
        lambda d, m: (d - 8) // 0 * m,
        r"failed when called with \(8, 3\): ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_modules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factory, message = OWN[name]
    package = types.ModuleType("own_networks")
    package.factory = factory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_networks", package)
    network = {"kind": "module", "factory": "own_networks:factory", "bounded": name == "fine"}
    state = torch.get_rng_state()
    if message is not None:
        with pytest.raises(ConfigError, match=r"own_networks:factory: .*" + message):
            initial_parameters(network, 8, 3, 0, 0)
    else:
        found = initial_parameters(network, 8, 3, 0, 0)
        # The user's own start: torch's for a linear layer, within 1 / sqrt(8).
        weight = found["encoder.weight" if name == "fine" else "encoder.0.weight"]
        assert 0.2 < float(weight.abs().max()) <= 8**-0.5
        assert build_network(network, 8, 3).encode(found, torch.ones(2, 8)).shape == (2, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_have_their_own_modules() -> None:
    from concurrent.futures import ThreadPoolExecutor

    network = {"kind": "dense", "hidden": [16]}
    own = [initial_parameters(network, 12, 4, 0, restart) for restart in range(4)]
    x = torch.randn(300, 12, generator=torch.Generator().manual_seed(1))
    expected = [build_network(network, 12, 4).encode(one, x) for one in own]

    def many(number: int) -> bool:
        built = build_network(network, 12, 4)
        return all(torch.equal(built.encode(own[number], x), expected[number]) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


# Loss after over loss before, of plain Adam on the digits' pixels.
TRAINED: list[tuple[dict[str, Any], int, float]] = [
    ({"kind": "dense"}, 60, 0.7),
    ({"kind": "convolutional", "image_shape": [1, 8, 8]}, 40, 0.9),
    ({"kind": "residual", "image_shape": [1, 8, 8]}, 40, 0.9),
    ({"kind": "transformer", "layers": 1}, 40, 0.9),
]


@pytest.mark.parametrize(("network", "steps", "share"), TRAINED, ids=str)
def test_every_network_learns(network: dict[str, Any], steps: int, share: float) -> None:
    x = torch.from_numpy(load_digits().data.astype(np.float32))
    x = (x - x.mean(0)) / 4.0
    built = build_network(network, 64, 10)
    parameters = {
        name: value.requires_grad_()
        for name, value in initial_parameters(network, 64, 10, 0, 0).items()
    }
    optimiser = torch.optim.Adam(parameters.values(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)

    def loss(rows: Tensor) -> Tensor:
        return (built.decode(parameters, built.encode(parameters, rows)) - rows).square().mean()

    with torch.no_grad():
        before = min(float(loss(x)), float(x.square().mean()))
    for _ in range(steps):
        optimiser.zero_grad()
        loss(x[torch.randint(len(x), (64,), generator=generator)]).backward()
        optimiser.step()
    with torch.no_grad():
        assert float(loss(x)) < share * before
