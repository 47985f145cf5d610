"""What a form of a page sent: small, and as browsers encode it by default."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from oncelog.errors import InvalidArgument

FORM_BYTES_MAX = 65_536
"""A form of the console is a few fields."""

Form = Mapping[str, str]


async def form_of(request: Request) -> Form:
    """Return the fields of a form; of a request without one, none. ``InvalidArgument`` for a body that is no form."""
    if request.method != "POST":
        return {}
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            message = f"a form has at most {FORM_BYTES_MAX} bytes"
            raise InvalidArgument(message)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), errors="strict"))
    except ValueError as error:
        message = "the body is not a form"
        raise InvalidArgument(message) from error
