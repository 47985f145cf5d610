"""Streams over the wire: the event-store face of a log on a server."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import grpc

from oncelog import arguments
from oncelog.client.channel import Broken, told
from oncelog.client.following import Follower, FollowingHandle
from oncelog.client.frames_out import is_passing
from oncelog.client.log import RemoteLog, close_all
from oncelog.client.reading import ATTEMPTS_MAX
from oncelog.concurrency.batcher import Batcher
from oncelog.concurrency.feeding import AT_ONCE
from oncelog.concurrency.pending import Pending, begun, failed
from oncelog.concurrency.pending import settle as answer
from oncelog.errors import InvalidArgument, OncelogError, Unavailable, WriterFenced
from oncelog.handle import Handle, closes_anywhere
from oncelog.log.log import Log
from oncelog.settings import TIMEOUT_S
from oncelog.streams.events import (
    CaughtUp,
    EventAck,
    Expected,
    StreamEvent,
    StreamInfo,
    check_expected,
    check_stream,
    check_text,
    check_types,
    is_backward,
)
from oncelog.streams.streams import Direction, Streams
from oncelog.streams.subscription import BEHIND_MAX, Subscription
from oncelog.types import Record
from oncelog.wire import messages, values
from oncelog.wire.frames import Kind

_Infos = list[StreamInfo]


class _Append(NamedTuple):
    """Events on their way to a stream."""

    stream: str
    request: Any
    repeatable: bool
    timeout_s: float | None
    pending: Pending[list[EventAck]]


class RemoteStreams(Streams):
    """The event-store face of one log on a server. Made by ``Database.streams``; safe to share between threads."""

    def __init__(self, log: RemoteLog) -> None:
        Handle.__init__(self)
        self.name = log.name
        self._remote = log
        self._channel = log.channel
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._submissions: Batcher[_Append] = Batcher("oncelog-streams", self._append_all)

    def _is_of(self, log: Log) -> bool:
        return self._remote is log

    # Appending.

    def append(
        self,
        stream: str,
        events: Record | Iterable[Record],
        *,
        expected: Expected = "any",
        wait_s: float = 5.0,
        timeout_s: float | None = TIMEOUT_S,
    ) -> list[EventAck]:
        """Append events to a stream, all or none; return where they are, or where they were when they came before.

        After a cut it is sent again if every event has an id: then it is recognised.
        """
        self._check_usable()
        arguments.seconds("wait_s", wait_s)
        one = self._prepared(stream, events, expected, timeout_s)
        return [] if one is None else self._appended(one)

    def submit(
        self,
        stream: str,
        events: Record | Iterable[Record],
        *,
        expected: Expected = "any",
        wait_s: float = 5.0,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Pending[list[EventAck]]:
        try:
            self._check_usable()
            arguments.seconds("wait_s", wait_s)
            one = self._prepared(stream, events, expected, timeout_s)
            if one is not None:
                self._submissions.put(one, size_bytes=one.request.ByteSize(), timeout_s=timeout_s)
        except OncelogError as error:
            return failed(error)
        if one is None:
            done: Pending[list[EventAck]] = begun()
            done.set_result([])
            return done
        return one.pending

    def _prepared(
        self, stream: str, events: Record | Iterable[Record], expected: Expected, timeout_s: float | None
    ) -> _Append | None:
        records = self._records(stream, events)
        exact = check_expected(expected)
        if not records:
            return None
        request = messages.StreamAppendRequest(
            log=self.name,
            stream=stream,
            records=[values.record_message(record) for record in records],
            timeout_s=timeout_s,
        )
        values.set_expected(request, exact)
        # An exact version keeps a repeat from being written. But without ids, a repeat looks like a write of others.
        recognised = all(one.id is not None for one in records)
        return _Append(stream, request, recognised, timeout_s, begun())

    def _appended(self, one: _Append, *, uncertain: bool = False) -> list[EventAck]:
        if one.repeatable:
            found = self._channel.again(
                lambda left_s: self._channel.once("Streams.Append", one.request, left_s),
                one.timeout_s,
                write=True,
                uncertain=uncertain,
            )
        else:
            with told(write=True):
                found = self._channel.once("Streams.Append", one.request, one.timeout_s)
        return [values.event_ack(ack) for ack in found.acks]

    def _append_all(self, submitted: Sequence[_Append]) -> None:
        """Append what was submitted: the events of different streams at once, those of one stream one by one."""
        left = deque(submitted)
        while left:
            seen: set[str] = set()
            later: deque[_Append] = deque()
            round_: list[tuple[_Append, Any]] = []
            for one in left:
                if one.stream in seen:
                    later.append(one)
                    continue
                seen.add(one.stream)
                round_.append((one, self._begun(one)))
            for one, future in round_:
                answer(one.pending, lambda one=one, future=future: self._called(one, future))  # type: ignore[misc]
            left = later

    def _begun(self, one: _Append) -> Any:
        try:
            return self._channel.future("Streams.Append", one.request, one.timeout_s)
        except OncelogError as error:
            return error

    def _called(self, one: _Append, future: Any) -> list[EventAck]:
        """Return the answer to a call that was begun; after a break, call again what may be."""
        if isinstance(future, OncelogError):
            raise future
        try:
            found = future.result()
        except grpc.RpcError as error:
            translated = self._channel.translated(error)
            if is_passing(translated):
                return self._appended(one)
            if one.repeatable and isinstance(translated, Broken | Unavailable | WriterFenced):
                stored = translated.sent if isinstance(translated, Broken) else translated.outcome == "unknown"
                return self._appended(one, uncertain=stored)
            with told(write=True):
                raise translated from None
        return [values.event_ack(ack) for ack in found.acks]

    # Reading.

    def read(
        self, stream: str, start: int | None = None, *, limit: int | None = None, direction: Direction = "forward"
    ) -> Iterator[StreamEvent]:
        self._check_usable()
        request = messages.StreamReadRequest(
            log=self.name, stream=check_stream(stream), start=_start(start), limit=_limit(limit)
        )
        return self._first_then(request, direction, lambda event: event.version)

    def read_all(
        self,
        start: int | None = None,
        *,
        limit: int | None = None,
        direction: Direction = "forward",
        prefix: str = "",
        types: Iterable[str] | None = None,
    ) -> Iterator[StreamEvent]:
        self._check_usable()
        request = messages.StreamReadRequest(
            log=self.name,
            start=_start(start),
            limit=_limit(limit),
            prefix=check_text("prefix", prefix),
            types=_types(types),
        )
        return self._first_then(request, direction, lambda event: event.position)

    def _first_then(
        self, request: Any, direction: Direction, place: Callable[[StreamEvent], int]
    ) -> Iterator[StreamEvent]:
        """Begin to read now, so that a bad call is refused now; yield events, also across breaks."""
        request.backward = is_backward(direction)
        found = self._events(request, place)
        first = next(found, None)

        def rest() -> Iterator[StreamEvent]:
            if first is not None:
                yield first
                yield from found

        return rest()

    def _events(self, request: Any, place: Callable[[StreamEvent], int]) -> Iterator[StreamEvent]:
        attempts = 0
        step = -1 if request.backward else 1
        while not request.HasField("limit") or request.limit > 0:
            self._check_usable()
            try:
                for message in self._channel.stream("Streams.Read", request):
                    attempts = 0
                    for found in message.events:
                        event = values.event(found)
                        yield event
                        self._check_usable()
                        request.start = max(0, place(event) + step)
                        if request.HasField("limit"):
                            request.limit -= 1
                        if request.backward and place(event) == 0:
                            return
            except grpc.RpcError as error:
                attempts += 1
                self._rest(error, attempts)
            else:
                return

    def _rest(self, error: grpc.RpcError, attempts: int) -> None:
        """Rest before another attempt; raise when there is none to be made."""
        self._check_usable()
        found = self._channel.translated(error)
        if attempts >= ATTEMPTS_MAX or (isinstance(found, OncelogError) and not isinstance(found, Unavailable)):
            with told():
                raise found from None
        self._channel.rest(self._channel.pause_s(attempts))

    def list(self, prefix: str = "") -> list[StreamInfo]:
        self._check_usable()
        request = messages.StreamListRequest(log=self.name, prefix=check_text("prefix", prefix))
        return self._channel.again(lambda _: self._listed(request), TIMEOUT_S)

    def _listed(self, request: Any) -> _Infos:
        try:
            parts = list(self._channel.stream("Streams.List", request))
        except grpc.RpcError as error:
            raise self._channel.translated(error) from None
        return [values.stream_info(found) for part in parts for found in part.streams]

    def version(self, stream: str) -> int | None:
        self._check_usable()
        request = messages.StreamRequest(log=self.name, stream=check_stream(stream))
        found = self._channel.ask("Streams.Version", request)
        return int(found.version) if found.HasField("version") else None

    # Subscribing.

    def subscribe(
        self, stream: str, start: int | Literal["latest"] = 0, *, max_behind: int = BEHIND_MAX
    ) -> Subscription:
        self._check_usable()
        check_stream(stream)
        if start == "latest":
            version = self.version(stream)
            begin = 0 if version is None else version + 1
        else:
            begin = arguments.count("start", start)
        request = messages.SubscribeRequest(log=self.name, stream=stream, max_behind=_behind(max_behind))
        return self._kept(RemoteSubscription(self._remote, request, begin, lambda event: event.version))

    def subscribe_all(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        prefix: str = "",
        types: Iterable[str] | None = None,
        max_behind: int = BEHIND_MAX,
    ) -> Subscription:
        self._check_usable()
        wanted = start if start in ("earliest", "latest") else arguments.count("start", start)
        request = messages.SubscribeRequest(
            log=self.name,
            prefix=check_text("prefix", prefix),
            types=_types(types),
            max_behind=_behind(max_behind),
        )
        begin = self._remote.position_at(wanted)
        return self._kept(RemoteSubscription(self._remote, request, begin, lambda event: event.position))

    def _kept(self, subscription: RemoteSubscription) -> RemoteSubscription:
        self._check_usable()
        self._handles.add(subscription)
        return subscription

    @closes_anywhere
    def close(self) -> None:
        """End the subscriptions; what was submitted is sent first. May be repeated."""
        if self._closed:
            return
        if self._of_this_process:
            self._submissions.wait_idle(TIMEOUT_S)
        self._closed = True
        if self._of_this_process:
            close_all(self._handles)


class RemoteSubscription(FollowingHandle, Subscription):
    """Events as they become durable, from some point on. Iterate it, or ``poll``; ``close()`` ends it."""

    def __init__(self, log: RemoteLog, request: Any, start: int, place: Callable[[StreamEvent], int]) -> None:
        Handle.__init__(self)
        self._remote = log
        self._request = request
        self._start = start
        self._place = place
        self._ready = deque()
        self._told = False  # whether the end of the past was reached, on this stream or one before
        self._given = 0
        self.caught_up = False
        self._bell = log.channel.bell
        self._follower: Follower[StreamEvent | CaughtUp] = Follower(
            log.channel, Kind.SUBSCRIBE, self._asked, self._taken
        )

    @property
    def position(self) -> int:
        return self._given

    def _asked(self) -> Any:
        self._request.start.CopyFrom(messages.Start(position=self._start))
        self._request.log_id = self._remote.log_id
        return self._request

    def _taken(self, body: bytes) -> list[StreamEvent | CaughtUp]:
        message = messages.SubscriptionItem.FromString(body)
        if message.WhichOneof("item") == "caught_up":
            again, self._told = self._told, True
            return [] if again else [CaughtUp(message.caught_up)]
        events = [values.event(found) for found in message.events.events]  # first: what cannot be read is not taken
        if events:
            self._start = self._place(events[-1]) + 1
        return list(events)

    def _poll(self, timeout_s: float) -> StreamEvent | CaughtUp | None:
        self._check_usable()
        if not self._ready:
            self._ready += self._follower.next(timeout_s)
            self._check_usable()
        if not self._ready:
            return None
        item = self._ready.popleft()
        self._given = item.position + isinstance(item, StreamEvent)
        self.caught_up = self.caught_up or isinstance(item, CaughtUp)
        return item

    def _look(self) -> list[StreamEvent | CaughtUp]:
        found: list[StreamEvent | CaughtUp] = []
        while len(found) < AT_ONCE and (one := self._poll(0.0)) is not None:
            found.append(one)
        return found


def _start(start: int | None) -> int | None:
    return None if start is None else arguments.count("start", start)


def _limit(limit: int | None) -> int | None:
    return None if limit is None else arguments.count("limit", limit)


def _behind(max_behind: int) -> int:
    if max_behind < 1:
        message = f"max_behind is {max_behind}, must be 1 or more"
        raise InvalidArgument(message)
    return max_behind


def _types(types: Iterable[str] | None) -> Any:
    wanted = check_types(types)
    return None if wanted is None else messages.Types(types=wanted)
