"""Whether a type of Spark's holds all that a text says.

Spark rounds a decimal, reads "12,50" as 1250, cuts a time to microseconds or to its day, leaves out its zone, takes a
time of day for one of today, moves a local time that clocks skipped by an hour, and takes a number that is too large
for an infinite one, all without a word.
"""

from __future__ import annotations

import functools
import math
import re
import zoneinfo
from datetime import UTC, datetime
from decimal import Context, Decimal

DATE = r"^[+-]?\d{4,6}(-\d{1,2}(-\d{1,2})?)?$"
MOMENT = r"^[+-]?\d{4,6}-[-\dT: ]*(\.\d{0,6})?(Z|[+-][\d:]+)?$"
"""Patterns of texts that are surely held by a date, and by a time with a zone."""

ZONED = r"^[+-]?\d{4,6}-[-\dT: ]*(\.\d{0,6})?(Z|[+-]\d\d:\d\d)$"
"""Of those by a time with a zone, the ones that say their offset from UTC."""

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
_LOCAL = re.compile(
    r"[+-]?\d{4,6}(?:-\d{1,2}(?:-\d{1,2}(?:[T ](?:\d{1,2}(?::\d{1,2}(?::\d{1,2}(?:\.\d*)?)?)?)?)?)?)?", re.ASCII
)
_NAMED_ZONE = re.compile(r"\s*([A-Za-z][\w/+-]*)?", re.ASCII)
_IN_ZONE = "timestamp "


def holds(kind: str, text: str) -> bool:
    """Tell whether a type, by its name, holds all that a text says; also if the text is of no such type at all, for
    Spark finds that.

    >>> holds("decimal(10,2)", "1.50"), holds("decimal(10,2)", "1.239"), holds("date", "2026-01-01 23:59:59")
    (True, False, False)
    """
    text = text.strip()
    if kind == "date":
        return _HOUR.search(text) is None
    if kind == "timestamp" or is_in_zone(kind):
        is_whole = _TIME_OF_DAY.match(text) is None and _BEYOND_MICROSECONDS.search(text) is None
        return is_whole and not _is_skipped(text, kind.removeprefix("timestamp").strip())
    if kind == "timestamp_ntz":
        return _LOCAL.fullmatch(text) is not None and _BEYOND_MICROSECONDS.search(text) is None
    if kind in {"double", "float"}:
        return _NUMBER.fullmatch(text) is None or _is_finite(float(text), kind)
    scale = scale_of(kind)
    return scale is None or (_NUMBER.fullmatch(text) is not None and is_within(Decimal(text), scale))


def is_checked(kind: object) -> bool:
    """Tell whether a type may hold less than a text says."""
    return isinstance(kind, str) and (kind in _CHECKED or is_in_zone(kind) or scale_of(kind) is not None)


def in_zone(zone: str) -> str:
    """Return the type of times with a zone, where texts that name none are of this zone.

    >>> holds(in_zone("Europe/Berlin"), "2026-03-29 03:30"), holds(in_zone("Europe/Berlin"), "2026-03-29 02:30")
    (True, False)
    """
    return f"{_IN_ZONE}{zone}"


def is_in_zone(kind: object) -> bool:
    """Tell whether a type is one of those."""
    return isinstance(kind, str) and kind.startswith(_IN_ZONE)


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


def _is_skipped(text: str, zone: str) -> bool:
    """Tell whether a text is a local time that the clocks of a zone skipped, as when summer time began. The zone is
    the one that the text names, or the one given.
    """
    local = _LOCAL.match(text)
    named = None if local is None else _NAMED_ZONE.fullmatch(text, local.end())
    if local is None or named is None or not (named[1] or zone):
        return False  # it says its offset from UTC, or is no time at all
    try:
        moment = datetime(*_fields(local[0]), tzinfo=zoneinfo.ZoneInfo(named[1] or zone))
        return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) != moment.replace(tzinfo=None)
    except (ValueError, OverflowError, KeyError, OSError):
        return (
            False  # no time, or one beyond Python's years; or no name of a zone, but of a folder of them, or too long
        )


def _fields(text: str) -> tuple[int, int, int, int, int, int]:
    """Return year to second; what a text does not say is the first of its kind."""
    said = list(map(int, re.findall(r"\d+", text)))[:6]
    year, month, day, hour, minute, second = said + [0, 1, 1, 0, 0, 0][len(said) :]
    return year, month, day, hour, minute, second
