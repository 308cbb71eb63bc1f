from __future__ import annotations

import pytest
import torch

from clam_dist.errors import ConfigError
from clam_dist.models.clam import ClAM
from clam_dist.models.direct import direct_loss
from clam_dist.models.masks import draw_masks
from clam_dist.train.loop import one_thread_each

VALUE = [0.5, -1.0, 0.0, 2.0, 0.1]


@pytest.fixture
def data() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    observed = torch.rand(23, 5, generator=generator) > 0.15
    return {
        "x": normal(23, 5),
        "prototypes": normal(2, 3, 5),
        "log_epsilon": normal(2, 3),
        "beta": torch.tensor([0.3, 0.8], dtype=torch.float64),
        "weight": torch.rand(23, generator=generator, dtype=torch.float64),
        "observed": observed,
    }


def model(objective: str, **more: object) -> ClAM:
    return ClAM(
        3, 4, objective=objective, mask_rate=0.4, mask_value=VALUE, group_rows=4, seed=9, **more
    )  # type: ignore[arg-type]


def expected(
    data: dict[str, torch.Tensor], objective: str, missing: bool, weighted: bool
) -> tuple[torch.Tensor, float]:
    """Losses of both members and the entries, by the direct recursion on every row."""
    x, observed, value = data["x"], data["observed"], torch.tensor(VALUE, dtype=torch.float64)
    observed = observed if missing else torch.ones_like(observed)
    hidden = torch.zeros_like(observed)
    order = torch.arange(len(x))
    if objective == "masked":
        whole = observed.all(1)
        parts = [p for p in (whole.nonzero()[:, 0], (~whole).nonzero()[:, 0]) if len(p)]
        groups = [-(-len(part) // 4) for part in parts]
        masks = iter(draw_masks(9, (1, 2), sum(groups), 5, 0.4))
        for part in parts:
            for rows in part.split(4):
                hidden[rows[:, None], torch.from_numpy(next(masks))] = True
        moving, scored = hidden | ~observed, hidden & observed
    else:
        x = torch.where(observed, x, value)
        moving, scored = None, observed
    losses = [
        direct_loss(
            x[order], data["weight"] if weighted else None, data["prototypes"][p],
            data["beta"][p], 0.25, 4, hidden=moving, scored=scored, value=value,
        )
        for p in range(2)
    ]  # fmt: skip
    rows = scored.sum(1).double()
    return torch.stack(losses), float(rows @ data["weight"] if weighted else rows.sum())


@pytest.mark.parametrize("objective", ["masked", "unmasked"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_sums(
    data: dict[str, torch.Tensor], objective: str, missing: bool, weighted: bool
) -> None:
    leaf = data["prototypes"].requires_grad_()
    losses, entries = expected(data, objective, missing, weighted)
    losses.sum().backward()
    parameters = {"prototypes": leaf.detach()}
    x = data["x"].clone()
    if missing:
        x[~data["observed"]] = 1e6  # must not matter
    found = model(objective).gradient_sums(
        parameters,
        data["beta"],
        x,
        data["weight"] if weighted else None,
        data["observed"] if missing else None,
        (1, 2),
    )
    # float32 mask values: 0.1 and its like cost the last digits
    torch.testing.assert_close(found.loss, losses.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.gradients["prototypes"], leaf.grad, rtol=1e-5, atol=1e-6)
    assert found.entries.item() == pytest.approx(entries)


@pytest.mark.parametrize("objective", ["masked", "unmasked"])
def test_the_weighted_form_returns_its_gradient(
    data: dict[str, torch.Tensor], objective: str
) -> None:
    """A common shift of log ε changes nothing, so its gradient sums to 0."""
    parameters = {"prototypes": data["prototypes"], "log_epsilon": data["log_epsilon"]}
    found = model(objective).gradient_sums(
        parameters, data["beta"], data["x"], None, data["observed"], (0,)
    )
    gradient = found.gradients["log_epsilon"]
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(
        gradient.sum(1), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("objective", ["masked", "unmasked"])
def test_threads_give_the_bits_of_one(data: dict[str, torch.Tensor], objective: str) -> None:
    parameters = {"prototypes": data["prototypes"].float()}
    x, beta = data["x"].float().repeat(40, 1), data["beta"].float()
    clam = model(objective)

    def one(number: int) -> torch.Tensor:
        rows = x[number * 20 :]
        seen = None if number % 2 else data["observed"].repeat(40, 1)[number * 20 :]
        found = clam.gradient_sums(parameters, beta, rows, None, seen, (number,))
        return torch.cat([found.loss, found.gradients["prototypes"].double().flatten()])

    with one_thread_each(4) as pool:  # as the trainer has it: digits follow intra-op threads
        assert pool is not None
        alone = [one(number) for number in range(12)]
        together = list(pool.map(one, range(12)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together))


def test_training_finds_three_groups() -> None:
    """Plain gradient descent on (9) separates tight groups; predict labels them."""
    generator = torch.Generator().manual_seed(4)
    centers = torch.tensor([[3.0, 3.0, 0.0], [-3.0, 0.0, 3.0], [0.0, -3.0, -3.0]])
    truth = torch.arange(300) % 3
    x = centers[truth] + 0.2 * torch.randn(300, 3, generator=generator)
    clam = ClAM(3, 6, mask_rate=0.34, mask_value=0.0, group_rows=8)
    prototypes = x[:3].clone().unsqueeze(0) * 0.3
    beta, losses = torch.tensor([0.3]), []
    for step in range(60):
        sums = clam.gradient_sums({"prototypes": prototypes}, beta, x, None, None, (step,))
        prototypes -= 1.0 * sums.gradients["prototypes"] / sums.entries
        losses.append(float(sums.loss) / sums.entries)
    assert losses[-1] < 0.2 * losses[0]
    labels, distances = clam.predict({"prototypes": prototypes}, 0.3, x, None)
    assert (labels.view(-1, 3) == labels[:3]).all()
    assert len(labels[:3].unique()) == 3
    torch.testing.assert_close(distances, (x - prototypes[0, labels]).norm(dim=1))


def test_predict_completes_from_what_is_seen() -> None:
    """A row that shows one feature goes to the prototype which that feature fits."""
    prototypes = torch.tensor([[2.0, 2.0], [-2.0, -2.0]])
    rows = torch.tensor([[0.0, 2.0], [-2.0, 0.0]])
    observed = torch.tensor([[False, True], [True, False]])
    labels, distances = ClAM(2, 5).predict({"prototypes": prototypes}, 1.0, rows, observed)
    assert labels.tolist() == [0, 1]
    assert distances.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("step_size", [0.0, -0.1, 2.0])
def test_step_sizes_that_let_the_energy_rise_are_refused(step_size: float) -> None:
    with pytest.raises(ConfigError, match=r"model\.step_size: .* is outside \(0, 2\)"):
        ClAM(3, 5, step_size)
