"""Tails and subscriptions over HTTP, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.responses import Response, StreamingResponse

from oncelog.errors import OncelogError, TooSlow
from oncelog.log.log import Log
from oncelog.log.read.scan import Start
from oncelog.server.http import events, fields, spelling
from oncelog.server.http.calls.logs import opened
from oncelog.server.http.calls.records import begin
from oncelog.server.http.calls.streams import opened_streams
from oncelog.server.http.request import Call
from oncelog.streams.events import CaughtUp, StreamEvent
from oncelog.streams.subscription import Subscription

SSE = "text/event-stream"


def _resumed(call: Call) -> int | None:
    """Return the position or version behind ``Last-Event-ID``, if the client was here before."""
    given = call.headers.get("last-event-id", "").strip()
    return fields.whole("Last-Event-ID", given, least=-1) + 1 if given else None


async def tail(call: Call) -> Response:
    """Follow a log from ``start`` on, or behind ``Last-Event-ID``."""
    call.accepts(SSE)
    if call.headers.get("last-event-id") == events.TRUNCATED:
        return Response(None, 204)  # it ends the retries of a browser
    resumed = _resumed(call)
    start = fields.start(call.query.get("start", "latest")) if resumed is None else resumed
    log, first, position = await call.read(lambda: _begun(opened(call), start, resumed))
    if resumed is not None and resumed < first:  # a browser cannot read a 410
        return Response(events.spell_truncated(first, resumed), 200, events.HEADERS, media_type=SSE)
    found = events.follow(call.server, log.name, position, call.is_valid)
    return StreamingResponse(found, 200, events.HEADERS, media_type=SSE)


def _begun(log: Log, start: Start, resumed: int | None) -> tuple[Log, int, int]:
    """Return the log, its first position, and where to begin."""
    return log, log.first_position(), resumed if resumed is not None else begin(log, start)


# Streams.


async def subscribe(call: Call) -> Response:
    """Follow a stream from a version on: the id of each event is its version."""
    call.accepts(SSE)
    resumed = _resumed(call)
    given = call.query.get("start", "0")
    start = resumed if resumed is not None else given if given == "latest" else fields.whole("start", given, least=0)
    stream = call.names["stream"]
    streams = await call.read(lambda: opened_streams(call))
    subscription = await call.read(lambda: streams.subscribe(stream, start))  # type: ignore[arg-type]
    found = _subscribed(call, subscription, lambda event: event.version)
    return StreamingResponse(found, 200, events.HEADERS, media_type=SSE)


async def subscribe_all(call: Call) -> Response:
    """Follow the events of all streams from a position on: the id of each event is its position."""
    call.accepts(SSE)
    resumed = _resumed(call)
    given = call.query.get("start", "earliest")
    named = given in ("earliest", "latest")
    start = resumed if resumed is not None else given if named else fields.whole("start", given, least=0)
    prefix = call.query.get("prefix", "")
    types = call.query["types"].split(",") if "types" in call.query else None
    streams = await call.read(lambda: opened_streams(call))
    subscription = await call.read(lambda: streams.subscribe_all(start, prefix=prefix, types=types))  # type: ignore[arg-type]
    found = _subscribed(call, subscription, lambda event: event.position)
    return StreamingResponse(found, 200, events.HEADERS, media_type=SSE)


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
