"""The errors a person can act on: what happened, both numbers where there are two, and the remedy.

Each class carries the exit code that the command line returns for it:
2 the command or config is wrong, 3 the data is wrong, 4 the run failed.
"""

from __future__ import annotations

import re
from typing import Any

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]+@")


def hide_credentials(value: Any) -> Any:
    """Text, or nested lists and mappings of it, without ``user:password@`` in addresses."""
    if isinstance(value, str):
        return _CREDENTIALS.sub("***@", value)
    if isinstance(value, dict):
        return {key: hide_credentials(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(hide_credentials(item) for item in value)
    return value


class ClamDistError(Exception):
    """Base of every error raised on purpose; its text is one message for the user.

    Users and passwords in addresses are hidden.
    """

    exit_code: int = 4

    def __init__(self, message: str = "") -> None:
        super().__init__(hide_credentials(message))


class ConfigError(ClamDistError):
    """The command, a config key or its value is wrong, or the output belongs to someone else."""

    exit_code = 2


class DataError(ClamDistError):
    """The source is missing, broken, changed or unusable; names file, column, row group or row."""

    exit_code = 3


class RunError(ClamDistError):
    """The run failed while working: full disk, lost cluster, a rank that died."""

    exit_code = 4


class Interrupted(ClamDistError):
    """The run was asked to stop (ctrl-C or SIGTERM) and stopped cleanly; a rerun resumes.

    Parameters
    ----------
    signal_number : int
        The signal received; the exit code is 128 plus it (130 for SIGINT, 143 for SIGTERM).
    """

    def __init__(self, message: str, signal_number: int = 2) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
