"""Encoders and decoders by description: what a bundle writes, and what can be built again.

Letters: ``B`` rows, ``d`` features (the width), ``m`` numbers of a latent. A network is described
by a mapping that JSON can hold:

- ``{"kind": "dense", "hidden": [256, 64], "activation": "gelu"}``, for tables;
- ``{"kind": "convolutional", "image_shape": [c, h, w], "channels": [16, 32]}``, with ``activation``
  as above, and ``residual`` likewise, for rows that are images laid out flat;
- ``{"kind": "transformer", "patches": 8, "embedding": 32, "heads": 4, "layers": 2}``, for rows that
  are sequences;
- ``{"kind": "module", "factory": "package.module:function"}``, the user's own.

All but ``kind``, ``image_shape`` and ``factory`` have defaults. Each takes ``"bounded"`` too: true,
the default, keeps latents within a ball, see :func:`bound`; false takes the encoder's as they are.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from clam_dist.errors import ConfigError
from clam_dist.models.network_images import default_channels, image_pair
from clam_dist.models.network_layers import ACTIVATIONS, default_hidden, dense_pair, fill
from clam_dist.models.network_own import own_pair
from clam_dist.models.network_sequences import default_patches, transformer_pair

Network = Mapping[str, Any]

_KEYS: dict[str, tuple[str, ...]] = {
    "dense": ("hidden", "activation"),
    "convolutional": ("image_shape", "channels", "activation"),
    "residual": ("image_shape", "channels", "activation"),
    "transformer": ("patches", "embedding", "heads", "layers"),
    "module": ("factory",),
}
_INITIAL = 7
"""First number of the key that starts of networks are drawn under."""

_BUILT = threading.local()


class Autoencoder(nn.Module):
    """An encoder, ``(B,d)`` to ``(B,m)``, and a decoder, ``(B,m)`` to ``(B,d)``.

    Parameters
    ----------
    encoder, decoder : nn.Module
    bounded : bool
        Whether latents are taken into a ball by :func:`bound`.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, bounded: bool) -> None:
        super().__init__()
        self.encoder, self.decoder, self.bounded = encoder, decoder, bounded

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction of ``x``."""
        latents = self.encoder(x)
        found: Tensor = self.decoder(bound(latents) if self.bounded else latents)
        return found

    def encode(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Latents ``(B,m)`` of rows under the parameters named ``encoder.…``."""
        latents = _called(self.encoder, parameters, "encoder.", x)
        return bound(latents) if self.bounded else latents

    def decode(self, parameters: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """Rows ``(B,d)`` of latents under the parameters named ``decoder.…``."""
        return _called(self.decoder, parameters, "decoder.", z)


@dataclass(frozen=True)
class Cost:
    """What a network costs.

    Parameters
    ----------
    parameters : int
        Numbers of one member's encoder and decoder.
    multiply_adds : int
        Of encoding and decoding one row; a training step takes about three times that.
    """

    parameters: int
    multiply_adds: int


def bound(z: Tensor) -> Tensor:
    """``z / sqrt(1 + ‖z‖² / m)``: latents ``(B,m)`` within the ball of radius ``√m``.

    The recursion shrinks what tells the rows of a cluster apart, and an encoder that is free to
    makes latents longer without end to make up for it.
    """
    return z * torch.rsqrt(1.0 + z.square().mean(-1, keepdim=True))


def resolve_network(network: Network, width: int, latent: int) -> dict[str, Any]:
    """The description with every default written out, checked against the sizes.

    Parameters
    ----------
    network : mapping
        See the module's text.
    width, latent : int
        Features of a row and numbers of a latent.

    Raises
    ------
    ConfigError
        A key is unknown or a value does not fit; names the key, both numbers and the remedy.
    """
    if width < 1 or latent < 1:
        raise ConfigError(f"model.latent: {latent} numbers for {width} features; use 1 or more")
    kind = network.get("kind", "dense")
    if kind not in _KEYS:
        raise ConfigError(f"model.network: {kind!r} is unknown; use one of {', '.join(_KEYS)}")
    for key in network:
        if key not in ("kind", "bounded", *_KEYS[kind]):
            raise ConfigError(
                f"model.network.{key}: unknown for a {kind} network; "
                f"known here are {', '.join([*_KEYS[kind], 'bounded'])}"
            )
    limited = network.get("bounded", True)
    if not isinstance(limited, bool):
        raise ConfigError(f"model.network.bounded: {limited!r} is neither true nor false")
    found: dict[str, Any] = {"kind": kind, "bounded": limited}
    if kind == "module":
        found["factory"] = str(network.get("factory") or "")
        return found
    if kind == "transformer":
        found |= {"patches": default_patches(width), "embedding": 32, "heads": 4, "layers": 2}
        found |= {key: value for key, value in network.items() if value is not None}
        return _checked_transformer(found, width)
    activation = network.get("activation") or "gelu"
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"model.network.activation: {activation!r} is unknown; "
            f"use one of {', '.join(ACTIVATIONS)}"
        )
    found["activation"] = activation
    if kind == "dense":
        hidden = network.get("hidden")
        found["hidden"] = _sizes("hidden", default_hidden(width, latent), hidden)
        return found
    shape = _image_shape(network.get("image_shape"), kind, width)
    found["image_shape"] = list(shape)
    found["channels"] = _sizes("channels", default_channels(*shape[1:]), network.get("channels"))
    if not found["channels"]:
        raise ConfigError("model.network.channels: no stages; give one number or more")
    return found


def build_network(network: Network, width: int, latent: int) -> Autoencoder:
    """The modules on the meta device, without numbers, for ``torch.func.functional_call``.

    Each thread has its own, built once: a call puts parameters into the modules for its while.
    """
    resolved = resolve_network(network, width, latent)
    key = (json.dumps(resolved, sort_keys=True), width, latent)
    known: dict[tuple[str, int, int], Autoencoder] = _BUILT.__dict__.setdefault("networks", {})
    if key not in known:
        known[key] = _build(resolved, width, latent, 0).to("meta")
    return known[key]


def initial_parameters(
    network: Network, width: int, latent: int, seed: int, restart: int
) -> dict[str, Tensor]:
    """What one member's network starts from, the same for the same arguments.

    Parameters
    ----------
    network, width, latent
        As in :func:`resolve_network`.
    seed, restart : int
        Non-negative; they key the draw. Global generators are left as they were.

    Returns
    -------
    dict of str to Tensor
        float32 on the CPU, under names that start with ``encoder.`` or ``decoder.``.
    """
    state = np.random.SeedSequence(seed, spawn_key=(_INITIAL, restart)).generate_state(1, np.uint64)
    number = int(state[0]) >> 1  # torch takes 63 bits
    resolved = resolve_network(network, width, latent)
    if resolved["kind"] == "module":
        built = _build(resolved, width, latent, number)
        return {name: value.detach().clone() for name, value in built.named_parameters()}
    generator = torch.Generator().manual_seed(number)
    return fill(build_network(resolved, width, latent), generator)


def network_cost(network: Network, width: int, latent: int) -> Cost:
    """Parameters, and multiply-adds of products and convolutions a row."""
    built = build_network(network, width, latent)
    parameters = sum(value.numel() for value in built.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(torch.empty((1, width), device="meta"))
    return Cost(parameters, counter.get_total_flops() // 2)


def _called(module: nn.Module, parameters: Mapping[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    own = {
        name.removeprefix(prefix): value
        for name, value in parameters.items()
        if name.startswith(prefix)
    }
    found: Tensor = functional_call(module, own, (x,))
    return found


def _build(resolved: Network, width: int, latent: int, seed: int) -> Autoencoder:
    """The user's own on the CPU, others on the meta device."""
    if resolved["kind"] == "module":
        pair = own_pair(resolved["factory"], width, latent, seed)
    else:
        with torch.device("meta"):
            pair = _built_in(resolved, width, latent)
    return Autoencoder(*pair, resolved["bounded"])


def _built_in(resolved: Network, width: int, latent: int) -> tuple[nn.Module, nn.Module]:
    given = {key: resolved[key] for key in _KEYS[resolved["kind"]] if key != "image_shape"}
    if resolved["kind"] == "dense":
        return dense_pair(width, latent, **given)
    if resolved["kind"] == "transformer":
        return transformer_pair(width, latent, **given)
    channels, height, across = resolved["image_shape"]
    residual = resolved["kind"] == "residual"
    return image_pair((channels, height, across), latent, residual=residual, **given)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _sizes(key: str, default: list[int], given: Any) -> list[int]:
    if given is None:
        return default
    if not isinstance(given, list | tuple) or not all(map(_is_size, given)):
        raise ConfigError(f"model.network.{key}: {given!r} is not a list of sizes of 1 or more")
    return list(given)


def _image_shape(given: Any, kind: str, width: int) -> tuple[int, int, int]:
    if given is None:
        raise ConfigError(
            f"model.image_shape: a {kind} network needs it; "
            f"give [channels, height, width] whose product is the {width} features of a row"
        )
    if not isinstance(given, list | tuple) or len(given) != 3 or not all(map(_is_size, given)):
        raise ConfigError(
            f"model.image_shape: {given!r} is not [channels, height, width], each 1 or more"
        )
    if math.prod(given) != width:
        raise ConfigError(
            f"model.image_shape: {list(given)} holds {math.prod(given)} numbers, a row has "
            f"{width} features; give the shape of a row, or choose those features"
        )
    return given[0], given[1], given[2]


def _checked_transformer(found: dict[str, Any], width: int) -> dict[str, Any]:
    for key in _KEYS["transformer"]:
        if not _is_size(found[key]):
            raise ConfigError(f"model.network.{key}: {found[key]!r} is not 1 or more")
    if found["patches"] > width:
        raise ConfigError(
            f"model.network.patches: {found['patches']} patches of {width} features; "
            f"use at most {width}"
        )
    if found["embedding"] % found["heads"]:
        raise ConfigError(
            f"model.network.heads: {found['heads']} heads do not divide an embedding of "
            f"{found['embedding']}; use a divisor of it"
        )
    return found
