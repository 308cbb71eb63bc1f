"""What is wrong with a config, in words: every problem at once, each with its key and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from clam_dist.config_values import shown
from clam_dist.errors import ConfigError

_SECRET_SECTION = "source.storage_options"


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of every key under ``model``, sections included, in the order declared."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += known_keys(section, f"{prefix}{name}.")
    return keys


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The key of ``known`` that the unknown dotted ``key`` most likely meant, or None.

    A key of the same section spelt alike comes first, then the same or a like name elsewhere
    (``model.learning_rate`` is ``train.learning_rate``), then the whole dotted name.
    """
    section, _, leaf = key.rpartition(".")
    here = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    anywhere: dict[str, str] = {}
    for name in known:
        anywhere.setdefault(name.rpartition(".")[2], name)
    for candidates, cutoff in ((here, 0.6), (anywhere, 0.75)):
        found = difflib.get_close_matches(leaf, list(candidates), n=1, cutoff=cutoff)
        if found:
            return candidates[found[0]]
    same_depth = [name for name in known if name.count(".") == key.count(".")]
    found = difflib.get_close_matches(key, same_depth, n=1, cutoff=0.75)
    return found[0] if found else None


def problems_of(error: ValidationError, known: Sequence[str]) -> list[tuple[str, str]]:
    """Each problem pydantic found as (dotted key, sentence)."""
    return [_problem(detail, known) for detail in error.errors(include_url=False)]


def _problem(detail: Mapping[str, Any], known: Sequence[str]) -> tuple[str, str]:
    key = ".".join(str(part) for part in detail["loc"])
    kind, value = detail["type"], detail.get("input")
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return key, _unknown(key, known)
    if kind == "missing":
        return key, "required, but not given"
    if kind == "literal_error":
        return key, _not_one_of(value, context["expected"])
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return key, f"expected keys under it; got {shown(value)}"
    if kind == "value_error":
        return key, str(context["error"])
    said = detail["msg"].removeprefix("Input should be ")
    quoted = "" if key.startswith(_SECRET_SECTION) else f"; got {shown(value)}"
    return key, f"expected {said}{quoted}"


def _unknown(key: str, known: Sequence[str]) -> str:
    near = nearest_key(key, known)
    if near is not None:
        return f"unknown key; did you mean {near}?"
    section = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    return f"unknown key; known here are {', '.join(siblings)}"


def _not_one_of(value: Any, expected: str) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"expected one of {', '.join(choices)}; got {shown(value)}{hint}"


def config_error(
    where: str, problems: Sequence[tuple[str, str]], origins: Mapping[str, str]
) -> ConfigError:
    """One error for all ``problems``; ``origins`` says which keys did not come from the file."""

    def line(key: str, sentence: str) -> str:
        origin = next((origins[name] for name in _key_and_parents(key) if name in origins), None)
        source = f" (set by {origin})" if origin else ""
        return f"{key}{source}: {sentence}" if key else sentence

    lines = [line(key, sentence) for key, sentence in problems]
    if len(lines) == 1:
        return ConfigError(f"{where}: {lines[0]}")
    return ConfigError("\n  - ".join([f"{where}: {len(lines)} problems", *lines]))


def _key_and_parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
