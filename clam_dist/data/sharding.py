"""Write the shards of one task: rows scaled, shuffled, and watched for those that samples want."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clam_dist.data.domains import Domains
from clam_dist.data.features import FeatureSchema
from clam_dist.data.npy import row_blocks, write_npy
from clam_dist.data.rows import ScaledRows, any_missing, read_scaled
from clam_dist.data.samples import CandidateCollector, Candidates
from clam_dist.data.sampling import generator
from clam_dist.data.shards import ShardFile, ShardTask
from clam_dist.data.source import Source
from clam_dist.data.statistics import Scaling


@dataclass(frozen=True)
class ShardTaskResult:
    """What a task wrote; paths, not arrays."""

    index: int
    shards: tuple[ShardFile, ...]
    files: tuple[tuple[str, int], ...]
    """All files of the shards, relative to the folder, with their bytes."""
    candidates: dict[str, Candidates] = field(default_factory=dict)
    """For each sample, this task's candidates."""
    skipped_rows: int = 0
    """Rows left out of shards and samples since all their features are missing."""


def write_shards(
    task: ShardTask,
    *,
    source: Source,
    schema: FeatureSchema,
    scaling: Scaling,
    seed: int,
    folder: str,
    samples: Mapping[str, int],
    weight_column: str | None = None,
    domains: Domains | None = None,
    missing: str = "mask",
    fill: np.ndarray | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ShardTaskResult:
    """Write one task's shards; running it twice writes the same files.

    Holds one shard, one batch of the source and the task's candidates at a time. Rows are
    shuffled within a shard by ``(seed, shard)``, and then sorted by domain where they have one. A
    row without any value is left out, for nothing can be learned from it.

    Parameters
    ----------
    task : ShardTask
    source : Source
    schema : FeatureSchema
    scaling : Scaling
    seed : int
        The run's seed.
    folder : str
        Where the shards go.
    samples : mapping of str to int
        Rows of each sample to keep candidates of, by name; see `merge_samples`.
    weight_column, domains, missing, fill, storage_options
        See `read_scaled`.

    Returns
    -------
    ShardTaskResult

    Raises
    ------
    DataError
        See `read_scaled`.
    RunError
        The disk is full, or the folder cannot be written to.
    """
    collectors = {
        name: CandidateCollector(name, m, source.n_rows, seed)
        for name, m in samples.items()
        if m > 0
    }
    cutter = _ShardCutter(
        task, folder, seed, schema.width, weighted=weight_column is not None, domains=domains
    )
    skipped = 0
    for piece in task.pieces:
        file_name = source.files[piece.file].name
        for rows in read_scaled(
            source,
            piece,
            schema,
            scaling,
            missing=missing,
            fill=fill,
            weight_column=weight_column,
            domains=domains,
            storage_options=storage_options,
        ):
            if rows.usable is not None:
                skipped += len(rows.x) - int(rows.usable.sum())
            for collector in collectors.values():
                collector.add(file_name, rows)
            cutter.add(rows)
    candidates = {
        name: collector.save(folder, f"candidates-{task.index:05d}.{name}")
        for name, collector in collectors.items()
    }
    return ShardTaskResult(
        task.index, tuple(cutter.shards), tuple(cutter.files), candidates, skipped
    )


class _ShardCutter:
    """Cuts a task's rows into its shards, in buffers that serve one shard after another."""

    def __init__(
        self,
        task: ShardTask,
        folder: str,
        seed: int,
        width: int,
        weighted: bool,
        domains: Domains | None,
    ) -> None:
        self._task, self._folder, self._seed = task, folder, seed
        most = max(task.shard_rows)
        self._buffers: dict[str, np.ndarray] = {
            "x": np.empty((most, width), np.float32),
            "rows": np.empty(most, np.int64),
        }
        if weighted:
            self._buffers["w"] = np.empty(most, np.float64)
        self._domains = 0 if domains is None else len(domains.values)
        if self._domains:
            self._buffers["domain"] = np.empty(most, np.uint8)
        self.shards: list[ShardFile] = []
        self.files: list[tuple[str, int]] = []
        self._looked = self._kept = 0  # source rows of the present shard; those in the buffers
        self._first_row = task.pieces[0].first_row

    def add(self, rows: ScaledRows) -> None:
        start = 0
        while start < len(rows.x):
            room = self._task.shard_rows[len(self.shards)] - self._looked
            stop = min(len(rows.x), start + room)
            self._keep(rows, start, stop)
            if stop - start == room:
                self._write()
                self._looked = self._kept = 0
                self._first_row = rows.first_row + stop
            start = stop

    def _keep(self, rows: ScaledRows, start: int, stop: int) -> None:
        chosen = slice(start, stop)
        arrays = {"x": rows.x[chosen]}
        arrays["rows"] = np.arange(rows.first_row + start, rows.first_row + stop)
        if rows.w is not None:
            arrays["w"] = rows.w[chosen]
        if rows.domain is not None:
            arrays["domain"] = rows.domain[chosen]
        if rows.usable is not None:
            arrays = {kind: values[rows.usable[chosen]] for kind, values in arrays.items()}
        n = len(arrays["rows"])
        for kind, values in arrays.items():
            self._buffers[kind][self._kept : self._kept + n] = values
        self._looked += stop - start
        self._kept += n

    def _write(self) -> None:
        index, n = self._task.first_shard + len(self.shards), self._kept
        order = generator(self._seed, "shard order", index).permutation(n)
        domain_rows: tuple[int, ...] = ()
        if self._domains:
            codes = self._buffers["domain"][:n]
            order = order[np.argsort(codes[order], kind="stable")]
            domain_rows = tuple(np.bincount(codes, minlength=self._domains).tolist())
        written = {}
        for kind, buffer in self._buffers.items():
            if kind == "domain":
                continue
            path = f"shard-{index:05d}.{kind}.npy"
            values = buffer[:n]
            blocks = row_blocks(values, order)
            target = os.path.join(self._folder, path)
            written[path] = write_npy(target, values.shape, values.dtype, blocks)
        self.files.extend(written.items())
        path = f"shard-{index:05d}.x.npy"
        missing = any_missing(self._buffers["x"][:n])
        self.shards.append(
            ShardFile(path, n, 0, self._first_row, written[path], missing, domain_rows)
        )
