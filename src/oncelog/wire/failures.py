"""Errors on the wire: every field of every error, both ways, and the status that each has in gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncelog import errors
from oncelog.errors import (
    AppendErrors,
    Closed,
    CorruptionError,
    EffectFailed,
    IdConflict,
    InvalidArgument,
    LeaseLost,
    LogBusy,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    OncelogError,
    PartialOverlap,
    TooManyCalls,
    TooSlow,
    Unavailable,
    Unsupported,
    WriterFenced,
    WrongExpectedVersion,
)
from oncelog.wire import messages, values

TRAILER = "oncelog-error-bin"
"""The gRPC trailer with an ``Error`` message."""

MESSAGE_BYTES_MAX = 2048
"""gRPC limits trailers to 8 KiB: longer texts, and results beyond that, are cut."""

TRAILER_BYTES_MAX = 6 * 1024


class LogMoved(WriterFenced):
    """The server lost the log to another server: records with an id or a sequence are sent again. On the wire it is a
    ``WriterFenced`` with ``retry_after_s``. Without ``retry_after_s``, another session took the producer.
    """

    retry_after_s = 0.0


class Misdirected(Unavailable):
    """A server handed a call on, and it came to a server for which it was not meant. Nothing was written. The status
    tells the server that handed it on; a client gets an ``Unavailable``.
    """


def to_message(error: OncelogError) -> Any:
    """Return an error as a message with all its fields."""
    made = messages.Error(kind=kind_of(error), message=str(error))
    for name in ("outcome", "position", "first", "actual", "column", "row", "rule", "retry_after_s", "pid", "error"):
        value = getattr(error, name, None)
        if value is not None:
            setattr(made, name, value)
    if isinstance(error, PartialOverlap):
        made.known.extend(error.known)
        made.new.extend(error.new)
    if isinstance(error, WrongExpectedVersion):
        if isinstance(error.expected, str):
            made.expected_word = error.expected
        else:
            made.expected_version = error.expected
    if isinstance(error, AppendErrors):
        made.results.extend(result(one) for one in error.results)
    return made


def kind_of(error: OncelogError) -> str:
    """Return the class that a client knows: one of a room's own travels as what it is a kind of."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)


def from_message(found: Any) -> OncelogError:
    """Return the error that a message describes. A kind that this version does not know is an ``OncelogError``."""
    kind, text = found.kind, found.message
    error = _built(kind, text, found)
    if isinstance(error, InvalidArgument):
        error.column = _optional(found, "column")
        error.row = _optional(found, "row")
        error.rule = _optional(found, "rule")
    return error


def _built(kind: str, text: str, found: Any) -> OncelogError:
    if kind in _BUILD:
        return _BUILD[kind](text, found)
    plain = getattr(errors, kind, None)
    if isinstance(plain, type) and issubclass(plain, OncelogError):
        return plain(text)
    return OncelogError(f"{kind}: {text}")


def _wrong_version(text: str, found: Any) -> OncelogError:
    word = found.WhichOneof("expected") == "expected_word"
    expected = found.expected_word if word else found.expected_version
    return WrongExpectedVersion(text, expected=expected, actual=_optional(found, "actual"))


def _again(found: Any) -> dict[str, Any]:
    after_s = found.retry_after_s if found.HasField("retry_after_s") else 1.0
    return {"retry_after_s": after_s, "outcome": _outcome(found)}


def _fenced(found: Any) -> type[WriterFenced]:
    return LogMoved if found.HasField("retry_after_s") else WriterFenced


def _optional(found: Any, name: str) -> Any:
    return getattr(found, name) if found.HasField(name) else None


def _outcome(found: Any) -> errors.Outcome:
    """Return the outcome that is said; what says nothing may have been written."""
    return "not written" if _optional(found, "outcome") == "not written" else "unknown"


def result(one: Any) -> Any:
    """Return an ack, a sent message, or the error of one record as a ``Result``."""
    if isinstance(one, OncelogError):
        return messages.Result(error=to_message(one))
    return messages.Result(ack=values.ack_message(one))


def from_result(found: Any) -> Any:
    """Return what a ``Result`` holds: an ``Ack``, a ``Sent`` message, or an error."""
    which = found.WhichOneof("result")
    if which == "error":
        return from_message(found.error)
    return values.ack(found.ack) if which == "ack" else found.sent


def trailer(error: OncelogError) -> bytes:
    """Return an error for the trailer of a call, cut to what a trailer can hold."""
    made = to_message(error)
    if made.ByteSize() > TRAILER_BYTES_MAX:
        made.message = _cut(made.message)
        for name in ("results", "known", "new"):
            if made.ByteSize() > TRAILER_BYTES_MAX:
                made.ClearField(name)
    return bytes(made.SerializeToString())


def _cut(text: str) -> str:
    return text.encode()[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore")


def from_trailer(data: bytes) -> OncelogError:
    """Return the error of a failed call."""
    return from_message(messages.Error.FromString(data))


def grpc_code(error: OncelogError) -> str:
    """Return the name of the gRPC status code of an error."""
    if getattr(error, "outcome", None) == "unknown":
        return "DEADLINE_EXCEEDED"
    if isinstance(error, NotFound) and error.first is not None:
        return "OUT_OF_RANGE"
    return _row(error)[0]


def http_status(error: OncelogError) -> int:
    """Return the HTTP status of an error."""
    if getattr(error, "outcome", None) == "unknown":
        return 504
    if isinstance(error, NotFound) and error.first is not None:
        return 410
    return _row(error)[1]


def _row(error: OncelogError) -> tuple[str, int]:
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), ("INTERNAL", 500))


_STATUS: Mapping[type, tuple[str, int]] = {
    IdConflict: ("ALREADY_EXISTS", 422),
    PartialOverlap: ("FAILED_PRECONDITION", 422),
    InvalidArgument: ("INVALID_ARGUMENT", 400),
    AppendErrors: ("FAILED_PRECONDITION", 207),
    NotFound: ("NOT_FOUND", 404),
    NotAuthenticated: ("UNAUTHENTICATED", 401),
    NotAllowed: ("PERMISSION_DENIED", 403),
    WrongExpectedVersion: ("FAILED_PRECONDITION", 412),
    TooManyCalls: ("RESOURCE_EXHAUSTED", 429),
    Misdirected: ("FAILED_PRECONDITION", 421),
    Unavailable: ("UNAVAILABLE", 503),
    WriterFenced: ("UNAVAILABLE", 503),
    LogBusy: ("UNAVAILABLE", 503),
    Closed: ("UNAVAILABLE", 503),
    LeaseLost: ("ABORTED", 409),
    EffectFailed: ("ABORTED", 409),
    TooSlow: ("ABORTED", 409),
    Unsupported: ("UNIMPLEMENTED", 501),
    CorruptionError: ("DATA_LOSS", 500),
}

_BUILD: Mapping[str, Callable[[str, Any], OncelogError]] = {
    "IdConflict": lambda text, found: IdConflict(text, position=_optional(found, "position")),
    "PartialOverlap": lambda text, found: PartialOverlap(text, known=list(found.known), new=list(found.new)),
    "AppendErrors": lambda text, found: AppendErrors(text, results=[from_result(one) for one in found.results]),
    "NotFound": lambda text, found: NotFound(text, first=_optional(found, "first")),
    "WrongExpectedVersion": _wrong_version,
    "TooManyCalls": lambda text, found: TooManyCalls(text, **_again(found)),
    "Unavailable": lambda text, found: Unavailable(text, **_again(found)),
    "WriterFenced": lambda text, found: _fenced(found)(text, outcome=_outcome(found)),
    "LogBusy": lambda text, found: LogBusy(text, pid=_optional(found, "pid")),
    "EffectFailed": lambda text, found: EffectFailed(text, error=_optional(found, "error")),
}
