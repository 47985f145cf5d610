"""Whether a type of Spark's holds all that a text says.

Spark rounds a decimal, reads "12,50" as 1250, cuts a time to microseconds or to its day, leaves out its zone, takes a
time of day for one of today, and a number that is too large for an infinite one, all without a word.
"""

from __future__ import annotations

import functools
import math
import re
from decimal import Context, Decimal

DATE = r"^[+-]?\d{4,6}(-\d{1,2}(-\d{1,2})?)?$"
MOMENT = r"^[+-]?\d{4,6}-[^.]*(\.\d{0,6}(\D.*)?)?$"
"""Patterns of texts that are surely held by a date, and by a time with a zone."""

FLOAT_MAX = 3.4028235677973362e38
"""What is larger is an infinite float."""

_CONTEXT = Context(prec=100, traps=[])
_UNITS = [Decimal((0, (1,), -scale)) for scale in range(39)]
_CHECKED = {"date", "timestamp", "timestamp_ntz", "double", "float"}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")
_TIME_OF_DAY = re.compile(r"T?\d{1,2}:")
_BEYOND_MICROSECONDS = re.compile(r"\.\d{6}\d*[1-9]")
_HOUR = re.compile(r"\d[T ].*[1-9]")
_LOCAL = re.compile(r"[+-]?\d{4,6}(-\d{1,2}(-\d{1,2}([T ](\d{1,2}(:\d{1,2}(:\d{1,2}(\.\d*)?)?)?)?)?)?)?", re.ASCII)


def holds(kind: str, text: str) -> bool:
    """Tell whether a type, by its name, holds all that a text says; also if the text is of no such type at all, for
    Spark finds that.

    >>> holds("decimal(10,2)", "1.50"), holds("decimal(10,2)", "1.239"), holds("date", "2026-01-01 23:59:59")
    (True, False, False)
    """
    text = text.strip()
    if kind == "date":
        return _HOUR.search(text) is None
    if kind == "timestamp":
        return _TIME_OF_DAY.match(text) is None and _BEYOND_MICROSECONDS.search(text) is None
    if kind == "timestamp_ntz":
        return _LOCAL.fullmatch(text) is not None and _BEYOND_MICROSECONDS.search(text) is None
    if kind in {"double", "float"}:
        return _NUMBER.fullmatch(text) is None or _is_finite(float(text), kind)
    scale = scale_of(kind)
    return scale is None or (_NUMBER.fullmatch(text) is not None and is_within(Decimal(text), scale))


def is_checked(kind: object) -> bool:
    """Tell whether a type may hold less than a text says."""
    return isinstance(kind, str) and (kind in _CHECKED or scale_of(kind) is not None)


@functools.lru_cache
def scale_of(kind: str | None) -> int | None:
    """Return how many digits a decimal has behind its point; ``None`` for another type."""
    found = None if kind is None else _DECIMAL.fullmatch(kind)
    return None if found is None else int(found[1])


def is_within(number: Decimal, scale: int) -> bool:
    """Tell whether a number has no more digits behind its point than that, zeros at the end not counted; ``False`` also
    for a number that no decimal of Spark's holds.
    """
    return not _CONTEXT.remainder(number, _UNITS[scale])


def _is_finite(number: float, kind: str) -> bool:
    return math.isfinite(number) and (kind == "double" or abs(number) < FLOAT_MAX)
