"""Packaged configs, by name, and the demo data that some of them begin with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clam_dist.errors import ConfigError


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
