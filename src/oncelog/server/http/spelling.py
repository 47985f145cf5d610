"""Values of Oncelog as JSON forms, and forms as values.

A value that is text stands in ``value``; any other stands in ``value_base64``. What is read can be appended again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from oncelog.errors import InvalidArgument, OncelogError
from oncelog.queue.rules.message import Message
from oncelog.queue.send.sender import Sent
from oncelog.server.http import problem
from oncelog.server.http.forms import (
    AckForm,
    Base64,
    EntryForm,
    EventAckForm,
    EventForm,
    HeaderForms,
    MessageForm,
    RecordForm,
    ResultForm,
    ResultsForm,
    SentForm,
)
from oncelog.streams.events import EventAck, StreamEvent
from oncelog.types import Ack, Entry, Record
from oncelog.wire import values

_T = TypeVar("_T")


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
        _value(form), form.id, form.key, form.tenant, _headers(form.headers), form.delay_s, form.deadline_s, form.retry
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


def _labels(source: Entry | StreamEvent, names: Iterable[str]) -> dict[str, Any]:
    headers = {} if source.headers is None else {"headers": spelled_headers(source.headers)}
    return values.given(source, names) | headers | spelled_value(source.value)


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
