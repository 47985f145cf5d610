"""Records, entries, acks, events and messages of queues: as Python values, and as messages of the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, SupportsIndex, TypeVar

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.send.sender import Sent
from oncelog.shapes import UNREADABLE
from oncelog.streams.events import EventAck, Expected, StreamEvent, StreamInfo
from oncelog.types import Ack, Entry, Record, micros, moment
from oncelog.wire import messages

_T = TypeVar("_T")
_LABELS = ("id", "stream", "type", "producer", "sequence", "tenant")


def _optional(found: Any, name: str) -> Any:
    return getattr(found, name) if found.HasField(name) else None


def given(source: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes of an object that are not ``None``, by their names."""
    return {name: value for name in names if (value := getattr(source, name)) is not None}


def _time_us(when: datetime | None) -> int | None:
    return None if when is None else micros(when)


def _moment(found: Any) -> datetime | None:
    return moment(found.timestamp_us) if found.HasField("timestamp_us") else None


def headers_message(headers: Mapping[str, bytes]) -> Any:
    """Return headers as a message, in their order."""
    return messages.Headers(header=[messages.Header(name=name, value=value) for name, value in headers.items()])


def headers(found: Any) -> dict[str, bytes]:
    """Return the headers of a message."""
    return {one.name: one.value for one in found.header}


# Records, entries, acks.


def record_message(record: Record) -> Any:
    """Return a record as a message."""
    made = messages.Record(value=record.value, **given(record, _LABELS))
    if record.headers is not None:
        made.headers.CopyFrom(headers_message(record.headers))
    return made


def record(found: Any) -> Record:
    """Return the record of a message."""
    return Record(
        found.value,
        headers=headers(found.headers) if found.HasField("headers") else None,
        **{name: _optional(found, name) for name in _LABELS},
    )


def entry_message(entry: Entry) -> Any:
    """Return a stored record as a message."""
    return messages.Entry(
        position=entry.position,
        segment=entry.segment,
        entry=entry.entry,
        timestamp_us=micros(entry.timestamp),
        record=record_message(entry),  # type: ignore[arg-type]  # an entry has all that a record has
    )


def entry(found: Any) -> Entry:
    """Return the stored record of a message."""
    inner = record(found.record)
    return Entry(
        position=found.position,
        segment=found.segment,
        entry=found.entry,
        timestamp=moment(found.timestamp_us),
        id=inner.id,
        value=inner.value,
        stream=inner.stream,
        type=inner.type,
        headers=inner.headers,
        producer=inner.producer,
        sequence=inner.sequence,
        tenant=inner.tenant,
    )


def ack_message(ack: Ack) -> Any:
    """Return an ack as a message."""
    return messages.Ack(
        position=ack.position,
        segment=ack.segment,
        entry=ack.entry,
        timestamp_us=_time_us(ack.timestamp),
        duplicate=ack.duplicate,
        conflict=ack.conflict,
    )


def ack(found: Any) -> Ack:
    """Return the ack of a message."""
    return Ack(
        _optional(found, "position"),
        _optional(found, "segment"),
        _optional(found, "entry"),
        _moment(found),
        found.duplicate,
        found.conflict,
    )


# Where to start.

_EARLIEST_US = micros(datetime.min.replace(tzinfo=UTC))
_LATEST_US = micros(datetime.max.replace(tzinfo=UTC))
"""What a datetime in UTC can be. A moment beyond it, as an early one of another zone, is before or behind all."""


def start_message(start: object) -> Any:
    """Return where reading starts as a message: a word, a position, (segment, entry) or a moment."""
    if isinstance(start, str):
        return messages.Start(word=start)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            text = f"start {start!r} has no time zone: use datetime.now(UTC) or when.replace(tzinfo=UTC)"
            raise InvalidArgument(text)
        return messages.Start(timestamp_us=micros(start))
    numbers = start if isinstance(start, tuple) else (start,)
    are_numbers = all(isinstance(number, SupportsIndex) and not isinstance(number, bool) for number in numbers)
    if not are_numbers or len(numbers) != 1 + isinstance(start, tuple):
        text = f"start {start!r}: must be 'earliest', 'latest', a position, (segment, entry) or a datetime"
        raise InvalidArgument(text)
    try:
        if isinstance(start, tuple):
            return messages.Start(place=messages.Place(segment=numbers[0].__index__(), entry=numbers[1].__index__()))
        return messages.Start(position=numbers[0].__index__())
    except ValueError:
        text = f"start {start!r}: must fit 64 bits"
        raise InvalidArgument(text) from None


def start(found: Any, default: Any = "earliest") -> Any:
    """Return where reading starts."""
    match found.WhichOneof("start"):
        case "word":
            return found.word
        case "position":
            return found.position
        case "place":
            return (found.place.segment, found.place.entry)
        case "timestamp_us":
            return moment(min(max(found.timestamp_us, _EARLIEST_US), _LATEST_US))
    return default


# Streams.


def set_expected(made: Any, expected: Expected) -> None:
    """Put what is expected of a stream into a message."""
    if isinstance(expected, str):
        made.expected_word = expected
    else:
        made.expected_version = expected


def expected(found: Any) -> Expected:
    """Return what a message expects of a stream; anything, if it does not say."""
    which = found.WhichOneof("expected")
    if which == "expected_version":
        return int(found.expected_version)
    return found.expected_word or "any"  # checked where it is used


def event_ack_message(ack: EventAck) -> Any:
    """Return the ack of an event as a message."""
    return messages.EventAck(
        version=ack.version,
        position=ack.position,
        timestamp_us=_time_us(ack.timestamp),
        duplicate=ack.duplicate,
        conflict=ack.conflict,
    )


def event_ack(found: Any) -> EventAck:
    """Return the ack of an event."""
    return EventAck(
        version=found.version,
        position=found.position,
        timestamp=_moment(found),
        duplicate=found.duplicate,
        conflict=found.conflict,
    )


def event_message(event: StreamEvent) -> Any:
    """Return an event of a stream as a message."""
    made = messages.Event(
        stream=event.stream,
        version=event.version,
        position=event.position,
        timestamp_us=micros(event.timestamp),
        value=event.value,
        **given(event, ("id", "type")),
    )
    if event.headers is not None:
        made.headers.CopyFrom(headers_message(event.headers))
    return made


def event(found: Any) -> StreamEvent:
    """Return the event of a message."""
    return StreamEvent(
        stream=found.stream,
        version=found.version,
        position=found.position,
        timestamp=moment(found.timestamp_us),
        id=_optional(found, "id"),
        type=_optional(found, "type"),
        value=found.value,
        headers=headers(found.headers) if found.HasField("headers") else None,
    )


def stream_info_message(info: StreamInfo) -> Any:
    """Return what is known of a stream as a message."""
    return messages.StreamInfo(
        stream=info.stream, version=info.version, count=info.count, last_position=info.last_position
    )


def stream_info(found: Any) -> StreamInfo:
    """Return what is known of a stream."""
    return StreamInfo(
        stream=found.stream, version=found.version, count=found.count, last_position=_optional(found, "last_position")
    )


# Queues.


def queue_message_message(message: Message) -> Any:
    """Return a message of a queue as a message of the wire."""
    made = messages.Message(
        value=message.value,
        id=message.id,
        key=message.key,
        tenant=message.tenant,
        delay_s=message.delay_s,
        deadline_s=message.deadline_s,
    )
    if message.headers is not None:
        made.headers.CopyFrom(headers_message(message.headers))
    if message.retry is not None:
        made.retry.CopyFrom(messages.RetryPolicy(**msgspec.structs.asdict(message.retry)))
    return made


def queue_message(found: Any) -> Message:
    """Return the message of a queue."""
    return Message(
        found.value,
        found.id,
        found.key,
        found.tenant,
        headers(found.headers) if found.HasField("headers") else None,
        found.delay_s,
        _optional(found, "deadline_s"),
        _retry(found.retry) if found.HasField("retry") else None,
    )


def _retry(found: Any) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=_optional(found, "max_attempts"),
        backoff_s=found.backoff_s,
        max_backoff_s=found.max_backoff_s,
        jitter=found.jitter,
    )


def sent_message(sent: Sent) -> Any:
    """Return the answer to a send as a message."""
    return messages.Sent(
        partition=sent.partition,
        position=sent.position,
        timestamp_us=_time_us(sent.timestamp),
        duplicate=sent.duplicate,
    )


def sent(found: Any) -> Sent:
    """Return the answer to a send."""
    return Sent(found.partition, found.position, _moment(found), found.duplicate)


# Documents: settings and reports.


def to_document(value: object) -> bytes:
    """Return a setting or a report as JSON."""
    return msgspec.json.encode(value)


def from_document(data: bytes, kind: type[_T]) -> _T:
    """Return the setting or the report of this kind; ``InvalidArgument`` when the JSON does not fit.

    >>> from oncelog.settings import Window
    >>> from_document(b'{"max_keys": 5}', Window).max_keys
    5
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        text = f"{kind.__name__}: {error}"
        raise InvalidArgument(text) from error
