"""Amounts, times and places as people write and read them: ``10m``, ``64MiB``, ``1,234``, ``3:17``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

import typer

Start = Literal["earliest", "latest"] | int | tuple[int, int] | datetime
"""Where reading begins, in the words of ``Log.read``."""

_DURATIONS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?B)?|B)?", re.IGNORECASE)
_PLACE = re.compile(r"(\d+):(\d+)")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
_KIB = 1024


def duration_s(text: str | float) -> float:
    """Return a duration in seconds.

    >>> duration_s("10m"), duration_s("1h30m"), duration_s("250ms"), duration_s("3600")
    (600.0, 5400.0, 0.25, 3600.0)
    """
    given = str(text).strip()
    if _NUMBER.fullmatch(given):
        return float(given)
    parts = _DURATION.findall(given)
    if not parts or "".join(number + unit for number, unit in parts) != given:
        message = f"{given!r} is not a duration: write 250ms, 30s, 10m, 1h30m, 7d, or a number of seconds"
        raise typer.BadParameter(message)
    return float(sum(float(number) * _DURATIONS_S[unit] for number, unit in parts))


def size_bytes(text: str | int) -> int:
    """Return a size in bytes. As elsewhere in the shell, ``M`` and ``MiB`` are 1024², ``MB`` is 1000².

    >>> size_bytes("64MiB"), size_bytes("64M"), size_bytes("1.5kB"), size_bytes("4096")
    (67108864, 67108864, 1500, 4096)
    """
    given = str(text).strip()
    match = _SIZE.fullmatch(given)
    if match is None:
        message = f"{given!r} is not a size: write 64MiB, 1.5GiB, 500MB, or a number of bytes"
        raise typer.BadParameter(message)
    number, unit, suffix = match.groups()
    base = 1000 if suffix and suffix.upper() == "B" else _KIB
    scale: int = base ** (_POWERS[unit.upper()] if unit else 0)
    return round(float(number) * scale)


PLACES = "earliest, latest, a position, SEGMENT:ENTRY, or an ISO time (UTC unless it says otherwise)"
"""What ``start`` takes, for the help of an option."""


def start(text: str) -> Start:
    """Return a place in a log: ``earliest``, ``latest``, a position, ``SEGMENT:ENTRY``, or an ISO time (without a
    zone: UTC).

    >>> start("latest"), start("17"), start("3:17"), start("2026-01-31T12:00")
    ('latest', 17, (3, 17), datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.timezone.utc))
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal() and text.isascii():
        return int(text)
    if match := _PLACE.fullmatch(text):
        return int(match[1]), int(match[2])
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r}: write earliest, latest, a position, SEGMENT:ENTRY, or a time such as 2026-01-31T12:00Z"
        raise typer.BadParameter(message) from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def show_bytes(size: int) -> str:
    """Return a size for people.

    >>> show_bytes(0), show_bytes(1023), show_bytes(64 << 20), show_bytes(1_500_000_000)
    ('0 B', '1,023 B', '64 MiB', '1.4 GiB')
    """
    if size < _KIB:
        return f"{size:,} B"
    power = min((size.bit_length() - 1) // 10, len(_POWERS))
    return f"{size / _KIB**power:,.1f}".removesuffix(".0") + f" {'KMGT'[power - 1]}iB"


def show_duration(seconds: float) -> str:
    """Return a duration for people, to at most two units.

    >>> show_duration(0.25), show_duration(12), show_duration(600), show_duration(5400), show_duration(90061)
    ('250 ms', '12 s', '10 min', '1 h 30 min', '1 d 1 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < _DURATIONS_S["m"]:
        return f"{seconds:.3g} s"
    left = round(seconds)
    parts = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def show_time(when: datetime) -> str:
    """Return a moment for people and programs: ISO, in UTC, to the microsecond.

    >>> show_time(datetime(2026, 1, 31, 12, tzinfo=UTC))
    '2026-01-31T12:00:00.000000Z'
    """
    return when.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def show_count(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> show_count(1, "record"), show_count(1234, "record")
    ('1 record', '1,234 records')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
