"""Small pictures made of pixels, as PNG inside SVG: nothing but NumPy and zlib.

Letters: ``h`` rows and ``w`` columns of pixels, ``c`` channels.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clam_dist.reporting.plots import SOFT, text
from clam_dist.reporting.words import figure

Array = NDArray[np.floating]
Bytes = NDArray[np.uint8]

HIGH, LOW = (47, 111, 178), (194, 87, 26)
"""Ends of the scale of signed values: blue above 0 and orange below, as in the table of means."""
CLIPPED = 0.005
"""Share of values at either end that lie beyond a scale, so that one odd pixel dims no picture."""
SIGNED_FROM = 0.25
"""A scale is signed where the least value lies below 0 by this share of the greatest."""


@dataclass(frozen=True)
class Scale:
    """One scale of values for all the pictures of a plot.

    Parameters
    ----------
    low, high
        Values of the two ends; those beyond are drawn as the end.
    signed
        Two colours that meet in white at 0; else grey from black to white.
    """

    low: float
    high: float
    signed: bool

    def colours(self, values: Array) -> Bytes:
        """Colours ``(..., 3)`` of values of any shape; what is not finite is drawn as 0 or low."""
        known = np.where(np.isfinite(values), values, 0.0 if self.signed else self.low)
        share = (np.clip(known, self.low, self.high) - self.low) / ((self.high - self.low) or 1.0)
        if not self.signed:
            return np.repeat(np.round(255 * share).astype(np.uint8)[..., None], 3, axis=-1)
        away = 2.0 * share[..., None] - 1.0
        end = np.where(away > 0, np.array(HIGH), np.array(LOW))
        return np.round(255 + (end - 255) * np.abs(away)).astype(np.uint8)

    def key(self, x: float, y: float, width: float = 96.0) -> list[str]:
        """Parts of a plot: a bar from the least to the greatest value, with both in figures."""
        ramp = self.colours(np.linspace(self.low, self.high, 48)[None])
        least = figure(self.low, 2)
        left = x + 7.2 * len(least) + 6
        return [
            text(x, y + 9, least, fill=SOFT),
            picture(ramp, left, y, width, 10),
            text(left + width + 6, y + 9, figure(self.high, 2), fill=SOFT),
        ]


def common_scale(*groups: Array) -> Scale:
    """The scale that holds all values but the farthest half percent at either end."""
    values = np.concatenate([np.asarray(group, dtype=np.float64).ravel() for group in groups])
    values = values[np.isfinite(values)]
    if not values.size:
        return Scale(0.0, 1.0, False)
    low, high = (float(v) for v in np.quantile(values, [CLIPPED, 1 - CLIPPED]))
    if low < 0 and -low > SIGNED_FROM * max(high, 0.0):
        end = max(-low, high)
        return Scale(-end, end, True)
    return Scale(max(low, 0.0), high, False)


def image_pixels(rows: Array, shape: Sequence[int], scale: Scale, most: int) -> list[Bytes]:
    """Rows of features as pictures, made smaller by whole steps where a side exceeds ``most``.

    Parameters
    ----------
    rows : ndarray (n, c·h·w)
        Features in the order of channel, row, column.
    shape : (c, h, w)
        Three channels are colours, each on the common scale; of another number the mean is drawn.
    scale : Scale
    most : int
        Pixels of a side at the most.

    Returns
    -------
    list of ndarray of uint8 (h', w', 3)

    Raises
    ------
    ValueError
        The shape does not hold as many values as a row has.
    """
    rows = np.asarray(rows, dtype=np.float64)
    channels, height, width = (int(side) for side in shape)
    if rows.ndim != 2 or rows.shape[1] != channels * height * width:
        raise ValueError(
            f"image_shape {channels}x{height}x{width} holds {channels * height * width} values, "
            f"but rows have shape {rows.shape}; give the shape of the features or leave it out."
        )
    images = rows.reshape(len(rows), channels, height, width)
    images = smaller(images, -(-max(height, width) // most))
    if channels == 3 and not scale.signed:
        coloured = [scale.colours(image)[..., 0] for image in images]
        return [np.ascontiguousarray(image.transpose(1, 2, 0)) for image in coloured]
    return [scale.colours(image.mean(axis=0)) for image in images]


def smaller(images: Array, step: int) -> Array:
    """Means of blocks of ``step`` by ``step`` pixels of ``(..., h, w)``; a block may be partial."""
    for axis in (-2, -1):
        starts = np.arange(0, images.shape[axis], step)
        counts = np.diff(np.append(starts, images.shape[axis]))
        shape = [1] * images.ndim
        shape[axis] = len(counts)
        images = np.add.reduceat(images, starts, axis=axis) / counts.reshape(shape)
    return images


def picture(pixels: Bytes, x: float, y: float, width: float, height: float) -> str:
    """Part of a plot: pixels ``(h, w, 3)`` or ``(h, w, 4)`` drawn with sharp edges."""
    data = base64.b64encode(png(pixels)).decode()
    return (
        f'<image x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def png(pixels: Bytes) -> bytes:
    """A PNG file of 8 bits a channel: ``(h, w, 3)`` colours, or ``(h, w, 4)`` with opacity."""
    height, width, channels = pixels.shape
    kind = {3: 2, 4: 6}[channels]
    lines = pixels.reshape(height, width * channels)
    if channels == 3 and bool((pixels[..., :1] == pixels).all()):
        kind, lines = 0, pixels[..., 0]  # grey: a third of the bytes
    raw = b"".join(b"\0" + np.ascontiguousarray(line).tobytes() for line in lines)
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def tile_side(columns: int, width: float, gap: float) -> float:
    """Side of so many square tiles in one line."""
    return math.floor((width - gap * (columns - 1)) / columns)
