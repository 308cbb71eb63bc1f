"""The ordered window against a plain loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.launch.window import in_order


class Ledger:
    """Counts what is out, and remembers what was cancelled."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.finished: list[int] = []
        self.cancelled: list[int] = []
        self.most_out = 0

    def start(self, item: int) -> int:
        self.started.append(item)
        self.most_out = max(self.most_out, len(self.started) - len(self.finished))
        return item

    def finish(self, handle: int) -> int:
        if handle < 0:
            raise ValueError(handle)
        self.finished.append(handle)
        return handle * handle


@given(st.lists(st.integers(0, 99), max_size=30), st.integers(1, 8))
def test_results_in_order_with_a_bound_on_what_is_out(items: list[int], in_flight: int) -> None:
    ledger = Ledger()
    results = in_order(
        items,
        start=ledger.start,
        finish=ledger.finish,
        cancel=ledger.cancelled.append,
        in_flight=in_flight,
    )
    assert list(results) == [item * item for item in items]
    assert ledger.started == items
    assert ledger.most_out == min(in_flight, len(items))
    assert ledger.cancelled == []


def test_the_window_is_full_while_the_caller_works_on_a_result() -> None:
    ledger = Ledger()
    results = in_order(
        range(9),
        start=ledger.start,
        finish=ledger.finish,
        cancel=ledger.cancelled.append,
        in_flight=3,
    )
    next(results)
    assert ledger.started == [0, 1, 2, 3]


def test_an_exception_cancels_the_rest_and_starts_no_more() -> None:
    ledger = Ledger()
    results = in_order(
        [1, -2, 3, 4, 5, 6],
        start=ledger.start,
        finish=ledger.finish,
        cancel=ledger.cancelled.append,
        in_flight=3,
    )
    assert next(results) == 1
    with pytest.raises(ValueError, match="-2"):
        next(results)
    assert ledger.started == [1, -2, 3, 4]
    assert ledger.cancelled == [-2, 3, 4]


def test_a_caller_that_stops_early_cancels_the_rest() -> None:
    ledger = Ledger()
    results = in_order(
        range(9),
        start=ledger.start,
        finish=ledger.finish,
        cancel=ledger.cancelled.append,
        in_flight=2,
    )
    next(results)
    results.close()
    assert ledger.cancelled == [1, 2]


def test_a_window_of_none_is_refused() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="at least 1, got 0"):
        list(
            in_order(
                [1],
                start=ledger.start,
                finish=ledger.finish,
                cancel=ledger.cancelled.append,
                in_flight=0,
            )
        )
