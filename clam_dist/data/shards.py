"""Shards: rows encoded, scaled and shuffled once, so that every epoch only reads them.

Here are the values that describe them and the plan, both pure; `write_shards` is in
``sharding.py``. On disk a shard is ``shard-00000.x.npy`` (float32, rows by features, NaN where
missing), ``shard-00000.rows.npy`` (int64 global rows) and, with a weight column,
``shard-00000.w.npy`` (float64). Where rows have domains, those of a shard lie sorted by domain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clam_dist.data.files import check_disk
from clam_dist.data.source import Fragment, Source

__all__ = [
    "ShardFile",
    "ShardTask",
    "check_disk",
    "cut_evenly",
    "disk_needed",
    "plan_shard_rows",
    "plan_shards",
    "virtual_shards",
]

_SHARDS = 64
"""Shards aimed at: enough for every batch to mix the whole source, and to share among ranks."""
_LEAST_ROWS = 256
_SHARD_BYTES = 16 * 2**20
_NPY_HEADER = 128


@dataclass(frozen=True)
class ShardFile:
    """One shard, or a run of rows inside a file of rows that serves as one."""

    path: str
    """File of the values, relative to the shards' folder; ends in ``.x.npy``."""
    rows: int
    offset: int = 0
    """Rows of the file before this shard's first."""
    first_row: int = 0
    """Global row of the first source row that it was cut from."""
    bytes: int = 0
    """Of the values' file."""
    has_missing: bool = False
    """Whether any value is NaN."""
    domain_rows: tuple[int, ...] = ()
    """Rows of each domain, which lie one domain after another; empty where rows have none."""

    def sibling(self, kind: str) -> str:
        """The file of the same rows' ``"rows"`` (global rows) or ``"w"`` (weights)."""
        return self.path.removesuffix(".x.npy") + f".{kind}.npy"

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardFile:
        """The shard that ``to_json`` described."""
        return cls(**{**value, "domain_rows": tuple(value.get("domain_rows", ()))})


@dataclass(frozen=True)
class ShardTask:
    """Consecutive row groups, of one file or several, that become consecutive shards."""

    index: int
    pieces: tuple[Fragment, ...]
    """The task's rows in order, one fragment for each file."""
    first_shard: int
    shard_rows: tuple[int, ...]
    """Source rows of each shard; rows without any value are then left out of it."""

    @property
    def n_rows(self) -> int:
        """Source rows of the task."""
        return sum(self.shard_rows)


def plan_shard_rows(n_rows: int, width: int) -> int:
    """Rows of a shard, from the data's size alone.

    About one in 64 of the rows, but at least 256 rows, so that small sources do not become many
    tiny files, and at most 16 MiB of float32, so that a task's memory is bounded.

    Parameters
    ----------
    n_rows : int
        Rows of the source.
    width : int
        Encoded features of a row.
    """
    fair = max(_LEAST_ROWS, -(-n_rows // _SHARDS))
    return max(1, min(fair, _SHARD_BYTES // (4 * max(width, 1))))


def plan_shards(source: Source, shard_rows: int) -> list[ShardTask]:
    """Cut a source into tasks and shards; depends on the footers and ``shard_rows`` alone.

    A task is consecutive whole row groups holding at least ``shard_rows`` rows, the last perhaps
    less; its rows are cut evenly into shards of at most ``shard_rows`` rows. Row groups without
    rows are passed over.

    Parameters
    ----------
    source : Source
    shard_rows : int
        Greatest number of rows of a shard.

    Returns
    -------
    list of ShardTask
        In row order; together they hold each row once.
    """
    if shard_rows < 1:
        raise ValueError(f"shard_rows must be at least 1, got {shard_rows}")
    tasks: list[ShardTask] = []
    held: list[Fragment] = []
    rows = first_shard = pieces = 0
    groups = _filled_row_groups(source)
    for place, group in enumerate(groups):
        held.append(group)
        rows += group.n_rows
        if rows >= shard_rows or place == len(groups) - 1:
            joined = _join(held, pieces)
            cut = cut_evenly(rows, shard_rows)
            tasks.append(ShardTask(len(tasks), joined, first_shard, cut))
            first_shard, pieces = first_shard + len(cut), pieces + len(joined)
            held, rows = [], 0
    return tasks


def _filled_row_groups(source: Source) -> list[Fragment]:
    """Every row group that has rows, as a fragment of its own."""
    fragments: list[Fragment] = []
    for index, file in enumerate(source.files):
        starts = itertools.accumulate(file.row_groups, initial=0)
        for group, (start, rows) in enumerate(zip(starts, file.row_groups, strict=False)):
            if rows:
                first_row = source.first_rows[index] + start
                at = (group, group + 1)
                fragments.append(Fragment(len(fragments), index, at, first_row, start, rows))
    return fragments


def _join(groups: Sequence[Fragment], first_index: int) -> tuple[Fragment, ...]:
    """One fragment for each file's run of row groups, numbered from ``first_index``."""
    runs = [list(run) for _, run in itertools.groupby(groups, lambda group: group.file)]
    return tuple(
        replace(
            run[0],
            index=first_index + place,
            row_groups=(run[0].row_groups[0], run[-1].row_groups[1]),
            n_rows=sum(group.n_rows for group in run),
        )
        for place, run in enumerate(runs)
    )


def cut_evenly(rows: int, most: int) -> tuple[int, ...]:
    """``rows`` in the fewest parts of at most ``most``, whose sizes differ by 1 at most."""
    count = max(1, -(-rows // most))
    cuts = (part * rows // count for part in range(count + 1))
    return tuple(stop - start for start, stop in itertools.pairwise(cuts))


def virtual_shards(
    path: str,
    rows: int,
    shard_rows: int,
    has_missing: bool = False,
    domain_rows: Sequence[int] = (),
) -> list[ShardFile]:
    """Cut one file of rows, such as the sample's, evenly into shards of at most ``shard_rows``.

    With ``domain_rows`` the file's rows lie sorted by domain, so many of each.
    """
    sizes = cut_evenly(rows, shard_rows)
    bounds = [0, *itertools.accumulate(domain_rows)]

    def held(start: int, stop: int) -> tuple[int, ...]:
        """Rows of each domain among those from ``start`` to ``stop``."""
        domains = itertools.pairwise(bounds)
        return tuple(max(0, min(stop, last) - max(start, first)) for first, last in domains)

    offsets = itertools.accumulate(sizes, initial=0)
    return [
        ShardFile(
            path,
            size,
            offset=offset,
            has_missing=has_missing,
            domain_rows=held(offset, offset + size),
        )
        for offset, size in zip(offsets, sizes, strict=False)
    ]


def disk_needed(
    tasks: Sequence[ShardTask],
    width: int,
    weighted: bool,
    samples: Mapping[str, int],
    domains: bool = False,
) -> int:
    """Bytes that the shards and the samples will take at most.

    Parameters
    ----------
    tasks : sequence of ShardTask
    width : int
        Encoded features of a row.
    weighted : bool
        Whether a weight column is named.
    samples : mapping of str to int
        Rows of each sample.
    domains : bool
        Whether rows have domains, which candidates note.
    """
    files = 3 if weighted else 2
    row = 4 * width + 8 + 8 * weighted
    rows = sum(task.n_rows for task in tasks)
    shards = sum(len(task.shard_rows) for task in tasks)
    # A sample lies on the disk twice for a moment: its candidates, with hashes, and itself; of
    # candidates there are a few more than of chosen rows.
    candidate = 2 * row + 8 + domains
    sampled = sum((min(m, rows) + 6 * math.isqrt(m) + 64) * candidate for m in samples.values())
    kinds = 2 * files + 1 + domains
    headers = _NPY_HEADER * (files * shards + kinds * len(tasks) * len(samples))
    return rows * row + sampled + headers
