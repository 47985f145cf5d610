"""From a message to the key that its effect is known by: ours, Kafka's, an HTTP request, or plain text."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from oncelog import limits
from oncelog.errors import InvalidArgument
from oncelog.inbox.decisions import Identity

HTTP_HEADER = "Idempotency-Key"
_PLAIN = min(limits.INBOX_KEY_BYTES_MAX, limits.LABEL_BYTES_MAX)
"""Plain characters up to which a name is surely short enough."""


class MessageIdentity(NamedTuple):
    """What a message tells of itself; ``None`` where it does not, ``UNSET`` for no payload."""

    key: str
    topic: str | None = None
    tenant: str | None = None
    group: str | None = None
    payload: object = msgspec.UNSET


def known(message: object) -> MessageIdentity:
    """Return what a message tells of itself. ``InvalidArgument`` if it has nothing to be known by.

    A delivery of a queue is known by its ``inbox_key``, an entry of a log by its id (with its stream: ids of events are
    those of their stream), or without one by its position, a Kafka record (of confluent-kafka, kafka-python or
    aiokafka) by its partition and offset, an HTTP request by its method, path and Idempotency-Key.

    >>> known("order-42").key
    'order-42'
    """
    if isinstance(message, str):
        return MessageIdentity(message)
    if hasattr(message, "inbox_key"):
        delivery: Any = message
        return MessageIdentity(delivery.inbox_key, delivery.topic, delivery.tenant, delivery.group, delivery.value)
    if hasattr(message, "offset") and hasattr(message, "partition"):
        return _kafka(message)
    if hasattr(message, "position") and hasattr(message, "value"):
        entry: Any = message
        key = _id_in_stream(entry) or f"@{_number('position', entry.position)}"
        return MessageIdentity(key, None, getattr(entry, "tenant", None), None, entry.value)
    if hasattr(message, "headers") and hasattr(message, "method"):
        return _http(message)
    error = f"message: a {type(message).__name__} has nothing to be known by: give its key, a str"
    raise InvalidArgument(error)


def keyed(message: object, key: str) -> MessageIdentity:
    """Return what a message tells of itself, but for its key, which is given."""
    try:
        return known(message)._replace(key=key)
    except InvalidArgument:
        return MessageIdentity(key)


def _id_in_stream(entry: Any) -> str | None:
    """Return the id of an entry or an event, with its stream, if it has one: streams may have the same ids."""
    stream = getattr(entry, "stream", None)
    return f"{len(stream)}:{stream}{entry.id}" if stream and entry.id else entry.id


def _kafka(record: Any) -> MessageIdentity:
    def told(name: str) -> Any:
        value = getattr(record, name)
        return value() if callable(value) else value

    place = f"@{_number('partition', told('partition'))}:{_number('offset', told('offset'))}"
    return MessageIdentity(place, told("topic"), None, None, told("value"))


def _number(name: str, value: object) -> int:
    """Return a place in a log. ``None``, or an invalid offset, would be one key for many messages."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        error = f"message: its {name} is {value!r}, must be a whole number, 0 or more: give a key"
        raise InvalidArgument(error)
    return value


def _http(request: Any) -> MessageIdentity:
    key = request.headers.get(HTTP_HEADER)
    if key is None:
        error = f"the request has no {HTTP_HEADER} header: refuse it, or give a key"
        raise InvalidArgument(error)
    url = getattr(request, "url", None)
    path = getattr(request, "path", None) or getattr(url, "path", "")
    body = getattr(request, "body", None)
    payload = body if isinstance(body, bytes) else msgspec.UNSET
    return MessageIdentity(text("key", key).strip('"'), f"{request.method} {path}", None, None, payload)


def identify(
    message: MessageIdentity, *, tenant: str | None, topic: str | None, group: str | None, default: Identity
) -> Identity:
    """Return what an effect is known by: what is given, else what the message tells, else the inbox's own."""
    identity = Identity(
        text("tenant", _first(tenant, message.tenant, default.tenant)),
        text("topic", _first(topic, message.topic, default.topic)),
        text("group", _first(group, message.group, default.group)),
        text("key", message.key),
    )
    check(identity)
    return identity


def text(name: str, value: object) -> str:
    """Return a name as a plain str; ``InvalidArgument`` if it is none.

    ``str()`` of another object may differ from one process to the next (an address), and of bytes is their ``repr``:
    the effect would happen again. A subclass of str may have an ``encode`` of its own: only its characters count.
    """
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    error = f"{name}: is {type(value).__name__}, must be a str"
    raise InvalidArgument(error)


def _first(*values: str | None) -> str:
    for value in values:
        if value is not None:
            return value
    return ""


def check(identity: Identity) -> None:
    """Raise ``InvalidArgument`` for names that cannot be stored."""
    given: tuple[object, ...] = identity
    for name, unchecked in zip(Identity._fields, given, strict=True):
        label(name, unchecked, limits.INBOX_KEY_BYTES_MAX if name == "key" else limits.LABEL_BYTES_MAX)


def label(name: str, given: object, bytes_max: int = limits.LABEL_BYTES_MAX) -> str:
    """Return a name that every store can hold; ``InvalidArgument`` for another."""
    value = text(name, given)
    if len(value) <= _PLAIN and value.isascii() and "\0" not in value:
        return value
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError as cause:
        error = f"{name} {value!r} is not valid Unicode: remove the lone surrogate"
        raise InvalidArgument(error) from cause
    if size_bytes > bytes_max:
        error = f"{name} of {size_bytes} bytes: must be at most {bytes_max} bytes of UTF-8"
        raise InvalidArgument(error)
    if "\0" in value:
        error = f"{name} {value!r} has a NUL in it, which PostgreSQL cannot store: remove it"
        raise InvalidArgument(error)
    return value
