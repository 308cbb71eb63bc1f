"""Pixels: PNG that others read, scales that are common, sizes that are bounded."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.reporting.rasters import (
    HIGH,
    LOW,
    Scale,
    common_scale,
    image_pixels,
    png,
    smaller,
)


def unpack(data: bytes) -> np.ndarray:
    """A PNG's pixels by the book: chunks, checksums, lines without a filter."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        name, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(name + body)
        chunks[name] = body
        place += 12 + length
    width, height, bits, kind, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (bits, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3, 6: 4}[kind]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
    lines = lines.reshape(height, 1 + width * channels)
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape(height, width, channels)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([3, 4]), st.integers(0, 99))
def test_png_gives_back_its_pixels(height: int, width: int, channels: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype("u1")
    found = unpack(png(pixels))
    np.testing.assert_array_equal(np.broadcast_to(found, pixels.shape), pixels)


def test_grey_takes_one_channel() -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4, 1).repeat(3, axis=2)
    assert unpack(png(grey)).shape == (3, 4, 1)
    np.testing.assert_array_equal(unpack(png(grey))[..., 0], grey[..., 0])


def test_grey_runs_from_black_to_white_and_clips() -> None:
    colours = Scale(0.0, 10.0, False).colours(np.array([-5.0, 0, 5, 10, 20, np.nan]))
    assert colours[:, 0].tolist() == [0, 0, 128, 255, 255, 0]


def test_signed_values_are_white_at_zero() -> None:
    colours = Scale(-2.0, 2.0, True).colours(np.array([-2.0, 0, 2, np.nan]))
    assert colours.tolist() == [list(LOW), [255] * 3, list(HIGH), [255] * 3]


def test_one_scale_for_all_and_no_odd_pixel() -> None:
    assert common_scale(np.linspace(0, 1, 1001), np.linspace(1, 2, 1001)) == Scale(
        pytest.approx(0.01, abs=0.002), pytest.approx(1.99, abs=0.002), False
    )
    values = np.concatenate([np.full(500, 0.0), np.full(500, 1.0), [1e9]])
    assert common_scale(values) == Scale(0.0, 1.0, False)
    signed = common_scale(np.array([-3.0, 1.0] * 50))
    assert (signed.low, signed.high, signed.signed) == (-3.0, 3.0, True)
    # Grey levels that overshoot a little below 0 are grey levels still.
    assert common_scale(np.array([-0.1, 1.0] * 50)) == Scale(0.0, 1.0, False)
    assert common_scale(np.full(4, np.nan)) == Scale(0.0, 1.0, False)


def test_pixels_lie_where_the_shape_says() -> None:
    row = np.arange(6.0)[None] * 51
    (found,) = image_pixels(row, (1, 2, 3), Scale(0, 255, False), 48)
    assert found[..., 0].tolist() == [[0, 51, 102], [153, 204, 255]]
    colours = np.array([[255.0, 0, 0, 255, 0, 0]])  # two pixels: red 255 0, green 0 255, blue 0 0
    (found,) = image_pixels(colours, (3, 1, 2), Scale(0, 255, False), 48)
    assert found.tolist() == [[[255, 0, 0], [0, 255, 0]]]
    # Of other numbers of channels, and of signed values, the mean is drawn.
    (found,) = image_pixels(np.array([[0.0, 51]]), (2, 1, 1), Scale(0, 255, False), 48)
    assert found[0, 0, 0] in (25, 26)


def test_a_wrong_shape_is_told_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"1x8x8 holds 64 values.*\(2, 63\)"):
        image_pixels(np.zeros((2, 63)), (1, 8, 8), Scale(0, 1, False), 48)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 7), st.integers(0, 99))
def test_smaller_is_the_mean_of_each_block(height: int, width: int, step: int, seed: int) -> None:
    image = np.random.default_rng(seed).normal(size=(2, height, width))
    found = smaller(image, step)
    for i in range(found.shape[1]):
        for j in range(found.shape[2]):
            block = image[:, i * step : (i + 1) * step, j * step : (j + 1) * step]
            np.testing.assert_allclose(found[:, i, j], block.mean(axis=(1, 2)), atol=1e-12)
    assert found.shape[1:] == (-(-height // step), -(-width // step))
