from __future__ import annotations

import numpy as np
import pytest

from clam_dist.models.noise import draw_noise


def test_noise_is_standard_normal() -> None:
    noise = draw_noise(3, (1, 5), 4000, 5)
    assert noise.dtype == np.float32
    assert noise.mean(0) == pytest.approx(0.0, abs=0.06)
    assert noise.std(0) == pytest.approx(1.0, abs=0.05)


def test_noise_depends_on_seed_and_key_alone() -> None:
    first = draw_noise(3, (1, 5), 7, 2)
    np.testing.assert_array_equal(first, draw_noise(3, (1, 5), 7, 2))
    for other in (draw_noise(4, (1, 5), 7, 2), draw_noise(3, (1, 6), 7, 2)):
        assert np.abs(first - other).max() > 0.1


def test_no_rows() -> None:
    assert draw_noise(0, (), 0, 3).shape == (0, 3)
