"""The user's own encoder and decoder: loaded by name, checked before anything is trained."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clam_dist.errors import ConfigError

CHECK_ROWS = 3
TOLERANCE = 1e-4
"""Largest relative difference between a row's result alone and among others."""

_GENERATOR = threading.Lock()
_FORBIDDEN: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._NormBase, "normalises over a batch"),
    (nn.modules.dropout._DropoutNd, "draws at random"),
    (nn.RReLU, "draws at random"),
)


def own_pair(factory: str, width: int, latent: int, seed: int) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder of the user's factory, on the CPU, with the numbers it starts them from.

    The factory runs with torch's default generator set from ``seed``, which is put back as it was:
    its layers start as they would in the user's own code, the same for the same seed.

    Parameters
    ----------
    factory : str
        ``package.module:function``; called as ``function(width, latent)``, it returns the encoder,
        ``(B,width)`` to ``(B,latent)``, and the decoder, ``(B,latent)`` to ``(B,width)``.

    Raises
    ------
    ConfigError
        It is not there, does not return two modules, or one of them has the wrong width, keeps
        buffers, draws at random, or lets a row's result depend on the other rows.
    """
    function = _load(factory)
    with _GENERATOR, torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.random.default_generator.manual_seed(seed)
        try:
            pair = function(width, latent)
        except Exception as error:
            raise _refusal(
                factory, f"failed when called with ({width}, {latent}): {_brief(error)}"
            ) from error
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and all(isinstance(module, nn.Module) for module in pair)
        ):
            raise _refusal(
                factory, f"returned {type(pair).__name__}; return (encoder, decoder), two modules"
            )
        encoder, decoder = pair
        _check(factory, "encoder", encoder, width, latent)
        _check(factory, "decoder", decoder, latent, width)
        if not [*encoder.parameters(), *decoder.parameters()]:
            raise _refusal(
                factory,
                "encoder and decoder have 0 parameters, and a network is trained; give one of them "
                "1 or more",
            )
    return encoder, decoder


def _load(factory: str) -> Callable[[int, int], Any]:
    name, _, attribute = factory.partition(":")
    if not name or not attribute:
        raise ConfigError(
            f"model.network.factory: {factory!r} is not a factory's name; "
            "write package.module:function"
        )
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise _refusal(
            factory,
            f"importing {name} failed: {_brief(error)}; "
            "install it, or put its folder on PYTHONPATH, on every worker",
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise _refusal(factory, f"{name} has {what} by the name {attribute}; name a function")
    function: Callable[[int, int], Any] = found
    return function


def _check(factory: str, side: str, module: nn.Module, inputs: int, outputs: int) -> None:
    for path, part in module.named_modules():
        for kind, reason in _FORBIDDEN:
            if isinstance(part, kind) and getattr(part, "p", 1.0) > 0:
                what = f"{side}.{path}".rstrip(".")
                raise _refusal(factory, f"{what} is {type(part).__name__}, which {reason}; {_WHY}")
    for name, _ in module.named_buffers():
        raise _refusal(
            factory,
            f"{side} keeps the buffer {name}, which no bundle holds; make it a parameter or "
            "compute it in forward",
        )
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            state = str(parameter.dtype) if parameter.requires_grad else "frozen"
            raise _refusal(factory, f"{side}.{name} is {state}; parameters are float32 and trained")
    x = torch.linspace(-1.0, 1.0, CHECK_ROWS * inputs).sin().view(CHECK_ROWS, inputs)
    whole = _call(factory, side, module, x)
    if whole.shape != (CHECK_ROWS, outputs):
        raise _refusal(
            factory,
            f"{side} turns {tuple(x.shape)} into {tuple(whole.shape)}; "
            f"it should return ({CHECK_ROWS}, {outputs})",
        )
    if not torch.equal(whole, _call(factory, side, module, x)):
        raise _refusal(factory, f"{side} returns other numbers each time, it draws; {_WHY}")
    alone = torch.cat([_call(factory, side, module, row[None]) for row in x])
    scale = float(whole.abs().max()) + 1e-6
    if not float((whole - alone).abs().max()) <= TOLERANCE * scale:
        raise _refusal(factory, f"{side} gives a row other numbers among other rows; {_WHY}")


_WHY = "results would depend on how rows are cut into batches"


def _call(factory: str, side: str, module: nn.Module, x: Tensor) -> Tensor:
    try:
        found = module(x)
    except Exception as error:
        raise _refusal(factory, f"{side} failed on {tuple(x.shape)}: {_brief(error)}") from error
    if not isinstance(found, Tensor):
        raise _refusal(factory, f"{side} returns {type(found).__name__}; return one tensor")
    return found


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _refusal(factory: str, reason: str) -> ConfigError:
    return ConfigError(f"model.network.factory: {factory}: {reason}")
