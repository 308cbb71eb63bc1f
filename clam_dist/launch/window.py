"""Work handed out ahead and taken back in order, with a bound on how much is out at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Handle = TypeVar("Handle")
Result = TypeVar("Result")


def in_order(
    items: Iterable[Item],
    *,
    start: Callable[[Item], Handle],
    finish: Callable[[Handle], Result],
    cancel: Callable[[Handle], None],
    in_flight: int,
) -> Iterator[Result]:
    """Yield ``finish(start(item))`` in the order of ``items``, at most ``in_flight`` started.

    Whatever is still out when the iteration ends early (an exception, or the caller stops) is
    cancelled.

    Raises
    ------
    ValueError
        When ``in_flight`` is below 1.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight must be at least 1, got {in_flight}")
    remaining = iter(items)
    out: deque[Handle] = deque()

    def top_up() -> None:
        while len(out) < in_flight:
            try:
                item = next(remaining)
            except StopIteration:
                return
            out.append(start(item))

    try:
        top_up()
        while out:
            result = finish(out[0])
            out.popleft()
            # Hand out the next item before the caller works on this result.
            top_up()
            yield result
    finally:
        for handle in out:
            cancel(handle)
