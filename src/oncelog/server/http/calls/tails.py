"""Tails and subscriptions over HTTP, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.responses import Response, StreamingResponse

from oncelog.errors import NotFound, OncelogError, TooSlow
from oncelog.log.log import Log
from oncelog.log.read.scan import Start
from oncelog.server.http import events, fields, spelling
from oncelog.server.http.calls.logs import opened
from oncelog.server.http.calls.records import begin
from oncelog.server.http.calls.streams import opened_streams
from oncelog.server.http.request import Call
from oncelog.streams.events import CaughtUp, StreamEvent
from oncelog.streams.streams import Streams
from oncelog.streams.subscription import Subscription

SSE = "text/event-stream"


def _resumed(call: Call) -> int | None:
    """Return the position or version behind ``Last-Event-ID``, if the client was here before."""
    given = call.headers.get("last-event-id", "").strip()
    return fields.whole("Last-Event-ID", given, least=-1) + 1 if given else None


def _was_told(call: Call) -> bool:
    """Tell whether the last event of the client said that what it asks for is gone: a 204 ends a browser's retries."""
    return call.headers.get("last-event-id") == events.TRUNCATED


def _truncated(first: int, resumed: int) -> Response:
    """Return the one event for who resumes at what is gone, or was never there: a browser cannot read a 410."""
    return Response(events.spell_truncated(first, resumed), 200, events.HEADERS, media_type=SSE)


async def tail(call: Call) -> Response:
    """Follow a log from ``start`` on, or behind ``Last-Event-ID``."""
    call.accepts(SSE)
    if _was_told(call):
        return Response(None, 204)
    resumed = _resumed(call)
    start = fields.start(call.query.get("start", "latest")) if resumed is None else resumed
    log, first, position = await call.read(lambda: _begun(opened(call), start, resumed))
    if resumed is not None and resumed < first:
        return _truncated(first, resumed)
    found = events.follow(call.server, log.name, position, call.is_valid)
    return StreamingResponse(found, 200, events.HEADERS, media_type=SSE)


def _begun(log: Log, start: Start, resumed: int | None) -> tuple[Log, int, int]:
    """Return the log, its first position, and where to begin."""
    return log, log.first_position(), resumed if resumed is not None else begin(log, start)


# Streams.


async def subscribe(call: Call) -> Response:
    """Follow a stream from a version on: the id of each event is its version."""
    call.accepts(SSE)
    if _was_told(call):
        return Response(None, 204)
    resumed = _resumed(call)
    given = call.query.get("start", "0")
    start = resumed if resumed is not None else given if given == "latest" else fields.whole("start", given, least=0)
    stream = call.names["stream"]

    def begin_at(streams: Streams) -> Subscription:
        if resumed:
            version = streams.version(stream)
            if version is None or version + 1 < resumed:
                message = f"stream {stream!r} of log {call.names['log']!r} has no version {resumed - 1}"
                raise NotFound(message, first=0)
        return streams.subscribe(stream, start)  # type: ignore[arg-type]

    return await _followed(call, begin_at, resumed, lambda event: event.version)


async def subscribe_all(call: Call) -> Response:
    """Follow the events of all streams from a position on: the id of each event is its position."""
    call.accepts(SSE)
    if _was_told(call):
        return Response(None, 204)
    resumed = _resumed(call)
    given = call.query.get("start", "earliest")
    named = given in ("earliest", "latest")
    start = resumed if resumed is not None else given if named else fields.whole("start", given, least=0)
    prefix = call.query.get("prefix", "")
    types = call.query["types"].split(",") if "types" in call.query else None

    def begin_at(streams: Streams) -> Subscription:
        return streams.subscribe_all(start, prefix=prefix, types=types)  # type: ignore[arg-type]

    return await _followed(call, begin_at, resumed, lambda event: event.position)


async def _followed(
    call: Call, begin_at: Callable[[Streams], Subscription], resumed: int | None, id_of: Callable[[StreamEvent], int]
) -> Response:
    """Answer with the events of a subscription."""

    def begun() -> Subscription | int:
        try:
            return begin_at(opened_streams(call))
        except NotFound as error:
            if resumed is None or error.first is None:
                raise
            return error.first

    found = await call.read(begun)
    if isinstance(found, int):
        return _truncated(found, resumed or 0)
    return StreamingResponse(_subscribed(call, found, id_of), 200, events.HEADERS, media_type=SSE)


async def _subscribed(
    call: Call, subscription: Subscription, id_of: Callable[[StreamEvent], int]
) -> AsyncIterator[bytes]:
    server, log = call.server, call.names["log"]
    said_us = server.clock.elapsed_us()
    yield events.BEGIN
    with server.woken(log) as woken:
        server.told.add(woken)
        try:
            while not server.draining.is_set():
                woken.clear()
                item = await call.read(lambda: subscription.poll(0.0))
                if not call.is_valid():
                    yield events.spell_ended()
                    return
                if item is not None:
                    yield _spelled(item, id_of)
                elif server.clock.elapsed_us() - said_us >= events.HEARTBEAT_S * 1e6:
                    yield events.HEARTBEAT
                else:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), min(server.look_s(log), events.HEARTBEAT_S))
                    continue
                said_us = server.clock.elapsed_us()
            yield events.spell_draining(subscription.position)
        except TooSlow as error:
            yield events.spell("too-slow", msgspec.json.encode({"detail": str(error)}))
        except OncelogError as error:
            yield events.spell_error(error)
        finally:
            server.told.discard(woken)
            subscription.close()


def _spelled(item: StreamEvent | CaughtUp, id_of: Callable[[StreamEvent], int]) -> bytes:
    if isinstance(item, CaughtUp):
        return events.spell("caught-up", msgspec.json.encode({"position": item.position}))
    return events.spell(None, msgspec.json.encode(spelling.event(item)), id_of(item))
