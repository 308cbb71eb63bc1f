"""DClAM's loss, gradients and labels against slow direct forms in float64."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clam_dist.errors import ConfigError
from clam_dist.models.autoencoders import bound
from clam_dist.models.dclam import DClAM
from clam_dist.models.direct import direct_states
from clam_dist.models.recursion import recurse

NETWORKS: list[dict[str, Any]] = [
    {"kind": "dense", "hidden": [7], "activation": "tanh"},
    {"kind": "convolutional", "image_shape": [1, 3, 4], "channels": [4]},
    {"kind": "residual", "image_shape": [1, 3, 4], "channels": [4]},
    {"kind": "transformer", "patches": 3, "embedding": 4, "heads": 2, "layers": 1},
]
WIDTH, K, LATENT = 12, 4, 3


def build(network: dict[str, Any] | None = None, **others: Any) -> DClAM:
    given = {"n_clusters": K, "steps": 5, "width": WIDTH, "latent": LATENT, "seed": 3}
    return DClAM(**{**given, "network": NETWORKS[0] if network is None else network, **others})


def members(model: DClAM, count: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Starts of several members, prototypes drawn among latents' likely places."""
    own = [model.initial_parameters(restart) for restart in range(count)]
    found = {name: torch.stack([one[name] for one in own]).to(dtype) for name in own[0]}
    generator = torch.Generator().manual_seed(7)
    shape = (count, model.n_clusters, model.latent)
    found["prototypes"] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return found


def rows(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, weights and what is seen."""
    generator = np.random.default_rng(count)
    x = torch.from_numpy(generator.normal(size=(count, WIDTH))).to(dtype)
    weight = torch.from_numpy(generator.choice([0.5, 1.0, 2.0], count)).to(dtype)
    return x, weight, torch.from_numpy(generator.random((count, WIDTH)) > 0.3)


def oracle_dense(own: dict[str, np.ndarray], x: np.ndarray, beta: float | None, T: int) -> Any:
    """Reconstruction and final latents by NumPy, one explicit attractor step after the other."""

    def layer(side: str, number: int, rows: np.ndarray) -> np.ndarray:
        return rows @ own[f"{side}.{number}.weight"].T + own[f"{side}.{number}.bias"]

    z = layer("encoder", 2, np.tanh(layer("encoder", 0, x)))
    z = z / np.sqrt(1 + (z**2).mean(1, keepdims=True))
    if beta is not None:
        for _ in range(T):
            squared = ((z[:, None] - own["prototypes"]) ** 2).sum(2)
            share = np.exp(-beta * (squared - squared.min(1, keepdims=True)))
            share /= share.sum(1, keepdims=True)
            z = z + (share @ own["prototypes"] - z) / T
    return layer("decoder", 2, np.tanh(layer("decoder", 0, z))), z


@pytest.mark.parametrize("objective", ["clustering", "reconstruction"])
def test_loss_and_gradient_by_finite_differences(objective: Any) -> None:
    model = build(objective=objective, mask_value=0.4)
    parameters = members(model, 2)
    x, weight, observed = rows(9)
    betas = torch.tensor([0.3, 2.0], dtype=torch.float64)
    found = model.gradient_sums(parameters, betas, x, weight, observed, (0,))

    def loss(member: int, values: dict[str, np.ndarray]) -> float:
        beta = float(betas[member]) if objective == "clustering" else None
        filled = np.where(observed.numpy(), x.numpy(), np.float32(0.4))
        back, _ = oracle_dense(values, filled, beta, model.steps)
        squares = np.where(observed.numpy(), (back - x.numpy()) ** 2, 0.0).sum(1)
        return float(squares @ weight.numpy())

    assert found.entries.item() == pytest.approx(float(observed.sum(1).double() @ weight))
    assert found.loss.dtype == torch.float64
    generator = np.random.default_rng(0)
    for member in range(2):
        own = {name: value[member].numpy().copy() for name, value in parameters.items()}
        assert found.loss[member].item() == pytest.approx(loss(member, own), rel=1e-10)
        for name, value in own.items():
            direction = generator.normal(size=value.shape)
            high = loss(member, {**own, name: value + 1e-5 * direction})
            low = loss(member, {**own, name: value - 1e-5 * direction})
            slope = float((found.gradients[name][member].numpy() * direction).sum())
            assert slope == pytest.approx((high - low) / 2e-5, rel=1e-5, abs=1e-7), name
    if objective == "reconstruction":
        assert not found.gradients["prototypes"].any()
        networks = {name: value for name, value in parameters.items() if name != "prototypes"}
        again = model.gradient_sums(networks, betas, x, weight, observed, (0,))
        assert again.gradients.keys() == networks.keys()
        assert torch.equal(again.loss, found.loss)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["kind"])
def test_gradient_of_every_network_is_that_of_the_direct_recursion(network: dict[str, Any]) -> None:
    model = build(network)
    parameters = members(model, 1)
    x, weight, _ = rows(6)
    beta = torch.tensor([0.8], dtype=torch.float64)
    found = model.gradient_sums(parameters, beta, x, weight, None, (0,))
    leaves = {name: value[0].clone().requires_grad_() for name, value in parameters.items()}
    built = model._modules()
    z = direct_states(built.encode(leaves, x), leaves["prototypes"], 0.8, model.alpha, model.steps)[
        -1
    ]
    loss = (built.decode(leaves, z) - x).square().sum(1) @ weight
    loss.backward()
    torch.testing.assert_close(found.loss[0], loss.detach())
    for name, leaf in leaves.items():
        torch.testing.assert_close(found.gradients[name][0], leaf.grad, rtol=1e-9, atol=1e-9)


@st.composite
def recursions(draw: st.DrawFn) -> tuple[Tensor, Tensor, float, float, int]:
    count, m, k = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([0.1, 1.0, 10.0]))
    z = torch.from_numpy(generator.normal(size=(count, m)) * size)
    prototypes = torch.from_numpy(generator.normal(size=(k, m)))
    beta = draw(st.sampled_from([1e-3, 0.3, 5.0, 200.0]))
    return z, prototypes, beta, draw(st.floats(0.02, 1.9)), draw(st.integers(1, 8))


def energies(z: Tensor, prototypes: Tensor, beta: float) -> Tensor:
    squared = (z[:, None] - prototypes).square().sum(2)
    return -torch.logsumexp(-beta * squared, 1) / beta


@settings(max_examples=150, deadline=None)
@given(recursions())
def test_recursion_is_the_direct_one_and_its_energy_never_rises(
    case: tuple[Tensor, Tensor, float, float, int],
) -> None:
    z, prototypes, beta, alpha, steps = case
    states = direct_states(z, prototypes, beta, alpha, steps)
    scale = torch.tensor(beta, dtype=torch.float64)
    previous, last = energies(z, prototypes, beta), z
    for step in range(1, steps + 1):
        state, logits = recurse(z, prototypes, scale, alpha, step)
        size = 1.0 + float(state.abs().max())
        # A sharp softmax near a boundary multiplies rounding.
        torch.testing.assert_close(state, states[step], rtol=1e-6, atol=1e-6 * size)
        reached = energies(state, prototypes, beta)
        squared = (state[:, None] - prototypes).square().sum(2)
        offsets = beta * state.square().sum(1)  # of all logits alike
        torch.testing.assert_close(
            logits.T - offsets[:, None], -beta * squared, rtol=1e-6, atol=1e-6 * beta * size**2
        )
        drop = alpha * (2 - alpha) * _pull(last, prototypes, beta).square().sum(1)
        assert bool((previous - reached >= drop - 1e-8 * (1 + previous.abs())).all())
        previous, last = reached, state


def _pull(z: Tensor, prototypes: Tensor, beta: float) -> Tensor:
    share = torch.softmax(-beta * (z[:, None] - prototypes).square().sum(2), 1)
    return share @ prototypes - z


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["kind"])
def test_sums_over_parts_weights_and_members(network: dict[str, Any]) -> None:
    model = build(network)
    parameters = members(model, 3)
    x, weight, observed = rows(20)
    betas = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)
    whole = model.gradient_sums(parameters, betas, x, weight, observed, (0,))

    def assert_close(found: Any, expected: Any) -> None:
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(found.entries, expected.entries)
        largest = max(float(value.abs().max()) for value in expected.gradients.values())
        for name, value in expected.gradients.items():
            torch.testing.assert_close(
                found.gradients[name], value, rtol=1e-9, atol=1e-12 * largest
            )

    halves = [
        model.gradient_sums(parameters, betas, x[part], weight[part], observed[part], (0,))
        for part in (slice(0, 7), slice(7, 7), slice(7, None))
    ]
    assert_close(halves[0] + halves[1] + halves[2], whole)

    twice = torch.cat([x, x[:5]])
    seen = torch.cat([observed, observed[:5]])
    doubled = torch.ones(20, dtype=torch.float64)
    doubled[:5] = 2.0
    assert_close(
        model.gradient_sums(parameters, betas, twice, None, seen, (0,)),
        model.gradient_sums(parameters, betas, x, doubled, observed, (0,)),
    )
    assert_close(
        model.gradient_sums(
            parameters, betas, x, torch.ones_like(doubled), torch.ones_like(observed), (0,)
        ),
        model.gradient_sums(parameters, betas, x, None, None, (0,)),
    )

    for member in range(3):
        own = {name: value[member : member + 1] for name, value in parameters.items()}
        alone = model.gradient_sums(own, betas[member : member + 1], x, weight, observed, (0,))
        assert torch.equal(alone.loss[0], whole.loss[member])
        for name, value in alone.gradients.items():
            assert torch.equal(value[0], whole.gradients[name][member]), name


def test_many_rows_are_summed_in_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    parameters, beta = members(model, 1), torch.ones(1, dtype=torch.float64)
    x, weight, observed = rows(50)
    whole = model.gradient_sums(parameters, beta, x, weight, observed, (0,))
    monkeypatch.setattr("clam_dist.models.dclam.TRAINED_ROWS", 8)
    parts = model.gradient_sums(parameters, beta, x, weight, observed, (0,))
    torch.testing.assert_close(parts.loss, whole.loss)
    for name, value in whole.gradients.items():
        torch.testing.assert_close(parts.gradients[name], value)


def test_what_a_missing_entry_holds_does_not_matter() -> None:
    model = build(mask_value=np.linspace(-1, 1, WIDTH))
    parameters = members(model, 2, torch.float32)
    one = {name: value[:1] for name, value in parameters.items()}
    x, weight, observed = rows(20, torch.float32)
    other = torch.where(observed, x, 123.0)
    betas = torch.tensor([0.2, 1.0])
    found, again = (
        model.gradient_sums(parameters, betas, values, weight, observed, (0,))
        for values in (x, other)
    )
    assert torch.equal(found.loss, again.loss)
    for name, value in found.gradients.items():
        assert torch.equal(value, again.gradients[name])
    for first, second in zip(
        model.predict(one, 1.0, x, observed), model.predict(one, 1.0, other, observed)
    ):
        assert torch.equal(first, second)
    filled = torch.where(observed, x, model.mask_value)
    assert torch.equal(model.represent(one, x, observed)[0], model.represent(one, filled, None)[0])


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["kind"])
def test_rows_do_not_depend_on_their_company(network: dict[str, Any]) -> None:
    model = build(network)
    one = {name: value[0] for name, value in members(model, 1, torch.float32).items()}
    x, _, observed = rows(600, torch.float32)

    def all_of(part: slice | Tensor) -> list[Tensor]:
        rows, seen = x[part], observed[part]
        return [
            *model.predict(one, 2.0, rows, seen),
            model.represent(one, rows, seen)[0],
            model.recursed(one, 2.0, rows, seen),
            model.reconstruct(one, rows, seen),
            model.reconstruct(one, rows, seen, 2.0),
        ]

    whole = all_of(slice(None))
    for part in (slice(3, 4), slice(250, 270), torch.arange(599, -1, -1)):
        for found, expected in zip(all_of(part), whole):
            assert torch.equal(found, expected[part])
    assert [len(value) for value in all_of(slice(0, 0))] == [0] * 6


def test_labels_and_distances_by_the_oracle() -> None:
    model = build()
    parameters = members(model, 1)
    own = {name: value[0].numpy() for name, value in parameters.items()}
    x, _, _ = rows(40)
    labels, distances = model.predict(parameters, 1.5, x, None)
    back, final = oracle_dense(own, x.numpy(), 1.5, model.steps)
    plain, latents = oracle_dense(own, x.numpy(), None, 0)
    expected = ((final[:, None] - own["prototypes"]) ** 2).sum(2).argmin(1)
    assert labels.dtype == torch.int64
    np.testing.assert_array_equal(labels.numpy(), expected)
    assert len(set(expected)) > 1
    away = np.linalg.norm(latents - own["prototypes"][expected], axis=1)
    np.testing.assert_allclose(distances.numpy(), away)
    np.testing.assert_allclose(model.represent(parameters, x, None)[0].numpy(), latents)
    np.testing.assert_allclose(model.recursed(parameters, 1.5, x, None).numpy(), final)
    np.testing.assert_allclose(model.reconstruct(parameters, x, None).numpy(), plain)
    np.testing.assert_allclose(model.reconstruct(parameters, x, None, 1.5).numpy(), back)
    for beta, values in ((None, plain), (torch.tensor([1.5]).double(), back)):
        loss, entries = model.reconstruction_error(parameters, beta, x, None, None)
        assert loss.item() == pytest.approx(((values - x.numpy()) ** 2).sum())
        assert entries.item() == x.numel()
    pictures = model.decode(parameters, parameters["prototypes"][0])
    assert pictures.shape == (K, WIDTH)


def test_beginning_is_k_means_on_latents() -> None:
    # A linear encoder that keeps the first three features; three groups of rows, one apart.
    model = build({"kind": "dense", "hidden": [], "bounded": False}, n_clusters=3)
    network = {name: torch.zeros_like(v) for name, v in model.initial_parameters(0).items()}
    network["encoder.0.weight"][:, :LATENT] = torch.eye(LATENT)
    middles = torch.eye(3) * 10
    x = torch.zeros(60, WIDTH)
    x[:, :3] = middles.repeat(20, 1)
    x[:3, 0] += 1.0  # one row of each group lies beside it
    weight = torch.ones(60)
    weight[:3] = 0.0
    begun, inertia = model.begin(network, x, weight, None, 0)
    found = begun["prototypes"]
    assert found.shape == (3, 3)
    torch.testing.assert_close(found[found.argmax(0)], middles)
    assert inertia == pytest.approx(0.0, abs=1e-9)
    begun, inertia = model.begin(network, x, None, None, 0)
    # Each group's mean moves by 1/20: 19 rows at 1/20 and one at 19/20.
    assert inertia == pytest.approx((19 / 400 + 361 / 400) / 20, rel=1e-4)
    again, _ = model.begin(network, x, None, None, 0)
    assert torch.equal(again["prototypes"], begun["prototypes"])


def test_rates() -> None:
    model = build(rates={"encoder": 0.5})
    assert model.rate("encoder.0.weight") == 0.5
    assert model.rate("decoder.2.bias") == build().rate("decoder.2.bias")
    assert model.rate("prototypes") > 0
    with pytest.raises(ConfigError, match=r"model\.rates\.latent: unknown.*decoder, encoder"):
        build(rates={"latent": 1.0})
    with pytest.raises(ConfigError, match=r"model\.rates\.encoder: 0 is not above 0"):
        build(rates={"encoder": 0})


def test_settings() -> None:
    assert DClAM(7, 5, width=20).latent == 7
    assert DClAM(7, 5, width=20).alpha == pytest.approx(0.2)
    with pytest.raises(ConfigError, match=r"model\.step_size: 2\.0 is outside \(0, 2\)"):
        build(step_size=2.0)
    with pytest.raises(ConfigError, match=r"model\.objective: 'masked' is unknown"):
        build(objective="masked")
    with pytest.raises(ConfigError, match=r"model\.image_shape: \[1, 8, 8\] holds 64.*12 features"):
        build({"kind": "residual", "image_shape": [1, 8, 8]})


def test_models_can_be_sent_to_another_process() -> None:
    model = build()
    x, weight, observed = rows(5)
    parameters, beta = members(model, 1), torch.ones(1, dtype=torch.float64)
    expected = model.gradient_sums(parameters, beta, x, weight, observed, (0,))
    again = pickle.loads(pickle.dumps(model))
    found = again.gradient_sums(parameters, beta, x, weight, observed, (0,))
    assert torch.equal(found.loss, expected.loss)


def test_one_loss_separates_groups_and_still_reconstructs() -> None:
    """Six groups on a curved sheet: training pulls latents to prototypes, rows come back better."""
    generator = np.random.default_rng(0)
    middles = generator.normal(size=(6, 4)) * 1.5
    hidden = middles[np.arange(300) % 6] + 0.3 * generator.normal(size=(300, 4))
    values = np.tanh(hidden @ generator.normal(size=(4, WIDTH)) * 0.5)
    x = torch.from_numpy(values.astype(np.float32))
    model = DClAM(6, 10, width=WIDTH, network={"hidden": [32]}, seed=1)
    pretraining = DClAM(
        6, 10, width=WIDTH, network={"hidden": [32]}, seed=1, objective="reconstruction"
    )
    parameters = {name: v[None] for name, v in model.initial_parameters(0).items()}
    adam(pretraining, parameters, torch.ones(1), x, 300)
    pretrained = float(pretraining.reconstruction_error(parameters, None, x, None, None)[0])
    begun, inertia = model.begin(parameters, x, None, None, 0)
    parameters["prototypes"] = begun["prototypes"][None]
    beta = torch.tensor([4.0 / inertia])
    before = float(model.reconstruction_error(parameters, beta, x, None, None)[0])
    adam(model, parameters, beta, x, 300)
    after = float(model.reconstruction_error(parameters, beta, x, None, None)[0])
    labels, _ = model.predict(parameters, float(beta), x, None)
    assert after < 0.7 * before
    assert after < 1.3 * pretrained
    # Nearly every row of a group has its group's label.
    counts = np.zeros((6, 6))
    np.add.at(counts, (np.arange(300) % 6, labels.numpy()), 1)
    assert counts.max(1).sum() >= 270


def adam(model: DClAM, parameters: dict[str, Tensor], beta: Tensor, x: Tensor, steps: int) -> None:
    """Plain Adam on whole batches, in place."""
    first = {name: torch.zeros_like(value) for name, value in parameters.items()}
    second = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for step in range(1, steps + 1):
        sums = model.gradient_sums(parameters, beta, x, None, None, (step,))
        for name, gradient in sums.gradients.items():
            mean = gradient / sums.entries.to(gradient.dtype)
            first[name].mul_(0.9).add_(mean, alpha=0.1)
            second[name].mul_(0.999).addcmul_(mean, mean, value=0.001)
            size = (second[name] / (1 - 0.999**step)).sqrt() + 1e-8
            change = first[name] / (1 - 0.9**step) / size
            parameters[name] = parameters[name] - 3e-3 * model.rate(name) * change


def test_bounded_latents_stay_in_their_ball() -> None:
    model = build()
    parameters = members(model, 1, torch.float32)
    parameters["encoder.2.weight"] *= 1e6
    x, _, _ = rows(10, torch.float32)
    z = model.represent(parameters, x, None)[0]
    assert float(z.norm(dim=1).max()) <= LATENT**0.5 * (1 + 1e-6)
    torch.testing.assert_close(bound(z * 0), z * 0)
