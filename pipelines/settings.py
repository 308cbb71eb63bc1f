"""What Prefect is configured to use, and the environment that a run of ours gives it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from clam_dist.errors import ConfigError

_DATABASE_SETTINGS = (
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "PREFECT_API_DATABASE_CONNECTION_URL",
)


def configured_api(environ: Mapping[str, str], folder: Path) -> tuple[str | None, Path]:
    """The API address that the user configured, and Prefect's home.

    Parameters
    ----------
    environ : mapping
        The environment, such as ``os.environ``.
    folder : Path
        The current folder, where Prefect looks for ``.env``, ``prefect.toml`` and
        ``pyproject.toml``.

    Returns
    -------
    api_url : str or None
        None where the environment, those files and the active profile name none.
    home : Path
        Prefect's home folder.

    Notes
    -----
    Prefect takes a second to import, during which our own server could already be starting, so
    it is asked only where a file exists that may say something.
    """
    home = Path(environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    if environ.get("PREFECT_API_URL"):
        return environ["PREFECT_API_URL"], home
    profiles = Path(environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()
    hints = {
        profiles: "prefect_api_url",
        folder / ".env": "prefect",
        folder / "prefect.toml": "",
        folder / "pyproject.toml": "tool.prefect",
    }
    for path, hint in hints.items():
        if path.is_file() and hint in path.read_text(errors="replace").lower():
            try:
                import prefect.settings
                from prefect.context import refresh_global_settings_context

                refresh_global_settings_context()
                settings = prefect.settings.get_current_settings()
            except ValueError as wrong:  # TOML that is none, text that is no UTF-8, wrong values
                raise ConfigError(
                    f"{path}: Prefect cannot read its settings there:"
                    f" {str(wrong).strip().splitlines()[0]}; mend the file or move it away"
                ) from None
            return settings.api.url, settings.home
    return None, home


def is_first_start(home: Path, environ: Mapping[str, str]) -> bool:
    """True where the server will have to make its database."""
    elsewhere = any(environ.get(name) for name in _DATABASE_SETTINGS)
    return not elsewhere and not (home / "prefect.db").exists()


def client_environment(environ: Mapping[str, str], api_url: str | None) -> dict[str, str]:
    """Variables for the process that runs the flow.

    Nothing is sent to Prefect's makers. Where the server is our own (``api_url``), it is reached
    directly even where the environment names a proxy.
    """
    variables = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    if api_url is not None:
        variables["PREFECT_API_URL"] = api_url
        for name in ("NO_PROXY", "no_proxy"):
            hosts = [host for host in environ.get(name, "").split(",") if host]
            variables[name] = ",".join([*hosts, "127.0.0.1"])
    return variables


@contextlib.contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for as long as the context lasts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
