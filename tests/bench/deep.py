"""Deep clustering against shallow: DClAM, DEC and IDEC or DCEC from one pretrained autoencoder.

    python tests/bench/deep.py [--data DIR] [--set digits,usps] [--network dense,convolutional]
                               [--restarts 3] [--epochs 100] [--rows N] [--json]

``digits`` comes with scikit-learn; DIR holds ``usps.parquet`` and ``fashion_mnist.parquet``, of
which 10 000 rows are drawn by seed. Pixels are centred and divided by one number, so that the
mean row's loss is 1. k is the number of classes, which nothing but NMI sees; latents have k
numbers.

Networks are dense on all sets, convolutional on usps and digits, residual and transformer on
digits. DClAM is the estimator; it pretrains an autoencoder for each restart, ``epochs`` passes over
the rows at the most, and has ``epochs`` passes more at the most. Every other method begins from the
same autoencoders and has as many. IDEC is DCEC where the network is convolutional or residual.

Columns:

- ``before``, ``after``: silhouette of the latents, of the rows where there is no network, and of
  the latents after the recursion, where points sit on prototypes and the score flatters itself;
- ``loss``: reconstruction loss over the pretrained network's, for DClAM with the recursion between
  encoder and decoder, and ``plain`` without;
- ``used``: clusters in use, and ``least`` the smallest one's share of the rows.

Of the restarts the one of greatest ``before`` is printed among those that use all clusters with the
loss within a tenth of the pretrained one's, as DClAM's authors choose. DClAM itself chooses by
``after`` (of its restarts and inverse temperatures). Silhouettes of different spaces measure spaces
as much as clusters.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import torch
from deep_baselines import Refinement, dcec, dec, idec
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn

from clam_dist import ClAM, DClAM
from clam_dist.evaluation import silhouette_sampled
from clam_dist.models.autoencoders import Autoencoder, build_network
from clam_dist.stages import fitting
from clam_dist.train.loop import one_thread_each, run
from clam_dist.train.state import TrainState

NETWORKS = {
    "digits": ("dense", "convolutional", "residual", "transformer"),
    "usps": ("dense", "convolutional"),
    "fashion_mnist": ("dense",),
}
MOST_ROWS = 10_000
"""Rows drawn of a larger set; up to so many rows silhouettes are exact."""
IMAGES = ("convolutional", "residual")
BATCH_ROWS, LEARNING_RATE = 256, 1e-3
"""Of the other methods."""
FAITHFUL = 1.1
"""Loss over the pretrained one's up to which a state may be chosen."""
KMEANS_STARTS = 20

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    """Scaled rows ``x (n,d)`` float32 that are images, and class codes ``classes (n,)``."""

    name: str
    x: np.ndarray
    classes: np.ndarray
    image_shape: tuple[int, int, int]

    @property
    def k(self) -> int:
        """Number of classes, and so of clusters."""
        return int(self.classes.max()) + 1


@dataclass(frozen=True)
class Record:
    """One line of the table; None where a number has no meaning."""

    set: str
    network: str
    method: str
    before: float
    after: float | None
    loss: float | None
    plain: float | None
    nmi: float
    used: int
    least: float
    seconds: float


@dataclass(frozen=True)
class Run:
    """A clustering with the space that it was found in."""

    labels: np.ndarray
    space: np.ndarray
    loss: float | None = None
    plain: float | None = None


def load(name: str, folder: Path | None, rows: int) -> Data:
    """A set by name, at most ``rows`` rows of it."""
    if name == "digits":
        x, labels = load_digits(return_X_y=True)
    else:
        if folder is None:
            raise SystemExit(f"{name}: give --data DIR with {name}.parquet in it")
        table = pq.read_table(folder / f"{name}.parquet")
        labels = table["label"].to_numpy()
        x = np.stack([column.to_numpy() for column in table.drop(["label"]).columns], axis=1)
    if rows < len(x):
        drawn = np.sort(np.random.default_rng(0).choice(len(x), rows, replace=False))
        x, labels = x[drawn], labels[drawn]
    centred = x - x.mean(axis=0)
    side = math.isqrt(x.shape[1])
    return Data(
        name,
        (centred / centred.std()).astype(np.float32),
        np.unique(labels, return_inverse=True)[1],
        (1, side, side),
    )


def silhouette(space: np.ndarray, labels: np.ndarray) -> float:
    """Exact up to ``MOST_ROWS`` rows; -1 where one cluster holds all."""
    if len(np.unique(labels)) < 2:
        return -1.0
    return silhouette_sampled(space, labels, sample_size=MOST_ROWS, references="all").value


def kmeans(x: np.ndarray, k: int) -> np.ndarray:
    """Labels of the least inertia of several starts."""
    return KMeans(k, n_init=KMEANS_STARTS, random_state=0).fit(x).labels_


def clam(x: np.ndarray, k: int) -> np.ndarray:
    """Labels that ClAM finds with its settings left alone."""
    return np.asarray(ClAM(k, scaling="none", random_state=0).fit(x).labels_)


# DClAM


def describe(network: str, image_shape: tuple[int, int, int]) -> dict[str, Any]:
    """The network as the model takes it."""
    if network in IMAGES:
        return {"kind": network, "image_shape": list(image_shape)}
    return {"kind": network}


@contextmanager
def networks_kept() -> Iterator[list[Mapping[int, Parameters]]]:
    """The networks that estimators pretrain in here, by restart, for what begins from the same."""
    kept: list[Mapping[int, Parameters]] = []

    def train(collective: Any, plan: Any) -> dict[str, Any]:
        with one_thread_each(collective.threads) as pool:
            state = TrainState(collective, plan, pool)
            found = run(state)
        kept.append(state.networks)
        return found

    with patch.object(fitting, "train_rank", train):
        yield kept


def run_dclam(
    x: np.ndarray,
    k: int,
    network: str,
    image_shape: tuple[int, int, int],
    restarts: int,
    epochs: int,
) -> dict[str, Any]:
    """Fit the estimator, betas and all else left to it.

    Returns
    -------
    dict
        ``labels`` ``(n,)``, ``latents`` and ``recursed`` ``(n,k)`` of the candidate chosen,
        ``loss`` and ``plain`` over its pretrained network's, ``beta`` times inertia as ``scale``;
        and ``pretrained``, for each restart the autoencoder with its mean squared error.
    """
    description = describe(network, image_shape)
    estimator = DClAM(
        k,
        network=description,
        restarts=restarts,
        pretrain_epochs=epochs,
        epochs=epochs,
        scaling="none",
        device="cpu",
        random_state=0,
    )
    with networks_kept() as kept:
        estimator.fit(x)
    winner = estimator._trained.member
    pretrained = []
    for _, parameters in sorted(kept[0].items()):
        module = as_module(description, x.shape[1], k, parameters)
        with torch.no_grad():
            pretrained.append((module, error(x, module(torch.from_numpy(x)).numpy())))
    before = pretrained[winner["restart"]][1]
    latents = estimator.transform(x)
    return {
        "labels": estimator.labels_,
        "latents": latents,
        "recursed": estimator._trained.recall(x),
        "loss": error(x, estimator.reconstruct(x)) / before,
        "plain": error(x, estimator.inverse_transform(latents)) / before,
        "scale": winner["scale"],
        "pretrained": pretrained,
    }


def error(x: np.ndarray, again: np.ndarray) -> float:
    """Mean squared error an entry."""
    return float(np.square(x - again).mean())


def as_module(
    network: Mapping[str, Any], width: int, latent: int, parameters: Parameters
) -> Autoencoder:
    """An autoencoder that holds its parameters."""
    found = copy.deepcopy(build_network(network, width, latent)).to_empty(device="cpu")
    found.load_state_dict(parameters)
    return found


# The table


def measure(data: Data, network: str, restarts: int, epochs: int) -> Iterator[Record]:
    """DClAM, and beside it what begins from the same autoencoders."""
    k, began = data.k, time.perf_counter()
    found = run_dclam(data.x, k, network, data.image_shape, restarts, epochs)
    run = Run(found["labels"], found["latents"], found["loss"], found["plain"])
    line = record(data, network, "DClAM", run, began)
    yield replace(line, after=silhouette(found["recursed"], found["labels"]))
    refinement = Refinement(epochs, BATCH_ROWS, LEARNING_RATE, kmeans_starts=KMEANS_STARTS)
    method, function = ("DCEC", dcec) if network in IMAGES else ("IDEC", idec)
    runs: dict[str, Callable[[nn.Module, np.ndarray, float], Run]] = {
        "k-means": lambda _, latents, __: Run(kmeans(latents, k), latents, plain=1.0),
        "ClAM": lambda _, latents, __: Run(clam(latents, k), latents, plain=1.0),
        "DEC": lambda module, _, error: refined(dec, data, module, error, refinement),
        method: lambda module, _, error: refined(function, data, module, error, refinement),
    }
    for name, run_one in runs.items():
        began = time.perf_counter()
        candidates = []
        for module, pretrained in found["pretrained"]:
            with torch.no_grad():
                latents = module.encoder(torch.from_numpy(data.x)).numpy()
            candidates.append(run_one(module, latents, pretrained))
        yield record(data, network, name, choose(candidates, k), began)


def refined(
    function: Callable[..., tuple[np.ndarray, np.ndarray, dict[str, Any]]],
    data: Data,
    module: nn.Module,
    error: float,
    refinement: Refinement,
) -> Run:
    """One of the methods that refine an autoencoder, its loss over the pretrained one's."""
    labels, latents, info = function(data.x, data.k, module, 0, refinement)
    return Run(labels, latents, plain=info["reconstruction"] / error)


def choose(candidates: Sequence[Run], k: int) -> Run:
    """Full and faithful ones first, then by silhouette."""

    def rank(run: Run) -> tuple[bool, bool, float]:
        faithful = run.plain is None or run.plain <= FAITHFUL
        return len(np.unique(run.labels)) == k, faithful, silhouette(run.space, run.labels)

    return max(candidates, key=rank)


def record(data: Data, network: str, method: str, run: Run, began: float) -> Record:
    """A run as a line of the table."""
    sizes = np.bincount(run.labels, minlength=data.k)
    return Record(
        data.name,
        network,
        method,
        silhouette(run.space, run.labels),
        None,
        run.loss,
        run.plain,
        float(normalized_mutual_info_score(data.classes, run.labels)),
        int((sizes > 0).sum()),
        float(sizes.min() / len(data.x)),
        time.perf_counter() - began,
    )


def shallow(data: Data) -> Iterator[Record]:
    """k-means and ClAM on the rows themselves."""
    for method, function in (("k-means", kmeans), ("ClAM", clam)):
        began = time.perf_counter()
        yield record(data, "none", method, Run(function(data.x, data.k), data.x), began)


def as_text(line: Record) -> str:
    """A line of the table."""

    def number(value: float | None) -> str:
        return "      -" if value is None else f"{value:7.3f}"

    return (
        f"{line.set:13} {line.network:13} {line.method:7} {number(line.before)} "
        f"{number(line.after)} {number(line.loss)} {number(line.plain)} {number(line.nmi)} "
        f"{line.used:4} {line.least:6.1%} {line.seconds:6.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the Parquet files")
    parser.add_argument("--set", default="digits", help="commas between, or all")
    parser.add_argument("--network", default="all", help="commas between")
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100, help="of pretraining, and again of each")
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help="of a set at most")
    parser.add_argument("--json", action="store_true", help="a list of objects")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = NETWORKS if options.set == "all" else options.set.split(",")
    lines: list[Record] = []

    def add(found: Iterator[Record]) -> None:
        for line in found:
            lines.append(line)
            if not options.json:
                print(as_text(line), flush=True)

    if not options.json:
        print(
            f"{'set':13} {'network':13} {'method':7} {'before':>7} {'after':>7} {'loss':>7} "
            f"{'plain':>7} {'nmi':>7} {'used':>4} {'least':>6} {'s':>6}"
        )
    for name in names:
        data = load(name, options.data, options.rows)
        add(shallow(data))
        wanted = NETWORKS[name] if options.network == "all" else options.network.split(",")
        for network in wanted:
            if network in NETWORKS[name]:
                add(measure(data, network, options.restarts, options.epochs))
    if options.json:
        print(json.dumps([asdict(line) for line in lines]))


if __name__ == "__main__":
    main()
