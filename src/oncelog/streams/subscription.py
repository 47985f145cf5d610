"""Subscriptions: they catch up from the log, say so, and go on live without a gap or a repeat.

What is live is read once for all of a process: a subscriber that wants more reads on if nobody reads, and the others
wait for what it finds. A subscriber that finds its place gone from what is kept reads from the log again; one that is
too far behind the log's end gets ``TooSlow``, and is ended.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.concurrency.feeding import AT_ONCE, Fed
from oncelog.errors import Closed, InvalidArgument, TooSlow
from oncelog.handle import closes_anywhere
from oncelog.limits import MIB
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.read.reader import Tail
from oncelog.streams import reading
from oncelog.streams.events import CaughtUp, StreamEvent
from oncelog.streams.index import Index
from oncelog.streams.reading import Filter, Pieces

LIVE_EVENTS = 8192
LIVE_BYTES = 32 * MIB
"""So many of the newest events are kept for all subscribers, and so many bytes of them; for a while twice as many."""

BEHIND_MAX = 100_000
"""So many records a live subscriber may be behind the log's end, unless it says otherwise."""

POLL_S = 1.0

PIECES_MIN = 64
"""So many pieces of the log a poll reads before it looks at the time: a caller that does not wait makes progress."""

Past = Callable[[int | None], tuple[Pieces, int, int]]
"""What gives the events from a position on (``None``: from the start), the position behind them, and the first."""


class LiveEvents:
    """The newest events of a log, for all subscribers of a process. Safe to share between threads.

    It holds all events from position ``since`` to before ``until``; ``end`` is where the log was seen to end.
    """

    def __init__(self, log: Log, index: Index, clock: Clock) -> None:
        self._log = log
        self._index = index
        self._clock = clock
        self._changed = threading.Condition()
        self._events: list[StreamEvent] = []
        self._size_bytes = 0
        self._reading = False
        self._joined = 0
        self._tail: Tail | None = None
        self.since = self.until = self.end = 0

    def join(self, position: int) -> bool:
        """Tell whether all events from a position on are, or will be, here; then the caller has joined."""
        with self._changed:
            if self._tail is None:
                self._tail = self._log.tail(position)
                self._events, self._size_bytes = [], 0
                self.since = self.until = self.end = position
            joined = self.since <= position
            self._joined += joined
            return joined

    def leave(self) -> None:
        """Note that somebody who had joined has gone; when the last one has, nothing is kept."""
        with self._changed:
            self._joined -= 1
            tail = self._tail if not self._joined else None
            if tail is not None:
                self._tail = None
        if tail is not None:
            tail.close()
        self.wake()

    def after(self, position: int) -> tuple[list[StreamEvent], int] | None:
        """Return the events from a position on and the position behind them; ``None`` when that is too long ago."""
        with self._changed:
            if not self.since <= position:
                return None
            at = bisect.bisect_left(self._events, position, key=lambda event: event.position)
            return self._events[at:], max(self.until, position)

    def wait(self, position: int, timeout_s: float, ended: Callable[[], bool]) -> None:
        """Return when there is something from a position on, or the time is over, or ``ended`` says so."""
        deadline_us = self._clock.elapsed_us() + int(timeout_s * 1e6)
        with self._changed:
            while self.until <= position and self._reading and not ended():
                left_s = (deadline_us - self._clock.elapsed_us()) / 1e6
                if left_s <= 0:
                    return
                self._clock.wait(self._changed, min(left_s, POLL_S))
            if self.until > position or ended():
                return
            self._reading = True
        try:
            self._read(max(0.0, (deadline_us - self._clock.elapsed_us()) / 1e6))
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def wait_for_change(self, timeout_s: float) -> None:
        """Return when the log may have grown, or ``wake`` was called, or the time is over."""
        tail = self._tail
        if tail is not None:
            tail._await_more(timeout_s)  # noqa: SLF001 (as the feeder of tails does)

    def _read(self, timeout_s: float) -> None:
        """Read on, waiting for something if there is nothing yet."""
        tail = self._tail
        if tail is None:
            return
        try:
            found = tail.poll_rows(min(timeout_s, POLL_S))
        except Closed:
            return  # the last one has left
        if not found:
            return
        self._index.catch_up()
        events = [event for rows in found for event in reading.all_rows(self._index, rows)]
        end = tail.end()
        with self._changed:
            if tail is not self._tail:
                return
            self._events += events
            self._size_bytes += sum(map(_size_bytes, events))
            self.until, self.end = found[-1].next_position, end
            if len(self._events) > 2 * LIVE_EVENTS or self._size_bytes > 2 * LIVE_BYTES:
                self._let_go()

    def _let_go(self) -> None:
        """Keep the newest events only. Who is not there yet reads the others from the log."""
        kept = size_bytes = 0
        for event in reversed(self._events[-LIVE_EVENTS:]):
            if size_bytes + _size_bytes(event) > LIVE_BYTES:
                break
            kept, size_bytes = kept + 1, size_bytes + _size_bytes(event)
        del self._events[: len(self._events) - kept]
        self._size_bytes = size_bytes
        self.since = self._events[0].position if kept else self.until

    def wake(self) -> None:
        """Make everybody who waits look whether they have ended."""
        inner.home(self._log).wake()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End: nobody reads on."""
        tail = self._tail
        if tail is not None:
            tail.close()
        self.wake()


def _size_bytes(event: StreamEvent) -> int:
    return len(event.value) + sum(map(len, (event.headers or {}).values()))


class Subscription(Fed[StreamEvent | CaughtUp]):
    """Events as they become durable, from some point on. Iterate it (``for``, or in a task ``async for``), or ``poll``;
    ``close()`` ends it from any thread.

    Yields ``CaughtUp`` once, when it has come to the end of what there was. Used by one thread at a time. Raises
    ``TooSlow`` when it falls too far behind after that; ``position`` is where to subscribe again.
    """

    _what = "subscription"

    def __init__(self, live: LiveEvents, past: Past, wanted: Filter, clock: Clock, behind_max: int) -> None:
        super().__init__()
        if behind_max < 1:
            message = f"max_behind is {behind_max}, must be 1 or more"
            raise InvalidArgument(message)
        self._live = live
        self._past = past
        self._wanted = wanted
        self._clock = clock
        self._behind_max = behind_max
        self._ready: deque[StreamEvent | CaughtUp] = deque()
        self._events, self._until, self._given = past(None)
        self._catching_up = True
        self._joined = False
        self.caught_up = False

    @property
    def position(self) -> int:
        """The position of the next record that was not looked at yet, or not handed out: where to go on."""
        if self._catching_up or self._ready:
            return self._given
        return self._until

    def __iter__(self) -> Self:
        """Return the subscription itself."""
        return self

    def __next__(self) -> StreamEvent | CaughtUp:
        """Return the next event, whenever it comes; ends when the subscription is closed."""
        while True:
            try:
                found = self.poll(POLL_S)
            except Closed:
                if self._closed:
                    raise StopIteration from None
                raise
            if found is not None:
                return found

    def poll(self, timeout_s: float = 0.0) -> StreamEvent | CaughtUp | None:
        """Return the next event, or ``CaughtUp``, waiting up to ``timeout_s``; ``None`` when none came.

        While it is not ``caught_up``, ``None`` says that nothing that is wanted was found in time; the next call reads
        on from there. ``Closed`` once closed, ``TooSlow`` once too far behind.
        """
        self._check_unfed()
        if self._unread:
            self._check_usable()
            return self._unread.popleft()
        self._iterated = True
        try:
            return self._poll(arguments.seconds("timeout_s", timeout_s))
        finally:
            self._iterated = False

    def _poll(self, timeout_s: float) -> StreamEvent | CaughtUp | None:
        deadline_us = self._clock.elapsed_us() + int(timeout_s * 1e6)
        pieces = 0
        while True:
            self._check_usable()
            if self._ready:
                return self._give(self._ready.popleft())
            if self._catching_up:
                if pieces >= PIECES_MIN and self._clock.elapsed_us() >= deadline_us:
                    return None
                pieces += 1
                self._catch_up()
                continue
            if self._take_live():
                continue
            left_s = max(0.0, (deadline_us - self._clock.elapsed_us()) / 1e6)
            self._live.wait(self._until, left_s, lambda: self._closed)
            self._check_usable()
            if not self._take_live() and self._clock.elapsed_us() >= deadline_us:
                return None

    def _look(self) -> list[StreamEvent | CaughtUp]:
        found: list[StreamEvent | CaughtUp] = []
        while len(found) < AT_ONCE and (one := self._poll(0.0)) is not None:
            found.append(one)
            if not self._ready:
                break
        return found

    def _await_more(self, timeout_s: float) -> None:
        if not self._catching_up:
            self._live.wait_for_change(timeout_s)

    def _end_wait(self) -> None:
        self._live.wake()

    def _source(self) -> object:
        return self._live

    def _give(self, event: StreamEvent | CaughtUp) -> StreamEvent | CaughtUp:
        self._given = event.position + isinstance(event, StreamEvent)
        return event

    def _catch_up(self) -> None:
        """Take one more piece of the past, or come to its end: then go live, or read on from where that is."""
        events = next(self._events, None)
        if events is not None:
            self._ready += events
            return
        before = self._until
        self._events, self._until, _ = self._past(before)
        if self._until > before:
            return
        if self._joined or self._live.join(self._until):
            self._joined = True
            self._catching_up = False
            if not self.caught_up:
                self.caught_up = True
                self._ready.append(CaughtUp(self._until))

    def _take_live(self) -> bool:
        """Take what is live from here on; if that is gone, go on from the log. Return whether there is anything."""
        found = self._live.after(self._until)
        self._check_behind(self._live.end)
        if found is None:
            self._given = self._until
            self._catching_up = True
            self._events = iter(())
            return True
        events, until = found
        self._ready += [event for event in events if self._wanted.wants(event)]
        if not self._ready:
            self._given = until
        self._until = until
        return bool(self._ready)

    def _check_behind(self, end: int) -> None:
        behind = end - self._until
        if behind > self._behind_max:
            self.close()
            message = (
                f"this subscriber is {behind} records behind the end of the log, and may be {self._behind_max}: "
                f"subscribe again from position {self.position}"
            )
            raise TooSlow(message)

    @closes_anywhere
    def close(self) -> None:
        """End the subscription; a thread that waits in it returns."""
        if self._closes_now():
            if self._joined:
                self._live.leave()
            else:
                self._live.wake()
