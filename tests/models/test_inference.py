from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.models.direct import direct_labels, direct_states
from clam_dist.models.inference import BLOCK_ROWS, infer


def draw(seed: int, rows: int, d: int, k: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(k, d, generator=generator, dtype=torch.float64)
    observed = torch.rand(rows, d, generator=generator) > 0.3
    value = torch.randn(d, generator=generator, dtype=torch.float64)
    weights = torch.randn(k, generator=generator, dtype=torch.float64)
    return x, prototypes, observed, value, weights


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    d=st.integers(1, 5),
    k=st.integers(1, 40),
    steps=st.integers(1, 6),
    missing=st.booleans(),
    clamp=st.booleans(),
    weighted=st.booleans(),
)
def test_labels_and_distances_equal_the_direct_recursions(
    seed: int, d: int, k: int, steps: int, missing: bool, clamp: bool, weighted: bool
) -> None:
    x, prototypes, observed, value, weights = draw(seed, 30, d, k)
    seen = observed if missing else None
    log_epsilon = weights if weighted else None
    labels, distances = infer(x, seen, prototypes, 0.7, 1 / steps, steps, value, clamp, log_epsilon)
    final = direct_states(
        x,
        prototypes,
        0.7,
        1 / steps,
        steps,
        hidden=~observed if missing else None,
        value=value,
        clamp=clamp,
        log_epsilon=log_epsilon,
    )
    # A complete row has nothing to clamp: all its features move.
    free = direct_states(x, prototypes, 0.7, 1 / steps, steps, log_epsilon=log_epsilon)
    state = torch.where(observed.all(1, keepdim=True), free[-1], final[-1]) if missing else free[-1]
    nearest = torch.cdist(state, prototypes)
    assert (nearest.gather(1, labels[:, None])[:, 0] <= nearest.amin(1) + 1e-9).all()
    assert (labels == direct_labels(state, prototypes)).float().mean() > 0.99
    difference = (x - prototypes[labels]) * (observed if missing else 1.0)
    torch.testing.assert_close(distances, difference.norm(dim=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("d", "k"), [(3, 4), (14, 9), (40, 150)])
@pytest.mark.parametrize("missing", [False, True])
def test_a_rows_bits_do_not_depend_on_its_company(d: int, k: int, missing: bool) -> None:
    x, prototypes, observed, value, _ = draw(3, 2 * BLOCK_ROWS + 77, d, k)
    x, prototypes = x.float(), prototypes.float()
    observed[::3] = True

    def run(rows: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = observed[rows] if missing else None
        return infer(x[rows], seen, prototypes, 0.2, 0.1, 10, value, True)

    labels, distances = run(slice(None))
    for size in (1, 5, 700, BLOCK_ROWS + 1):
        for first in range(0, 3 * size, size):
            part = slice(first, first + size)
            found = run(part)
            assert torch.equal(found[0], labels[part])
            assert torch.equal(found[1], distances[part])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    found = run(order)
    assert torch.equal(found[0], labels[order])
    assert torch.equal(found[1], distances[order])


def test_equal_prototypes_give_the_first_label() -> None:
    x = torch.zeros(3, 2)
    labels, distances = infer(x, None, torch.ones(4, 2), 1.0, 0.5, 2, torch.zeros(2), True)
    assert labels.tolist() == [0, 0, 0]
    assert distances.tolist() == pytest.approx([2**0.5] * 3)


def test_no_rows() -> None:
    labels, distances = infer(
        torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.bool), torch.ones(4, 2), 1.0, 0.5, 2,
        torch.zeros(2), True,
    )  # fmt: skip
    assert labels.shape == distances.shape == (0,)
