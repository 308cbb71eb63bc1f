"""Where config values come from: a YAML file, the environment, ``--set``; later ones win.

Plain nested dictionaries in, one out, with the origin of each value beside it for error messages.
Nothing here knows which keys exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clam_dist.errors import ConfigError

ENVIRONMENT_PREFIX = "CLAM_DIST_"


@dataclass
class Layers:
    """Values merged so far.

    Attributes
    ----------
    values : dict
        Nested config values.
    origins : dict of str to str
        Dotted key to where its value came from, such as ``--set`` or an environment variable;
        keys read from the file are absent.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, path: Sequence[str], value: Any, origin: str) -> None:
        """Set one dotted key; a mapping is merged into what stands there."""
        target = self.values
        for key in path[:-1]:
            below = target.get(key)
            if not isinstance(below, dict):
                below = target[key] = {}
            target = below
        target[path[-1]] = merged(target.get(path[-1]), value)
        self.origins[".".join(path)] = origin


class _RepeatedKeyError(yaml.MarkedYAMLError):
    """The same key twice in one mapping."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error: PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node.value, str) else None
            if key is not None and key != "<<" and key in seen:
                raise _RepeatedKeyError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            if key is not None:
                seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))


def parse_yaml(text: str, where: str) -> Any:
    """The value that ``text`` holds.

    Raises
    ------
    ConfigError
        Naming ``where``, line and column; never quoting the text, which may hold a secret.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        # The other errors of PyYAML quote aliases and tags, which may be parts of a password.
        quotable = (yaml.scanner.ScannerError, yaml.parser.ParserError, _RepeatedKeyError)
        problem = error.problem if isinstance(error, quotable) else "not readable as YAML"
        raise ConfigError(
            f"{where}{place}: {problem}; text with {{ }} : or # in it needs quotes"
        ) from None


def read_file(path: str | Path) -> dict[str, Any]:
    """The nested values of a YAML file; an empty file holds none.

    Raises
    ------
    ConfigError
        If the file is missing, unreadable, not YAML, or not a mapping of keys.
    """
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"config file {name}: no such file (looked in {Path.cwd()}); check the path"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"config file {name}: not UTF-8 text; save it as UTF-8 YAML") from None
    except OSError as error:
        raise ConfigError(f"config file {name}: {error.strerror}; check the path") from None
    values = parse_yaml(text, f"config file {name}")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"config file {name}: expected keys such as 'source:' at the top level")
    return values


def add_environment(layers: Layers, environ: Mapping[str, str], known: Sequence[str]) -> None:
    """Add ``CLAM_DIST_MODEL__BETA``-style variables; values are YAML, as with ``--set``.

    A variable without ``__`` counts only if it names one of ``known`` (top-level keys): platforms
    set others of this prefix themselves (Kubernetes: ``CLAM_DIST_SERVICE_HOST``).
    """
    for variable in sorted(environ):
        if not variable.upper().startswith(ENVIRONMENT_PREFIX):
            continue
        path = variable[len(ENVIRONMENT_PREFIX) :].lower().split("__")
        if len(path) > 1 or path[0] in known:
            value = parse_yaml(environ[variable], f"environment variable {variable}")
            layers.put(path, value, variable)


def add_overrides(layers: Layers, overrides: Sequence[str]) -> None:
    """Add ``--set a.b=value`` settings; values are YAML.

    Raises
    ------
    ConfigError
        If one has no ``=`` or no key.
    """
    for override in overrides:
        key, equals, value = override.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise ConfigError(f"--set {key}: expected key=value, such as --set model.beta=0.5")
        layers.put(path, parse_yaml(value, f"--set {key.strip()}"), "--set")


def merged(below: Any, above: Any) -> Any:
    """``above`` over ``below``: mappings key by key, anything else replaced whole."""
    if isinstance(below, dict) and isinstance(above, dict):
        result = dict(below)
        for key, value in above.items():
            result[key] = merged(below.get(key), value)
        return result
    return above
