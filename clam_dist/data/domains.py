"""Rows of several source domains: which there are, and their shares of the shards.

A domain is a value of one column: a site, a camera, a year. Batches of one domain each are for
models whose statistics settle in the rows of a batch, as TDCM's do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clam_dist.data.shards import ShardFile, cut_evenly
from clam_dist.errors import DataError

MOST_DOMAINS = 64
"""Distinct values of a domain column; with more, a domain's batches would come too seldom."""
_PIECES = 4
"""Pieces of a domain for each lane, at least: lanes then hold nearly the same number of rows."""

Value = str | int | bool | None
"""Of a domain column; None for null, which is a domain of its own."""


@dataclass(frozen=True)
class Domains:
    """The values of a domain column, rising, null last; a row's code is its value's place."""

    column: str
    values: tuple[Value, ...]
    rows: tuple[int, ...]
    """Source rows of each."""

    @classmethod
    def of(cls, column: str, values: pa.Array) -> Domains:
        """Those of one batch of the column.

        Raises
        ------
        DataError
            More than 64 values.
        """
        counted = pc.value_counts(_plain(values))
        found = counted.field("values").to_pylist()
        return cls._of(column, Counter(dict(zip(found, counted.field("counts").to_pylist()))))

    @classmethod
    def _of(cls, column: str, counts: Mapping[Value, int]) -> Domains:
        if len(counts) > MOST_DOMAINS:
            raise DataError(
                f"source.domain: column '{column}' has at least {len(counts)} distinct values, and "
                f"{MOST_DOMAINS} domains are the most; name a column of fewer, or leave "
                "source.domain out"
            )
        values = sorted(counts, key=lambda value: (value is None, value))
        return cls(column, tuple(values), tuple(counts[value] for value in values))

    def merge(self, other: Domains) -> Domains:
        """Those of both parts' rows: the same for any cut into parts.

        Raises
        ------
        DataError
            More than 64 values.
        """
        counts = Counter(dict(zip(self.values, self.rows, strict=True)))
        counts.update(dict(zip(other.values, other.rows, strict=True)))
        return self._of(self.column, counts)

    def codes(self, values: pa.Array) -> np.ndarray:
        """Each row's domain: uint8 (n,).

        Raises
        ------
        DataError
            A value that is none of the domains.
        """
        plain = _plain(values)
        codes = pc.index_in(plain, value_set=pa.array(self.values, plain.type))
        if codes.null_count:
            strange = plain.filter(codes.is_null())[0].as_py()
            raise DataError(
                f"source.domain: column '{self.column}' holds {strange!r}, which is none of the "
                f"{len(self.values)} values found before; leave the source alone during a run, and "
                "start over with --force"
            )
        return codes.to_numpy().astype(np.uint8)

    def warnings(self) -> list[str]:
        """What a person should know, a sentence or two each."""
        warnings = []
        if len(self.values) == 1:
            warnings.append(
                f"source.domain: column '{self.column}' holds one value only, so that it changes "
                "nothing."
            )
        elif None in self.values:
            warnings.append(
                f"source.domain: column '{self.column}' is missing in {self.rows[-1]} of "
                f"{sum(self.rows)} rows, which form a domain of their own. Fill it where the "
                "domain is known."
            )
        return warnings

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON values; ``from_json`` gives equal domains back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Domains:
        """The domains that ``to_json`` described."""
        return cls(value["column"], tuple(value["values"]), tuple(value["rows"]))


def can_be_domain(data_type: pa.DataType) -> bool:
    """Whether a column of this type can name domains: text, whole numbers or booleans."""
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if pa.types.is_dictionary(data_type):
        data_type = cast(pa.DictionaryType, data_type).value_type
    types = pa.types
    text = types.is_string(data_type) or types.is_large_string(data_type)
    return text or types.is_integer(data_type) or types.is_boolean(data_type)


def shards_by_domain(
    files: Sequence[ShardFile], lanes: int
) -> tuple[list[ShardFile], np.ndarray | None]:
    """Cut shards whose rows lie sorted by domain into parts of one domain each.

    A domain may lie in a few shards only, as where each file of the source is one; its parts are
    then cut further, evenly, so that every lane gets about as many of its rows.

    Parameters
    ----------
    files : sequence of ShardFile
    lanes : int
        Micro-batches of a global batch, which the parts will be dealt to.

    Returns
    -------
    files : list of ShardFile
        The shards themselves where none has ``domain_rows``.
    domains : ndarray of int64, or None
        Domain of each part; None where there are no domains.
    """
    if not any(file.domain_rows for file in files):
        return list(files), None
    parts = [part for file in files for part in _parts_of(file)]
    held: Counter[int] = Counter()
    for domain, part in parts:
        held[domain] += part.rows
    cut: list[ShardFile] = []
    domains: list[int] = []
    for domain, part in parts:
        offset = part.offset
        for rows in cut_evenly(part.rows, -(-held[domain] // (_PIECES * lanes))):
            cut.append(replace(part, rows=rows, offset=offset))
            domains.append(domain)
            offset += rows
    return cut, np.array(domains, np.int64)


def _parts_of(file: ShardFile) -> Iterable[tuple[int, ShardFile]]:
    offset = file.offset
    for domain, rows in enumerate(file.domain_rows or (file.rows,)):
        if rows:
            yield domain, replace(file, rows=rows, offset=offset, domain_rows=())
        offset += rows


def _plain(values: pa.Array) -> pa.Array:
    """The values themselves, where the array holds places in a dictionary."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
