"""The record in an output folder of who writes there: its file, its heartbeat, its words."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clam_dist.errors import RunError

OWNER_FILE = "_CLAM_DIST.json"
LOCK_FILE = "_CLAM_DIST.lock"
DEAD_AFTER_SECONDS = 60.0


def foreign_entries(folder: Path) -> list[str]:
    """Names in the folder other than this module's own files."""
    own = (OWNER_FILE, LOCK_FILE)
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in own and not entry.name.startswith(f".{OWNER_FILE}.")
    )


def read_record(folder: Path) -> dict[str, Any] | None:
    """What ``_CLAM_DIST.json`` says, or None where there is none of this tool's."""
    try:
        record = json.loads((folder / OWNER_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    ours = isinstance(record, dict) and record.get("owner") == "clam_dist"
    return record if ours and {"host", "pid", "run_id", "digest"} <= record.keys() else None


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    path, temporary = folder / OWNER_FILE, folder / f".{OWNER_FILE}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"disk full: {path} could not be written; free space and run again"
            ) from error
        raise


def beats(record: Mapping[str, Any]) -> bool:
    """Whether the record's run has not stopped and gave a heartbeat in the last minute."""
    if record.get("stopped") is not None or not record.get("heartbeat"):
        return False
    age = time.time() - datetime.fromisoformat(record["heartbeat"]).timestamp()
    return age < DEAD_AFTER_SECONDS


def who(record: Mapping[str, Any]) -> str:
    return (
        f"run {record['run_id']} (host {record['host']}, process {record['pid']}, "
        f"started {record.get('started')})"
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one dictionary of dotted keys."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
