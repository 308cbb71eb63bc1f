"""Domains of rows: counted the same for any cut, coded, and shards cut into parts of one each."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clam_dist.data.domains import Domains, can_be_domain, shards_by_domain
from clam_dist.data.shards import ShardFile, virtual_shards
from clam_dist.errors import DataError

columns = st.one_of(
    st.lists(st.one_of(st.none(), st.sampled_from(["b", "a", "", "é"])), min_size=1, max_size=30),
    st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=30),
    st.lists(st.one_of(st.none(), st.booleans()), min_size=1, max_size=30),
)


@given(values=columns, cut=st.integers(0, 30), coded=st.booleans())
def test_the_same_domains_and_codes_for_any_cut(values: list, cut: int, coded: bool) -> None:
    column = pa.array(values)
    if column.type == pa.null():
        column = column.cast(pa.string())
    if coded and not pa.types.is_boolean(column.type):
        column = column.dictionary_encode()
    whole = Domains.of("site", column)
    assert Domains.of("site", column[:cut]).merge(Domains.of("site", column[cut:])) == whole
    counts = Counter(values)
    known = sorted(value for value in counts if value is not None)
    assert list(whole.values) == known + [None] * (None in counts)
    assert whole.rows == tuple(counts[value] for value in whole.values)
    codes = whole.codes(column)
    assert codes.dtype == np.uint8
    assert [whole.values[code] for code in codes] == values
    assert Domains.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_too_many_domains_and_one_that_was_not_there() -> None:
    Domains.of("site", pa.array(range(64)))
    with pytest.raises(DataError, match="'site' has at least 65 distinct values, and 64 domains"):
        Domains.of("site", pa.array(range(65)))
    with pytest.raises(DataError, match="at least 80 distinct"):
        Domains.of("site", pa.array(range(40))).merge(Domains.of("site", pa.array(range(40, 80))))
    with pytest.raises(DataError, match="'site' holds 'c', which is none of the 2 values"):
        Domains.of("site", pa.array(["a", "b"])).codes(pa.array(["a", "c"]))


def test_warnings() -> None:
    assert Domains("site", ("a", "b"), (3, 4)).warnings() == []
    assert "one value only, so that it changes nothing" in Domains("s", ("a",), (3,)).warnings()[0]
    assert "missing in 4 of 7 rows" in Domains("s", ("a", None), (3, 4)).warnings()[0]


def test_types_of_columns() -> None:
    text = pa.dictionary(pa.int8(), pa.large_string())
    assert all(map(can_be_domain, (pa.string(), pa.uint16(), pa.bool_(), text)))
    lists = pa.list_(pa.int64())
    assert not any(map(can_be_domain, (pa.float64(), pa.date32(), lists, pa.binary())))


@settings(max_examples=200)
@given(
    counts=st.lists(
        st.lists(st.integers(0, 60), min_size=3, max_size=3).filter(any), min_size=1, max_size=6
    ),
    lanes=st.integers(1, 6),
)
def test_parts_of_one_domain_that_every_lane_can_share(counts: list[list[int]], lanes: int) -> None:
    files = [ShardFile(f"{i}.x.npy", sum(c), 5, domain_rows=tuple(c)) for i, c in enumerate(counts)]
    parts, domains = shards_by_domain(files, lanes)
    assert domains is not None
    seen = [
        (part.path, row, int(domain))
        for part, domain in zip(parts, domains, strict=True)
        for row in range(part.offset, part.offset + part.rows)
    ]
    assert seen == [
        (file.path, 5 + row, int(domain))
        for file in files
        for row, domain in enumerate(np.repeat(np.arange(3), file.domain_rows))
    ]
    for domain in set(domains.tolist()):
        sizes = [p.rows for p, g in zip(parts, domains, strict=True) if g == domain]
        assert 0 < max(sizes) <= -(-sum(sizes) // (4 * lanes))
    assert not any(part.domain_rows for part in parts)


def test_shards_without_domains_stay_as_they_are() -> None:
    files = [ShardFile("a.x.npy", 900), ShardFile("b.x.npy", 0)]
    assert shards_by_domain(files, 8) == (files, None)


def test_a_file_sorted_by_domain_as_virtual_shards() -> None:
    shards = virtual_shards("train.x.npy", 10, 4, domain_rows=(3, 0, 7))
    assert [(s.offset, s.rows, s.domain_rows) for s in shards] == [
        (0, 3, (3, 0, 0)),
        (3, 3, (0, 0, 3)),
        (6, 4, (0, 0, 4)),
    ]
