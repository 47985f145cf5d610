"""The service ``Streams``: events of streams in, by expected versions, and out, as they become durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from oncelog.errors import InvalidArgument, Unavailable
from oncelog.server.call import Caller
from oncelog.server.rpc.log_service import optional
from oncelog.server.server import Server
from oncelog.server.tails import check_this
from oncelog.settings import TIMEOUT_S
from oncelog.streams.events import StreamEvent
from oncelog.streams.streams import Streams
from oncelog.streams.subscription import BEHIND_MAX, Subscription
from oncelog.wire import messages, values

AT_ONCE = 256
"""Events of one message, at most."""

BYTES_MAX = 1 << 20
"""Bytes of events of one message, about, unless a single event has more."""

LISTED_AT_ONCE = 4096
"""Streams of one message of a list, at most."""


class StreamsService:
    """The methods of ``Streams``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods by their names on the wire."""
        return {
            "Append": self.append,
            "Read": self.read,
            "Subscribe": self.subscribe,
            "List": self.list,
            "Version": self.version,
        }

    def _streams(self, name: str) -> Streams:
        return self._server.database.streams(name)

    async def append(self, request: Any, _: Caller) -> Any:
        """Append events to a stream, all or none."""
        records = [values.record(one) for one in request.records]
        timeout_s = optional(request, "timeout_s", TIMEOUT_S)

        def work() -> Any:
            acks = self._streams(request.log).append(
                request.stream, records, expected=values.expected(request), timeout_s=timeout_s
            )
            return messages.StreamAppendResponse(acks=[values.event_ack_message(ack) for ack in acks])

        size_bytes = request.ByteSize()
        await self._server.budget.take(size_bytes)
        try:
            return await self._server.write(work, request.log)
        finally:
            self._server.budget.give(size_bytes)
            self._server.wake(request.log)

    async def read(self, request: Any, _: Caller) -> AsyncIterator[Any]:
        """Yield the events of a stream, or of all."""
        found = await self._server.read(lambda: self._events(request), request.log)
        while (message := await self._server.read(lambda: _events_message(found), request.log)) is not None:
            yield message

    def _events(self, request: Any) -> Iterator[StreamEvent]:
        streams = self._streams(request.log)
        start, limit = optional(request, "start"), optional(request, "limit")
        direction: Any = "backward" if request.backward else "forward"
        if request.HasField("stream"):
            return streams.read(request.stream, start, limit=limit, direction=direction)
        types = list(request.types.types) if request.HasField("types") else None
        return streams.read_all(start, limit=limit, direction=direction, prefix=request.prefix, types=types)

    async def subscribe(self, request: Any, _: Caller) -> AsyncIterator[Any]:
        """Yield events as they become durable, until the client leaves or the server drains."""
        with self._server.woken(request.log) as woken:
            subscription = await self._server.read(lambda: self._subscription(request), request.log)
            self._server.told.add(woken)
            try:
                while not self._server.draining.is_set():
                    woken.clear()
                    found = await self._server.read(lambda: _items(subscription), request.log)
                    for message in found:
                        yield message
                    if not found:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self._server.look_s(request.log)):
                                await woken.wait()
            finally:
                self._server.told.discard(woken)
                self._server.readers.post(subscription.close)
        message = f"this server stops: subscribe again from position {subscription.position}"
        raise Unavailable(message, retry_after_s=self._server.retry_after_s())

    def _subscription(self, request: Any) -> Subscription:
        streams = self._streams(request.log)
        check_this(self._server.open_log(request.log), request.log_id)
        behind = optional(request, "max_behind", BEHIND_MAX)
        start: Any = values.start(request.start, 0 if request.HasField("stream") else "earliest")
        if not isinstance(start, int) and start not in ("earliest", "latest"):
            message = f"start {start!r}: a subscription starts at 'earliest', 'latest', or a number"
            raise InvalidArgument(message)
        if request.HasField("stream"):
            return streams.subscribe(request.stream, 0 if start == "earliest" else start, max_behind=behind)
        types = list(request.types.types) if request.HasField("types") else None
        return streams.subscribe_all(start, prefix=request.prefix, types=types, max_behind=behind)

    async def list(self, request: Any, _: Caller) -> AsyncIterator[Any]:
        """Yield the streams there are."""
        found = await self._server.read(lambda: self._streams(request.log).list(request.prefix), request.log)
        for at in range(0, len(found), LISTED_AT_ONCE):
            part = found[at : at + LISTED_AT_ONCE]
            yield messages.StreamInfos(streams=[values.stream_info_message(one) for one in part])

    async def version(self, request: Any, _: Caller) -> Any:
        """Return the version of a stream."""
        found = await self._server.read(lambda: self._streams(request.log).version(request.stream), request.log)
        return messages.VersionResponse(version=found)


def _events_message(events: Iterator[StreamEvent]) -> Any | None:
    """Return the next events in one message; ``None`` at the end."""
    made = messages.Events()
    size_bytes = 0
    for event in events:
        made.events.append(values.event_message(event))
        size_bytes += len(event.value)
        if len(made.events) >= AT_ONCE or size_bytes >= BYTES_MAX:
            break
    return made if made.events else None


def _items(subscription: Subscription) -> list[Any]:
    """Return what a subscription has now, in messages: events together, ``CaughtUp`` in between."""
    found: list[Any] = []
    size_bytes = count = 0
    while count < AT_ONCE and size_bytes < BYTES_MAX and (item := subscription.poll(0)) is not None:
        count += 1
        if not isinstance(item, StreamEvent):
            found.append(messages.SubscriptionItem(caught_up=item.position))
            continue
        if not found or found[-1].WhichOneof("item") != "events":
            found.append(messages.SubscriptionItem(events=messages.Events()))
        found[-1].events.events.append(values.event_message(item))
        size_bytes += len(item.value)
    return found
