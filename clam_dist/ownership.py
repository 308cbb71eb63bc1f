"""Who owns an output folder: one run at a time, found again after a crash, never someone else's.

``_CLAM_DIST.json`` in the folder says which run writes there; a file lock beside it says whether
that run still lives on this machine, its heartbeat whether it lives on another.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from clam_dist.errors import ConfigError, RunError
from clam_dist.owner_record import (
    DEAD_AFTER_SECONDS,
    LOCK_FILE,
    OWNER_FILE,
    beats,
    flat,
    foreign_entries,
    now,
    read_record,
    who,
    write_record,
)

SUCCESS_FILE = "_SUCCESS"
HEARTBEAT_SECONDS = 10.0

logger = logging.getLogger("clam_dist")


class Claim:
    """An output folder held by this run, until the end of the ``with`` block. Made by `claim`.

    Attributes
    ----------
    output : Path
        The folder.
    already_done : bool
        The folder holds a finished run of the same digest; nothing is to be written.
    previous : dict or None
        What ``_CLAM_DIST.json`` said before: an unfinished run to resume where its ``digest`` is
        this one's, else one whose results are to be replaced. None in a new folder.
    """

    def __init__(
        self,
        output: Path,
        record: dict[str, Any],
        lock: FileLock,
        previous: dict[str, Any] | None,
        already_done: bool,
        created: bool,
    ) -> None:
        self.output = output
        self.previous = previous
        self.already_done = already_done
        self._record = record
        self._lock = lock
        self._created = created
        self._lost: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if not already_done:
            self._write()
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()

    @property
    def resumed(self) -> bool:
        """Whether an unfinished run of the same digest was here."""
        return (
            not self.already_done
            and self.previous is not None
            and self.previous.get("digest") == self._record["digest"]
        )

    def check(self) -> None:
        """Make sure that the folder is still this run's.

        Raises
        ------
        RunError
            If another run took it, which it may once this one gave no heartbeat for a minute.
        """
        if self._lost is not None:
            raise RunError(
                f"output folder {self.output} was taken by {self._lost} while this run gave no "
                f"heartbeat for {DEAD_AFTER_SECONDS:.0f} s; let that run finish, or stop it"
            )

    def succeed(self) -> None:
        """Write ``_SUCCESS``: everything else of the run is in place."""
        self.check()
        (self.output / SUCCESS_FILE).touch()

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if self._thread is not None and self._lost is None:
                self._leave(failed=kind is not None)
        finally:
            self._lock.release()

    def _leave(self, failed: bool) -> None:
        """Say that the run stopped; after a failure that wrote nothing, leave what was there."""
        if failed and self.previous is None and not _holds_files(self.output):
            if self._created:
                shutil.rmtree(self.output)
                return
            # It stood there before, empty; so it is left. It holds our files and empty folders.
            for path in self.output.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            return
        self._record["stopped"] = now()
        self._write()

    def _write(self) -> None:
        self._record["heartbeat"] = now()
        write_record(self.output, self._record)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                standing = read_record(self.output)
                if standing is not None and standing["run_id"] != self._record["run_id"]:
                    self._lost = who(standing)
                    return
                self._write()
            except (OSError, RunError) as error:
                # A full or absent disk stops the run where it writes results; here it is noted.
                logger.warning("heartbeat of %s not written: %s", self.output, error)


def claim(
    output: str | Path,
    *,
    run_id: str,
    digest: str,
    config_public: Mapping[str, Any],
    force: bool = False,
) -> Claim:
    """Take the output folder for this run, making it if need be.

    Parameters
    ----------
    output : str or Path
        A local or shared folder.
    run_id : str
        Name of this run, unlike any other's.
    digest : str
        Digest of the config values that can change a result.
    config_public : mapping
        Those values, nested, without secrets: a later run with others is told which differ.
    force : bool, default False
        Replace a finished run: its ``_SUCCESS`` is removed first.

    Raises
    ------
    ConfigError
        If the folder is not this tool's, its owner lives, or it holds a finished run of another
        digest and ``force`` is not set.
    """
    folder = Path(output)
    _refuse_foreign(folder)
    created = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE, thread_local=False)
        lock.acquire(timeout=0)
    except Timeout:
        raise _alive(folder, read_record(folder)) from None
    except NotImplementedError:
        raise ConfigError(
            f"output.uri: the file system of {folder} has no file locks, so two runs could write "
            "there at once; name a folder on another"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"disk full: {folder} could not be made; free space") from error
        raise ConfigError(
            f"output.uri: cannot write in {folder}: {error.strerror}; name another folder"
        ) from error
    try:
        return _take(folder, lock, run_id, digest, config_public, force, created)
    except BaseException:
        lock.release()
        raise


def _take(
    folder: Path,
    lock: FileLock,
    run_id: str,
    digest: str,
    config_public: Mapping[str, Any],
    force: bool,
    created: bool,
) -> Claim:
    """`claim` once the lock is held."""
    # Looked at again: the folder may have changed hands before the lock was taken.
    _refuse_foreign(folder)
    previous = read_record(folder)
    host = socket.gethostname()
    # Locks do not reach across machines on every shared file system; heartbeats do.
    if previous is not None and previous["host"] != host and beats(previous):
        raise _alive(folder, previous)
    finished = (folder / SUCCESS_FILE).exists()
    if finished and not force and previous is not None and previous["digest"] != digest:
        raise _other_config(folder, previous, config_public)
    already_done = finished and not force
    if finished and force:
        (folder / SUCCESS_FILE).unlink()
    record = {
        "owner": "clam_dist",
        "host": host,
        "pid": os.getpid(),
        "run_id": run_id,
        "digest": digest,
        "started": now(),
        "stopped": None,
        "config": dict(config_public),
    }
    return Claim(folder, record, lock, previous, already_done, created)


def _refuse_foreign(folder: Path) -> None:
    """Raise ConfigError if ``folder`` is a file, or holds things and was not made by this tool."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"output.uri: {folder} is a file, not a folder; name another folder")
    entries = foreign_entries(folder)
    if entries and read_record(folder) is None:
        raise ConfigError(
            f"output.uri: {folder} was not written by clam_dist (it holds {entries[0]!r} and no "
            f"{OWNER_FILE}); name a new or empty folder"
        )


def _holds_files(folder: Path) -> bool:
    """Whether any file but this module's own is in the folder or below it."""
    return any(
        path.is_file()
        for name in foreign_entries(folder)
        for path in (folder / name, *(folder / name).rglob("*"))
    )


def _alive(folder: Path, record: Mapping[str, Any] | None) -> ConfigError:
    owner = "another run" if record is None else who(record)
    return ConfigError(
        f"output.uri: {folder} is being written by {owner}; wait for it, stop it, or name another "
        "folder"
    )


def _other_config(
    folder: Path, previous: Mapping[str, Any], config_public: Mapping[str, Any]
) -> ConfigError:
    before, after = flat(previous.get("config", {})), flat(config_public)
    differing = [
        f"{key}: {json.dumps(before.get(key))} there, {json.dumps(after.get(key))} here"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    keys = "\n  - ".join(["", *(differing or ["the version of clam_dist or of its config format"])])
    return ConfigError(
        f"output.uri: {folder} holds a finished run with another config; name another folder, or "
        f"replace it with --force. What differs:{keys}"
    )
