"""Layers that know how they are initialised, and the fully connected pair.

A network is built on the meta device, where it holds no numbers; :func:`fill` draws what its
parameters start from out of a generator that is given, never from a global one. Nothing here
depends on how a batch is cut: no batch normalisation, no dropout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class Dense(nn.Linear):
    """A linear layer whose weights start with the standard deviation ``gain / sqrt(fan_in)``."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain
        self.fan_in = inputs


class Convolution(nn.Conv2d):
    """A convolution that keeps the image's size, or halves it, rounded up, at stride 2."""

    def __init__(
        self, inputs: int, outputs: int, gain: float, stride: int = 1, kernel: int = 3
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
        self.gain = gain
        self.fan_in = inputs * kernel**2


class Enlargement(nn.ConvTranspose2d):
    """A transposed convolution at stride 2 from half an image, rounded up, to exactly ``size``."""

    def __init__(self, inputs: int, outputs: int, gain: float, size: tuple[int, int]) -> None:
        # A side of n becomes 2 n - 1 + extra: whichever of the two numbers that n is the half of.
        extra = (1 - size[0] % 2, 1 - size[1] % 2)
        super().__init__(inputs, outputs, 3, stride=2, padding=1, output_padding=extra)
        self.gain = gain
        self.fan_in = inputs * 9 / 4  # a pixel of the result sees a quarter of the kernel


class Positions(nn.Module):
    """Adds one learned vector to each token: ``(B,tokens,width)`` to the same."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` plus the vectors."""
        return x + self.vectors


def activation_gain(name: str) -> float:
    """Gain that keeps the variance through a layer followed by that activation.

    He et al. (2015) for ``relu`` and, nearly, its smooth relatives; Glorot and Bengio (2010), as
    they are used with a gain of 5/3, for ``tanh``.
    """
    return 5.0 / 3.0 if name == "tanh" else math.sqrt(2.0)


def default_hidden(width: int, latent: int) -> list[int]:
    """Sizes of the hidden layers of a table's encoder.

    First twice the width rounded up to a power of two, within 64 … 256; then a quarter of that, at
    least 64; neither below twice the latent size. 784 features give 256 and 64, 14 give 64 and 64:
    a step on 256 rows then takes milliseconds on one core.
    """
    first = min(256, max(64, 1 << (2 * width - 1).bit_length()))
    return [max(first, 2 * latent), max(64, first // 4, 2 * latent)]


def dense_pair(
    width: int, latent: int, hidden: Sequence[int], activation: str
) -> tuple[nn.Module, nn.Module]:
    """Fully connected encoder ``(B,width)`` to ``(B,latent)`` and the decoder that mirrors it."""
    sizes = [width, *hidden, latent]
    return _chain(sizes, activation), _chain(sizes[::-1], activation)


def _chain(sizes: Sequence[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    gain = activation_gain(activation)
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [Dense(inputs, outputs, gain), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, Dense(sizes[-2], sizes[-1], 1.0))


@torch.no_grad()
def fill(network: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """What the parameters of a network of these layers start from, float32 on the CPU, by name.

    Weights are uniform with the standard deviation that their layer asks for, biases 0, the scales
    of normalisations 1, positions normal with a standard deviation of 0.02.
    """
    found: dict[str, Tensor] = {}
    for path, module in network.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in module.named_parameters(recurse=False):
            start = torch.zeros(parameter.shape)
            if isinstance(module, Positions):
                start.normal_(0.0, 0.02, generator=generator)
            elif isinstance(module, nn.GroupNorm | nn.LayerNorm):
                start.fill_(float(name == "weight"))
            elif isinstance(module, Dense | Convolution | Enlargement):
                if name == "weight":
                    bound = module.gain * math.sqrt(3.0 / module.fan_in)
                    start.uniform_(-bound, bound, generator=generator)
            else:
                raise TypeError(f"{type(module).__name__} does not say how it starts")
            found[prefix + name] = start
    return found
