"""Streams: what ``Database.streams`` hands out by name."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.concurrency.batcher import Batcher
from oncelog.concurrency.pending import Pending, begun, failed, later, on_loop, settle
from oncelog.errors import IdConflict, InvalidArgument, OncelogError, WriterFenced, WrongExpectedVersion
from oncelog.handle import Handle, closes_anywhere
from oncelog.limits import WINDOW_DURATION_S_MAX
from oncelog.log import inner
from oncelog.log.append.answers import Admitted
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import TIMEOUT_S, LogSettings, Window
from oncelog.streams import reading
from oncelog.streams.event_writer import EventWriter, Foreign
from oncelog.streams.events import (
    NO_VERSION,
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
from oncelog.streams.expecting import Earlier, stored_already
from oncelog.streams.index import Index
from oncelog.streams.reading import Filter, Pieces
from oncelog.streams.subscription import BEHIND_MAX, LiveEvents, Past, Subscription
from oncelog.types import Ack, Record

CAPACITY_VARIABLE = "ONCELOG_DEDUP_CAPACITY"
"""How many event ids a new log of streams remembers, if the environment says so under this name; else all."""

LAST_VERSION = (1 << 31) - 1
"""No stream has so many events: versions take 32 bits."""

Direction = Literal["forward", "backward"]


def default_settings() -> LogSettings:
    """Return the settings of a new log of streams: ids are of their stream, and remembered as long as their events.

    The environment may bound them by number, and not by time.
    """
    text = os.environ.get(CAPACITY_VARIABLE)
    if text is None:
        return LogSettings(id_scope="stream")
    if not text.isascii() or not text.isdecimal() or not int(text):
        message = f"{CAPACITY_VARIABLE}={text}: must be a whole number, 1 or more"
        raise InvalidArgument(message)
    window = Window(duration_s=WINDOW_DURATION_S_MAX, max_keys=int(text))
    return LogSettings(id_scope="stream", window=window)


class Streams(Handle):
    """The event-store face of one log. Made by ``Database.streams``; safe to share between threads.

    The first append claims the log, as ``Log.writer`` does; closing lets it go.
    """

    _what = "event store"

    def __init__(self, log: Log, clock: Clock) -> None:
        super().__init__()
        if log.settings.id_scope != "stream":
            message = f"log {log.name!r} has ids of the whole log (id_scope='log'): it cannot hold streams"
            raise InvalidArgument(message)
        self.name = log.name
        self._log = log
        self._clock = clock
        self._index = Index(log, clock)
        self._event_writer = EventWriter(log, self._index)
        self._live = LiveEvents(log, self._index, clock)
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._submitted: Batcher[Callable[[], None]] = Batcher("oncelog-streams", _call_all)

    def _is_of(self, log: Log) -> bool:
        return self._log is log

    # Appending.

    @arguments.checked
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

        ``expected``: ``"any"``, ``"no stream"``, ``"exists"``, or the version of the stream's last event. Raises
        ``WrongExpectedVersion``; ``IdConflict`` when an id is taken by other content, or stands at another version
        than an exact one asks for; ``PartialOverlap`` for a batch that is neither new nor exactly one that is stored.
        Nothing is written then. A retry under an exact version (or ``"no stream"``) is recognised by the stream itself,
        however long ago; else by the ids that the window remembers.
        """
        self._check_usable()
        judged = _Judged(self._event_writer.judge, stream, self._records(stream, events), check_expected(expected))
        if not judged.records:
            return []
        with self._event_writer.writing(wait_s, self._check_usable) as writer:
            return self._ended(judged, writer, lambda: self._append(judged, writer, timeout_s))

    def _append(self, judged: _Judged, writer: Writer, timeout_s: float | None) -> list[Ack]:
        """Append under a judge; again when others had written to the log since the streams were counted."""
        while True:
            try:
                return writer.append_batch(judged.records, timeout_s=timeout_s, judge=judged)
            except Foreign:
                writer.flush(timeout_s=timeout_s)
                self._event_writer.recount()

    def submit(
        self,
        stream: str,
        events: Record | Iterable[Record],
        *,
        expected: Expected = "any",
        wait_s: float = 5.0,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Pending[list[EventAck]]:
        """Append events to a stream without waiting for them: the future has what ``append`` returns, or its error.

        Events are decided in the order in which they were submitted. Blocks only while too much is pending, and never
        on an event loop.
        """
        pending = begun()
        try:
            self._check_usable()
            judged = _Judged(self._event_writer.judge, stream, self._records(stream, events), check_expected(expected))
            if not judged.records:
                pending.set_result([])
            elif on_loop() or self._submitted.count:
                size_bytes = sum(len(record.value) for record in judged.records)
                self._submitted.put(
                    lambda: self._submit(judged, wait_s, timeout_s, pending), size_bytes=size_bytes, timeout_s=timeout_s
                )
            else:
                self._submit(judged, wait_s, timeout_s, pending)
        except OncelogError as error:
            return failed(error)
        return pending

    def _submit(
        self, judged: _Judged, wait_s: float, timeout_s: float | None, pending: Pending[list[EventAck]]
    ) -> None:
        """Have events admitted. If their answer has to be read from the log, a thread of a pool does that."""
        try:
            with self._event_writer.writing(wait_s, self._check_usable) as writer:
                submitted = self._admit(judged, writer, timeout_s)
        except WrongExpectedVersion as error:
            refused = error
            later(lambda: settle(pending, lambda: self._event_writer.refuse(writer, refused)))
            return
        except BaseException as error:  # noqa: BLE001 (the future has it)
            pending.set_exception(error)
            return

        def ended(done: Future[list[Ack]]) -> None:
            if done.exception() is None and not done.result()[0].duplicate:
                settle(pending, lambda: _acks(done.result(), judged.versions(len(done.result()))))
                later(self._event_writer.look_after, len(judged.records))
            else:
                later(lambda: settle(pending, lambda: self._ended(judged, writer, done.result)))

        submitted.add_done_callback(ended)

    def _admit(self, judged: _Judged, writer: Writer, timeout_s: float | None) -> Pending[list[Ack]]:
        """Have a writer admit events; again when others had written to the log since the streams were counted."""
        while True:
            try:
                return writer.submit_batch(judged.records, timeout_s=timeout_s, judge=judged)
            except Foreign:
                writer.flush(timeout_s=timeout_s)
                self._event_writer.recount()

    def _ended(self, judged: _Judged, writer: Writer, acks_of: Callable[[], list[Ack]]) -> list[EventAck]:
        """Return the acks of events whose batch has ended, or raise what refused it."""
        try:
            acks = acks_of()
        except Earlier as error:
            return stored_already(self._index, self._log, judged.records, error)
        except WrongExpectedVersion as error:
            self._event_writer.refuse(writer, error)
        except WriterFenced:
            self._event_writer.leave(writer)
            raise
        self._event_writer.look_after(len(judged.records))
        if not acks[0].duplicate:
            return _acks(acks, judged.versions(len(acks)))
        return self._original(judged.stream, acks, judged.records, judged.expected)

    def _records(self, stream: str, events: Record | Iterable[Record]) -> list[Record]:
        """Return the events as records of their stream."""
        check_stream(stream)
        records = arguments.listed([events] if isinstance(events, Record) else events)
        for record in records:
            if record.stream not in (None, stream) or record.producer is not None or record.sequence is not None:
                message = f"an event of stream {stream!r} may say no other stream, and no producer"
                raise InvalidArgument(message)
        return [msgspec.structs.replace(record, stream=stream) for record in records]

    def _original(
        self, stream: str, acks: Sequence[Ack], records: Sequence[Record], expected: Expected
    ) -> list[EventAck]:
        """Return the acks of events that came before, at the versions they have."""
        self._index.catch_up()
        positions = [_position(ack) for ack in acks]
        versions = self._index.versions_at(positions[0], len(positions)).tolist()
        exact = NO_VERSION if expected == "no stream" else expected
        if isinstance(exact, int) and versions[0] != exact + 1:
            message = (
                f"id {records[0].id!r} is at version {versions[0]} of stream {stream!r}, "
                f"and would be at {exact + 1}: give this event an id of its own"
            )
            raise IdConflict(message, position=positions[0])
        return _acks(acks, versions)

    # Reading.

    @arguments.checked
    def read(
        self, stream: str, start: int | None = None, *, limit: int | None = None, direction: Direction = "forward"
    ) -> Iterator[StreamEvent]:
        """Yield a stream's events from version ``start`` on (its first, or backward its last, without one).

        Raises ``NotFound`` when there is no such stream. What was truncated away is passed over.
        """
        backward = is_backward(direction)
        self._caught_up()
        begin = arguments.count("start", start) if start is not None else LAST_VERSION if backward else 0
        pages = self._index.find(check_stream(stream), begin, backward=backward)
        return _limited(chain.from_iterable(self._found(pages, backward=backward)), limit)

    def _found(self, pages: Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]], *, backward: bool) -> Pieces:
        """Yield the events of a stream, a piece at a time: what is known of a page is read when it is its turn."""
        scan = inner.scan(self._log)
        for positions, versions in pages:
            order = slice(None, None, -1) if backward else slice(None)
            for events in _turned(reading.pick(scan, positions[order], versions[order]), backward=backward):
                self._check_usable()
                yield events[::-1] if backward else events
            yield []

    @arguments.checked
    def read_all(
        self,
        start: int | None = None,
        *,
        limit: int | None = None,
        direction: Direction = "forward",
        prefix: str = "",
        types: Iterable[str] | None = None,
    ) -> Iterator[StreamEvent]:
        """Yield the events of all streams in the order of the log, from position ``start`` on, or back from it.

        ``prefix`` is what the stream's name must begin with, ``types`` are the types that are wanted.
        """
        backward = is_backward(direction)
        end = self._caught_up()
        wanted = _filter(prefix, types)
        if backward:
            before = end if start is None else min(arguments.count("start", start) + 1, end)
            return _limited(reading.backward(self._index, self._log, before, wanted), limit)
        begin: object = "earliest" if start is None else arguments.count("start", start)
        found = reading.forward(self._index, inner.scan(self._log), begin, end, wanted)
        return _limited(chain.from_iterable(found), limit)

    @arguments.checked
    def list(self, prefix: str = "") -> list[StreamInfo]:
        """Return the streams there are whose names begin so, in the order of their first events."""
        self._caught_up()
        first = self._log.first_position()
        return [
            StreamInfo(stream=name, version=count - 1, count=count, last_position=None if last < first else last)
            for name, count, last in self._index.streams(check_text("prefix", prefix))
        ]

    @arguments.checked
    def version(self, stream: str) -> int | None:
        """Return the version of a stream's last durable event; ``None`` when there is no such stream."""
        self._caught_up()
        found = self._index.version(check_stream(stream))
        return None if found == NO_VERSION else found

    def _caught_up(self) -> int:
        """Bring the index up to date; return the position behind what it has."""
        self._check_usable()
        self._event_writer.open_index()
        return self._index.catch_up()

    # Subscribing.

    @arguments.checked
    def subscribe(
        self, stream: str, start: int | Literal["latest"] = 0, *, max_behind: int = BEHIND_MAX
    ) -> Subscription:
        """Follow a stream from version ``start`` on, whether it is there already or not.

        Yields its events, ``CaughtUp`` once, and then events as they become durable.
        """
        end = self._caught_up()
        check_stream(stream)
        version = LAST_VERSION if start == "latest" else arguments.count("start", start)
        wanted = Filter(stream=stream, version=0 if start == "latest" else version)

        def past(position: int | None) -> tuple[Pieces, int, int]:
            if position is not None:
                return self._past(position, wanted)
            if self._index.version(stream) == NO_VERSION:
                return iter(()), end, end
            found = self._found(self._index.find(stream, version, backward=False), backward=False)
            return ([event for event in events if event.position < end] for events in found), end, end

        return self._subscribed(past, wanted, max_behind)

    @arguments.checked
    def subscribe_all(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        prefix: str = "",
        types: Iterable[str] | None = None,
        max_behind: int = BEHIND_MAX,
    ) -> Subscription:
        """Follow all streams from a position on; ``prefix`` and ``types`` are as in ``read_all``."""
        end = self._caught_up()
        wanted = _filter(prefix, types)
        if start == "latest":
            begin = end
        elif start == "earliest":
            begin = self._log.first_position()
        else:
            begin = arguments.count("start", start)
            inner.scan(self._log).begin(begin)  # NotFound, if it was truncated away or is not there yet

        def past(position: int | None) -> tuple[Pieces, int, int]:
            return self._past(begin if position is None else position, wanted)

        return self._subscribed(past, wanted, max_behind)

    def _past(self, position: int, wanted: Filter) -> tuple[Pieces, int, int]:
        """Return the events from a position on, the position behind them, and the first."""
        end = self._caught_up()
        if end <= position:
            return iter(()), position, position
        return reading.forward(self._index, inner.scan(self._log), position, end, wanted), end, position

    def _subscribed(self, past: Past, wanted: Filter, max_behind: int) -> Subscription:
        subscription = Subscription(self._live, past, wanted, self._clock, max_behind)
        self._subscriptions.add(subscription)
        return subscription

    # Leaving.

    @closes_anywhere
    def close(self) -> None:
        """End the subscriptions, store the index and let the log go. May be repeated."""
        if self._closed:
            return
        if self._of_this_process:
            self._submitted.wait_idle(TIMEOUT_S)
        self._closed = True
        if not self._of_this_process:
            return
        with contextlib.ExitStack() as ending:
            writer = self._event_writer.writer
            if writer is not None and not inner.is_lent(self._log):
                ending.callback(writer.close)
            ending.callback(self._live.close)
            for subscription in list(self._subscriptions):
                ending.callback(subscription.close)
            self._event_writer.housekeeper.stop()
            if writer is not None and not writer.closed:
                with contextlib.suppress(OncelogError):
                    self._event_writer.store_last()


class _Judged:
    """Events on their way into a stream, and the version that they got."""

    def __init__(
        self, judge: Callable[[str, Expected, int, int], int], stream: str, records: list[Record], expected: Expected
    ) -> None:
        self._judge = judge
        self.stream = stream
        self.records = records
        self.expected = expected
        self._first = NO_VERSION

    def __call__(self, admitted: Admitted) -> None:
        """Judge what was decided; raise if the stream is not as expected."""
        if not admitted.duplicates.any():
            first_position = int(admitted.positions[0])
            self._first = self._judge(self.stream, self.expected, first_position, len(self.records))

    def versions(self, count: int) -> range:
        """Return the versions of the events, which are new."""
        return range(self._first, self._first + count)


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _filter(prefix: str, types: Iterable[str] | None) -> Filter:
    wanted = check_types(types)
    return Filter(check_text("prefix", prefix), None if wanted is None else frozenset(wanted))


def _turned(parts: Pieces, *, backward: bool) -> Iterable[list[StreamEvent]]:
    return reversed(list(parts)) if backward else parts


def _limited(events: Iterator[StreamEvent], limit: int | None) -> Iterator[StreamEvent]:
    if limit is None:
        return events
    return islice(events, arguments.count("limit", limit))


def _position(ack: Ack) -> int:
    assert ack.position is not None, "only a sequence is known without its position"
    return ack.position


def _acks(acks: Sequence[Ack], versions: Iterable[int]) -> list[EventAck]:
    return [
        EventAck(
            version=version,
            position=_position(ack),
            timestamp=ack.timestamp,
            duplicate=ack.duplicate,
            conflict=ack.conflict,
        )
        for ack, version in zip(acks, versions, strict=True)
    ]
