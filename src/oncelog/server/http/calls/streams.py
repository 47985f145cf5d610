"""Streams over HTTP: events with versions; ``If-Match`` says which version is expected."""

from __future__ import annotations

from itertools import islice

from starlette.responses import Response

from oncelog import limits
from oncelog.errors import InvalidArgument, NotFound
from oncelog.server.http import fields, forms, spelling
from oncelog.server.http.calls.records import PAGE_BYTES_MAX, PAGE_RECORDS, check_no_key, lines
from oncelog.server.http.request import NDJSON, Call, answer
from oncelog.server.security import scopes
from oncelog.streams.events import StreamEvent, StreamInfo
from oncelog.streams.streams import Streams


def opened_streams(call: Call) -> Streams:
    """Return the streams that a call is about, or the one answer for a log that is not there. For a thread."""
    kind, name = call.route.kind, call.names["log"]
    try:
        return call.server.database.streams(name)
    except NotFound as error:
        raise scopes.missing(kind, name) from error


async def append(call: Call) -> Response:
    """Append events to a stream, all or none."""
    expected = fields.expected_version(call.headers)
    stream = call.names["stream"]
    if call.media_type == NDJSON:
        check_no_key(call)
        records = await lines(call, await call.body.whole())
    else:
        records = [fields.record(await call.body.whole(limits.VALUE_BYTES_MAX), call.headers)]
    if not records:
        message = "the body has no event"
        raise InvalidArgument(message)
    timeout_s = call.timeout_s()
    acks = await call.server.write(
        lambda: opened_streams(call).append(stream, records, expected=expected, timeout_s=timeout_s), call.names["log"]
    )
    call.server.wake(call.names["log"])
    headers = {"etag": f'"{acks[-1].version}"'}
    if acks[0].duplicate:
        headers["idempotent-replayed"] = "true"
    body = forms.EventAcksForm([spelling.event_ack(one) for one in acks])
    return answer(body, 200 if acks[0].duplicate else 201, headers)


async def read(call: Call) -> Response:
    """Return events of a stream, from its first version on or from its last one back."""
    limit = call.limit(PAGE_RECORDS, limits.HTTP_READ_RECORDS_MAX)
    start = call.query.get("start")
    begin = None if start is None else fields.whole("start", start, least=0)
    direction = call.query.get("direction", "forward")
    stream = call.names["stream"]

    def page() -> Response:
        streams = opened_streams(call)
        found: list[StreamEvent] = []
        size_bytes = 0
        for event in islice(streams.read(stream, begin, direction=direction), limit):  # type: ignore[arg-type]
            size_bytes += len(event.value)
            if found and size_bytes > PAGE_BYTES_MAX:
                break
            found.append(event)
        version = streams.version(stream) or 0
        body = forms.EventsForm(events=[spelling.event(one) for one in found], version=version)
        return answer(body, headers={"etag": f'"{version}"', "cache-control": "no-store"})

    await call.room.take(PAGE_BYTES_MAX, call.names["log"])
    return await call.read(page)


async def list_streams(call: Call) -> Response:
    """List the streams of a log."""
    prefix = call.query.get("prefix", "")
    limit = call.limit(PAGE_RECORDS, limits.HTTP_READ_RECORDS_MAX)

    def found() -> list[StreamInfo]:
        return opened_streams(call).list(prefix)[:limit]

    return answer(await call.read(found))
