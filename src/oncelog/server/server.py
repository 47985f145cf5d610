"""A server: the database, its seats, and what all calls share. ``rpc`` and ``http`` call it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from oncelog import inner as database_inner
from oncelog.clock import SYSTEM, Clock
from oncelog.connect import Database
from oncelog.errors import OncelogError, Unavailable, WriterFenced
from oncelog.log import inner
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.server.budget import Budget
from oncelog.server.consumers import Consumers
from oncelog.server.crew import Crew
from oncelog.server.fleet.fleet import Fleet
from oncelog.server.fleet.hop import Hop
from oncelog.server.fleet.peers import HolderGone
from oncelog.server.jobs import Jobs
from oncelog.server.ring import RingBudget
from oncelog.server.seats import Seat, Seats
from oncelog.server.security import token_object
from oncelog.server.security.gate import Gate
from oncelog.server.security.token_object import TokenObject
from oncelog.server.sessions import FrameSessions
from oncelog.server.settings import ServeSettings
from oncelog.server.tails import HELD_S, LOOK_BUCKET_S, LOOK_S, LOOKS_MAX, RUNG_S, Tails
from oncelog.server.watch.calls import CallCounts
from oncelog.wire.failures import Misdirected

_T = TypeVar("_T")

READERS = 32
READERS_EACH = 8
"""Threads that read: in all, and for one log or queue."""

WRITERS = 64
WRITERS_EACH = 8
"""Threads for calls that wait for a commit and do not go through a desk (streams, queues, ingesting): in all, and for
one log or queue.
"""

OPENING_WAIT_S = 1.0
"""How long a seat waits for a log on a disk that another process holds. In a bucket the fleet decides."""

TOKENS_LOOK_S = 3.0
"""How often a server looks whether the tokens in the database have changed: everywhere within five seconds."""

TIDY_S = 5.0
"""How long closing what is not used is waited for, before the next look at everything else."""

LEAVE_S_MIN = 0.1
LEAVE_GRACE_S = 2.0
"""What a drain that runs late leaves to each log, and to all of them."""

LEAVE_S = 30.0
"""How long a log that is to be deleted may take to store what is pending."""

_log = logging.getLogger("oncelog.server")


class _WaitingCalls:
    """Those who wait for a thread, of one name."""

    def __init__(self, each: int) -> None:
        self.waiting = 0
        self.limit = asyncio.Semaphore(each)


class Turns:
    """Lets so many calls of one name have a thread at once: a log whose storage hangs must not take them all.

    A call that is cancelled has its turn until the thread is free: clients that give up and try again get no more
    threads than those that wait.
    """

    def __init__(self, crew: Crew, each: int) -> None:
        self._crew = crew
        self._each = each
        self._calls: dict[str, _WaitingCalls] = {}

    async def run(self, work: Callable[[], _T], name: str) -> _T:
        """Run a function in a thread, when it is its turn."""
        calls = self._calls.setdefault(name, _WaitingCalls(self._each))
        calls.waiting += 1
        try:
            await calls.limit.acquire()
        except BaseException:
            self._left(name, calls)
            raise

        def ended() -> None:
            calls.limit.release()
            self._left(name, calls)

        return await self._crew.run(work, ended)

    def _left(self, name: str, calls: _WaitingCalls) -> None:
        calls.waiting -= 1
        if not calls.waiting:
            self._calls.pop(name, None)


class Server:
    """What the calls of one server share. Made in the event loop that serves.

    ``seats[name]`` has the one writer of a log. ``readers`` runs calls that read, ``writers`` calls that wait for a
    commit, ``workers`` long jobs. None of them may run on the event loop itself.
    """

    def __init__(self, database: Database, settings: ServeSettings, *, clock: Clock = SYSTEM) -> None:
        self.database = database
        self.settings = settings
        self.fleet: Fleet | None = None
        """The other servers of the database; a database on a disk has one server."""
        self.tokens = TokenObject(database_inner.home(database, token_object.HOME))
        """The tokens in the database. They are used unless the settings name a file."""
        self.gate: Gate | None = None
        """Judges every call of gRPC; HTTP sets it, and judges its own calls by the same functions."""
        self.calls = CallCounts()
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.name = settings.name or settings.grpc
        self.started_us = clock.now_us()
        self.budget = Budget(settings.received_bytes_max, "this server")
        self.ring_budget = RingBudget(settings.ring_bytes_max)
        self.readers = Crew("read", READERS, clock=clock)
        self.writers = Crew("write", WRITERS, clock=clock)
        self.workers = Crew("job", 1, waiting_max=100, clock=clock)
        self.closers = Crew("close", 8, clock=clock)
        self.seats = Seats(self)
        self.sessions = FrameSessions(self)
        self.tails = Tails(self)
        self.jobs = Jobs(self)
        self.consumers = Consumers(self)
        self.draining = asyncio.Event()
        """Set when the server begins to stop: streams say so to their clients, and end."""
        self.told: set[asyncio.Event] = set()
        """Set, all of them, when the server begins to drain."""
        self.ready = False
        self.on_drain: list[Callable[[], Awaitable[None]]] = []
        """Called, and not waited for, when the server begins to drain."""
        self._telling: list[asyncio.Future[None]] = []
        self._reading = Turns(self.readers, READERS_EACH)
        self._writing = Turns(self.writers, WRITERS_EACH)
        self._wakers: dict[str, set[Callable[[], None]]] = {}
        self._tidying: asyncio.Task[None] | None = None
        database_inner.lend_writers(database, self.seats.lender, lambda name: self.seats.without(name, LEAVE_S))

    # Serving.

    def start(self) -> None:
        """Begin to serve."""
        self.ready = True
        self._tidying = self.loop.create_task(self._tidy())

    def check_serving(self) -> None:
        """Raise ``Unavailable``, not written, once the server drains, and while it does not reach its bucket."""
        if self.draining.is_set():
            message = "this server stops: connect again, here later or to another one"
            raise Unavailable(message, retry_after_s=self.retry_after_s())
        self.check_bucket()

    def check_bucket(self) -> None:
        """Raise ``Unavailable``, not written, while this server of a fleet does not reach its bucket."""
        if self.is_cut_off:
            message = "this server does not reach its bucket: call another one, or this one later"
            raise Unavailable(message, retry_after_s=self.retry_after_s())

    @property
    def is_cut_off(self) -> bool:
        """Whether the other servers of the fleet take this one for dead, because it does not reach the bucket."""
        return self.fleet is not None and self.fleet.is_cut_off

    def hop_of(self, sealed: bytes | str | None) -> Hop | None:
        """Return what another server says of a call that it hands on to this one; ``None`` if none did.

        ``Misdirected`` if the call was not meant for this server.
        """
        if sealed is None:
            return None
        if self.fleet is None:
            message = "this call was handed on by a server of a fleet, and this server is in none: it is not served"
            raise Misdirected(message)
        return self.fleet.hop_of(sealed)

    def retry_after_s(self) -> float:
        """Return how long a client that was refused should wait: about a second, not the same for all of them."""
        return 0.5 + self.clock.chance()

    async def _tidy(self) -> None:
        """Close what is not used any more, once a second. A log that is slow to close does not hold up the rest."""
        looked_us = self.clock.elapsed_us()
        closing: asyncio.Future[None] | None = None
        while True:
            await asyncio.sleep(1.0)
            if closing is None:
                closing = asyncio.ensure_future(self.closers.run(self.seats.tidy))
            await asyncio.wait({closing}, timeout=TIDY_S)
            if closing.done():
                if not closing.cancelled() and closing.exception() is not None:  # it is tried again
                    _log.error("closing what is not used failed", exc_info=closing.exception())
                closing = None
            if not self.settings.tokens and self.clock.elapsed_us() - looked_us >= TOKENS_LOOK_S * 1e6:
                looked_us = self.clock.elapsed_us()
                self.closers.post(self.tokens.look)
            if self.is_cut_off:
                self.sessions.cut(HolderGone())
            self.sessions.tidy(self.clock.elapsed_us())
            self.consumers.tidy(self.clock.elapsed_us())

    # Logs and their writers.

    def open_log(self, name: str) -> Log:
        """Open a log that exists. For threads."""
        return self.database.log(name)

    def open_writer(self, name: str) -> Writer:
        """Become the writer of a log. For the log's seat, in a thread."""
        log = self.database.log(name)
        return log.writer(wait_s=OPENING_WAIT_S) if self.fleet is None else self.fleet.take(log)

    async def delete_log(self, name: str) -> None:
        """Let a log go here, and delete it. ``LogBusy`` if another process holds it."""
        await self.write(lambda: self.database.delete(name), name)
        self.tails.forget(name)
        self.wake(name)

    async def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Let the logs of a queue and of its dead letters go here, and delete them."""
        state = self.settings.queue_state
        await self.write(lambda: self.database.delete_queue(name, force=force, state=state), name)

    async def read(self, work: Callable[[], _T], name: str | None = None) -> _T:
        """Run a function that reads, in a thread. ``name`` is the log or queue that it reads, if it is one."""
        return await (self.readers.run(work) if name is None else self._reading.run(work, name))

    async def write(self, work: Callable[[], _T], name: str = "") -> _T:
        """Run a function that waits for a commit, in a thread; not while the server drains."""
        self.check_serving()
        try:
            return await self._writing.run(work, name)
        except WriterFenced as error:  # of a server it means: ask again, and reach the one that has the log now
            message = f"another writer took what belongs to {name!r} while this was on its way: try again"
            raise Unavailable(message, outcome=error.outcome) from error

    def wake_queue(self, name: str) -> None:
        """Wake all who wait for a message of a queue. For the event loop."""
        self.wake(f"queue {name}")

    def queue_woken(self, name: str) -> contextlib.AbstractContextManager[asyncio.Event]:
        """Have an event that is set whenever something may have changed in a queue by this server."""
        return self.woken(f"queue {name}")

    # Waking who waits for a log.

    def wake(self, name: str) -> None:
        """Wake all who wait for something to be appended to a log. For the event loop."""
        for ring in tuple(self._wakers.get(name, ())):
            ring()

    @contextlib.contextmanager
    def woken(self, name: str) -> Iterator[asyncio.Event]:
        """Have an event that is set whenever something was appended to a log by this server."""
        event = asyncio.Event()
        try:
            with self.waking(name, event.set):
                yield event
        finally:
            if self.fleet is not None and name not in self._wakers:
                self.fleet.bells.leave(name)

    @contextlib.contextmanager
    def waking(self, name: str, ring: Callable[[], None]) -> Iterator[None]:
        """Have a function called whenever something was appended to a log by this server."""
        waiting = self._wakers.setdefault(name, set())
        waiting.add(ring)
        try:
            yield
        finally:
            waiting.discard(ring)
            if not waiting:
                self._wakers.pop(name, None)

    def is_held(self, name: str) -> bool:
        """Tell whether this server has the writer of a log now."""
        seat = self.seats.get(name)
        writer = None if seat is None else seat.writer
        return writer is not None and not inner.has_ended(writer)

    def open_count(self) -> int:
        """Return how many logs have their writer open here."""
        return self.seats.open_count()

    def look_s(self, name: str) -> float:
        """Return after how long a follower of a log looks by itself for what others have written. For the event loop.

        The holder of the log wakes its followers: here by its appends, and in a fleet from another server by a bell.
        """
        return max(self._look_s(name), self.tails.hubs / LOOKS_MAX)

    def _look_s(self, name: str) -> float:
        if self.is_held(name):
            return HELD_S
        if self.fleet is None:
            return LOOK_S if self.database.url.startswith(("file:", "memory:")) else LOOK_BUCKET_S
        return RUNG_S if self.fleet.bells.is_heard(name) else LOOK_BUCKET_S

    # Ending.

    def begin_drain(self) -> None:
        """Take nothing new: the server is not ready any more, and streams tell their clients."""
        self.ready = False
        self.draining.set()
        self.tails.wake()
        for event in self.told:
            event.set()
        if self._tidying is not None:
            self._tidying.cancel()
        for tell in self.on_drain:
            self._telling.append(asyncio.ensure_future(tell()))

    async def leave_logs(self) -> None:
        """Store what has arrived, and let every log go, within ``drain_s``, also if storage hangs."""
        deadline_us = self.clock.elapsed_us() + int(self.settings.drain_s * 1e6)
        leaving = [self.closers.run(functools.partial(self._leave, seat, deadline_us)) for seat in self.seats.all()]
        try:
            async with asyncio.timeout(self.settings.drain_s + LEAVE_GRACE_S):
                await asyncio.gather(*leaving)
        except TimeoutError:
            _log.warning("not all logs were closed in time: the next writer decides what is in them")

    def _leave(self, seat: Seat, deadline_us: int) -> None:
        was_open = seat.writer is not None
        try:
            seat.leave(max(LEAVE_S_MIN, (deadline_us - self.clock.elapsed_us()) / 1e6))
        except OncelogError as error:
            _log.warning("log %r was not closed: %s; the next writer decides what is in it", seat.name, error)
        if was_open and self.fleet is not None:
            self.fleet.give(seat.name)
