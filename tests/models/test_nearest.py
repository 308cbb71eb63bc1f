from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.errors import ConfigError
from clam_dist.models.nearest import Nearest


def drawn(
    seed: int, rows: int, d: int, k: int, missing: float, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(k, d, generator=generator, dtype=torch.float64)
    observed = torch.rand(rows, d, generator=generator) >= missing
    return x.to(dtype), observed, prototypes.to(dtype)


def slowly(
    x: np.ndarray, observed: np.ndarray, prototypes: np.ndarray, spherical: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and distances row by row, prototype by prototype."""
    labels, distances = [], []
    for row, seen in zip(x, observed, strict=True):
        far = []
        for prototype in prototypes:
            a, b = row[seen], prototype[seen]
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            if not spherical:
                far.append(np.linalg.norm(a - b))
            else:
                far.append(1.0 - (a @ b / lengths if lengths > 0 else 0.0))
        lost = spherical and not row[seen].any()
        labels.append(-1 if lost else int(np.argmin(far)))
        distances.append(np.nan if lost else min(far))
    return np.array(labels), np.array(distances)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    d=st.integers(1, 6),
    k=st.integers(1, 12),
    missing=st.sampled_from([None, 0.0, 0.3, 0.9]),
    geometry=st.sampled_from(["euclidean", "spherical"]),
)
def test_equals_the_slow_search(
    seed: int, d: int, k: int, missing: float | None, geometry: str
) -> None:
    x, observed, prototypes = drawn(seed, 25, d, k, missing or 0.0)
    x[3] = 0.0
    seen = None if missing is None else observed
    labels, distances = Nearest(k, geometry).predict({"prototypes": prototypes[None]}, 1.0, x, seen)
    expected, far = slowly(x.numpy(), observed.numpy(), prototypes.numpy(), geometry == "spherical")
    np.testing.assert_allclose(distances.numpy(), far, rtol=1e-9, atol=1e-9)
    # In one dimension cosines are 1 and -1 but for rounding, so that prototypes tie.
    if geometry == "euclidean" or (d > 1 and missing in (None, 0.0)):
        unseen = ~observed.any(1).numpy()
        assert (labels.numpy() == expected)[~unseen].all()
    assert ((labels.numpy() == -1) == (expected == -1)).all()


def test_by_hand() -> None:
    prototypes = torch.tensor([[0.0, 0.0], [4.0, 3.0]])
    x = torch.tensor([[1.0, 0.0], [4.0, 9.0], [4.0, 9.0], [0.0, 0.0]])
    observed = torch.tensor([[True, True], [True, True], [True, False], [False, False]])
    labels, distances = Nearest(2).predict({"prototypes": prototypes}, 1.0, x, observed)
    assert labels.tolist() == [0, 1, 1, 0]
    assert distances.tolist() == [1.0, 6.0, 0.0, 0.0]

    directions = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0], [7.0, 8.0]])
    observed = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    labels, distances = Nearest(2, "spherical").predict(
        {"prototypes": directions}, 1.0, x, observed
    )
    assert labels.tolist() == [1, -1, 1, 0]
    np.testing.assert_allclose(distances.numpy(), [0.2, np.nan, 1.0, 0.0], atol=1e-7)


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
@pytest.mark.parametrize("missing", [0.0, 0.02])
def test_labels_do_not_depend_on_the_cut(geometry: str, missing: float) -> None:
    x, observed, prototypes = drawn(1, 5000, 9, 40, missing, torch.float32)
    model, parameters = Nearest(40, geometry), {"prototypes": prototypes}
    labels, distances = model.predict(parameters, 1.0, x, observed)
    for size in (1, 999, 2048):
        for first in range(0, 5000, size if size > 1 else 501):
            part = slice(first, first + size)
            some, far = model.predict(parameters, 1.0, x[part], observed[part])
            assert torch.equal(some, labels[part])
            assert torch.equal(far, distances[part])


@pytest.mark.parametrize("geometry", ["euclidean", "spherical"])
def test_what_a_missing_entry_holds_does_not_matter(geometry: str) -> None:
    x, observed, prototypes = drawn(2, 60, 4, 5, 0.4)
    model, parameters = Nearest(5, geometry), {"prototypes": prototypes}
    other = torch.where(observed, x, 1e6)
    for first, second in zip(
        model.predict(parameters, 1.0, x, observed),
        model.predict(parameters, 1.0, other, observed),
        strict=True,
    ):
        assert torch.equal(first.nan_to_num(-9.0), second.nan_to_num(-9.0))
    z, seen = model.represent(parameters, x, observed)
    w, _ = model.represent(parameters, other, observed)
    assert torch.equal(z[observed], w[observed])
    assert seen is observed


def test_far_from_the_origin_in_float32() -> None:
    generator = torch.Generator().manual_seed(3)
    prototypes = 3.0 * torch.eye(4) + 4096.0
    labels = torch.arange(200) % 4
    x = prototypes[labels] + 0.25 * torch.randn(200, 4, generator=generator)
    found, _ = Nearest(4).predict({"prototypes": prototypes}, 1.0, x, None)
    assert torch.equal(found, labels)


def test_directions_are_what_spherical_prototypes_live_among() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [5.0, 7.0]])
    observed = torch.tensor([[True, True], [True, True], [True, False]])
    z, _ = Nearest(2, "spherical").represent({}, x, observed)
    torch.testing.assert_close(z, torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))
    assert Nearest(2).represent({}, x, None)[0] is x


def test_an_unknown_geometry() -> None:
    with pytest.raises(ConfigError, match=r"model.geometry: 'flat' is unknown; use euclidean or"):
        Nearest(3, "flat")  # type: ignore[arg-type]
