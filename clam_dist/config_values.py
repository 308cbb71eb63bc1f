"""The kinds of value a config key may hold: numbers, sweeps, sizes, column names, secrets.

Each is a pydantic type whose rejection is one short sentence saying what is expected: a union of
``float``, ``list`` and ``"auto"`` would otherwise be reported once for every branch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

AUTO = "auto"

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BYTES_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([a-z]*)\s*", re.IGNORECASE)


class StorageOptions:
    """Keyword arguments for the file system of a source: credentials, endpoints.

    Not a mapping, so that nothing can print or dump it by accident: `plain` alone gives the values.

    Parameters
    ----------
    options : mapping of str to object
        What fsspec's file system takes.
    """

    __slots__ = ("_options",)

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})

    def plain(self) -> dict[str, Any]:
        """The real values; never write, log or show them."""
        return dict(self._options)

    def __bool__(self) -> bool:
        return bool(self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._options == other._options

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "StorageOptions(hidden)" if self else "StorageOptions()"

    @classmethod
    def _validate(cls, value: Any) -> StorageOptions:
        if isinstance(value, StorageOptions):
            return value
        if value is None:
            return cls()
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ValueError(
                "expected keys and values for the file system; got something else (hidden)"
            )
        return cls(value)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Check by `_validate` alone: pydantic's own messages would quote the secret."""
        return core_schema.no_info_plain_validator_function(cls._validate)


@dataclass(frozen=True)
class Check:
    """Annotates a field with the one function that checks it.

    Unlike pydantic's ``PlainValidator`` it says nothing about how the field is written, so that a
    tuple is dumped as a list without a warning.
    """

    function: Callable[[Any], Any]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """A schema of `function` alone."""
        return core_schema.no_info_plain_validator_function(self.function)


def shown(value: Any) -> str:
    """``value`` as an error message quotes it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def parse_bytes(value: Any) -> int:
    """Whole bytes from a number or from text such as ``2 GiB`` or ``500MB``.

    Raises
    ------
    ValueError
        If it is neither, or not positive.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = float(value)
    else:
        match = _BYTES_PATTERN.fullmatch(value) if isinstance(value, str) else None
        unit = match[2].lower() if match else None
        if match is None or unit not in _BYTE_UNITS:
            raise ValueError(f"expected a size such as 2 GiB or 500 MB; got {shown(value)}")
        size = float(match[1]) * _BYTE_UNITS[unit or ""]
    if size < 1:
        raise ValueError(f"expected a size of at least one byte; got {shown(value)}")
    return int(size)


def number(
    *,
    whole: bool = False,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    words: tuple[str, ...] = (),
    null: bool = False,
    sweep: bool = False,
) -> Check:
    """A number within bounds, a list of such (``sweep``), one of ``words``, or null.

    Text that reads as a number is taken as one: YAML 1.1 reads ``1e-3`` as text.
    """
    bounds = {"of at least": least, "above": above, "of at most": most, "below": below}
    noun = "a whole number" if whole else "a number"
    limits = " and ".join(
        f"{word} {limit:g}" for word, limit in bounds.items() if limit is not None
    )
    choices = [
        f"{noun} {limits}".strip(),
        *(["a list of them"] if sweep else []),
        *words,
        *(["null"] if null else []),
    ]
    expected = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"

    def one(value: Any, given: Any) -> int | float:
        result = _as_number(value, whole)
        inside = result is not None and not (
            (least is not None and result < least)
            or (above is not None and result <= above)
            or (most is not None and result > most)
            or (below is not None and result >= below)
        )
        if result is None or not inside:
            raise ValueError(f"expected {expected}; got {shown(given)}")
        return result

    def check(value: Any) -> Any:
        if (value is None and null) or (isinstance(value, str) and value in words):
            return value
        if sweep and isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(f"expected {expected}; got an empty list")
            return tuple(one(item, value) for item in value)
        return one(value, value)

    return Check(check)


def _as_number(value: Any, whole: bool) -> int | float | None:
    """``value`` as a finite int or float, or None where it is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(result):
        return None
    if not whole:
        return result
    # Large integers keep every digit: a float holds only 53 bits of a seed.
    if isinstance(value, int):
        return value
    return int(result) if result.is_integer() else None


def byte_size() -> Check:
    """A size in bytes (int, or text with a unit) or ``auto``."""
    return Check(lambda value: value if value == AUTO else parse_bytes(value))


def column_names(*, null: bool = False) -> Check:
    """Distinct column names as a tuple; one name alone is a list of one; null where allowed."""

    def check(value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None if null else ()
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"expected a list of column names (text); got {shown(value)}")
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"column {repeated[0]!r} is named twice; name it once")
        return tuple(names)

    return Check(check)


def text(*, null: bool = False) -> Check:
    """Text that is not empty; null where allowed."""

    def check(value: Any) -> str | None:
        if value is None and null:
            return None
        if isinstance(value, Mapping):
            raise ValueError("expected text; put a value that begins with { in quotes")
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"expected text; got {shown(value)}")
        return value

    return Check(check)
