"""What a form of a page sent: small, and as browsers encode it by default."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from oncelog import limits
from oncelog.errors import InvalidArgument

FORM_BYTES_MAX = 65_536
"""A form of the console is a few fields."""

Form = Mapping[str, str]

_DIGITS_MAX = 18
"""Digits of a number that an int64 can always hold."""


async def form_of(request: Request) -> Form:
    """Return the fields of a form; of a request without one, none. ``InvalidArgument`` for a body that is no form."""
    if request.method != "POST":
        return {}
    body = await _body_of(request)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), errors="strict")
    except ValueError as error:
        message = "the body is not a form"
        raise InvalidArgument(message) from error
    return {name: with_line_feeds(value) if name == "error" else value for name, value in pairs}


async def _body_of(request: Request) -> bytes:
    """Return the body of a form. One that does not come to its end would hold its connection for ever."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.HTTP_BODY_S_MAX):
            async for piece in request.stream():
                body += piece
                if len(body) > FORM_BYTES_MAX:
                    message = f"a form has at most {FORM_BYTES_MAX} bytes"
                    raise InvalidArgument(message)
    except (TimeoutError, ClientDisconnect):
        message = "the form did not come to its end"
        raise InvalidArgument(message) from None
    return bytes(body)


def with_line_feeds(text: str) -> str:
    r"""Return a text with one kind of line end.

    A browser sends every line end of a field as CR LF (HTML, "constructing the entry list"): an error of several lines
    would come back as another text than it was.

    >>> with_line_feeds("Traceback:\r\n  line 2")
    'Traceback:\n  line 2'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n")


def whole(name: str, text: str) -> int:
    """Return a whole number that a person typed, or raise ``InvalidArgument``.

    >>> whole("before", "8,412,077")
    8412077
    """
    digits = text.replace(",", "").strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX):
        message = f"{name} is {text[:100]!r}, must be a whole number"
        raise InvalidArgument(message)
    return int(digits)
