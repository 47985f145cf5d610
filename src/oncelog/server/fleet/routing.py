"""Which calls belong to the holder of a log. Reading is served anywhere."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from oncelog.server.fleet.fleet import QUEUE
from oncelog.wire import frames, messages
from oncelog.wire.frames import Kind


class RoutedSubject(NamedTuple):
    """The log whose holder serves a call. ``takes``: the call needs the log's writer. ``name`` is the log or queue that
    the call is about.
    """

    log: str
    takes: bool
    name: str


TAKING = frozenset({"Log.Append", "Log.Write", "Log.WriteArrow", "Log.Ingest", "Log.ForgetProducer", "Streams.Append"})
"""These need the writer."""

ASKING = frozenset(
    {
        "Log.Find", "Log.Info", "Log.Producers", "Log.Configure", "Log.Truncate", "Log.Verify", "Log.Job",
        "Streams.Version", "Database.Delete",
    }
)  # fmt: skip
"""These ask or change what the writer has in its memory; without a holder any server can do them."""


HTTP_TAKING = frozenset({"records_append", "streams_append"})
HTTP_ASKING = frozenset(
    {
        "logs_info", "logs_find", "logs_producers", "logs_configure", "logs_truncate", "logs_seal", "logs_verify",
        "logs_delete",
    }
)  # fmt: skip
"""The same for routes of HTTP, by their names."""


def http_subject(route: str, kind: str, name: str | None) -> RoutedSubject | None:
    """Return the log whose holder serves an HTTP request about a log or queue; ``None``: any server does."""
    if name is None:
        return None
    if kind == "queue":
        return queue_subject(name)
    if route in HTTP_TAKING or route in HTTP_ASKING:
        return log_subject(name, takes=route in HTTP_TAKING)
    return None


def queue_subject(queue: str) -> RoutedSubject:
    """Return the log by which a queue is placed: the first partition; of dead letters, that of their queue.

    >>> queue_subject("dlq.emails")
    RoutedSubject(log='queue/emails/0', takes=True, name='dlq.emails')
    """
    return RoutedSubject(f"{QUEUE}{queue.removeprefix('dlq.')}/0", True, queue)


def first_subject(key: str, request: Any) -> RoutedSubject | None:
    """Return the same for the first request of a stream of them; ``None`` also for one that makes no sense."""
    if key == "Queue.Consume" and request.WhichOneof("request") == "open":
        return queue_subject(request.open.queue)
    if key == "Log.Write" and request.WhichOneof("request") == "hello":
        return log_subject(request.hello.log, takes=True)
    if key == "Log.WriteArrow":
        raw = frames.unpack(request)
        if raw.kind is Kind.HELLO:
            with contextlib.suppress(DecodeError):
                return log_subject(messages.Hello.FromString(bytes(raw.body)).log, takes=True)
    return None


def subject(key: str, request: Any) -> RoutedSubject | None:
    """Return the log whose holder serves a gRPC call; ``None``: any server does."""
    if key.startswith("Queue."):
        return queue_subject(next(getattr(request, field) for field in ("queue", "name") if hasattr(request, field)))
    if key.startswith("Database.") and getattr(request, "kind", "") == "queue":
        return queue_subject(request.name)
    if key in TAKING:
        return log_subject(request.log, takes=True)
    if key in ASKING:
        named = next(getattr(request, field) for field in ("log", "name") if hasattr(request, field))
        return log_subject(named, takes=False)
    return None


def log_subject(name: str, *, takes: bool) -> RoutedSubject:
    """Return a log as the subject of a call."""
    return RoutedSubject(name, takes, name)
