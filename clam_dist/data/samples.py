"""Samples of the source: candidates kept by each shard task, merged into the rows of least hash."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clam_dist.data.npy import row_blocks, write_npy
from clam_dist.data.rows import ScaledRows, any_missing
from clam_dist.data.sampling import row_hash, smallest, threshold
from clam_dist.errors import DataError


@dataclass(frozen=True)
class Candidates:
    """Rows of one task that may be in a sample: ``<stem>.<kind>.npy`` for each kind."""

    stem: str
    """Of the files, relative to the shards' folder."""
    rows: int
    """With no rows there are no files."""
    kinds: tuple[str, ...]
    """``hashes``, ``rows``, ``x`` and, with a column of weights or domains, ``w``, ``domain``."""

    def load(self, folder: str, kind: str) -> np.ndarray:
        """One of the arrays."""
        return np.load(os.path.join(folder, f"{self.stem}.{kind}.npy"), allow_pickle=False)


@dataclass(frozen=True)
class SampleFile:
    """A sample on disk: ``<name>.x.npy``, ``<name>.rows.npy`` and perhaps ``<name>.w.npy``.

    Rows are in order of hash, which is an order as good as random; or by domain, and so within it.
    """

    path: str
    """File of the values, relative to the shards' folder."""
    rows: int
    has_missing: bool
    files: tuple[tuple[str, int], ...]
    """All its files, relative to the folder, with their bytes."""
    domain_rows: tuple[int, ...] = ()
    """Rows of each domain, where they lie sorted by domain."""

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SampleFile:
        """The sample that ``to_json`` described."""
        files = tuple((path, size) for path, size in value["files"])
        domain_rows = tuple(value.get("domain_rows", ()))
        return cls(**{**value, "files": files, "domain_rows": domain_rows})


class CandidateCollector:
    """Keeps the rows of a task that may be in the sample of ``m`` rows of the whole source.

    Parameters
    ----------
    purpose : str
        The sample's name, which keys its hashes.
    m : int
        Rows of the sample. All tasks together keep about ``m + 6 sqrt(m)`` candidates.
    n_rows : int
        Rows of the whole source.
    seed : int
        The run's seed.
    """

    def __init__(self, purpose: str, m: int, n_rows: int, seed: int) -> None:
        self._purpose, self._seed = purpose, seed
        self._bound = threshold(m, n_rows)
        self._parts: list[dict[str, np.ndarray]] = []

    def add(self, file_name: str, rows: ScaledRows) -> None:
        """Look at the next rows, of the file called ``file_name`` in the source."""
        hashes = row_hash(self._seed, self._purpose, file_name, rows.file_row, len(rows.x))
        chosen = hashes <= self._bound
        if rows.usable is not None:
            chosen &= rows.usable
        at = np.flatnonzero(chosen)
        if len(at) == 0:
            return
        part = {"hashes": hashes[at], "rows": rows.first_row + at, "x": rows.x[at]}
        if rows.w is not None:
            part["w"] = rows.w[at]
        if rows.domain is not None:
            part["domain"] = rows.domain[at]
        self._parts.append(part)

    def save(self, folder: str, stem: str) -> Candidates:
        """Write what was kept to ``<stem>.<kind>.npy`` in ``folder``."""
        if not self._parts:
            return Candidates(stem, 0, ())
        kept = sum(len(part["rows"]) for part in self._parts)
        for kind, first in self._parts[0].items():
            path = os.path.join(folder, f"{stem}.{kind}.npy")
            blocks = (part[kind] for part in self._parts)
            write_npy(path, (kept, *first.shape[1:]), first.dtype, blocks)
        return Candidates(stem, kept, tuple(self._parts[0]))


def merge_samples(
    folder: str,
    candidates: Mapping[str, Sequence[Candidates]],
    samples: Mapping[str, int],
    by_domain: Mapping[str, int] | None = None,
) -> dict[str, SampleFile]:
    """Merge the tasks' candidates into the samples, and remove the candidates' files.

    Parameters
    ----------
    folder : str
        The shards' folder.
    candidates : mapping of str to sequence of Candidates
        Of each sample, by name, from every task.
    samples : mapping of str to int
        Rows of each sample. Fewer are found where fewer rows have any value.
    by_domain : mapping of str to int, optional
        Samples whose rows are to lie sorted by domain, and how many domains there are.

    Returns
    -------
    dict of str to SampleFile
        Of every sample of at least one row.

    Raises
    ------
    DataError
        Every row is missing all its features.
    RunError
        The disk is full, or the folder cannot be written to.
    """
    merged = {
        name: _merge(
            folder, name, [c for c in candidates[name] if c.rows], m, (by_domain or {}).get(name, 0)
        )
        for name, m in samples.items()
        if m > 0
    }
    for parts in candidates.values():
        for part in parts:
            for kind in part.kinds:
                Path(folder, f"{part.stem}.{kind}.npy").unlink(missing_ok=True)
    return merged


def _merge(folder: str, name: str, parts: Sequence[Candidates], m: int, domains: int) -> SampleFile:
    """Choose by hash first, then fetch the chosen rows task by task: one sample in memory."""
    if not parts:
        raise DataError(
            "the source: in every row all features are missing, so there is nothing to cluster. "
            "Choose other columns with source.features."
        )
    hashes = np.concatenate([part.load(folder, "hashes") for part in parts])
    rows = np.concatenate([part.load(folder, "rows") for part in parts])
    chosen = smallest(hashes, rows, m)
    domain_rows: tuple[int, ...] = ()
    if domains:
        codes = np.concatenate([part.load(folder, "domain") for part in parts])[chosen]
        chosen = chosen[np.argsort(codes, kind="stable")]
        domain_rows = tuple(np.bincount(codes, minlength=domains).tolist())
    place = np.full(len(rows), -1)  # of each candidate in the sample; -1 if it is not chosen
    place[chosen] = np.arange(len(chosen))
    missing, files = False, []
    for kind in (kind for kind in ("x", "rows", "w") if kind in parts[0].kinds):
        values = _gather(folder, parts, kind, place, len(chosen))
        missing |= kind == "x" and any_missing(values)
        path = f"{name}.{kind}.npy"
        target = os.path.join(folder, path)
        size = write_npy(target, values.shape, values.dtype, row_blocks(values))
        files.append((path, size))
    return SampleFile(f"{name}.x.npy", len(chosen), missing, tuple(files), domain_rows)


def _gather(
    folder: str, parts: Sequence[Candidates], kind: str, place: np.ndarray, n: int
) -> np.ndarray:
    """The chosen rows of one array, ``n`` of them, each put in its place."""
    out: np.ndarray | None = None
    first = 0
    for part in parts:
        values = part.load(folder, kind)
        if out is None:
            out = np.empty((n, *values.shape[1:]), values.dtype)
        to = place[first : first + len(values)]
        out[to[to >= 0]] = values[to >= 0]
        first += len(values)
    assert out is not None
    return out
