"""What each stage has finished: one small JSON file a stage, the only truth about what is done.

A manifest is written last, after the files it lists, atomically; it is trusted on a rerun only if
its digest is the one asked for and every listed file stands there with its size.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clam_dist.errors import RunError


def stage_digest(own: str, *upstream: str) -> str:
    """SHA-256 (hex) of a stage's own digest and the digests of the manifests it builds on."""
    return hashlib.sha256("\n".join([own, *upstream]).encode()).hexdigest()


def write_manifest(
    folder: str | Path, stage: str, manifest: Mapping[str, Any], digest: str
) -> dict[str, Any]:
    """Write ``<folder>/manifests/<stage>.json`` and return what a later `read_manifest` gives.

    Parameters
    ----------
    folder : str or Path
        The work folder; paths in ``manifest["files"]`` are relative to it (or absolute).
    stage : str
        Name of the stage.
    manifest : mapping
        ``files`` (see `describe_files`; default none), ``data`` (JSON-able, default none) and
        ``seconds`` (float, wall time).
    digest : str
        What the stage depended on, from `stage_digest`.

    Raises
    ------
    RunError
        If the disk is full.
    """
    whole = {"files": [], "data": {}, "seconds": 0.0, **manifest, "stage": stage, "digest": digest}
    path = _manifest_path(folder, stage)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, whole)
    return whole


def read_manifest(folder: str | Path, stage: str, digest: str) -> dict[str, Any] | None:
    """The manifest of ``stage`` where it can be trusted, else None.

    None if there is none, it is not whole, it has another digest, or a file it lists is missing
    or of another size: the stage has to be done again.
    """
    try:
        manifest = json.loads(_manifest_path(folder, stage).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # Torn or foreign text proves nothing done, just as no file does.
        return None
    if not isinstance(manifest, dict) or manifest.get("digest") != digest:
        return None
    whole = all(
        _size(Path(folder, entry["path"])) == entry["bytes"] for entry in manifest.get("files", [])
    )
    return manifest if whole else None


def describe_files(folder: str | Path, paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """``{"path", "bytes"}`` for each file, and for each file below each folder, of ``paths``.

    Parameters
    ----------
    folder : str or Path
        The work folder, which the paths written are relative to: a run moved as a whole stays
        valid.
    paths : iterable of str or Path
        Files or folders, absolute or relative to the current folder.

    Raises
    ------
    FileNotFoundError
        If one does not exist.
    """
    entries = []
    for path in map(Path, paths):
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            relative = Path(os.path.relpath(file, folder)).as_posix()
            entries.append({"path": relative, "bytes": file.stat().st_size})
    return entries


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON so that ``path`` never holds half of it, even after a power cut.

    Raises
    ------
    RunError
        If the disk is full.
    ValueError
        If ``value`` holds NaN or an infinity, which JSON cannot.
    """
    path = Path(path)
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # Random, so that two writers of one name do not tear each other's file; of the form that the
    # next run sweeps, where this one is killed here.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"disk full: {len(text.encode())} bytes of {path} did not fit; free space and "
                "run again"
            ) from error
        raise


def _manifest_path(folder: str | Path, stage: str) -> Path:
    return Path(folder) / "manifests" / f"{stage}.json"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
