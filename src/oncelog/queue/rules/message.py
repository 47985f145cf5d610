"""A message: what a producer sends, how it lies in a log, and which identity and partition it has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from oncelog import arguments, limits
from oncelog.errors import CorruptionError, InvalidArgument
from oncelog.queue.rules import retry as retry_module
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.shapes import UNREADABLE
from oncelog.types import Entry, Record

ENVELOPE = "oncelog-envelope"
"""The header that carries what a log has no column for; a user's own may not have this name."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """What is sent: a value, and what is known about it.

    ``id`` makes sending safe to repeat: within (tenant, topic, key) it is enqueued once; empty means no idempotence.
    ``key`` picks the partition, and is what an ordered group keeps in order. ``delay_s`` and ``deadline_s`` count from
    when it is stored; past its deadline a message is not delivered any more, but goes to the dead letters. ``retry``:
    its own policy instead of the queue's.
    """

    value: bytes
    id: str = ""
    key: str = ""
    tenant: str = ""
    headers: Mapping[str, bytes] | None = None
    delay_s: float = 0.0
    deadline_s: float | None = None
    retry: RetryPolicy | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a value and nothing else."""
        return (
            type(self.value) is bytes
            and self.headers is None
            and self.deadline_s is None
            and self.retry is None
            and type(self.delay_s) in (float, int)
            and self.delay_s == 0
            and (type(self.id), type(self.key), type(self.tenant)) == (str, str, str)
            and not (self.id or self.key or self.tenant)
        )


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a dead letter comes from, and what became of it there."""

    topic: str
    partition: int
    position: int
    group: str
    attempts: int
    last_error: str
    inbox_key: str


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes along with a message where it differs from the ordinary.

    ``id``: the message's own, where the log's id does not spell it out. ``group``: the only group that it is for.
    ``inbox_key``: of a message that was sent back, that of the first. ``origin``: of a dead letter.
    """

    id: str = ""
    delay_us: int = 0
    deadline_us: int | None = None
    retry: RetryPolicy | None = None
    group: str = ""
    inbox_key: str = ""
    redriven: int = 0
    origin: Origin | None = None


PLAIN = Envelope()
_TEXTS = {"id": limits.ID_BYTES_MAX, "key": limits.LABEL_BYTES_MAX, "tenant": limits.LABEL_BYTES_MAX}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def check(message: object) -> Message:
    """Return the message, or raise ``InvalidArgument`` saying what is wrong with it."""
    if not isinstance(message, Message):
        error = f"message: is {type(message).__name__}, must be a Message"
        raise InvalidArgument(error)
    value: object = message.value
    if not isinstance(value, bytes | bytearray | memoryview):
        error = f"value: is {type(value).__name__}, must be bytes"
        raise InvalidArgument(error)
    for name, bytes_max in _TEXTS.items():
        given = getattr(message, name)
        if type(given) is not str or given != "":
            text = check_text(name, given, bytes_max)
            if text is not given:
                message = msgspec.structs.replace(message, **{name: text})
    if message.headers is not None:
        _check_headers(message.headers)
    span_us("delay_s", message.delay_s)
    if message.deadline_s is not None:
        span_us("deadline_s", message.deadline_s)
    if message.retry is not None:
        return msgspec.structs.replace(message, retry=retry_module.check(message.retry))
    return message


_PLAIN_MESSAGE = Message(b"")
_TEXT, _DELAY_S = _PLAIN_MESSAGE.id, _PLAIN_MESSAGE.delay_s


def plain_values(messages: Sequence[object]) -> list[bytes] | None:
    """Return the values of messages that are values and nothing else; ``None`` if one may be something else."""
    values = [
        one.value
        for one in messages
        if type(one) is Message
        and one.id is _TEXT
        and one.key is _TEXT
        and one.tenant is _TEXT
        and one.headers is None
        and one.delay_s is _DELAY_S
        and one.deadline_s is None
        and one.retry is None
    ]
    return values if len(values) == len(messages) else None


def _check_headers(headers: object) -> None:
    """Keep room for what the queue adds, now or when the message dies. What a header may be, the log itself says."""
    if not isinstance(headers, Mapping):
        error = f"headers: is {type(headers).__name__}, must be a mapping of str to bytes"
        raise InvalidArgument(error)
    if ENVELOPE in headers:
        error = f"headers: {ENVELOPE!r} is the queue's own name, take another"
        raise InvalidArgument(error)
    if len(headers) > limits.QUEUE_HEADERS_MAX:
        error = f"headers: has {len(headers)}, must have at most {limits.QUEUE_HEADERS_MAX}"
        raise InvalidArgument(error)
    size_bytes = sum(_size_bytes(part) for header in headers.items() for part in header)
    if size_bytes > limits.QUEUE_HEADER_BYTES_MAX:
        error = f"headers: has {size_bytes} bytes, must have at most {limits.QUEUE_HEADER_BYTES_MAX}"
        raise InvalidArgument(error)


def _size_bytes(part: object) -> int:
    if isinstance(part, str):
        return len(part.encode("utf-8", "surrogatepass"))
    return memoryview(part).nbytes if isinstance(part, bytes | bytearray | memoryview) else 0


def check_text(name: str, value: object, bytes_max: int) -> str:
    """Return a text, or raise ``InvalidArgument``."""
    if not isinstance(value, str):
        error = f"{name}: is {type(value).__name__}, must be a str"
        raise InvalidArgument(error)
    value = str.__str__(value)  # a subclass may encode as something else
    if "\0" in value:
        error = f"{name} {value!r} has a NUL in it, which PostgreSQL cannot store: remove it"
        raise InvalidArgument(error)
    if len(value) * 4 <= bytes_max and value.isascii():
        return value
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError as cause:
        error = f"{name} {value!r} is not valid Unicode: remove the lone surrogate"
        raise InvalidArgument(error) from cause
    if size_bytes > bytes_max:
        error = f"{name} of {size_bytes} bytes: must be at most {bytes_max} bytes of UTF-8"
        raise InvalidArgument(error)
    return value


def span_us(name: str, seconds: object) -> int:
    """Return a span of time in microseconds, or raise ``InvalidArgument``."""
    span_s = arguments.seconds(name, seconds)
    if span_s > limits.QUEUE_DELAY_S_MAX:
        error = f"{name} is {seconds}, must be at most {limits.QUEUE_DELAY_S_MAX}"
        raise InvalidArgument(error)
    return round(span_s * 1_000_000)


def _scope(tenant: str, key: str) -> str:
    """Return tenant and key, each with its length, so that no two pairs look the same."""
    return f"{len(tenant)}:{tenant}{len(key)}:{key}" if tenant or key else "0:0:"


def listed(messages: object) -> list[object]:
    """Return what was given to be sent as a list."""
    return arguments.items("messages", messages, "Message")


def check_identity(tenant: object, key: object, id: object) -> str:
    """Return what a message is known by, of parts that a user gave; ``InvalidArgument`` when they cannot be that."""
    return identity(
        check_text("tenant", tenant, limits.LABEL_BYTES_MAX),
        check_text("key", key, limits.LABEL_BYTES_MAX),
        check_text("id", id, limits.ID_BYTES_MAX),
    )


def identity(tenant: str, key: str, id: str) -> str:
    """Return what a message is known by in its topic's logs: readable, or a hash where that would be too long.

    >>> identity("", "", "order-42"), identity("shop", "customer-7", "order-42")
    ('0:0:order-42', '4:shop10:customer-7order-42')
    """
    spelled = _scope(tenant, key) + id
    if len(spelled) * 4 <= limits.ID_BYTES_MAX or len(spelled.encode()) <= limits.ID_BYTES_MAX:
        return spelled
    return "#" + hashlib.blake2b(spelled.encode(), digest_size=32).hexdigest()


def order_key(tenant: str, key: str) -> str | None:
    """Return what an ordered group keeps in order: messages of one tenant with one key; ``None`` without a key."""
    return _scope(tenant, key) if key else None


def partition_of(key: str, id: str, partitions: int) -> int | None:
    """Return the partition that the key, or without one the id, picks; ``None`` when there is neither."""
    name = key or id
    if not name:
        return None
    if partitions == 1:
        return 0
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % partitions


def record_of(message: Message, log_id: str | None, **more: Any) -> Record:
    """Return a message as it lies in the log; ``more`` are parts of its envelope."""
    if log_id is not None and log_id[0] == "#":
        more["id"] = message.id
    if message.delay_s:
        more["delay_us"] = span_us("delay_s", message.delay_s)
    if message.deadline_s is not None:
        more["deadline_us"] = span_us("deadline_s", message.deadline_s)
    if message.retry is not None:
        more["retry"] = message.retry
    headers = message.headers
    if more:
        headers = {**(headers or {}), ENVELOPE: _encode(Envelope(**more))}
    return Record(
        message.value, id=log_id, stream=message.key or None, headers=headers or None, tenant=message.tenant or None
    )


def forwarded(entry: Entry, log_id: str, envelope: Envelope) -> Record:
    """Return a stored message as it goes into another log, with another envelope."""
    headers = {**user_headers(entry), ENVELOPE: _encode(envelope)}
    return Record(entry.value, id=log_id, stream=entry.stream, headers=headers, tenant=entry.tenant)


def is_readable(entry: Entry) -> bool:
    """Tell whether what goes along with a stored message can be read: somebody may have written it by hand."""
    try:
        envelope_of(entry)
    except CorruptionError:
        return False
    return True


def envelope_of(entry: Entry) -> Envelope:
    """Return what goes along with a stored message; ``CorruptionError`` if that cannot be read."""
    if entry.headers is None:
        return PLAIN
    data = entry.headers.get(ENVELOPE)
    if data is None:
        return PLAIN
    try:
        return _decode(data)
    except UNREADABLE as cause:
        error = f"position {entry.position}: the envelope of this message cannot be read ({cause})"
        raise CorruptionError(error) from cause


def id_of(entry: Entry, envelope: Envelope) -> str:
    """Return the id that its producer gave a message; empty when there was none."""
    if envelope.id or entry.id is None or not entry.id[0].isdigit():
        return envelope.id
    return entry.id[len(_scope(entry.tenant or "", entry.stream or "")) :]


def given_id(log_id: str, tenant: str, key: str, envelope: bytes | None) -> str:
    """Return the id that a producer gave a message, of which a log knows ``log_id``.

    >>> given_id("4:shop10:customer-7order-42", "shop", "customer-7", None)
    'order-42'
    """
    if envelope is not None and (spelled := _decode(envelope).id):
        return spelled
    scope = _scope(tenant, key)
    return log_id.removeprefix(scope)


def inbox_key_of(entry: Entry, envelope: Envelope, partition: int) -> str:
    """Return what the effects of a message are known by: the same however often it is delivered or sent back."""
    made_us = round(entry.timestamp.timestamp() * 1_000_000)  # another queue of that name has other times
    return envelope.inbox_key or entry.id or f"@{partition}:{entry.position}:{made_us}"


def user_headers(entry: Entry) -> Mapping[str, bytes]:
    """Return the headers that the producer gave."""
    if not entry.headers:
        return {}
    return {name: value for name, value in entry.headers.items() if name != ENVELOPE}
