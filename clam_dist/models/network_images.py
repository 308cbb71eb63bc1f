"""Convolutional and residual encoders and decoders of images of any size.

Letters: ``B`` rows, ``c`` channels, ``h`` and ``w`` pixels. A row is an image ``(c,h,w)`` laid out
flat. Each stage halves the image, rounded up, and the decoder goes back through exactly the same
sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from clam_dist.models.network_layers import (
    ACTIVATIONS,
    Convolution,
    Dense,
    Enlargement,
    activation_gain,
)

Shape = tuple[int, int, int]

BRANCH_GAIN = 0.2
"""Of a residual branch's last layer: blocks start near the identity, so depth does no harm."""


def default_channels(height: int, width: int) -> list[int]:
    """Channels of the stages: 16 and 32, and 64 after them where a side is 20 pixels or more."""
    return [16, 32, 64] if max(height, width) >= 20 else [16, 32]


def stage_sizes(height: int, width: int, stages: int) -> list[tuple[int, int]]:
    """Sizes of the image before, between and after the stages."""
    sizes = [(height, width)]
    for _ in range(stages):
        h, w = sizes[-1]
        sizes.append((-(-h // 2), -(-w // 2)))
    return sizes


def image_pair(
    shape: Shape, latent: int, channels: Sequence[int], activation: str, residual: bool
) -> tuple[nn.Module, nn.Module]:
    """Encoder ``(B,c·h·w)`` to ``(B,latent)`` and decoder back.

    Parameters
    ----------
    shape : tuple of int
        ``(c,h,w)``.
    channels : sequence of int
        Of each stage.
    activation : str
        One of :data:`~clam_dist.models.network_layers.ACTIVATIONS`.
    residual : bool
        With a residual block after each stage (He et al. 2016), group normalisation in place of
        batch normalisation.
    """
    gain = activation_gain(activation)
    sizes = stage_sizes(*shape[1:], len(channels))
    widths = [shape[0], *channels]
    small = (channels[-1], *sizes[-1])

    down: list[nn.Module] = [nn.Unflatten(1, shape)]
    for inputs, outputs in pairwise(widths):
        down.append(Convolution(inputs, outputs, gain, stride=2))
        if residual:
            down.append(Residual(outputs, activation))
        down.append(ACTIVATIONS[activation]())
    encoder = nn.Sequential(*down, nn.Flatten(), Dense(math.prod(small), latent, 1.0))

    up: list[nn.Module] = [
        Dense(latent, math.prod(small), gain),
        ACTIVATIONS[activation](),
        nn.Unflatten(1, small),
    ]
    for stage in range(len(channels), 0, -1):
        last = stage == 1
        if residual:
            up.append(Residual(widths[stage], activation))
        outputs = widths[stage - 1]
        up.append(Enlargement(widths[stage], outputs, 1.0 if last else gain, sizes[stage - 1]))
        if not last:
            up.append(ACTIVATIONS[activation]())
    return encoder, nn.Sequential(*up, nn.Flatten())


class Residual(nn.Module):
    """``x`` plus two normalised and activated convolutions of it; ``(B,c,h,w)`` to the same."""

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__()
        # Of eight channels each: a group of one would lose its mean, and all of a single pixel.
        groups = channels // 8 if channels % 8 == 0 else 1
        self.branch = nn.Sequential(
            nn.GroupNorm(groups, channels),
            ACTIVATIONS[activation](),
            Convolution(channels, channels, activation_gain(activation)),
            nn.GroupNorm(groups, channels),
            ACTIVATIONS[activation](),
            Convolution(channels, channels, BRANCH_GAIN),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + self.branch(x)
