"""Write a demo set to one Parquet file: streamed, whole or not at all, never over foreign data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq

from clam_dist.data.files import check_disk, published
from clam_dist.demo import digits, vowels
from clam_dist.errors import ConfigError

ROW_GROUP_ROWS = 131072
_KEY = b"clam_dist.demo"
_VERSION = 1  # raise it when the same name, rows and seed come to give other data


@dataclass(frozen=True)
class Demo:
    """A demo set: the module that draws it and how many rows it has unless told otherwise."""

    module: ModuleType
    default_rows: int


DEMOS = {
    "vowels": Demo(vowels, 1_000_000),
    "digits": Demo(digits, digits.REAL_ROWS),
}


@dataclass(frozen=True)
class DemoFile:
    """What `write_demo` did.

    Attributes
    ----------
    path : Path
        The Parquet file.
    rows : int
    written : bool
        False where the very same set stood there already.
    """

    path: Path
    rows: int
    written: bool


def write_demo(
    name: str, output: str | Path, *, rows: int | None = None, seed: int = 0
) -> DemoFile:
    """Write the demo set ``name`` to ``output`` in bounded memory.

    The same name, rows and seed give the same rows everywhere; fewer rows are the first ones of
    more.

    Parameters
    ----------
    name : str
        ``vowels`` or ``digits``.
    output : str or Path
        The file to write; its folder is made if need be.
    rows : int, optional
        Default: a million for ``vowels``, the 1797 real ones for ``digits``.
    seed : int, default 0

    Raises
    ------
    ConfigError
        If the name is unknown, there are no rows to write, or ``output`` is something that this
        function did not write.
    RunError
        If the disk is too small; nothing is left behind.
    """
    if name not in DEMOS:
        raise ConfigError(f"no demo data named {name!r}; known are {', '.join(DEMOS)}")
    demo = DEMOS[name]
    rows = demo.default_rows if rows is None else rows
    if rows < 1:
        raise ConfigError(f"--rows {rows}: demo data needs at least 1 row")
    path = Path(output)
    mark = {"name": name, "rows": rows, "seed": seed, "version": _VERSION}
    if _standing(path) == mark:
        return DemoFile(path, rows, written=False)
    schema = demo.module.schema().with_metadata({_KEY: json.dumps(mark).encode()})
    check_disk(str(path.parent), _bytes_needed(rows, schema))
    with published(str(path)) as temporary:
        _stream(temporary, schema, demo.module, rows, seed)
    return DemoFile(path, rows, written=True)


def _standing(path: Path) -> dict[str, object] | None:
    """The mark of the demo set at ``path``, None if nothing is there, else ConfigError."""
    if not path.exists():
        return None
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it, such as {path / 'demo.parquet'}")
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError):
        metadata = {}
    if _KEY not in metadata:
        raise ConfigError(
            f"{path} exists and was not written by clam-dist demo-data; name another file"
        )
    mark: dict[str, object] = json.loads(metadata[_KEY])
    return mark


def _bytes_needed(rows: int, schema: pa.Schema) -> int:
    # Random digits hardly compress: 4 bytes a feature; the label takes half a byte.
    return rows * 4 * len(schema) + 65536


def _stream(path: str, schema: pa.Schema, module: ModuleType, rows: int, seed: int) -> None:
    """Write all rows, one row group in memory at a time."""
    # A dictionary of random numbers is as long as the column and slow to build.
    with pq.ParquetWriter(path, schema, use_dictionary=["label"], compression="none") as writer:
        held: list[pa.RecordBatch] = []
        for batch in module.batches(rows, seed):
            held.append(batch)
            if sum(map(len, held)) >= ROW_GROUP_ROWS:
                _write_group(writer, held)
        if held:
            _write_group(writer, held)


def _write_group(writer: pq.ParquetWriter, held: list[pa.RecordBatch]) -> None:
    """Write what is held as one row group and let go of it."""
    table = pa.Table.from_batches(held, schema=writer.schema)
    writer.write_table(table, row_group_size=len(table))
    held.clear()
