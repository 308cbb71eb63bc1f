from functools import reduce
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.data.keys import SKETCH, KeyTrace, trace

integers = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 30))


def traced(values: pa.Array, *cuts: int) -> KeyTrace:
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = [values.slice(a, b - a) for a, b in pairwise(edges)]
    return reduce(trace, parts, KeyTrace.empty())


@given(st.lists(integers, max_size=60), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_against_a_set(values, cuts, ordered):
    if ordered:
        values = sorted(v for v in values if v is not None)
    known = traced(pa.array(values, pa.int64()), *cuts)
    unique = None not in values and len(set(values)) == len(values)
    assert known.rows == len(values)
    assert known.repeats == (not unique)
    assert known.is_key == (unique and len(values) >= 20)
    assert known.rises == (unique and values == sorted(values))


@pytest.mark.parametrize("data_type", [pa.int32(), pa.uint64(), pa.int64()], ids=str)
def test_many_distinct_values_in_any_order(data_type):
    values = np.random.default_rng(0).permutation(50_000)
    known = traced(pa.array(values, data_type), 10_000, 10_001, 30_000)
    assert known.is_key
    assert not known.rises
    assert len(known.smallest) == SKETCH
    assert known.smallest.tolist() == traced(pa.array(values, data_type)).smallest.tolist()


def test_neighbouring_identifiers_that_float64_cannot_tell_apart():
    assert traced(pa.array(np.arange(2**60, 2**60 + 100)), 50).is_key


def test_many_values_that_each_come_twice():
    values = np.concatenate([np.arange(50_000), np.arange(50_000)[::-1]])
    assert not traced(pa.array(values), 50_000).is_key
    assert not traced(pa.array(values)).is_key


def test_values_that_come_very_often():
    values = np.arange(10_000) % 7
    assert not traced(pa.array(values)).is_key
    assert not traced(pa.array(np.zeros(10_000, dtype=np.int64))).is_key


def test_merging_traces_is_tracing_the_whole():
    values = pa.array(np.arange(100))
    merged = traced(values.slice(0, 40)).merge(traced(values.slice(40)))
    assert merged.is_key
    assert merged.rises
    assert (merged.first, merged.last) == (0, 99)
    backwards = traced(values.slice(40)).merge(traced(values.slice(0, 40)))
    assert backwards.is_key
    assert not backwards.rises
