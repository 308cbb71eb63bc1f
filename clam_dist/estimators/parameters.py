"""An estimator's parameters as the sections of a config: the same names, bounds and words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from clam_dist.config import ModelConfig, PrepareConfig, TrainConfig
from clam_dist.config_errors import problems_of
from clam_dist.config_sections import Section
from clam_dist.errors import ConfigError

_WORDS = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\bsource\.uri: ", "X: "),
        (r"; choose other columns with source\.features", "; give features that differ"),
        (r", or other columns in source\.features", ", or other features"),
        (r", or add the column to source\.exclude", ", or leave the feature out"),
        (r"\bprepare\.scaling: (\w+)", r"scaling='\1'"),
        (r"(too large for scaling='standard' .*) or scaling='standard',", r"\1,"),
        (r"\bmodel\.geometry: (spherical|euclidean)", r"geometry='\1'"),
        (r"\b(?:model|train|prepare|source)\.(?=[a-z])", ""),
    )
]
"""What a run calls by the keys of its config, and what an estimator calls it."""
_NUMBERED = re.compile(r"feature number (\d+)")


def resolve(
    name: str, values: Mapping[str, Any], renamed: Mapping[str, str] | None = None
) -> tuple[ModelConfig, TrainConfig, str]:
    """Check an estimator's parameters.

    Parameters
    ----------
    name
        Of the estimator, for messages.
    values
        Its parameters and its ``kind``; other keys than those of a config are ignored.
    renamed
        Names of parameters that a config calls otherwise, with what it calls them.

    Returns
    -------
    model, train
        As a config holds them. ``n_clusters`` may be 1, which a run refuses.
    scaling
        As ``prepare.scaling``.

    Raises
    ------
    ConfigError
        Naming every parameter that is wrong, and what it may be.
    """
    in_config = renamed or {}
    plain = {in_config.get(key, key): _plain(value) for key, value in values.items()}
    one = plain["n_clusters"] == 1 and not isinstance(plain["n_clusters"], bool)
    asked = {**plain, "n_clusters": 2 if one else plain["n_clusters"]}
    problems: list[tuple[str, str]] = []
    model, train = (
        _section(kind, {key: asked[key] for key in kind.model_fields if key in asked}, problems)
        for kind in (ModelConfig, TrainConfig)
    )
    prepare = _section(PrepareConfig, {"scaling": asked["scaling"]}, problems)
    if model is None or train is None or prepare is None:
        own = {there: here for here, there in in_config.items()}
        lines = [f"{own.get(key, key)}: {sentence}" for key, sentence in problems]
        raise ConfigError("\n  - ".join([f"{name} has wrong parameters:", *lines]))
    if one:
        model = model.model_copy(update={"n_clusters": 1})
    return model, train, prepare.scaling


def as_value_error(error: Exception, names: Sequence[str] | None = None) -> ValueError:
    """The same message for callers of an estimator: no section before a parameter's name."""
    return ValueError(in_parameters(str(error), names))


def in_parameters(message: str, names: Sequence[str] | None = None) -> str:
    """A message in the words of an estimator: parameters and rows, no keys of a config.

    Parameters
    ----------
    names
        Of the features, where they have any.
    """
    for pattern, word in _WORDS:
        message = pattern.sub(word, message)
    numbered = _NUMBERED.match(message)
    if numbered and names is not None:
        message = f"feature '{names[int(numbered[1])]}'{message[numbered.end() :]}"
    return message


def _section(kind: type[Section], values: dict[str, Any], problems: list[tuple[str, str]]) -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems += problems_of(error, list(values))
        return None


def _plain(value: Any) -> Any:
    """Numbers and lists as Python's own: a grid of settings often comes from NumPy."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, range)):
        return [_plain(item) for item in value]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
