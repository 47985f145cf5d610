"""The desk of a log: one thread that hands everything that has arrived to the log's writer.

One record becomes ``append``, many become one ``append_many``, a table becomes ``append_arrow``. While one group is
being stored the next one gathers, so the number of commits does not grow with the number of callers. All answers of a
group reach the event loop by one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncelog.clock import Clock
from oncelog.errors import (
    AppendErrors,
    Closed,
    IdConflict,
    InvalidArgument,
    LogBusy,
    OncelogError,
    Unavailable,
    WriterFenced,
)
from oncelog.format.payload import intake
from oncelog.log import inner
from oncelog.log.producer import Producer
from oncelog.log.producer_sessions import ProducerTaken
from oncelog.log.writer import Writer
from oncelog.server import noting
from oncelog.types import Ack, Record
from oncelog.wire.failures import LogMoved

if TYPE_CHECKING:
    from oncelog.server.seats import Seat

IDLE_S = 1.0
"""A desk without work lets its thread end after so long."""

GROUP_RECORDS_MAX = 8192
GROUP_BYTES_MAX = 16 << 20
"""What is handed to the writer by one call, at most, unless a single ask has more."""

COMMIT_S = 30.0
"""So long the desk waits for storage; what is not stored by then has an unknown outcome, and stays pending."""

_log = logging.getLogger("oncelog.server")


class Way(Enum):
    """How the records of an ask are decided."""

    EACH = "each"
    BATCH = "batch"
    TABLE = "table"


class Lane:
    """The frames of one write stream. Once a frame was not written because the server could not, no later one is.

    ``generation`` is that of the seat's writer for which the lane was opened: frames of one lane never go to two
    writers, because the second could store a frame although one before it was lost.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.producer: Producer | None = None
        self.stopped: OncelogError | None = None


@dataclass(eq=False, slots=True)
class Ask:
    """Records that somebody wants to have appended.

    ``load`` returns the records, or the table, and is called by the desk's thread; so is ``encode``, which turns the
    result into what ``settled`` gets. ``settled`` is called once, by the event loop.
    """

    way: Way
    load: Callable[[], Any]
    settled: Callable[[Any, OncelogError | None], None]
    size_bytes: int
    records: int
    encode: Callable[[Any], Any] | None = None
    lane: Lane | None = None
    peer: str = ""
    started: bool = field(default=False, init=False)
    loaded: Any = field(default=None, init=False)


Settled = tuple[Ask, Any, OncelogError | None]


class Desk:
    """The queue and the thread of one seat."""

    def __init__(self, seat: Seat, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._seat = seat
        self._loop = loop
        self._clock = clock
        self._changed = threading.Condition()
        self._asks: deque[Ask] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being stored."""
        return not self._asks and not self._busy

    @property
    def waiting(self) -> int:
        """How many asks wait."""
        return len(self._asks)

    def put(self, ask: Ask) -> None:
        """Add an ask behind all others; ``Unavailable``, not written, if no thread can be started for it."""
        with self._changed:
            if self._thread is None:
                self._thread = self._started()
            self._asks.append(ask)
            self._changed.notify()

    def _started(self) -> threading.Thread:
        """Return a thread that works as soon as the lock is free."""
        thread = threading.Thread(target=self._work, name=f"oncelog-desk-{self._seat.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            message = f"log {self._seat.name!r}: the server has no thread to store with ({error}): try again"
            raise Unavailable(message) from error
        return thread

    def withdraw(self, ask: Ask, reason: OncelogError) -> bool:
        """Take an ask back, and stop its lane; tell whether that was in time. What has begun cannot be taken back."""
        with self._changed:
            if ask.started:
                return False
            self._asks.remove(ask)
            if ask.lane is not None and ask.lane.stopped is None:  # what is behind it is still here, too
                ask.lane.stopped = reason
            return True

    # The thread.

    def _work(self) -> None:
        while group := self._next_group():
            try:
                settled = self._appended(group)
            except Exception:  # noqa: BLE001  a bug: the outcome of the group is not known
                _log.exception("the desk of log %r failed", self._seat.name)
                error = Unavailable("the server failed while it stored this: see its log", outcome="unknown")
                settled = [(ask, None, error) for ask in group]
            self._tell(settled)

    def _next_group(self) -> list[Ask]:
        with self._changed:
            self._busy = False
            if not self._asks:
                self._clock.wait(self._changed, IDLE_S)
            if not self._asks:
                self._thread = None
                return []
            group = [self._asks.popleft()]
            while self._asks and _may_join(group, self._asks[0]):
                group.append(self._asks.popleft())
            for ask in group:
                ask.started = True
            self._busy = True
            return group

    def _tell(self, settled: list[Settled]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            self._loop.call_soon_threadsafe(self._seat.settle, settled)

    def _appended(self, group: list[Ask]) -> list[Settled]:
        """Hand a group to the writer; return what became of each ask."""
        try:
            with self._seat.writing() as (writer, generation):
                going = [ask for ask in group if _may_go(ask, generation)]
                refused = [(ask, None, _stopped(ask)) for ask in group if ask not in going]
                done = self._append(writer, going) if going else []
        except OncelogError as error:  # there is no writer
            return [self._refused(ask, error) for ask in group]
        return refused + [self._encoded(one) for one in done]

    def _append(self, writer: Writer, group: list[Ask]) -> list[Settled]:
        loaded, settled = _loaded(group)
        for run in _runs(loaded):
            settled += self._append_run(writer, run) if len(run) > 1 else [self._append_one(writer, run[0])]
        return settled

    def _append_run(self, writer: Writer, run: list[Ask]) -> list[Settled]:
        """Append the records of several asks by one call."""
        try:
            settled = _append_many(writer, run)
        except (Closed, Unavailable, WriterFenced) as error:
            return [self._refused(ask, error) for ask in run]
        except OncelogError:  # nothing was written: one of them is at fault, and the others are not
            return [self._append_one(writer, ask) for ask in run]
        return [self._held(writer, ask, result) for ask, result, _ in settled]

    def _held(self, writer: Writer, ask: Ask, result: Any) -> Settled:
        """Return an answer: "the log was lost" instead of a "no", if the writer has lost the log."""
        error = _lost(writer, result)
        return (ask, result, None) if error is None else self._refused(ask, error)

    def _append_one(self, writer: Writer, ask: Ask) -> Settled:
        if ask.lane is not None and ask.lane.stopped is not None:
            return ask, None, ask.lane.stopped
        target: Writer | Producer = ask.lane.producer if ask.lane is not None and ask.lane.producer else writer
        try:
            result = _append_to(target, ask)
        except OncelogError as error:
            return self._refused(ask, _checked_no(writer, error))
        return self._held(writer, ask, result)

    def _refused(self, ask: Ask, error: OncelogError) -> Settled:
        """Return an error as the answer; stop the lane if nothing behind this ask may be stored before it."""
        if isinstance(error, WriterFenced) and not isinstance(error, ProducerTaken):
            error = LogMoved(str(error), outcome=error.outcome)
        if ask.lane is not None and ask.lane.stopped is None and stops(error):
            ask.lane.stopped = LogMoved(str(error)) if isinstance(error, LogMoved) else error
        return ask, None, error

    def _encoded(self, settled: Settled) -> Settled:
        ask, result, error = settled
        self._note(ask, result, error)
        ask.loaded = None
        if error is None and ask.encode is not None:
            return ask, ask.encode(result), None
        return settled

    def _note(self, ask: Ask, result: object, error: OncelogError | None) -> None:
        """Add the answers to the log's ring. The ring is for people: a bug here does not change an answer."""
        try:
            for one in noting.answered(ask.loaded, result, error, ask.peer, self._clock.now_us()):
                self._seat.ring.add(one)
        except Exception:  # noqa: BLE001
            _log.exception("an answer of log %r was not noted", self._seat.name)


def stops(error: OncelogError) -> bool:
    """Tell whether nothing may be stored behind a frame with this error before its client has begun again.

    That is so when the server could not store the frame, and when its writer is gone.
    """
    if isinstance(error, Unavailable):
        return error.outcome != "unknown"
    return isinstance(error, WriterFenced | LogBusy | Closed)


def _is_no(error: object) -> bool:
    """Tell whether an error says what the log does *not* have, from the writer's memory: a batch that is not whole, a
    sequence out of order. Another writer may have stored it meanwhile. A conflict is true for ever.
    """
    return isinstance(error, InvalidArgument) and not isinstance(error, IdConflict)


def _checked_no(writer: Writer, error: OncelogError) -> OncelogError:
    """Return an error, or that the log was lost, if it is a "no" of a writer that has lost the log."""
    if _is_no(error):
        try:
            inner.check_held(writer)
        except OncelogError as lost:
            return lost
    return error


def _lost(writer: Writer, result: object) -> OncelogError | None:
    """Return the error "the log was lost" if the writer has lost it and an answer is a "no": the next holder may know
    the record. Acks among the answers stay true: their records are stored.
    """
    answers = result.results if isinstance(result, AppendErrors) else result
    if not isinstance(answers, list | tuple) or not any(map(_is_no, answers)):
        return None
    try:
        inner.check_held(writer)
    except OncelogError as error:
        lost = type(error) if isinstance(error, Unavailable | WriterFenced) else Unavailable
        stored = any(isinstance(one, Ack) and not one.duplicate for one in answers)
        return lost(str(error), outcome="unknown" if stored else "not written")
    return None


def _may_join(group: list[Ask], ask: Ask) -> bool:
    """Tell whether an ask can be appended by the same call as those before it."""
    if ask.way is not Way.EACH or group[0].way is not Way.EACH:
        return False
    return (
        sum(one.records for one in group) + ask.records <= GROUP_RECORDS_MAX
        and sum(one.size_bytes for one in group) + ask.size_bytes <= GROUP_BYTES_MAX
    )


def _may_go(ask: Ask, generation: int) -> bool:
    lane = ask.lane
    if lane is None:
        return True
    if lane.stopped is None and lane.generation != generation:
        lane.stopped = Unavailable("the log's writer was opened again since this stream began: open a new stream")
    return lane.stopped is None


def _stopped(ask: Ask) -> OncelogError:
    assert ask.lane is not None
    assert ask.lane.stopped is not None
    return ask.lane.stopped


def _loaded(group: list[Ask]) -> tuple[list[Ask], list[Settled]]:
    """Return the asks whose records could be read, and the errors of the others."""
    good: list[Ask] = []
    bad: list[Settled] = []
    for ask in group:
        try:
            ask.loaded = ask.load()
            if ask.lane is None or ask.lane.producer is None:
                _check_named(ask.loaded)
            good.append(ask)
        except OncelogError as error:
            bad.append((ask, None, error))
    return good, bad


def _check_named(loaded: Any) -> None:
    """Raise ``InvalidArgument`` for a sequence without the name of its producer.

    All callers share the writer of the log. It would give such records one name, and answer the record of one caller
    as a duplicate of another's. The next writer would give another name, and store a retry again.
    """
    if isinstance(loaded, pa.Table):
        names = loaded.schema.names
        if "sequence" not in names or "producer" in names:  # rows with a name are looked at by ``append_arrow``
            return
        given = loaded.column("sequence").is_valid().to_pylist()
    else:
        given = [record.sequence is not None and record.producer is None for record in loaded]
    if True in given:
        column, rule = "sequence", "whose it is must be said: give the name of its producer, too"
        raise intake.refused(column, given.index(True) if len(given) > 1 else None, rule)


def _runs(asks: list[Ask]) -> Iterator[list[Ask]]:
    """Yield asks that can be appended by one call, in their order: records, or rows of the same columns. Those of a
    producer are alone: a name that is open elsewhere is refused for the whole call.
    """
    run: list[Ask] = []
    for ask in asks:
        joinable = _is_joinable(ask)
        if run and not (joinable and _are_alike(run[0].loaded, ask.loaded)):
            yield run
            run = []
        if joinable:
            run.append(ask)
        else:
            yield [ask]
    if run:
        yield run


def _is_joinable(ask: Ask) -> bool:
    if ask.way is not Way.EACH or (ask.lane is not None and ask.lane.producer is not None):
        return False
    if isinstance(ask.loaded, pa.Table):
        return "producer" not in ask.loaded.schema.names
    return all(record.producer is None and record.sequence is None for record in ask.loaded)


def _are_alike(one: object, other: object) -> bool:
    if isinstance(one, pa.Table) and isinstance(other, pa.Table):
        return bool(one.schema.equals(other.schema))
    return not isinstance(one, pa.Table) and not isinstance(other, pa.Table)


def _append_many(writer: Writer, group: list[Ask]) -> list[Settled]:
    """Append the records of several asks by one call, each decided on its own."""
    results: Sequence[Ack | OncelogError]
    if isinstance(group[0].loaded, pa.Table):
        results = inner.append_rows(writer, pa.concat_tables([ask.loaded for ask in group]), COMMIT_S)
    else:
        results = _each(writer, [record for ask in group for record in ask.loaded])
    settled: list[Settled] = []
    at = 0
    for ask in group:
        settled.append((ask, results[at : at + len(ask.loaded)], None))
        at += len(ask.loaded)
    return settled


def _append_to(target: Writer | Producer, ask: Ask) -> Any:
    if ask.way is Way.TABLE:
        table: pa.Table = ask.loaded
        try:
            return target.append_arrow(table, timeout_s=COMMIT_S)
        except AppendErrors as errors:  # an answer to each row, too
            return errors
    if ask.way is Way.BATCH:
        return target.append_batch(ask.loaded, timeout_s=COMMIT_S)
    if isinstance(ask.loaded, pa.Table):
        return inner.append_rows(target, ask.loaded, COMMIT_S)
    return _each(target, ask.loaded)


def _each(target: Writer | Producer, records: Sequence[Record]) -> list[Ack | OncelogError]:
    """Append records, each decided on its own; return an ack or an error for each."""
    if len(records) == 1 and isinstance(target, Writer):
        return [_one(target, records[0])]
    try:
        return list(target.append_many(records, timeout_s=COMMIT_S))
    except AppendErrors as errors:
        return list(errors.results)


def _one(writer: Writer, record: Record) -> Ack | OncelogError:
    try:
        return writer.append(
            record.value,
            id=record.id,
            stream=record.stream,
            type=record.type,
            headers=record.headers,
            tenant=record.tenant,
            producer=record.producer,
            sequence=record.sequence,
            timeout_s=COMMIT_S,
        )
    except (Unavailable, WriterFenced, Closed, LogBusy):
        raise
    except OncelogError as error:  # refused, as append_many would say of this record
        return error
