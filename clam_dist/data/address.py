"""Finding and reading the files that an address names, on local disks and through fsspec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from clam_dist.errors import ConfigError, DataError

StorageOptions = Mapping[str, Any] | None

WILDCARDS = "*?["
# What object stores call the thing that changes whenever a file does, best first.
_STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class FoundFile:
    """A file as a listing shows it."""

    name: str
    """Relative to the listing's base, with ``/``."""
    address: str
    """Absolute local path, or fsspec address."""
    size: int
    """Bytes."""
    modified: str
    """Modification time in nanoseconds, or an object store's etag or time."""


def find_files(
    uri: str, storage_options: StorageOptions, suffixes: tuple[str, ...]
) -> tuple[str, list[FoundFile]]:
    """List the files of a file, folder or glob address, in order of relative name.

    A file or a glob takes whatever it names; a folder takes, at any depth, the files ending in
    one of ``suffixes`` or having no suffix at all. Names with a part that begins with ``_`` or
    ``.`` are skipped, as in the folders that Spark and Dask write.

    Returns
    -------
    base : str
        Longest part of the address without a wildcard; the folder, for a file.
    files : list of FoundFile

    Raises
    ------
    ConfigError
        An address of a kind that is not known or not installed.
    DataError
        Nothing there, or nothing that is not skipped.
    """
    filesystem, path = open_filesystem(uri, storage_options)
    root = _root(path)
    try:
        if filesystem.isfile(path):
            base, paths = filesystem._parent(path), [path]
        elif filesystem.isdir(path):
            base, paths = path, sorted(filesystem.find(path))
        elif root is not None:
            base, paths = root, _glob(filesystem, path)
        else:
            raise DataError(f"source.uri: no such file or folder: '{uri}'{_working_folder(uri)}")
    except PermissionError as error:
        raise DataError(f"source.uri: no permission to read '{uri}' ({error})") from error
    names = {_relative(name, base): name for name in paths}
    shown = {name: at for name, at in names.items() if paths == [path] or not _hidden(name)}
    if base == path:
        shown = {name: at for name, at in shown.items() if _has_suffix(name, suffixes)}
    if not shown:
        raise DataError(_nothing(uri, list(names), suffixes))
    files = [_found(filesystem, name, shown[name]) for name in sorted(shown)]
    return _address(filesystem, base), files


def stat_file(address: str, storage_options: StorageOptions) -> tuple[int, str]:
    """Size in bytes and modification stamp of a file as it is now.

    Raises
    ------
    FileNotFoundError
        It is gone.
    """
    filesystem, path = open_filesystem(address, storage_options)
    # Object stores remember listings; what counts is the file now.
    filesystem.invalidate_cache()
    found = _found(filesystem, address, path)
    return found.size, found.modified


def read_range(address: str, storage_options: StorageOptions, start: int, stop: int) -> bytes:
    """Bytes ``start`` to ``stop`` of a file; DataError where they cannot be read."""
    filesystem, path = open_filesystem(address, storage_options)
    try:
        return filesystem.cat_file(path, start=start, end=stop)
    except OSError as error:
        raise DataError(f"file '{address}' cannot be read: {error}") from error


def open_input(address: str, storage_options: StorageOptions) -> Any:
    """A local path as it is (Arrow reads it without Python), or an open remote file.

    The remote file does not read ahead: Arrow's buffers decide how much each request brings.
    """
    filesystem, path = open_filesystem(address, storage_options)
    if isinstance(filesystem, LocalFileSystem):
        return path
    return filesystem.open(path, "rb", cache_type="none")


def open_filesystem(uri: str, storage_options: StorageOptions) -> tuple[Any, str]:
    """The fsspec file system of an address, and the path in it (absolute if local)."""
    try:
        return fsspec.core.url_to_fs(uri, **(storage_options or {}))
    except ImportError as error:
        raise ConfigError(
            f"source.uri: reading '{uri}' needs a package that is not installed ({error}); "
            "for s3:// addresses install clam-dist[s3]"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"source.uri: '{uri}' is not an address that can be read ({error})"
        ) from error


def _root(path: str) -> str | None:
    """Longest leading folder without a wildcard; None where there is no wildcard."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if any(character in part for character in WILDCARDS):
            return "/".join(parts[:index]) or "/"
    return None


def _glob(filesystem: Any, pattern: str) -> list[str]:
    """Files matching the pattern, and all files under the folders that match it."""
    paths: set[str] = set()
    for path, info in filesystem.glob(pattern, detail=True).items():
        paths.update(filesystem.find(path) if info["type"] == "directory" else [path])
    return sorted(paths)


def _relative(path: str, base: str) -> str:
    return path[len(base.rstrip("/")) :].lstrip("/") if base else path


def _hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    last = name.rsplit("/", 1)[-1]
    return "." not in last or last.lower().endswith(suffixes)


def _found(filesystem: Any, name: str, path: str) -> FoundFile:
    if isinstance(filesystem, LocalFileSystem):
        status = os.stat(path)
        return FoundFile(name, path, status.st_size, str(status.st_mtime_ns))
    info = filesystem.info(path)
    stamps = (str(info[key]) for key in _STAMPS if info.get(key) is not None)
    address = filesystem.unstrip_protocol(path)
    return FoundFile(name, address, int(info["size"]), next(stamps, ""))


def _address(filesystem: Any, path: str) -> str:
    return path if isinstance(filesystem, LocalFileSystem) else filesystem.unstrip_protocol(path)


def _working_folder(uri: str) -> str:
    relative = "://" not in uri and not os.path.isabs(uri)
    return f" (looked for in the working folder, {os.getcwd()})" if relative else ""


def _nothing(uri: str, names: list[str], suffixes: tuple[str, ...]) -> str:
    if not names:
        return f"source.uri: no files at '{uri}'{_working_folder(uri)}"
    return (
        f"source.uri: no file at '{uri}' to read: {len(names)} there, such as '{names[0]}', but "
        f"names beginning with _ or . are skipped, and in a folder those not ending in "
        f"{', '.join(suffixes)}. Name the files by a glob such as '{uri.rstrip('/')}/*'."
    )
