"""Seats: for each log that a server writes, the one writer, the desk, the budget and the latest answers.

Log, streams and queue take their writer from the seat. A second ``log.writer()`` in the same process would be refused
on a disk, and would take the log from itself in a bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncelog.clock import Clock
from oncelog.errors import AppendErrors, NotFound, OncelogError, Unavailable, WriterFenced
from oncelog.log import inner
from oncelog.log.append.groups import record_bytes
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.server.budget import Budget
from oncelog.server.desk import Ask, Desk, Settled, Way
from oncelog.server.ring import AnswerRing
from oncelog.settings import TIMEOUT_S
from oncelog.types import Ack, ColumnAcks, Record

if TYPE_CHECKING:
    from oncelog.server.server import Server

FAILED_S = 1.0
"""A seat whose writer could not be opened answers with that error for so long, and does not try again."""


class Seat:
    """The one writer of a log in this server. ``append`` and ``append_arrow`` are for the event loop; ``writing`` and
    ``lend`` are for other threads.

    ``generation`` counts the writers that the seat has had.
    """

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self._server = server
        self._clock: Clock = server.clock
        self.ring = AnswerRing(server.ring_budget)
        self.desk = Desk(self, server.loop, server.clock)
        self.budget = Budget(server.settings.log_bytes_max, f"log {name!r}")
        self.generation = 0
        self.opened_us: int | None = None
        """When the writer was opened, in wall time; ``None`` while there is none. Counters begin then."""
        self._changed = threading.Condition()
        self._writer: Writer | None = None
        self._opening = False
        self._users = 0
        self._failure: tuple[int, OncelogError] | None = None
        self._used_us = server.clock.elapsed_us()
        self._closed = False

    # Appending, for the event loop.

    async def append(
        self, records: Sequence[Record], *, atomic: bool = False, timeout_s: float | None = TIMEOUT_S, peer: str = ""
    ) -> list[Ack | OncelogError]:
        """Append records; return an ack or an error for each. With ``atomic`` all or none are stored, and an error is
        raised.

        Raises ``Unavailable`` with outcome ``"not written"`` while the server cannot take them, and with outcome
        ``"unknown"`` when the answer is not there in time. Time over, or a cancelled caller, ends the wait alone.
        """
        way = Way.BATCH if atomic else Way.EACH
        size_bytes = sum(map(record_bytes, records))
        results: list[Ack | OncelogError] = await self._asked(
            way, lambda: records, size_bytes, len(records), timeout_s, peer=peer
        )
        return results

    async def append_arrow(
        self, table: pa.Table | pa.RecordBatch, *, timeout_s: float | None = TIMEOUT_S, peer: str = ""
    ) -> ColumnAcks:
        """Append the rows of a table, as ``Writer.append_arrow`` does; ``AppendErrors`` if rows were refused."""
        acks: ColumnAcks | AppendErrors = await self._asked(
            Way.TABLE, lambda: table, table.nbytes, table.num_rows, timeout_s, peer=peer
        )
        if isinstance(acks, AppendErrors):
            raise acks
        return acks

    async def _asked(
        self, way: Way, load: Callable[[], Any], size_bytes: int, records: int, timeout_s: float | None, *, peer: str
    ) -> Any:
        answer: asyncio.Future[Any] = self._server.loop.create_future()

        def settled(result: object, error: OncelogError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        ask = Ask(way, load, settled, size_bytes, records, peer=peer)
        await self.put(ask)
        timer = None if timeout_s is None else self._server.loop.call_later(timeout_s, self._late, ask, settled)
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()

    def _late(self, ask: Ask, settled: Callable[[Any, OncelogError | None], None]) -> None:
        """End the wait for an ask. What no thread has begun is taken back, and surely not written."""
        busy = Unavailable(f"log {self.name!r} is busy: this was not begun in time")
        if self.withdraw(ask, busy):
            settled(None, busy)
        else:
            message = f"log {self.name!r}: no answer in time; the write goes on: send it again with the same ids"
            settled(None, Unavailable(message, outcome="unknown"))

    def withdraw(self, ask: Ask, reason: OncelogError) -> bool:
        """Take an ask back from the desk, if no thread has begun it."""
        withdrawn = self.desk.withdraw(ask, reason)
        if withdrawn:
            self._give(ask)
        return withdrawn

    async def put(self, ask: Ask) -> None:
        """Hand an ask to the desk when there is room for its bytes; ``Unavailable``, not written, without room."""
        self._check_open()
        self._used_us = self._clock.elapsed_us()
        await self._server.budget.take(ask.size_bytes)
        try:
            await self.budget.take(ask.size_bytes)
            try:
                self._check_open()
                self.desk.put(ask)
            except BaseException:
                self.budget.give(ask.size_bytes)
                raise
        except BaseException:
            self._server.budget.give(ask.size_bytes)
            raise

    def _give(self, ask: Ask) -> None:
        self.budget.give(ask.size_bytes)
        self._server.budget.give(ask.size_bytes)

    def settle(self, settled: list[Settled]) -> None:
        """Answer asks. Called by the desk, in the event loop."""
        self._used_us = self._clock.elapsed_us()
        for ask, result, error in settled:
            self._give(ask)
            ask.settled(result, error)
        self._server.wake(self.name)

    def _check_open(self) -> None:
        if self._closed:
            message = f"log {self.name!r}: this server lets go of it: try again"
            raise Unavailable(message, retry_after_s=self._server.retry_after_s())
        self._server.check_serving()

    # The writer, for threads.

    @contextlib.contextmanager
    def writing(self) -> Iterator[tuple[Writer, int]]:
        """Have the writer, and its generation, opened if necessary. It is not closed inside the ``with`` block."""
        writer, generation = self._sit()
        try:
            yield writer, generation
        finally:
            with self._changed:
                self._users -= 1
                self._used_us = self._clock.elapsed_us()
                if inner.has_ended(writer):
                    self._drop(writer)
                self._changed.notify_all()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Writer]:
        """Have the writer for a while: for streams, queues and ingesting."""
        with self.writing() as (writer, _):
            yield writer

    def warm(self) -> None:
        """Open the writer, if it is not: for a log that another server gives to this one."""
        with self.writing():
            pass

    def _sit(self) -> tuple[Writer, int]:
        with self._changed:
            while self._opening:
                self._clock.wait(self._changed, None)
            self._check_failure()
            if self._writer is not None and not inner.has_ended(self._writer):
                self._users += 1
                return self._writer, self.generation
            if self._closed:
                message = f"log {self.name!r}: this server lets go of it: try again"
                raise Unavailable(message)
            self._opening = True
        try:
            writer = self._server.open_writer(self.name)
        except BaseException as error:
            with self._changed:
                self._opening = False
                if isinstance(error, OncelogError) and not isinstance(error, NotFound):  # it may be made at any time
                    self._failure = (self._clock.elapsed_us(), error)
                self._changed.notify_all()
            raise
        with self._changed:
            self._opening = False
            self._writer = writer
            self.generation += 1
            self.opened_us = self._clock.now_us()
            self._users += 1
            self._changed.notify_all()
            return writer, self.generation

    def _check_failure(self) -> None:
        """Raise the error of the last attempt to open the writer, if that was a moment ago."""
        if self._failure is None:
            return
        at_us, error = self._failure
        if self._clock.elapsed_us() - at_us < FAILED_S * 1e6:
            raise error
        self._failure = None

    def _drop(self, writer: Writer) -> None:
        """Forget a writer that lost the log. The lock is held."""
        if self._writer is writer:
            self._writer, self.opened_us = None, None
            with contextlib.suppress(OncelogError):
                writer.close(timeout_s=0)

    @property
    def writer(self) -> Writer | None:
        """The writer, while there is one: to be looked at."""
        return self._writer

    def is_open(self, generation: int) -> bool:
        """Tell whether the writer of a generation is still the log's writer here."""
        return self._writer is not None and self.generation == generation and not inner.has_ended(self._writer)

    def unused_s(self) -> float:
        """Return for how long nothing was written; 0 while something is."""
        if self._users or self._opening or not self.desk.idle:
            return 0.0
        return (self._clock.elapsed_us() - self._used_us) / 1e6

    def release(self) -> bool:
        """Close the writer if nobody uses it; tell whether there is none now. The seat stays, and opens again."""
        with self._changed:
            if self._users or self._opening or not self.desk.idle:
                return False
            writer, self._writer, self.opened_us = self._writer, None, None
            self._opening = True  # nobody opens it while it is being closed
        try:
            if writer is not None:
                writer.close(timeout_s=TIMEOUT_S)
        finally:
            with self._changed:
                self._opening = False
                self._changed.notify_all()
        return True

    def renew(self) -> None:
        """Close the writer when its present users are done; later users wait for the next writer."""
        with self._changed:
            while self._opening:
                self._clock.wait(self._changed, None)
            self._opening = True  # nobody begins to use it
            while self._users:
                self._clock.wait(self._changed, None)
            writer, self._writer, self.opened_us = self._writer, None, None
        try:
            if writer is not None:
                writer.close()
        finally:
            with self._changed:
                self._opening = False
                self._changed.notify_all()

    def leave(self, timeout_s: float) -> None:
        """Let the log go for good: wait for those who use the writer, then close it.

        Raises ``Unavailable`` with outcome ``"unknown"`` if storage does not take what is pending in time.
        """
        self._closed = True
        deadline_us = self._clock.elapsed_us() + int(timeout_s * 1e6)
        with self._changed:
            while (self._users or self._opening or not self.desk.idle) and self._clock.elapsed_us() < deadline_us:
                self._clock.wait(self._changed, 0.02)
            writer, self._writer, self.opened_us = self._writer, None, None
        if writer is not None:
            with contextlib.suppress(WriterFenced):
                writer.close(timeout_s=max(0.1, (deadline_us - self._clock.elapsed_us()) / 1e6))
        self.ring.clear()


class Seats:
    """The seats of a server, by the names of their logs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._seats: dict[str, Seat] = {}
        self._leaving: set[str] = set()

    def __getitem__(self, name: str) -> Seat:
        """Return the seat of a log, which is made when it is not there. The writer is opened by the first who needs it.

        ``Unavailable`` while the server drains, or has as many seats as it may and all are used, or deletes the log.
        """
        self._server.check_serving()
        with self._lock:
            if name in self._leaving:
                message = f"log {name!r} is being deleted: try again"
                raise Unavailable(message)
            seat = self._seats.pop(name, None) or Seat(self._server, name)
            self._seats[name] = seat  # the least recently asked for comes first
            return seat

    def get(self, name: str) -> Seat | None:
        """Return the seat of a log, if there is one."""
        return self._seats.get(name)

    def all(self) -> list[Seat]:
        """Return all seats, the least recently used first."""
        with self._lock:
            return list(self._seats.values())

    def open_count(self) -> int:
        """Return how many seats have a writer now."""
        return sum(seat.writer is not None for seat in self.all())

    def lender(self, log: Log) -> contextlib.AbstractContextManager[Writer]:
        """Lend the writer of a log to its streams or its queue."""
        return self[log.name].lend()

    def tidy(self) -> None:
        """Close the writers that were not used for a while, and the least used ones if there are too many."""
        settings = self._server.settings
        too_many = self.open_count() - settings.seats_max
        for seat in self.all():
            unused_s = seat.unused_s()
            idle = unused_s >= settings.seat_idle_s
            if seat.writer is None:
                if idle:
                    self._forget(seat)
            elif idle or (too_many > 0 and unused_s > 0):
                with contextlib.suppress(OncelogError):
                    too_many -= seat.release()

    def renew(self, name: str) -> None:
        """Have the next who writes a log open its writer again, by the settings that are stored now. For threads.

        What is under way is stored first; a log that is in use all the time is renewed by ending its writer.
        """
        seat = self.get(name)
        if seat is not None:
            seat.renew()

    def _forget(self, seat: Seat) -> None:
        """Forget a seat without a writer that nobody uses, and its answers."""
        with self._lock:
            if seat.unused_s() > 0 and seat.writer is None and self._seats.get(seat.name) is seat:
                del self._seats[seat.name]
                seat.ring.clear()

    @contextlib.contextmanager
    def without(self, name: str, timeout_s: float) -> Iterator[None]:
        """Let a log go, and do not open its writer inside the ``with`` block: the log is being deleted."""
        with self._lock:
            self._leaving.add(name)
            seat = self._seats.pop(name, None)
        try:
            if seat is not None:
                seat.leave(timeout_s)
            yield
        finally:
            with self._lock:
                self._leaving.discard(name)
