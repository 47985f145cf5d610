"""Header fields and query fields as values: ids, labels, ETags, where to start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from oncelog.errors import InvalidArgument
from oncelog.types import Record

IDEMPOTENCY_KEY = "idempotency-key"
ID = "oncelog-id"
HEADER_PREFIX = "oncelog-header-"
_LABELS = ("stream", "type", "tenant", "producer")
_STRING = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_BARE = re.compile(r"[\x21-\x7e\x80-\xff]+(?: [\x21-\x7e\x80-\xff]+)*")
_WHOLE = re.compile(r"-?\d{1,19}")
_PLACE = re.compile(r"(\d{1,18}):(\d{1,18})")
_ETAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*)"')
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,9})?")


def text(value: str) -> str:
    """Return a percent-encoded header value as text; ``InvalidArgument`` for bytes that are no UTF-8."""
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        message = "a header is no percent-encoded UTF-8: write it as encodeURIComponent does"
        raise InvalidArgument(message) from error


def key(value: str) -> str:
    r"""Return the id of an ``Idempotency-Key``: a quoted string (RFC 8941) or bare; both are the same id.

    >>> key('"order-42"') == key("order-42") == "order-42"
    True
    >>> key(r'"say \"hi\""')
    'say "hi"'
    """
    stripped = value.strip(" \t")
    quoted = _STRING.fullmatch(stripped)
    if quoted:
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if stripped.startswith('"') or not _BARE.fullmatch(stripped):
        message = 'Idempotency-Key: is neither a quoted string ("order-42") nor a bare one without control characters'
        raise InvalidArgument(message)
    try:
        return stripped.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        message = "Idempotency-Key: is no UTF-8; Oncelog-Id takes any id, percent-encoded"
        raise InvalidArgument(message) from error


def record_id(headers: Mapping[str, str]) -> str | None:
    """Return the id that the headers give, if they do; ``InvalidArgument`` when the two headers differ."""
    keyed, named = headers.get(IDEMPOTENCY_KEY), headers.get(ID)
    found = [key(keyed)] if keyed is not None else []
    found += [text(named)] if named is not None else []
    if len(set(found)) > 1:
        message = f"Idempotency-Key says {found[0]!r} and Oncelog-Id {found[1]!r}: send one of them"
        raise InvalidArgument(message)
    return found[0] if found else None


def record(value: bytes, headers: Mapping[str, str]) -> Record:
    """Return the record of a raw body: only headers that are named for it become a part of it."""
    labels: dict[str, Any] = {
        name: text(headers[f"oncelog-{name}"]) for name in _LABELS if f"oncelog-{name}" in headers
    }
    if "oncelog-sequence" in headers:
        labels["sequence"] = whole("Oncelog-Sequence", headers["oncelog-sequence"])
    given = {
        name.removeprefix(HEADER_PREFIX): text(part).encode()
        for name, part in headers.items()
        if name.startswith(HEADER_PREFIX)
    }
    return Record(value, id=record_id(headers), headers=given or None, **labels)


# Numbers and places.


def whole(name: str, given: str, *, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
    """Return a whole number, or raise ``InvalidArgument``."""
    if not _WHOLE.fullmatch(given) or not given.isascii() or not least <= int(given) <= most:
        message = f"{name} is {given[:40]!r}, must be a whole number from {least} to {most}"
        raise InvalidArgument(message)
    return int(given)


def seconds(name: str, given: str, most: float) -> float:
    """Return a number of seconds, or raise ``InvalidArgument``."""
    if not given.isascii() or not _SECONDS.fullmatch(given) or float(given) > most:
        message = f"{name} is {given[:40]!r}, must be a number of seconds from 0 to {most:g}"
        raise InvalidArgument(message)
    return float(given)


def flag(name: str, given: str | None) -> bool:
    """Return whether a flag of the query is set, or raise ``InvalidArgument``."""
    if given not in (None, "0", "1", "true", "false"):
        message = f"{name} is {given!r}, must be 1 or 0"
        raise InvalidArgument(message)
    return given in ("1", "true")


def start(given: str) -> Any:
    """Return where reading begins: ``earliest``, ``latest``, a position, ``SEGMENT:ENTRY``, or an ISO time with a zone.

    >>> start("latest"), start("17"), start("3:17")
    ('latest', 17, (3, 17))
    """
    if given in ("earliest", "latest"):
        return given
    if given.isascii() and given.isdecimal():
        return whole("start", given, least=0)
    if place := _PLACE.fullmatch(given):
        return int(place[1]), int(place[2])
    try:
        when = datetime.fromisoformat(given)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        message = (
            f"start is {given[:40]!r}, must be earliest, latest, a position, SEGMENT:ENTRY, "
            "or a time with a zone (2026-01-31T12:00:00Z)"
        )
        raise InvalidArgument(message)
    return when


# Conditions.


def etags(given: str) -> list[str]:
    """Return the entity tags of ``If-Match`` or ``If-None-Match``, without their quotes; ``["*"]`` for a star.

    >>> etags('"3", W/"4"'), etags("*")
    (['3', '4'], ['*'])
    """
    if given.strip() == "*":
        return ["*"]
    found = [_ETAG.fullmatch(part.strip()) for part in given.split(",")]
    if not all(found):
        message = f'{given[:80]!r} is no list of entity tags: write If-Match: "3", or *'
        raise InvalidArgument(message)
    return [match[1] for match in found if match]


def expected_version(headers: Mapping[str, str]) -> Any:
    """Return what is expected of a stream: ``If-Match: "3"``, ``If-Match: *``, ``If-None-Match: *``, or anything."""
    match, none = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and none is not None:
        message = "If-Match and If-None-Match say two things: send one of them"
        raise InvalidArgument(message)
    if none is not None:
        if etags(none) != ["*"]:
            message = "If-None-Match: only * is known here: the stream must not exist yet"
            raise InvalidArgument(message)
        return "no stream"
    if match is None:
        return "any"
    tags = etags(match)
    if tags == ["*"]:
        return "exists"
    if len(tags) > 1:
        message = "If-Match: a stream is at one version, send one"
        raise InvalidArgument(message)
    return whole("If-Match", tags[0], least=0)
