"""From a message to the key that its effect is known by: ours, Kafka's, an HTTP request, or plain text."""

from __future__ import annotations

from typing import Any, NamedTuple

from oncelog import limits
from oncelog.errors import InvalidArgument
from oncelog.inbox.decisions import Identity

HTTP_HEADER = "Idempotency-Key"
_PLAIN = min(limits.INBOX_KEY_BYTES_MAX, limits.LABEL_BYTES_MAX)
"""Plain characters up to which a name is surely short enough."""


class Known(NamedTuple):
    """What a message tells of itself; ``None`` where it does not."""

    key: str
    topic: str | None = None
    tenant: str | None = None
    group: str | None = None
    payload: object = None


def known(message: object) -> Known:
    """Return what a message tells of itself. ``InvalidArgument`` if it has nothing to be known by.

    A delivery of a queue is known by its ``inbox_key``, an entry of a log by its id, or without one by its position, a
    Kafka record (of confluent-kafka, kafka-python or aiokafka) by its partition and offset, an HTTP request by its
    method, path and Idempotency-Key.

    >>> known("order-42").key
    'order-42'
    """
    if isinstance(message, str):
        return Known(message)
    if hasattr(message, "inbox_key"):
        delivery: Any = message
        return Known(delivery.inbox_key, delivery.topic, delivery.tenant, delivery.group, delivery.value)
    if hasattr(message, "offset") and hasattr(message, "partition"):
        return _kafka(message)
    if hasattr(message, "position") and hasattr(message, "value"):
        entry: Any = message
        return Known(entry.id or f"@{entry.position}", None, entry.tenant, None, entry.value)
    if hasattr(message, "headers") and hasattr(message, "method"):
        return _http(message)
    error = f"a {type(message).__name__} has nothing to be known by: give its key"
    raise InvalidArgument(error)


def keyed(message: object, key: str) -> Known:
    """Return what a message tells of itself, but for its key, which is given."""
    try:
        return known(message)._replace(key=key)
    except InvalidArgument:
        return Known(key)


def _kafka(record: Any) -> Known:
    def told(name: str) -> Any:
        value = getattr(record, name)
        return value() if callable(value) else value

    return Known(f"@{told('partition')}:{told('offset')}", told("topic"), None, None, told("value"))


def _http(request: Any) -> Known:
    key = request.headers.get(HTTP_HEADER)
    if key is None:
        error = f"the request has no {HTTP_HEADER} header: refuse it, or give a key"
        raise InvalidArgument(error)
    url = getattr(request, "url", None)
    path = getattr(request, "path", None) or getattr(url, "path", "")
    body = getattr(request, "body", None)
    payload = body if isinstance(body, bytes) else None
    return Known(str(key).strip('"'), f"{request.method} {path}", None, None, payload)


def identify(
    message: Known, *, tenant: str | None, topic: str | None, group: str | None, default: Identity
) -> Identity:
    """Return what an effect is known by: what is given, else what the message tells, else the inbox's own."""
    identity = Identity(
        _first(tenant, message.tenant, default.tenant),
        _first(topic, message.topic, default.topic),
        _first(group, message.group, default.group),
        message.key,
    )
    check(identity)
    return identity


def _first(*values: str | None) -> str:
    for value in values:
        if value is not None:
            return value
    return ""


def check(identity: Identity) -> None:
    """Raise ``InvalidArgument`` for names that cannot be stored."""
    given: tuple[object, ...] = identity
    for name, value in zip(Identity._fields, given, strict=True):
        if type(value) is str and len(value) <= _PLAIN and value.isascii() and "\0" not in value:
            continue
        if not isinstance(value, str):
            error = f"{name}: is {type(value).__name__}, must be a str"
            raise InvalidArgument(error)
        try:
            size_bytes = len(value.encode())
        except UnicodeEncodeError as cause:
            error = f"{name} {value!r} is not valid Unicode: remove the lone surrogate"
            raise InvalidArgument(error) from cause
        most = limits.INBOX_KEY_BYTES_MAX if name == "key" else limits.LABEL_BYTES_MAX
        if size_bytes > most:
            error = f"{name} of {size_bytes} bytes: must be at most {most} bytes of UTF-8"
            raise InvalidArgument(error)
        if "\0" in value:
            error = f"{name} {value!r} has a NUL in it, which PostgreSQL cannot store: remove it"
            raise InvalidArgument(error)
