"""Frames of a session: records that are sent together, and what takes their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from oncelog.concurrency import futures
from oncelog.concurrency.futures import AckFuture
from oncelog.errors import AppendErrors, Closed, CorruptionError, LogBusy, OncelogError, Unavailable, WriterFenced
from oncelog.log.append import payloads
from oncelog.log.append.groups import record_bytes
from oncelog.types import Ack, ColumnAcks, Record
from oncelog.wire import failures, frames, messages, values
from oncelog.wire.frames import Kind

FRAME_RECORDS = 4096
FRAME_BYTES = 1 << 20
"""So many records that were submitted go into one frame, at most, and so many bytes."""

ROWS_MIN = 8
"""So many records of a frame, or more, are sent in columns: the server need not look at each of them."""

GRACE_S = 1.0
"""So long after its time who waits for a frame still waits for the server's own word."""

Settle = Callable[[Any], None]
"""What takes the answer to a frame: what the server said, or an error."""


class Gathered(NamedTuple):
    """A record that was submitted, and is in no frame yet."""

    record: Record
    pending: Future[Ack]
    size_bytes: int
    deadline_us: int | None
    repeatable: bool


class Made(NamedTuple):
    """What is sent of a frame, and of which records it was made."""

    records: Sequence[Record]
    kind: Kind
    body: Any


class Frame:
    """Records that are sent and answered together.

    ``repeatable``: the log recognises them, by ids or sequences. ``unwritten``: they are surely not stored, so far.
    ``doubtful``: an attempt whose answer will never come may have stored them, so they do not count as unwritten.
    ``told``: the caller has its answer already, and the answer of the server only settles the tag.
    """

    __slots__ = (
        "_made",
        "count",
        "deadline_us",
        "doubtful",
        "kind",
        "order",
        "pendings",
        "records",
        "repeatable",
        "settle",
        "size_bytes",
        "tag",
        "told",
        "unwritten",
    )

    def __init__(
        self,
        kind: Kind,
        settle: Settle,
        *,
        records: Sequence[Record] = (),
        body: Any = None,
        count: int,
        size_bytes: int,
        deadline_us: int | None,
        repeatable: bool,
    ) -> None:
        self.kind = kind
        self.settle = settle
        self.records = records
        self.pendings: list[Future[Ack]] = []
        self._made = None if body is None else Made(records, kind, body)
        self.count = count
        self.size_bytes = size_bytes
        self.deadline_us = deadline_us
        self.repeatable = repeatable
        self.unwritten = True
        self.doubtful = False
        self.told = False
        self.tag = 0  # none yet
        self.order = 0

    def made(self) -> Made:
        """Return what is sent. It is made when it is needed, and kept: what is sent again is the same bytes.

        The thread of a stream calls this without a lock. The stream may have ended since, and ``take_out`` may change
        the records meanwhile. So a body counts only for the very records of which it was made.
        """
        made, records = self._made, self.records
        if made is None or made.records is not records:
            made = self._made = _made(self.kind, records)
        return made

    def take_out(self, pending: Future[Ack]) -> int:
        """Take out a record that nobody waits for any more; return its bytes. The frame is surely not stored."""
        assert self.unwritten
        at = self.pendings.index(pending)
        size_bytes = record_bytes(self.records[at])
        self.records = [*self.records[:at], *self.records[at + 1 :]]
        del self.pendings[at]
        self.count -= 1
        self.size_bytes -= size_bytes
        return size_bytes

    def answer(self, given: Any) -> None:
        """Hand an answer on, once."""
        if not self.told:
            self.told = True
            self.settle(given)

    def is_passing(self, error: OncelogError) -> bool:
        """Tell whether an error passes, and the frame may be sent again after it."""
        if isinstance(error, WriterFenced):
            return error.outcome == "not written" or self.repeatable
        return is_passing(error)


def _made(kind: Kind, records: Sequence[Record]) -> Made:
    """Return records as they are sent: many that are each decided alone in columns."""
    if kind is Kind.EACH and len(records) >= ROWS_MIN:
        return Made(records, Kind.ROWS, memoryview(frames.table_bytes(payloads.payload_of(records))))
    listed = messages.Records(records=[values.record_message(record) for record in records])
    return Made(records, kind, listed.SerializeToString())


def is_passing(error: Exception) -> bool:
    """Tell whether an error says that nothing was done, and that it may be tried again."""
    if isinstance(error, Unavailable):
        return error.outcome == "not written"
    return isinstance(error, LogBusy | Closed)


def given_up(frame: Frame, why: object) -> Unavailable:
    """Return the error for a frame that is not waited for any more."""
    if frame.unwritten:
        return Unavailable(f"not sent: {why}")
    return Unavailable(f"no answer: {why}; retry with the same ids", outcome="unknown")


# Answers.


def results(answer: Any) -> list[Ack | OncelogError]:
    """Return the acks and errors of a frame of records."""
    kind, body = answer
    if kind is Kind.PLACED:
        return frames.placed(body)
    if kind is not Kind.RESULTS:
        message = f"the server answered records by a message of kind {kind.name}"
        raise CorruptionError(message)
    return [failures.from_result(one) for one in messages.Results.FromString(bytes(body)).results]


def columns(answer: Any) -> ColumnAcks | AppendErrors:
    """Return the answer to a table; ``AppendErrors`` if rows of it were refused."""
    kind, body = answer
    if kind is not Kind.COLUMNS:
        message = f"the server answered a table by a message of kind {kind.name}"
        raise CorruptionError(message)
    try:
        return frames.column_acks(body)
    except AppendErrors as refused:
        return refused


def settling(pending: Future[Any], read: Callable[[Any], Any]) -> Settle:
    """Return what gives a future the answer to a frame, as ``read`` makes it of what the server said."""

    def settle(answer: Any) -> None:
        if isinstance(answer, BaseException):
            pending.set_exception(answer)
            return
        try:
            found = read(answer)
        except BaseException as error:  # noqa: BLE001 (the future has it)
            pending.set_exception(error)
        else:
            pending.set_result(found)

    return settle


def _each(answer: Any, count: int) -> Sequence[Any]:
    """Return the answer to each record, or the error for all."""
    if isinstance(answer, BaseException):
        return [answer] * count
    try:
        found = results(answer)
    except Exception as error:  # noqa: BLE001 (the future has it)
        return [error] * count
    message = f"the server answered {len(found)} of {count} records"
    return found if len(found) == count else [CorruptionError(message)] * count


def frame_of(group: Sequence[Gathered], answered: threading.Condition) -> Frame:
    """Return a frame of records that were submitted. Their futures share the condition, but for those of ``append``."""
    deadlines = [one.deadline_us for one in group]
    pendings = [one.pending for one in group]
    frame = Frame(
        Kind.EACH,
        lambda answer: _settle_each(pendings, _each(answer, len(pendings)), answered),
        records=[one.record for one in group],
        count=len(group),
        size_bytes=sum(one.size_bytes for one in group),
        deadline_us=None if None in deadlines else max(one for one in deadlines if one is not None),
        repeatable=all(one.repeatable for one in group),
    )
    frame.pendings = pendings
    return frame


def _settle_each(pendings: Sequence[Future[Ack]], answers: Sequence[Any], answered: threading.Condition) -> None:
    """Give each record of a frame its answer."""
    shared = [(one, answer) for one, answer in zip(pendings, answers, strict=True) if isinstance(one, AckFuture)]
    if shared:
        futures.settle(answered, [([one for one, _ in shared], [answer for _, answer in shared])])
    if len(shared) == len(pendings):
        return
    for pending, answer in zip(pendings, answers, strict=True):
        if isinstance(pending, AckFuture):
            continue
        if isinstance(answer, BaseException):
            pending.set_exception(answer)
        else:
            pending.set_result(answer)
