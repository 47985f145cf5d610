"""What stands in JSON bodies, in and out. ``openapi`` makes the schemas from these structs.

A value that is text stands in ``value``; any other stands in ``value_base64``. What is read can be appended again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncelog.errors import InvalidArgument, OncelogError
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.send.sender import Sent
from oncelog.server.http import problem
from oncelog.streams.events import EventAck, StreamEvent
from oncelog.types import Ack, Entry, Record

_T = TypeVar("_T")
_Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Position = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: bytes


HeaderForms = dict[str, str | Base64]


class RecordForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record to be appended. Give ``value`` or ``value_base64``. The last four are ignored: the log assigns them."""

    value: str | None = None
    value_base64: bytes | None = None
    id: str | None = None
    stream: str | None = None
    type: str | None = None
    headers: HeaderForms | None = None
    producer: str | None = None
    sequence: _Int64 | None = None
    tenant: str | None = None
    position: int | None = None
    segment: int | None = None
    entry: int | None = None
    timestamp: str | None = None


class EntryForm(msgspec.Struct, frozen=True, kw_only=True):
    """A stored record: where it stands, when it was stored, and what was appended."""

    position: int
    segment: int
    entry: int
    timestamp: datetime
    value: str | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    id: str | UnsetType = UNSET
    stream: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    headers: HeaderForms | UnsetType = UNSET
    producer: str | UnsetType = UNSET
    sequence: int | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class AckForm(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one record: it is durable, at this place."""

    position: int | None
    segment: int | None = None
    entry: int | None = None
    timestamp: datetime | None = None
    duplicate: bool = False
    conflict: bool = False


class ResultForm(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one record of several: an ack, or a problem. ``again``: it was not written, and may be sent again
    as it is.
    """

    ack: AckForm | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET
    again: bool | UnsetType = UNSET


class ResultsForm(msgspec.Struct, frozen=True):
    """The answers to records, in the order of the records."""

    results: list[ResultForm]


class EntriesForm(msgspec.Struct, frozen=True, kw_only=True):
    """Entries, the position behind them, and the position behind the log's last one."""

    entries: list[EntryForm]
    next: int
    end: int


class FindForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An id, and its stream where ids are of a stream."""

    id: str
    stream: str | None = None


class AnsweredForm(msgspec.Struct, frozen=True, kw_only=True):
    """One of the latest answers about an id."""

    timestamp: datetime
    peer: str
    outcome: str
    position: int | None


class FoundForm(msgspec.Struct, frozen=True, kw_only=True):
    """Where an id is stored, and the latest answers about it since ``since``."""

    ack: AckForm | None
    answers: list[AnsweredForm]
    since: datetime | None


class CreateLogForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log to be made. ``streams``: its ids are of their stream, for the event-store face."""

    name: str
    settings: dict[str, Any] = {}
    streams: bool = False


class CreateQueueForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue to be made."""

    name: str
    settings: dict[str, Any] = {}
    partitions: Annotated[int, Meta(ge=1)] | None = None


class ProducerForm(msgspec.Struct, frozen=True, kw_only=True):
    """How far a producer got."""

    last_sequence: int
    last_position: int | None


class TruncateForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Remove everything before this position."""

    before: _Position


class NamesForm(msgspec.Struct, frozen=True):
    """Names that the caller may look at, sorted. ``next``: give it as ``after`` for the names behind them."""

    names: list[str]
    next: str | None = None


class ProgressForm(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job: how far it is, and in the last line its result or its error."""

    done: int = 0
    total: int = 0
    result: Any | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


# Streams.


class EventForm(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream."""

    stream: str
    version: int
    position: int
    timestamp: datetime
    value: str | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    headers: HeaderForms | UnsetType = UNSET


class EventsForm(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a stream, and the version of its last event."""

    events: list[EventForm]
    version: int


class EventAckForm(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one event: it is durable, at this version and position."""

    version: int
    position: int
    timestamp: datetime | None = None
    duplicate: bool = False
    conflict: bool = False


class EventAcksForm(msgspec.Struct, frozen=True):
    """The answers to events, in the order of the events."""

    acks: list[EventAckForm]


# Queues.


class MessageForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to be sent. Give ``value`` or ``value_base64``."""

    value: str | None = None
    value_base64: bytes | None = None
    id: str = ""
    key: str = ""
    tenant: str = ""
    headers: HeaderForms | None = None
    delay_s: float = 0.0
    deadline_s: float | None = None
    retry: RetryPolicy | None = None


class SentForm(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one message: it is durable, at this place."""

    partition: int
    position: int
    timestamp: datetime | None = None
    duplicate: bool = False


class SentResultForm(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one message of several."""

    sent: SentForm | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET
    again: bool | UnsetType = UNSET


class SentResultsForm(msgspec.Struct, frozen=True):
    """The answers to messages, in the order of the messages."""

    results: list[SentResultForm]


class ReceiveForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Claim up to ``limit`` messages, waiting for the first up to ``timeout_s``."""

    group: str = "default"
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1
    timeout_s: Annotated[float, Meta(ge=0, le=30)] = 0.0
    ack_timeout_s: Annotated[float, Meta(gt=0)] | None = None
    ordered: bool | None = None
    start: Literal["earliest", "latest"] = "earliest"


class DeliveryForm(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a worker's hands for ``lease_s``."""

    token: int
    partition: int
    position: int
    attempts: int
    last_error: str | None
    id: str
    key: str
    tenant: str
    topic: str
    group: str
    sent_at: datetime
    inbox_key: str
    redriven: int
    lease_s: float
    value: str | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    headers: HeaderForms


class DeliveriesForm(msgspec.Struct, frozen=True):
    """Messages that were claimed."""

    deliveries: list[DeliveryForm]


class LeaseForm(msgspec.Struct, frozen=True):
    """One delivery, by its three numbers."""

    token: _Position
    partition: _Position
    position: _Position


class AckMessagesForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deliveries that are done."""

    leases: list[LeaseForm]
    group: str = "default"


class NackMessagesForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deliveries that could not be done, and why. Without ``retry`` they go to the dead letters."""

    leases: list[LeaseForm]
    reason: str
    group: str = "default"
    retry: bool = True


class ExtendMessagesForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deliveries that need more time, from now."""

    leases: list[LeaseForm]
    seconds: Annotated[float, Meta(gt=0)]
    group: str = "default"


class SettledForm(msgspec.Struct, frozen=True):
    """How many were settled."""

    settled: int


class GroupForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group, or all."""

    group: str | None = None


class RedriveForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters to be sent back: those at these positions, or all."""

    positions: list[_Position] | None = None


class DiscardForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters to be given up for good."""

    positions: list[_Position]


class DeadLetterForm(msgspec.Struct, frozen=True, kw_only=True):
    """A message that died, and how."""

    position: int
    topic: str
    origin_partition: int
    origin_position: int
    group: str
    attempts: int
    last_error: str
    died_at: datetime
    redriven: int
    id: str
    key: str
    tenant: str
    inbox_key: str
    headers: HeaderForms
    value: str | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET


class CountForm(msgspec.Struct, frozen=True):
    """How many."""

    count: int


# From and to values.


def decode(data: bytes, kind: type[_T], what: str = "the body") -> _T:
    """Return JSON as a form, or raise ``InvalidArgument``."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"{what}: {error}"
        raise InvalidArgument(message) from None


def lines(data: bytes, kind: type[_T]) -> Iterator[_T]:
    """Yield the lines of NDJSON as forms; empty lines are passed over. ``row`` of the error counts from 0."""
    for number, line in enumerate(data.split(b"\n")):
        if line.strip():
            try:
                yield decode(line, kind, f"line {number + 1}")
            except InvalidArgument as error:
                error.row = number
                raise


def _value(form: RecordForm | MessageForm) -> bytes:
    if form.value is not None and form.value_base64 is None:
        return form.value.encode("utf-8", "strict")
    if form.value_base64 is not None and form.value is None:
        return form.value_base64
    message = "a record needs a value, or a value_base64"
    raise InvalidArgument(message)


def _headers(form: HeaderForms | None) -> dict[str, bytes] | None:
    if form is None:
        return None
    return {name: part.encode() if isinstance(part, str) else part.base64 for name, part in form.items()}


def record(form: RecordForm) -> Record:
    """Return the record of a form."""
    return Record(
        _value(form),
        id=form.id,
        stream=form.stream,
        type=form.type,
        headers=_headers(form.headers),
        producer=form.producer,
        sequence=form.sequence,
        tenant=form.tenant,
    )


def message(form: MessageForm) -> Message:
    """Return the message of a form."""
    return Message(
        _value(form),
        form.id,
        form.key,
        form.tenant,
        _headers(form.headers),
        form.delay_s,
        form.deadline_s,
        form.retry,
    )


def spelled_value(value: bytes) -> dict[str, Any]:
    """Return a value as text, or in base64.

    >>> spelled_value(b"paid"), list(spelled_value(bytes([255])))
    ({'value': 'paid'}, ['value_base64'])
    """
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": value}


def spelled_headers(headers: Mapping[str, bytes]) -> HeaderForms:
    """Return headers as text, or in base64."""
    found: HeaderForms = {}
    for name, data in headers.items():
        try:
            found[name] = data.decode()
        except UnicodeDecodeError:
            found[name] = Base64(data)
    return found


def _given(source: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(source, name)) is not None}


def _labels(source: Entry | StreamEvent, names: Iterable[str]) -> dict[str, Any]:
    headers = {} if source.headers is None else {"headers": spelled_headers(source.headers)}
    return _given(source, names) | headers | spelled_value(source.value)


def entry(found: Entry) -> EntryForm:
    """Return a stored record as a form."""
    return EntryForm(
        position=found.position,
        segment=found.segment,
        entry=found.entry,
        timestamp=found.timestamp,
        **_labels(found, ("id", "stream", "type", "producer", "sequence", "tenant")),
    )


def event(found: StreamEvent) -> EventForm:
    """Return an event as a form."""
    return EventForm(
        stream=found.stream,
        version=found.version,
        position=found.position,
        timestamp=found.timestamp,
        **_labels(found, ("id", "type")),
    )


def ack(found: Ack) -> AckForm:
    """Return an ack as a form."""
    return AckForm(**{name: getattr(found, name) for name in AckForm.__struct_fields__})


def event_ack(found: EventAck) -> EventAckForm:
    """Return the ack of an event as a form."""
    return EventAckForm(**{name: getattr(found, name) for name in EventAckForm.__struct_fields__})


def sent(found: Sent) -> SentForm:
    """Return the answer to a send as a form."""
    return SentForm(**{name: getattr(found, name) for name in SentForm.__struct_fields__})


def results(found: Sequence[Ack | OncelogError]) -> ResultsForm:
    """Return the answers to records as a form."""
    return ResultsForm([result(one) for one in found])


def result(found: Ack | OncelogError) -> ResultForm:
    """Return the answer to one record as a form."""
    if isinstance(found, OncelogError):
        return ResultForm(error=problem.of(found), again=may_come_again(found))
    return ResultForm(ack=ack(found))


def may_come_again(error: OncelogError) -> bool:
    """Tell whether a record that got this error may be sent again as it is: it was not written, and could be."""
    return problem.status_of(error) in (429, 503)
