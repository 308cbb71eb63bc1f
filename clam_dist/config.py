"""One validated description of a run, and the digests that say what depends on what.

Values come from a YAML file, from ``CLAM_DIST_MODEL__BETA``-style environment variables and from
``--set model.beta=0.5``, each over the one before. Every value set is closed, an unknown key is an
error naming the nearest known one, and all problems are reported at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ValidationError

from clam_dist.config_errors import config_error, known_keys, problems_of
from clam_dist.config_layers import Layers, add_environment, add_overrides, read_file
from clam_dist.config_sections import (
    ClusterConfig,
    EvaluateConfig,
    ModelConfig,
    OutputConfig,
    PrepareConfig,
    Section,
    SourceConfig,
    TrainConfig,
    WorkConfig,
    run_name,
)
from clam_dist.config_values import AUTO, Check, number
from clam_dist.errors import ConfigError, hide_credentials

__all__ = [
    "RESULT_COLUMNS",
    "ClusterConfig",
    "Config",
    "EvaluateConfig",
    "ModelConfig",
    "OutputConfig",
    "PrepareConfig",
    "SourceConfig",
    "Stage",
    "TrainConfig",
    "WorkConfig",
    "config_from_dict",
    "load_config",
]

Stage = Literal["profile", "shards", "train", "assign", "evaluate", "report"]

RESULT_COLUMNS = ("cluster", "distance", "silhouette")
"""The columns added to the kept ones in ``labels/``; no kept column may have such a name."""

_DIGEST_FORMAT = 1  # raise it when the same config comes to mean other results
_NOT_IN_DIGEST = ("cluster", "work", "output", "name")

# Accepted by the contract, refused here with a remedy until the code behind them exists.
_NOT_YET: dict[str, dict[str | bool, str]] = {
    "source.format": {"zarr": "parquet", "netcdf": "parquet"},
    "prepare.scaling": {"robust": "standard or minmax"},
}

# Which keys each stage depends on, beyond what its upstream manifests carry already.
_STAGE_KEYS: dict[str, tuple[str, ...]] = {
    "profile": (
        "source.uri",
        "source.format",
        "source.features",
        "source.exclude",
        "source.keep",
        "source.label",
        "source.weight",
        "source.domain",
        "prepare.categories",
    ),
    "shards": (
        "seed",
        "prepare",
        "source.weight",
        "source.domain",
        "train.rows",
        "evaluate.silhouette_rows",
    ),
    "train": ("seed", "model", "train"),
    "assign": ("seed", "source.keep", "source.label", "evaluate"),
    "evaluate": ("seed", "evaluate"),
    "report": (),
}


class Config(Section):
    """One run, whole and frozen. Build it with `load_config` or `config_from_dict`."""

    name: Annotated[str, Check(run_name)] = "clustering"
    seed: Annotated[int, number(whole=True, least=0, below=2**63)] = 0
    source: SourceConfig
    prepare: PrepareConfig = PrepareConfig()
    model: ModelConfig
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    cluster: ClusterConfig = ClusterConfig()
    work: WorkConfig = WorkConfig()
    output: OutputConfig = OutputConfig()

    def public_dict(self) -> dict[str, Any]:
        """Every value, JSON-able, without ``storage_options`` and passwords in addresses."""
        values: dict[str, Any] = hide_credentials(self.model_dump(mode="json"))
        return values

    def digest(self, stage: Stage) -> str:
        """SHA-256 (hex) of the values that ``stage`` itself depends on.

        What its upstream stages depend on enters through their manifests' digests.
        """
        values = self.public_dict()
        return _sha256({key: _look_up(values, key) for key in _STAGE_KEYS[stage]})

    def result_dict(self) -> dict[str, Any]:
        """`public_dict` without what changes no result: ``cluster, work, output, name``."""
        return {k: v for k, v in self.public_dict().items() if k not in _NOT_IN_DIGEST}

    def run_digest(self) -> str:
        """SHA-256 (hex) of everything in the config that can change a result."""
        return _sha256(self.result_dict())

    def work_folder(self) -> str:
        """The work folder: a folder of this output's own in ``work.uri``, or ``<output>/_work``.

        A run removes its work folder at the end, so it is never a folder that someone named: two
        outputs may share one ``work.uri``, which may hold other things.
        """
        if self.work.uri == AUTO:
            return os.path.join(self.output.uri, "_work")
        output = os.path.abspath(self.output.uri)
        mark = hashlib.sha256(output.encode()).hexdigest()[:12]
        return os.path.join(self.work.uri, f"clam_dist-{self.name}-{mark}")

    def resolve_templates(self, now: datetime) -> Config:
        """The same config with ``{name} {date} {time} {digest}`` filled in and ``~`` expanded.

        Parameters
        ----------
        now : datetime
            The run's time; for a scheduled flow the scheduled time, so that retries meet.
            ``{date}`` is 2026-01-31, ``{time}`` 235959, ``{digest}`` 12 hex digits.

        Raises
        ------
        ConfigError
            If a folder's name holds another ``{placeholder}``.
        """
        known = {
            "name": self.name,
            "date": now.strftime("%Y-%m-%d"),
            "time": now.strftime("%H%M%S"),
            "digest": self.run_digest()[:12],
        }
        return self.model_copy(
            update={
                "output": OutputConfig(uri=_fill(self.output.uri, "output.uri", known)),
                "work": self.work.model_copy(
                    update={"uri": _fill(self.work.uri, "work.uri", known)}
                ),
            }
        )


_KNOWN = known_keys(Config)
_SECTIONS = [key.partition(".")[0] for key in _KNOWN if "." in key]


def load_config(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read, merge and check a config: ``overrides`` over the environment over the file.

    Parameters
    ----------
    path : str, Path or None
        The YAML file; None to go without. Its stem is the run's ``name`` where none is given.
    overrides : sequence of str
        ``a.b=value`` each, the value as YAML.
    environ : mapping, optional
        Environment variables; default: this process's.

    Raises
    ------
    ConfigError
        One error naming every problem.
    """
    layers = Layers()
    if path is not None:
        layers.values = read_file(path)
    add_environment(layers, os.environ if environ is None else environ, list(Config.model_fields))
    add_overrides(layers, overrides)
    if path is not None:
        layers.values.setdefault("name", Path(path).stem)
    return _build(layers, "config" if path is None else f"config file {path}")


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """Check nested ``values``; raises one `ConfigError` naming every problem."""
    return _build(Layers(values=dict(values)), "config")


def _build(layers: Layers, where: str) -> Config:
    # A section left out, or written with nothing under it, is a section of defaults, not null:
    # so a required key is asked for by its whole name.
    values = dict(layers.values)
    for section in _SECTIONS:
        if values.get(section) is None:
            values[section] = {}
    problems: list[tuple[str, str]] = []
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = problems_of(error, _KNOWN)
    problems += _cross_checks(values)
    if problems or config is None:
        raise config_error(where, problems, layers.origins)
    return config


def _cross_checks(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Problems between keys, and values whose code is not there yet; works on unchecked values."""
    problems = []
    for key, refused in _NOT_YET.items():
        value = _look_up(values, key)
        if isinstance(value, (str, bool)) and value in refused:
            shown = str(value).lower()
            problems.append(
                (key, f"{shown} is not available in this version; use {refused[value]}")
            )
    keep = _listed(_look_up(values, "source.keep"))
    problems += [
        ("source.keep", f"{column!r} is a column that labels/ adds itself; rename or leave it out")
        for column in keep
        if column in (*RESULT_COLUMNS, *_listed(_look_up(values, "evaluate.columns")))
    ]
    features = _listed(_look_up(values, "source.features"))
    for other in ("exclude", "label", "weight", "domain"):
        both = sorted(set(features) & set(_listed(_look_up(values, f"source.{other}"))))
        if both:
            problems.append(
                (f"source.{other}", f"{both[0]!r} is also in source.features; take it out of one")
            )
    weight = _look_up(values, "source.weight")
    if weight is not None and weight == _look_up(values, "source.domain"):
        problems.append(
            ("source.domain", f"{weight!r} is also source.weight; name another column in one")
        )
    kind = _look_up(values, "cluster.kind")
    for needed_by, key in (("address", "cluster.address"), ("class", "cluster.cluster_class")):
        if kind == needed_by and _look_up(values, key) is None:
            problems.append((key, f"required with cluster.kind: {kind}"))
    return problems


def _listed(value: Any) -> list[str]:
    """Column names in an unchecked value: one name, a list of them, or none."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, str)]


def _look_up(values: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key, or None where there is none."""
    found: Any = values
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _fill(template: str, key: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            choices = " ".join(f"{{{name}}}" for name in known)
            raise ConfigError(f"{key}: unknown placeholder {match[0]}; known are {choices}")
        return known[match[1]]

    return os.path.expanduser(re.sub(r"\{([^{}]*)\}", value, template))


def _sha256(values: Any) -> str:
    # Sorted keys and no spaces: the same values give the same text on every machine.
    canonical = json.dumps([_DIGEST_FORMAT, values], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
