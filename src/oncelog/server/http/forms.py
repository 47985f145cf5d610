"""The forms of JSON bodies, in and out. ``openapi`` makes the schemas from these structs; ``spelling`` fills them.

A value that is text stands in ``value``; any other stands in ``value_base64``. What is read can be appended again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncelog.queue.rules.retry import RetryPolicy

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
