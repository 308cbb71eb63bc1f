"""Packaged configs, by name, and the demo data that some of them begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clam_dist.errors import ConfigError

if TYPE_CHECKING:
    from clam_dist.config import Config


@dataclass(frozen=True)
class DemoData:
    """A demo set to make at a packaged config's ``source.uri`` where nothing is there yet.

    Attributes
    ----------
    name : str
        As in ``clam-dist demo-data NAME``.
    rows : int
        Rows to make.
    """

    name: str
    rows: int


DEMO_DATA = {"quickstart": DemoData("vowels", 100_000)}
"""Packaged config name -> the demo data that it is about."""


def packaged_names() -> list[str]:
    """Names of the packaged configs, sorted."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.yaml"))


def find_config(config: str) -> tuple[Path, str | None]:
    """The file that a config's path or packaged name stands for.

    Parameters
    ----------
    config : str
        The path of a YAML file, or a name in `packaged_names`. An existing file wins.

    Returns
    -------
    path : Path
    name : str or None
        The packaged name; None where ``config`` is a path.

    Raises
    ------
    ConfigError
        Where it is neither.
    """
    path = Path(config).expanduser()
    if path.is_file():
        return path, None
    if config in packaged_names():
        return Path(__file__).parent / f"{config}.yaml", config
    raise ConfigError(
        f"config {config!r}: no such file here ({Path.cwd()}), and no packaged config of that"
        f" name; give the path of a YAML file or one of: {', '.join(packaged_names())}"
    )


def load_named(config: str, overrides: Sequence[str]) -> tuple[Config, DemoData | None]:
    """The config of a path or packaged name, checked, and the demo data to make for it, if any.

    Parameters
    ----------
    config : str
        As `find_config` takes it.
    overrides : sequence of str
        Keys to set, each as ``a.b=value``.

    Raises
    ------
    ConfigError
        Where there is no such config, or it is wrong.
    """
    from clam_dist.config import load_config

    path, packaged = find_config(config)
    loaded = load_config(path, overrides)
    if packaged is None or packaged not in DEMO_DATA:
        return loaded, None
    # With another source the demo data has nothing to do with the run.
    own_source = load_config(path, environ={}).source.uri
    return loaded, DEMO_DATA[packaged] if loaded.source.uri == own_source else None
