"""The transfer bench at a small size."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import transfer


def test_domains_are_scaled_alike_and_turned() -> None:
    parts, truth = transfer.domains(50)
    assert list(parts) == [0, 15, 30, 45]
    assert all(part.shape == (50, 64) for part in parts.values())
    assert len(truth) == 50
    seen = np.concatenate([parts[angle] for angle in transfer.SOURCES])
    np.testing.assert_allclose(seen.mean(axis=0), 0.0, atol=1e-12)
    assert not np.allclose(parts[0], parts[45])


def test_a_file_holds_its_domains(tmp_path: Path) -> None:
    parts, _ = transfer.domains(20)
    transfer.write(tmp_path / "x.parquet", {0: parts[0], 15: parts[15]})
    table = pq.read_table(tmp_path / "x.parquet")
    assert table["angle"].to_pylist() == [0] * 20 + [15] * 20
    np.testing.assert_array_equal(table["p7"].to_numpy()[20:], parts[15][:, 7])


def test_agreement_is_one_for_the_same_partition() -> None:
    truth = np.array([0, 0, 1, 1, 2])
    assert transfer.agreement(truth, (truth + 1) % 3) == {"nmi": 1.0, "ari": 1.0}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_method_is_measured() -> None:
    found = transfer.transfer(1, 150, 1)
    assert set(found) == {
        "k-means fitted on the target",
        "k-means carried over",
        "TDCM adapted",
        "TDCM as trained",
        "TDCM trained on the target",
    }
    assert all(0 <= values["nmi"]["mean"] <= 1 for values in found.values())
