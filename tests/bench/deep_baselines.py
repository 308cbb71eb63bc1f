"""Deep clustering to compare with: DEC, IDEC and DCEC, from an autoencoder that is already trained.

- DEC: Xie, Girshick and Farhadi, ICML 2016. The decoder is dropped; encoder and centroids lower the
  divergence of a sharpened target from Student-t memberships.
- IDEC: Guo, Gao, Liu and Yin, IJCAI 2017. DEC with the reconstruction loss kept, and the divergence
  weighted by ``gamma``, .1.
- DCEC: Guo, Liu, Zhu and Yin, ICONIP 2017. The same on a convolutional autoencoder.

All take the same arguments, leave the autoencoder that they are given as it was, and start from
k-means on its latents. Losses are means: the divergence over rows, the reconstruction over entries.
Adam in place of the papers' SGD with momentum for DEC.

Letters: ``n`` rows, ``d`` features, ``m`` numbers of a latent, ``k`` clusters.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

ENOUGH = 0.001
"""Stop once an update of the target changes fewer than this share of the labels."""
BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Refinement:
    """Settings that all three methods share.

    Parameters
    ----------
    epochs
        Passes over the rows at most.
    batch_rows, learning_rate
        Of Adam.
    interval
        Steps between updates of the target; one pass over the rows where None.
    kmeans_starts
        k-means runs on the latents.
    """

    epochs: int = 40
    batch_rows: int = 256
    learning_rate: float = 1e-3
    interval: int | None = None
    kmeans_starts: int = 20


Result = tuple[np.ndarray, np.ndarray, dict[str, Any]]
"""Labels ``(n,)``, latents ``(n,m)`` and what is known of the run."""


def dec(
    x: np.ndarray,
    k: int,
    autoencoder: nn.Module,
    seed: int = 0,
    settings: Refinement | None = None,
) -> Result:
    """Deep embedded clustering.

    Parameters
    ----------
    x : ndarray (n,d)
    k : int
    autoencoder : Module
        With modules ``encoder``, ``(n,d)`` to ``(n,m)``, and ``decoder``, ``(n,m)`` to ``(n,d)``.
    seed : int
        Of k-means and of the batches' order.
    settings : Refinement, optional

    Returns
    -------
    labels, latents
        ``(n,)`` int64, the greatest membership, and ``(n,m)`` float32.
    info : dict
        ``epochs``, ``updates`` of the target, ``changed`` share of labels at the last of them,
        ``reconstruction`` (mean squared error an entry) and ``centroids`` ``(k,m)``.
    """
    return _refined(x, k, autoencoder, seed, settings or Refinement(), 1.0, 0.0)


def idec(
    x: np.ndarray,
    k: int,
    autoencoder: nn.Module,
    seed: int = 0,
    settings: Refinement | None = None,
    gamma: float = 0.1,
) -> Result:
    """Improved deep embedded clustering; arguments and results as in :func:`dec`."""
    return _refined(x, k, autoencoder, seed, settings or Refinement(), gamma, 1.0)


def dcec(
    x: np.ndarray,
    k: int,
    autoencoder: nn.Module,
    seed: int = 0,
    settings: Refinement | None = None,
    gamma: float = 0.1,
) -> Result:
    """As :func:`idec`, for an autoencoder of convolutions.

    Raises
    ------
    ValueError
        The encoder has no convolution.
    """
    if not any(isinstance(module, nn.Conv2d) for module in autoencoder.encoder.modules()):
        raise ValueError("DCEC: the encoder has no convolution; use idec")
    return idec(x, k, autoencoder, seed, settings, gamma)


def memberships(z: Tensor, centroids: Tensor) -> Tensor:
    """Student-t with one degree of freedom (DEC, equation 1): ``q (n,k)``."""
    near = 1.0 / (1.0 + torch.cdist(z, centroids, compute_mode=EXACT).square())
    return near / near.sum(1, keepdim=True)


EXACT = "donot_use_mm_for_euclid_dist"


def target(q: Tensor) -> Tensor:
    """Squared memberships over their sums by cluster, normalised (DEC, equation 3): ``p (n,k)``."""
    sharp = q.square() / q.sum(0)
    return sharp / sharp.sum(1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """``KL(P‖Q)``, mean over rows (DEC, equation 2)."""
    return (p * (p.log() - q.log())).sum(1).mean()


def in_blocks(module: nn.Module, rows: Tensor) -> Tensor:
    """The module's results without gradients, few rows at a time."""
    with torch.no_grad():
        return torch.cat([module(part) for part in rows.split(BLOCK_ROWS)])


def _refined(
    x: np.ndarray,
    k: int,
    autoencoder: nn.Module,
    seed: int,
    settings: Refinement,
    gamma: float,
    reconstruction: float,
) -> Result:
    """Lower ``gamma`` times the divergence plus ``reconstruction`` times the squared error."""
    rows = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    network = copy.deepcopy(autoencoder)
    latents = in_blocks(network.encoder, rows).numpy()
    kmeans = KMeans(k, n_init=settings.kmeans_starts, random_state=seed).fit(latents)
    centroids = nn.Parameter(torch.from_numpy(kmeans.cluster_centers_.astype(np.float32)))
    labels = kmeans.labels_.astype(np.int64)
    trained = list((network if reconstruction else network.encoder).parameters())
    optimiser = torch.optim.Adam([*trained, centroids], lr=settings.learning_rate)
    generator = np.random.Generator(np.random.Philox(seed))
    steps_an_epoch = -(-len(rows) // settings.batch_rows)
    interval = settings.interval or steps_an_epoch
    changed, updates, step = 1.0, 0, 0
    p = torch.empty(0)
    while step < settings.epochs * steps_an_epoch:
        if step % interval == 0:
            with torch.no_grad():
                q = memberships(in_blocks(network.encoder, rows), centroids)
            p, found = target(q), q.argmax(1).numpy()
            changed = float((found != labels).mean())
            labels, updates = found, updates + 1
            if updates > 1 and changed < ENOUGH:
                break
        if step % steps_an_epoch == 0:
            order = torch.from_numpy(generator.permutation(len(rows)))
        first = step % steps_an_epoch * settings.batch_rows
        batch = order[first : first + settings.batch_rows]
        z = network.encoder(rows[batch])
        loss = gamma * divergence(p[batch], memberships(z, centroids))
        if reconstruction:
            loss = loss + reconstruction * (network.decoder(z) - rows[batch]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
    final = in_blocks(network.encoder, rows)
    with torch.no_grad():
        labels = memberships(final, centroids).argmax(1).numpy()
    error = (in_blocks(network.decoder, final) - rows).square().mean()
    info = {
        "epochs": step / steps_an_epoch,
        "updates": updates,
        "changed": changed,
        "reconstruction": float(error),
        "centroids": centroids.detach().numpy(),
    }
    return labels, final.numpy(), info
