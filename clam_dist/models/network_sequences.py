"""A small transformer's encoder and decoder over a row cut into patches.

Letters: ``B`` rows, ``d`` features, ``n`` patches, ``e`` numbers of a token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clam_dist.models.network_layers import Dense, Positions, activation_gain


def default_patches(width: int) -> int:
    """The whole number nearest to the square root of the width: a square image's lines."""
    return max(1, round(width**0.5))


def transformer_pair(
    width: int, latent: int, patches: int, embedding: int, heads: int, layers: int
) -> tuple[nn.Module, nn.Module]:
    """Encoder ``(B,width)`` to ``(B,latent)`` and decoder back.

    Parameters
    ----------
    patches : int
        Tokens ``n`` that a row is cut into, each of ``ceil(width / n)`` features; the last ones
        are filled up with zeros.
    embedding : int
        Numbers of a token ``e``, a multiple of ``heads``.
    heads, layers : int
        Heads of each attention; blocks of each of the two.
    """
    length = -(-width // patches)
    encoder = nn.Sequential(
        Cut(patches, length),
        Dense(length, embedding, 1.0),
        Positions(patches, embedding),
        *(Block(embedding, heads, layers) for _ in range(layers)),
        nn.LayerNorm(embedding),
        nn.Flatten(),
        Dense(patches * embedding, latent, 1.0),
    )
    decoder = nn.Sequential(
        Dense(latent, patches * embedding, 1.0),
        nn.Unflatten(1, (patches, embedding)),
        Positions(patches, embedding),
        *(Block(embedding, heads, layers) for _ in range(layers)),
        nn.LayerNorm(embedding),
        Dense(embedding, length, 1.0),
        Join(width),
    )
    return encoder, decoder


class Cut(nn.Module):
    """Rows ``(B,d)`` as patches ``(B,n,length)``, zeros after the last feature."""

    def __init__(self, patches: int, length: int) -> None:
        super().__init__()
        self.patches, self.length = patches, length

    def forward(self, x: Tensor) -> Tensor:
        """The patches."""
        padded = F.pad(x, (0, self.patches * self.length - x.shape[1]))
        return padded.view(len(x), self.patches, self.length)


class Join(nn.Module):
    """Patches ``(B,n,length)`` as rows ``(B,width)``, without what was filled up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """The rows."""
        return x.flatten(1)[:, : self.width]


class Block(nn.Module):
    """Attention and a two-layer perceptron, each added to its input, normalised before.

    ``(B,n,e)`` to the same. The last layer of each branch starts smaller by the square root of
    the number of branches, so that their sum keeps its size.
    """

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        gain = (2 * layers) ** -0.5
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = Dense(width, 3 * width, 1.0)
        self.merge = Dense(width, width, gain)
        self.perceptron = nn.Sequential(
            Dense(width, 4 * width, activation_gain("gelu")),
            nn.GELU(),
            Dense(4 * width, width, gain),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        rows, tokens, width = x.shape
        projected = self.project(self.before_attention(x))
        # (B,n,3e) to three of (B,heads,n,e/heads)
        split = projected.view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        shares = torch.softmax(query @ key.mT * (width // self.heads) ** -0.5, -1)
        x = x + self.merge((shares @ value).transpose(1, 2).reshape(rows, tokens, width))
        return x + self.perceptron(self.before_perceptron(x))
