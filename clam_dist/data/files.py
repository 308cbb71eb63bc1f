"""Writing files that are never seen half-written, with disk errors that say what to do."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clam_dist.errors import RunError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_REMEDY = "free some space, or point work.uri and output.uri at a larger disk, and run again"


def free_bytes(path: str) -> int:
    """Bytes free to this user on the disk of ``path``, which need not exist yet."""
    folder = os.path.abspath(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def size_text(size: float) -> str:
    """``size`` bytes for a person: ``'17 bytes'``, ``'1.5 MiB'``."""
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def check_disk(path: str, needed: int, limit: int | None = None) -> None:
    """Raise before writing if ``needed`` bytes will not fit.

    Parameters
    ----------
    path : str
        The folder to be written to; need not exist yet.
    needed : int
        Bytes about to be written.
    limit : int, optional
        Bytes this run may use at most, whatever is free (``work.size_limit``).

    Raises
    ------
    RunError
        Naming the folder, the bytes needed, the bytes free or allowed, and the remedy.
    """
    if limit is not None and needed > limit:
        raise RunError(
            f"{path}: {size_text(needed)} ({needed} bytes) are needed but work.size_limit allows "
            f"{size_text(limit)} ({limit} bytes); raise work.size_limit, or train on fewer "
            "features with source.exclude"
        )
    free = free_bytes(path)
    if needed > free:
        raise RunError(
            f"{path}: {size_text(needed)} ({needed} bytes) are needed but the disk has "
            f"{size_text(free)} ({free} bytes) free; {_REMEDY}"
        )


@contextmanager
def disk_errors(path: str, *, only_full: bool = False) -> Iterator[None]:
    """Turn an ``OSError`` met while writing ``path`` into a `RunError` with the remedy.

    Parameters
    ----------
    path : str
    only_full : bool
        Leave errors alone that do not say that the disk is full: they may be of other paths.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        # Arrow raises a plain OSError whose text alone tells the cause
        if error.errno in _NO_SPACE or "space left" in reason or "quota" in reason.lower():
            raise RunError(
                f"cannot write {path}: {reason} ({size_text(free_bytes(path))} free); {_REMEDY}"
            ) from error
        if only_full:
            raise
        raise RunError(
            f"cannot write {path}: {reason}; check that the folder exists and may be written to"
        ) from error


@contextmanager
def published(path: str) -> Iterator[str]:
    """Give a temporary name beside ``path`` to write to; rename it on success, else remove it.

    The temporary name starts with a dot, so that every reader skips it, and differs from call to
    call, so that two workers given the same task do not write into one file.

    Raises
    ------
    RunError
        The disk is full, or the folder cannot be written to.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    with disk_errors(path):
        os.makedirs(folder or ".", exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def remove_temporaries(folder: str) -> int:
    """Remove what killed writers left under ``folder``; returns how many files.

    Only for the owner of the folder, while nothing writes there.
    """
    found = [p for p in Path(folder).rglob(".*.tmp") if _TEMPORARY.fullmatch(p.name)]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)
