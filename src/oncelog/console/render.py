"""From values to HTML: templates that escape everything, and numbers, times and bytes as people read them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import json
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

import jinja2
import msgspec
from markupsafe import Markup, escape

from oncelog.log.info import LogInfo
from oncelog.types import moment

VALUE_SHOWN_MAX = 120
"""Characters of a value in a table."""

VALUE_PAGE_MAX = 200_000
"""Characters of a value on its own page."""

NONE = "\u2013"
"""What stands for a value that is not known."""

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_STEP = 1000.0


def environment() -> jinja2.Environment:
    """Return the templates. Names that are missing are errors, and every value is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("oncelog.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=count,
        size=size,
        clock=clock_time,
        day=day_time,
        stamp=stamp,
        short=short,
        pretty=pretty,
        duration=duration,
        plain=plain,
        marked=marked,
        figure=figure,
    )
    made.globals.update(link=link, spark=spark, memory=memory, tag=tag, edition=_edition())
    return made


def _edition() -> str:
    """Return what stands for the style and the script as they are now."""
    static = importlib.resources.files("oncelog.console") / "static"
    parts = [(static / name).read_bytes() for name in ("console.css", "console.js")]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def count(number: float | None) -> str:
    """Return a whole number with separators; a dash for none.

    >>> count(1234567)
    '1,234,567'
    """
    return NONE if number is None else f"{number:,.0f}"


def size(size_bytes: float | None) -> str:
    """Return bytes in the unit that fits.

    >>> size(4_100_000)
    '4.1 MB'
    """
    if size_bytes is None:
        return NONE
    for unit in _UNITS:
        if size_bytes < _STEP or unit == _UNITS[-1]:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= _STEP
    raise AssertionError


def day_time(when: datetime | int | None) -> str:
    """Return a time (a datetime, or microseconds since 1970) in full, in UTC.

    >>> day_time(1_500_000)
    '1970-01-01 00:00:01.500 UTC'
    """
    if when is None:
        return NONE
    at = moment(when) if isinstance(when, int) else when
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def stamp(when: datetime | int | None) -> str:
    """Return a time in full, for a column whose head says that it is UTC.

    >>> stamp(1_500_000)
    '1970-01-01 00:00:01.500'
    """
    return day_time(when).removesuffix(" UTC")


def clock_time(when: datetime | int | None) -> str:
    """Return a time without its day."""
    return day_time(when)[11:23] if when is not None else NONE


def duration(seconds: float | None) -> str:
    """Return a span of time as people say it.

    >>> duration(3725.0)
    '1 h 2 min'
    """
    if seconds is None:
        return NONE
    whole = int(seconds)
    if whole >= 86_400:  # noqa: PLR2004
        return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
    if whole >= 3600:  # noqa: PLR2004
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.0f} s"  # noqa: PLR2004


def text_of(value: bytes) -> str | None:
    """Return bytes as text, or ``None`` for bytes that are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def short(value: bytes | str | None, characters_max: int = VALUE_SHOWN_MAX) -> str:
    """Return the beginning of a value in one line."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else text_of(value[: 4 * characters_max])
    if text is None:
        assert isinstance(value, bytes)
        text = value[: characters_max // 2].hex(" ")
    line = " ".join(text.split())
    return line if len(line) <= characters_max else line[:characters_max] + "…"


def pretty(value: bytes) -> str:
    """Return a whole value to read: JSON indented, text as it is, other bytes in hexadecimal."""
    text = text_of(value)
    if text is None:
        return value[: VALUE_PAGE_MAX // 3].hex(" ")
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        text = json.dumps(msgspec.json.decode(value), indent=2, ensure_ascii=False)
    return text[:VALUE_PAGE_MAX]


def figure(value: float | None) -> str:
    """Return a number for a field of a form; nothing for none.

    >>> [figure(30.0), figure(0.1), figure(None)]
    ['30', '0.1', '']
    """
    return "" if value is None else str(int(value)) if value == int(value) else str(value)


def marked(text: str, other: str) -> Markup:
    """Return a text with the lines marked that another text does not have."""
    there = set(other.splitlines())
    shown = (escape(line) if line in there else Markup("<mark>{}</mark>").format(line) for line in text.splitlines())
    return Markup("\n").join(shown)


def plain(value: object) -> str:
    """Return a value of any kind as JSON, for people.

    >>> plain({"invoice": 7})
    '{"invoice": 7}'
    """
    return json.dumps(value, ensure_ascii=False, default=str)


def memory(info: LogInfo) -> str:
    """Return how long a log remembers ids, and how many it knows, as far as that is known here."""
    window = info.settings.window
    if info.settings.idempotence == "off":
        return "off"
    if info.memory is not None and info.counters is None:
        on_disk = size(info.memory.disk_bytes)
        return f"as long as their records live; {on_disk} on disk, the rest is known to the writer alone"
    if info.memory is not None:
        held, disk = size(info.memory.memory_bytes), size(info.memory.disk_bytes)
        return f"{count(info.memory.ids)} ids, as long as their records live; {held} in memory, {disk} on disk"
    adopted = f", and those of {count(info.adopted_records)} adopted records" if info.adopted_records else ""
    return f"bounded: {duration(window.duration_s)}, {count(window.max_keys)} ids{adopted}"


def tag(settings: msgspec.Struct) -> str:
    """Return what stands for settings in a form: other settings have another tag."""
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:16]


def link(path: str, **query: object) -> str:
    """Return a link with its query; parts that are ``None`` are left out.

    >>> link("/console/log", name="a/b", start=None)
    '/console/log?name=a%2Fb'
    """
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def spark(values: Sequence[float], colour: str) -> Markup:
    """Return a small line of recent values as SVG; it takes its colours from the page."""
    if len(values) < 2:  # noqa: PLR2004
        values = [0.0, 0.0]
    top = max(*values, 1e-9)
    step = 100 / (len(values) - 1)
    points = " ".join(f"{i * step:.1f},{28 - 26 * value / top:.1f}" for i, value in enumerate(values))
    return Markup(  # noqa: S704 (numbers, and a class of ours)
        f'<svg viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true" class="spark {colour}">'
        f'<polyline points="{points}"/></svg>'
    )
