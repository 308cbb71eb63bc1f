from __future__ import annotations

import pickle
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clam_dist.errors import ConfigError, DataError
from clam_dist.models.adaptation import merge, next_centroids
from clam_dist.models.attention import SIGMAS, Sigma
from clam_dist.models.autoencoders import initial_parameters
from clam_dist.models.coder import Coder
from clam_dist.models.sums import Sums
from clam_dist.models.tdcm import TDCM

WIDTH, HIDDEN, LATENT, CLUSTERS, MEMBERS = 6, 5, 4, 3, 2
BETA = torch.ones(MEMBERS)


class Dense:
    """One hidden layer each way."""

    def encode(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ parameters["encoder.first"])
        return hidden @ parameters["encoder.second"] + parameters["encoder.bias"]

    def decode(self, parameters: Mapping[str, Tensor], z: Tensor) -> Tensor:
        return torch.tanh(z @ parameters["decoder.first"]) @ parameters["decoder.second"]


def drawn(model: TDCM, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = np.random.default_rng(5)
    shapes = {
        "encoder.first": (WIDTH, HIDDEN),
        "encoder.second": (HIDDEN, LATENT),
        "encoder.bias": (LATENT,),
        "decoder.first": (LATENT, HIDDEN),
        "decoder.second": (HIDDEN, WIDTH),
    }
    network = {
        name: torch.from_numpy(generator.normal(size=(MEMBERS, *shape))).to(dtype)
        for name, shape in shapes.items()
    }
    parameters = model.starting(network)
    metric = 0.5 * generator.normal(size=(MEMBERS, LATENT, LATENT))
    return {**parameters, "metric": torch.from_numpy(metric).to(dtype)}


def rows(count: int = 23, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = np.random.default_rng(6)
    x = torch.from_numpy(generator.normal(size=(count, WIDTH))).to(dtype)
    weight = torch.from_numpy(generator.uniform(0.2, 3.0, count)).to(dtype)
    return x, weight, torch.from_numpy(generator.random((count, WIDTH)) > 0.2)


def run_together(generators: list[Generator[Tensor, Tensor, Sums]]) -> Sums:
    """All micro-batches in lockstep, each exchanged tensor the sum over them."""
    finished: list[Sums] = []
    totals: list[Any] = [None] * len(generators)
    while not finished:
        partials = []
        for generator, total in zip(generators, totals):
            try:
                partials.append(generator.send(total))
            except StopIteration as end:
                finished.append(end.value)
        assert not (finished and partials)
        assert len({partial.shape for partial in partials}) <= 1
        assert all(partial.dtype == torch.float64 and partial.ndim == 1 for partial in partials)
        if partials:
            totals = [torch.stack(partials).sum(0)] * len(generators)
    result = finished[0]
    for other in finished[1:]:
        result = result + other
    return result


def exchanged(
    model: TDCM,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    weight: Tensor | None = None,
    observed: Tensor | None = None,
    cuts: tuple[int, ...] = (),
) -> Sums:
    """Sums of the batch, cut into micro-batches at the given rows."""
    edges = (0, *cuts, len(x))
    parts = [slice(*pair) for pair in pairwise(edges)]
    return run_together(
        [
            model.gradient_exchange(
                parameters,
                BETA,
                x[part],
                None if weight is None else weight[part],
                None if observed is None else observed[part],
                (0,),
            )
            for part in parts
        ]
    )


def oracle(
    model: TDCM, parameters: Mapping[str, Tensor], x: Tensor, weight: Tensor, observed: Tensor
) -> Tensor:
    """Mean loss of each member, row by row and cluster by cluster over the whole batch."""
    losses = []
    filled = torch.where(observed, x, torch.as_tensor(model.mask_value, dtype=x.dtype))
    share = weight / weight.sum()
    for member in range(MEMBERS):
        own = {name: value[member] for name, value in parameters.items()}
        latents = model.network.encode(own, filled)
        loss = torch.zeros((), dtype=torch.float64)
        if model.reconstruction > 0:
            error = (model.network.decode(own, latents) - x)[observed]
            entries = weight[:, None].expand_as(x)[observed]
            loss = loss + model.reconstruction * (entries * error**2).sum() / entries.sum()
        z = latents
        if model.standardise:
            mean = share @ z
            z = (z - mean) / (share @ (z - mean) ** 2 + 1e-8).sqrt()
        metric = own["metric"]
        scale = torch.exp(metric.diagonal() - metric.diagonal().mean())
        factor = torch.tril(metric, -1) + torch.diag(scale)
        product = factor @ factor.T
        centroids = list(own["start"])
        for alpha in model.alphas:
            scores = []
            for centroid in centroids:
                q = torch.stack([(row - centroid) @ product @ (row - centroid) for row in z])
                sigma = {
                    "identity": q,
                    "softplus": torch.log(1 + torch.exp(q)) - torch.log(torch.tensor(2.0).double()),
                    "log1p": torch.log(1 + q),
                }
                scores.append(-sigma[model.sigma])
            found = torch.stack(scores, 1)
            delta = torch.exp(found / model.tau)
            delta = delta / delta.sum(1, keepdim=True)
            loss = loss - alpha * (share @ (delta * found).sum(1))
            sizes = share @ delta
            entropy = -(sizes * sizes.log()).sum()
            loss = loss + alpha * model.balance * (np.log(len(centroids)) - entropy)
            centroids = [
                (weight * delta[:, j]) @ z / (weight @ delta[:, j]) for j in range(len(centroids))
            ]
        losses.append(loss)
    return torch.stack(losses)


def model_of(**changes: Any) -> TDCM:
    return TDCM(Dense(), LATENT, CLUSTERS, **{"tau": 1.5, "mask_value": 0.3, **changes})


CASES: list[dict[str, Any]] = [
    *({"sigma": sigma} for sigma in SIGMAS),
    {"reconstruction": 0.0, "balance": 0.7},
    {"standardise": False, "blocks": 2, "alphas": (0.2, 0.9)},
    {"balance": 0.0, "blocks": 1, "reconstruction": 2.0},
]


@pytest.mark.parametrize("cuts", [(), (9,), (5, 5), (4, 5, 5, 20)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_exchanged_gradient_is_that_of_the_whole_batch(
    case: dict[str, Any], cuts: tuple[int, ...]
) -> None:
    model, (x, weight, observed) = model_of(**case), rows()
    parameters = drawn(model)
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    loss = oracle(model, leaves, x, weight, observed)
    loss.sum().backward()
    found = exchanged(model, parameters, x, weight, observed, cuts)
    assert set(found.gradients) == set(parameters) - model.derived
    torch.testing.assert_close(found.entries, weight.sum())
    torch.testing.assert_close(found.loss / found.entries, loss.detach(), rtol=1e-9, atol=1e-9)
    for name, value in found.gradients.items():
        wanted = leaves[name].grad
        wanted = torch.zeros_like(value) if wanted is None else wanted
        torch.testing.assert_close(value / found.entries, wanted, rtol=1e-9, atol=1e-9)
    assert found.gradients["metric"].abs().max() > 1e-3
    assert found.gradients["encoder.first"].abs().max() > 1e-3


@pytest.mark.parametrize("sigma", SIGMAS)
def test_gradient_by_finite_differences(sigma: Sigma) -> None:
    model, (x, weight, observed) = model_of(sigma=sigma), rows()
    parameters = drawn(model)
    gradients = exchanged(model, parameters, x, weight, observed, (11,)).gradients
    generator = np.random.default_rng(0)
    for name, gradient in gradients.items():
        step = torch.from_numpy(generator.normal(size=tuple(gradient.shape))) * 1e-5
        ends = [
            exchanged(
                model, {**parameters, name: parameters[name] + sign * step}, x, weight, observed
            )
            for sign in (1.0, -1.0)
        ]
        slope = float((ends[0].loss - ends[1].loss).sum()) / 2
        assert slope == pytest.approx(float((gradient * step).sum()), rel=1e-6, abs=1e-10)


def test_weight_two_is_the_row_twice() -> None:
    model, (x, _, observed) = model_of(), rows()
    parameters = drawn(model)
    weight = torch.ones(len(x), dtype=torch.float64)
    weight[3] = 2.0
    twice = torch.cat([x, x[3:4]]), torch.cat([observed, observed[3:4]])
    one = exchanged(model, parameters, x, weight, observed)
    other = exchanged(model, parameters, twice[0], None, twice[1])
    torch.testing.assert_close(one.loss, other.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(one.entries, other.entries)
    for name, gradient in one.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name], rtol=1e-9, atol=1e-11)
    derived = model.derive(parameters, x, weight, observed)
    for name, value in model.derive(parameters, twice[0], None, twice[1]).items():
        torch.testing.assert_close(value, derived[name], rtol=1e-10, atol=1e-12)


def test_float32_micro_batches_and_no_rows_at_all() -> None:
    model, (x, weight, observed) = model_of(), rows(dtype=torch.float32)
    parameters = drawn(model, torch.float32)
    one = exchanged(model, parameters, x, weight, observed)
    cut = exchanged(model, parameters, x, weight, observed, (7, 7, 15))
    again = exchanged(model, parameters, x, weight, observed, (7, 7, 15))
    for name, gradient in cut.gradients.items():
        assert gradient.dtype == torch.float32
        assert (gradient == again.gradients[name]).all()
        torch.testing.assert_close(gradient, one.gradients[name], rtol=1e-3, atol=1e-3)
    none = exchanged(model, parameters, x[:0], weight[:0], observed[:0])
    assert float(none.entries) == 0.0
    assert not none.loss.any()
    assert not any(gradient.any() for gradient in none.gradients.values())


def test_no_gradient_mode_is_left_behind() -> None:
    model, (x, _, _) = model_of(), rows()
    parameters = drawn(model)
    with torch.no_grad():
        step = model.gradient_exchange(parameters, BETA, x, None, None, ())
        next(step)
        assert not torch.is_grad_enabled()
        found = exchanged(model, parameters, x)
    assert not any(value.requires_grad for value in (found.loss, *found.gradients.values()))
    assert not any(value.requires_grad for value in parameters.values())


def test_derive_by_hand_oracle() -> None:
    model, (x, weight, observed) = model_of(), rows()
    parameters = drawn(model)
    parameters["start"] = 2.0 * torch.eye(CLUSTERS, LATENT).double().expand(MEMBERS, -1, -1)
    found = model.derive(parameters, x, weight, observed)
    assert set(found) == model.derived
    for member in range(MEMBERS):
        own = {name: value[member] for name, value in parameters.items()}
        z = Dense().encode(own, torch.where(observed, x, 0.3)).numpy()
        mean = np.average(z, axis=0, weights=weight)
        spread = np.sqrt(np.average((z - mean) ** 2, axis=0, weights=weight) + 1e-8)
        z = (z - mean) / spread
        metric = own["metric"].numpy()
        factor = np.tril(metric, -1) + np.diag(np.exp(np.diag(metric) - np.diag(metric).mean()))
        centroids = 2.0 * np.eye(CLUSTERS, LATENT)
        for _ in range(3):
            q = (((z[:, None] - centroids[None]) @ factor) ** 2).sum(-1)
            delta = np.exp(-q / 1.5)
            delta *= weight.numpy()[:, None] / delta.sum(1, keepdims=True)
            centroids = delta.T @ z / delta.sum(0)[:, None]
        for name, wanted in (("center", mean), ("spread", spread), ("prototypes", centroids)):
            np.testing.assert_allclose(found[name][member], wanted, rtol=1e-9, atol=1e-9)


def test_adapting_chunk_by_chunk_is_deriving_from_all_rows() -> None:
    model, (x, weight, observed) = model_of(), rows(200)
    parameters = drawn(model)
    edges = (0, 50, 50, 51, 200)
    chunks = [(x[a:b], weight[a:b], observed[a:b]) for a, b in pairwise(edges)]
    found = model.adapt(parameters, lambda: iter(chunks))
    for name, value in model.derive(parameters, x, weight, observed).items():
        torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-12)
    statistics = merge(model.latent_sums(parameters, *chunk) for chunk in chunks)
    centroids = parameters["start"]
    for _ in range(model.blocks):  # as a driver that maps chunks to sums would
        sums = [model.adapt_sums(parameters, statistics, centroids, *chunk) for chunk in chunks]
        centroids = next_centroids(merge(sums), parameters["start"])
    torch.testing.assert_close(centroids, found["prototypes"], rtol=0, atol=0)
    with pytest.raises(DataError, match="0 chunks"):
        model.adapt(parameters, list)


def test_shrinking_the_latents_gains_nothing_once_they_are_standardised() -> None:
    model, (x, _, _) = model_of(reconstruction=0.0), rows()
    parameters = drawn(model)
    shrunk = {
        name: value * (1e-2 if name in ("encoder.second", "encoder.bias") else 1.0)
        for name, value in parameters.items()
    }
    one, other = exchanged(model, parameters, x).loss, exchanged(model, shrunk, x).loss
    torch.testing.assert_close(one, other, rtol=1e-3, atol=0)
    loose = model_of(standardise=False, reconstruction=1e-9)
    assert (exchanged(loose, shrunk, x).loss < 0.9 * exchanged(loose, parameters, x).loss).all()


@pytest.mark.parametrize("size", [16, 4096])
def test_labels_do_not_depend_on_blocks_or_calls(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    model, (x, weight, observed) = model_of(), rows(3000, torch.float32)
    parameters = drawn(model, torch.float32)
    parameters.update(model.derive(parameters, x, weight, observed))
    own = {name: value[1:] for name, value in parameters.items()}
    labels, distances = model.predict(own, 1.0, x, observed)
    assert set(labels.tolist()) == set(range(CLUSTERS))
    for part in (slice(7, 9), slice(100, 2900)):
        found = model.predict(own, 1.0, x[part], observed[part])
        assert (found[0] == labels[part]).all()
        assert (found[1] == distances[part]).all()
    single = model.predict({name: value[1] for name, value in parameters.items()}, 1.0, x, observed)
    assert (single[0] == labels).all()
    monkeypatch.setattr("clam_dist.models.settling.BLOCK_ROWS", size)
    found = model.predict(own, 1.0, x, observed)
    assert (found[0] == labels).all()
    torch.testing.assert_close(found[1], distances)


def test_label_is_the_largest_assignment_and_distance_is_euclidean() -> None:
    model, (x, _, _) = model_of(sigma="log1p"), rows(60)
    parameters = drawn(model)
    parameters.update(model.derive(parameters, x, None, None))
    own = {name: value[0] for name, value in parameters.items()}
    z, seen = model.represent(own, x, None)
    assert seen is None
    torch.testing.assert_close(z.mean(0), torch.zeros(LATENT).double())
    torch.testing.assert_close(z.square().mean(0), torch.ones(LATENT).double(), rtol=1e-6, atol=0)
    labels, distances = model.predict(own, 1.0, x, None)
    metric = own["metric"]
    scale = torch.exp(metric.diagonal() - metric.diagonal().mean())
    factor = torch.tril(metric, -1) + torch.diag(scale)
    away = z[:, None] - own["prototypes"][None]
    assert (labels == (away @ factor).square().sum(-1).argmin(1)).all()
    wanted = away.norm(dim=-1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(distances, wanted)


def test_a_given_start_is_where_centroids_start() -> None:
    more = LATENT + 1
    model = TDCM(Dense(), LATENT, more)
    start = torch.from_numpy(np.random.default_rng(3).normal(size=(MEMBERS, more, LATENT)))
    network = {n: v for n, v in drawn(model_of()).items() if n.startswith(("encoder", "decoder"))}
    parameters = model.starting(network, start)
    assert (parameters["prototypes"] == start).all()
    x = rows()[0]
    found = model.derive(parameters, x, None, None)
    assert (found["start"] == start).all()
    assert found["prototypes"].shape == start.shape
    with pytest.raises(ConfigError, match=r"5 clusters .* 4 latent dimensions"):
        model.starting(network)


@pytest.mark.parametrize("clusters", [CLUSTERS, LATENT + 2])
def test_beginning_from_a_pretrained_network(clusters: int) -> None:
    model, (x, weight, observed) = TDCM(Dense(), LATENT, clusters), rows(80)
    drawn_for = {n: v[1] for n, v in drawn(model_of()).items() if n.startswith(("encoder", "dec"))}
    begun, inertia = model.begin(drawn_for, x, weight, observed, 4)
    assert set(begun) == {"metric", *model.derived}
    z, _ = model.represent({**drawn_for, **begun}, x, observed)
    labels, distances = model.predict({**drawn_for, **begun}, 1.0, x, observed)
    away = (z[:, None] - begun["prototypes"][None]).square().sum(-1)
    assert (labels == away.argmin(1)).all()  # the metric is the identity at first
    assert inertia == pytest.approx(float(weight @ distances.square() / weight.sum()))
    if clusters <= LATENT:  # as far out as the latents are on average
        assert begun["start"].tolist() == (LATENT**0.5 * torch.eye(clusters, LATENT)).tolist()
        assert z.square().sum(1) @ weight / weight.sum() == pytest.approx(LATENT, rel=1e-5)
    else:
        nearest = torch.cdist(begun["start"].double(), z).amin(1)
        assert nearest.max() < 1e-6
        assert (model.begin(drawn_for, x, weight, observed, 4)[0]["start"] == begun["start"]).all()


def test_rates_by_kind_of_parameter() -> None:
    model = model_of(rates={"encoder": 0.1})
    names = ("encoder.first", "decoder.first", "metric")
    assert [model.rate(name) for name in names] == [0.1, 1.0, model_of().rate("metric")]


def test_a_described_network_of_every_thread_and_a_model_that_travels() -> None:
    network, width, latent = {"kind": "dense", "hidden": [5]}, WIDTH, LATENT
    model = TDCM(Coder(network, width, latent), latent, CLUSTERS)
    one = initial_parameters(network, width, latent, 0, 0)
    parameters = model.starting({name: value[None] for name, value in one.items()})
    x = rows(64, torch.float32)[0]
    travelled = pickle.loads(pickle.dumps(model))

    def losses(_: int) -> float:
        step = travelled.gradient_exchange(parameters, BETA[:1], x, None, None, ())
        return float(run_together([step]).loss)

    with ThreadPoolExecutor(2) as pool:
        assert len({*pool.map(losses, range(8)), float(exchanged(model, parameters, x).loss)}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma": "relu"}, "sigma 'relu' is not known"),
        ({"blocks": 0}, "blocks is 0"),
        ({"tau": 0.0}, r"tau 0\.0"),
        ({"standardise": False, "reconstruction": 0.0}, "shrink to nothing"),
        ({"alphas": (1.0,)}, "1 alphas for 3 blocks"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(**changes)


def test_latents_and_centroids_decode_back_through_their_standards() -> None:
    model = TDCM(Dense(), LATENT, CLUSTERS)
    parameters = drawn(model)
    x, weight, observed = rows()
    parameters.update(model.derive(parameters, x, weight, observed))
    own = {name: value[1] for name, value in parameters.items()}
    found = model.decode(own, model.represent(own, x, observed)[0])
    latents = Dense().encode(own, model.fill(x, observed))
    torch.testing.assert_close(found, Dense().decode(own, latents), rtol=1e-9, atol=1e-9)
    alone = {name: value[1:] for name, value in parameters.items()}
    torch.testing.assert_close(
        model.decode(alone, own["prototypes"]), model.decode(own, own["prototypes"])
    )


class Itself:
    """A network without parameters."""

    def encode(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        del parameters
        return x

    decode = encode


def test_a_network_without_parameters() -> None:
    model = TDCM(Itself(), WIDTH, CLUSTERS)
    x, weight, observed = rows()
    zeros = torch.zeros(MEMBERS, WIDTH, dtype=torch.float64)
    start = torch.eye(CLUSTERS, WIDTH, dtype=torch.float64).expand(MEMBERS, -1, -1)
    parameters = {"metric": torch.diag_embed(zeros), "start": start}
    found = model.derive(parameters, x, weight, None)
    mean = (weight[:, None] * x).sum(0) / weight.sum()
    torch.testing.assert_close(found["center"], mean.expand(MEMBERS, -1))
    for network in ({}, {"prototypes": start[0]}):
        with pytest.raises(ConfigError, match=r"model\.network: .* 0 parameters .* 1 parameter"):
            model.begin(network, x, weight, observed, 0)
    with pytest.raises(ConfigError, match="0 parameters"):
        model.starting({})
