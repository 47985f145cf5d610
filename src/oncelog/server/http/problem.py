"""Errors as ``application/problem+json`` (RFC 9457), with every field of the error, and what proves what.

Only a problem with ``"outcome": "not written"`` proves that nothing was written. A problem without it, any other 5xx,
a proxy's own answer and a cut connection prove nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from oncelog.errors import (
    AppendErrors,
    CorruptionError,
    LeaseLost,
    NotAuthenticated,
    OncelogError,
    PartialOverlap,
    Unavailable,
    WrongExpectedVersion,
)
from oncelog.wire import failures

MEDIA_TYPE = "application/problem+json"
_FIELDS = ("position", "first", "actual", "column", "row", "rule", "pid", "error")
_log = logging.getLogger("oncelog.server.http")


class HttpRefusal(OncelogError):
    """A request that HTTP itself refuses, with its status. Nothing was written."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


def status_of(error: OncelogError) -> int:
    """Return the HTTP status of an error."""
    return error.status if isinstance(error, HttpRefusal) else failures.http_status(error)


def of(error: OncelogError) -> dict[str, Any]:
    """Return an error as a problem."""
    status = status_of(error)
    kind = type(error).__name__ if isinstance(error, HttpRefusal) else failures.kind_of(error)
    found: dict[str, Any] = {
        "type": f"urn:oncelog:error:{kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error),
    }
    found |= {name: value for name in _FIELDS if (value := getattr(error, name, None)) is not None}
    if isinstance(error, PartialOverlap):
        found |= {"known": list(error.known), "new": list(error.new)}
    if isinstance(error, WrongExpectedVersion):
        found["expected"] = error.expected
    if isinstance(error, Unavailable):
        found["retry_after_s"] = error.retry_after_s
    outcome = outcome_of(error)
    if outcome is not None:
        found["outcome"] = outcome
        if outcome == "unknown":
            found["retry"] = "same id"
    return found


def outcome_of(error: OncelogError) -> str | None:
    """Return what an error proves of a write; ``None`` where it says nothing of one."""
    said: str | None = getattr(error, "outcome", None)
    if said is not None:
        return said
    return None if isinstance(error, AppendErrors | CorruptionError | LeaseLost) else "not written"


def response(error: OncelogError, *, writes: bool = True, retry: str | None = None) -> Response:
    """Return an error as a response. ``writes``: whether the call could have written anything."""
    body = of(error)
    if not writes:
        body.pop("outcome", None)
    if retry is not None and "retry" in body:
        body["retry"] = retry
    made = Response(msgspec.json.encode(body), status_of(error), media_type=MEDIA_TYPE)
    if isinstance(error, Unavailable):
        made.headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, NotAuthenticated):
        made.headers["www-authenticate"] = 'Bearer realm="oncelog"'
    if isinstance(error, HttpRefusal):
        made.headers.update(error.headers)
    return made


def unexpected(error: BaseException, *, writes: bool) -> Response:
    """Return what a client gets to see of a bug: nothing of it. What the call wrote is not known."""
    _log.error("a request failed", exc_info=error)
    body: dict[str, Any] = {
        "type": "urn:oncelog:error:Internal",
        "title": "Gateway Timeout" if writes else "Internal Server Error",
        "status": 504 if writes else 500,
        "detail": "the server failed while it answered this: its log says more",
    }
    if writes:
        body |= {"outcome": "unknown", "retry": "same id"}
    return Response(msgspec.json.encode(body), body["status"], media_type=MEDIA_TYPE)
