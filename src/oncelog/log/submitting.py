"""What a writer does without waiting: ``submit`` and its kin.

On an event loop no call here waits for room, stores or hashes a table: what cannot be put aside at once queues at the
*door*, in order, and one thread of the writer's own admits it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from oncelog import arguments
from oncelog.concurrency.batcher import Batcher
from oncelog.concurrency.futures import AckFuture, settle
from oncelog.concurrency.pending import Pending, failed, on_loop
from oncelog.errors import OncelogError, Unavailable
from oncelog.format.payload.tables import Tabular, table_of
from oncelog.handle import weakly
from oncelog.log.append.absorber import Absorber
from oncelog.log.append.answers import Admitted
from oncelog.log.append.groups import RECORD_OVERHEAD_BYTES, Crowd, record_bytes
from oncelog.log.producer_sessions import Producing
from oncelog.settings import TIMEOUT_S, LogSettings
from oncelog.types import Ack, ColumnAcks, Record

_T = TypeVar("_T")


class Submission(NamedTuple):
    """Rows that were admitted: what was decided, in how many pieces, and what makes the answer once all are stored."""

    admitted: Admitted
    pieces: int
    answer: Callable[[], Any]


class Knock(NamedTuple):
    """A call at the door: what admits it, and the future that fails if it cannot be admitted."""

    admit: Callable[[], None]
    future: AckFuture[Any]


class Submitting(Producing):
    """The part of a writer that does not wait."""

    _settings: LogSettings
    _absorber: Absorber

    def _open_door(self) -> None:
        """Begin with an empty queue at the door."""
        self._door: Batcher[Knock] = Batcher(
            "oncelog-door",
            weakly(self._admit_all),
            items_max=self._settings.pending_records,
            bytes_max=self._settings.pending_bytes,
        )

    @abstractmethod
    def _is_plain(self, value: object, id: object) -> bool: ...

    @abstractmethod
    def _checked(self, record: Record) -> Record: ...

    @abstractmethod
    def _admit_many(self, records: Sequence[Record], deadline_us: int | None) -> Submission: ...

    @abstractmethod
    def _admit_batch(
        self, records: Sequence[Record], deadline_us: int | None, judge: Callable[[Admitted], None] | None
    ) -> Submission: ...

    @abstractmethod
    def _admit_arrow(self, table: Tabular, producer: str | None, deadline_us: int | None) -> Submission: ...

    # One record.

    def submit(
        self,
        value: bytes,
        *,
        id: str | None = None,
        stream: str | None = None,
        type: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        tenant: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Pending[Ack]:
        """Append one record without waiting for it: the future has the ack, or the error, once it is known.

        Blocks only while too much is pending, at most ``timeout_s``. On an event loop it never blocks: as much again
        may queue, and then the future fails with ``Unavailable``, not written.
        """
        future: AckFuture[Ack] = AckFuture(self._committer.answered)
        is_bare = stream is None and type is None and headers is None and tenant is None  # by far the most are
        if is_bare and producer is None and sequence is None and self._is_plain(value, id):
            if timeout_s is not TIMEOUT_S:
                self._deadline(timeout_s)  # for what it refuses
            size_bytes = len(value) + RECORD_OVERHEAD_BYTES + (0 if id is None else len(id))
            if not self._door.count and self._committer.submit_at_once(value, id, size_bytes, future):
                return future
        record = self._checked(Record(value, id, stream, type, headers, producer, sequence, tenant))
        deadline_us = self._deadline(timeout_s)
        admit = partial(self._committer.locked, self._put_aside, record, deadline_us, future)
        if not on_loop():
            admit()
        elif not self._committer.locked(self._put_aside_at_once, record, future):
            self._knock(admit, future, 1, record_bytes(record))
        return future

    def _put_aside(self, record: Record, deadline_us: int | None, future: AckFuture[Ack]) -> None:
        """Put a record aside as soon as there is room. The committer's lock is held."""
        committer = self._committer
        size_bytes = record_bytes(record)
        committer.room(size_bytes, 1, deadline_us)
        if record.producer is not None:
            self._check_owner(record.producer)
        committer.submit(record, size_bytes, future)
        if committer.core.stalled:
            self._absorb()  # what is stored already need not wait for an outage to end

    def _put_aside_at_once(self, record: Record, future: AckFuture[Ack]) -> bool:
        """Put a record aside if that needs no wait and no storage; tell whether it was. The lock is held."""
        committer = self._committer
        size_bytes = record_bytes(record)
        committer.check_open()
        if record.producer is not None:
            self._check_owner(record.producer)
        if self._door.count or committer.core.stalled or not committer.core.has_room(size_bytes, 1):
            return False
        committer.submit(record, size_bytes, future)
        return True

    def _absorb(self) -> None:
        """Decide what was submitted, in its order. The committer's lock is held, but for answering and looking up."""
        self._absorber.absorb()

    # Many.

    def submit_many(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> Pending[list[Ack]]:
        """Append records, each decided on its own, without waiting for them, as ``submit`` does.

        The future has their acks in order, or ``AppendErrors`` if any was refused.
        """
        return self._submitted(lambda: arguments.listed(records), self._admit_many, timeout_s)

    def submit_batch(
        self,
        records: Sequence[Record],
        *,
        timeout_s: float | None = TIMEOUT_S,
        judge: Callable[[Admitted], None] | None = None,
    ) -> Pending[list[Ack]]:
        """Append records all or none, without waiting for them: the future has what ``append_batch`` returns, or its
        error.
        """
        return self._submitted(
            lambda: arguments.listed(records),
            lambda given, deadline_us: self._admit_batch(given, deadline_us, judge),
            timeout_s,
        )

    def submit_arrow(
        self, table: Tabular, *, producer: str | None = None, timeout_s: float | None = TIMEOUT_S
    ) -> Pending[ColumnAcks]:
        """Append the rows of a table without waiting for them: the future has what ``append_arrow`` returns, or its
        error.
        """
        return self._submitted(
            lambda: table_of(table),
            lambda given, deadline_us: self._admit_arrow(given, producer, deadline_us),
            timeout_s,
        )

    def _submitted(
        self, given: Callable[[], _T], admit: Callable[[_T, int | None], Submission], timeout_s: float | None
    ) -> Pending[Any]:
        """Admit rows, here or at the door; return what has their answer. Every error is in it."""
        future: AckFuture[Any] = AckFuture(self._committer.answered)
        try:
            self._check_usable()
            taken = given()
            deadline_us = self._deadline(timeout_s)
            if on_loop():
                self._knock(lambda: self._answer_later(admit(taken, deadline_us), future), future, *_extent(taken))
            else:
                self._answer_later(admit(taken, deadline_us), future)
        except OncelogError as error:
            return failed(error)
        return future

    def _answer_later(self, submission: Submission, future: AckFuture[Any]) -> None:
        """Have a future answered when the last group of the rows is stored."""
        crowd = Crowd([future], lambda: [submission.answer()], pieces=submission.pieces)
        self._committer.locked(self._committer.answer_with, submission.admitted.newest, crowd)

    # The door.

    def _knock(self, admit: Callable[[], None], future: AckFuture[Any], count: int, size_bytes: int) -> None:
        """Queue at the door, for as long as that has room; else the future fails."""
        acting = getattr(self._acting, "producer", None)

        def enter() -> None:
            if acting is None:
                admit()
            else:
                with self._acting_for(acting):
                    admit()

        try:
            self._door.put(Knock(enter, future), count=count, size_bytes=size_bytes)
        except Unavailable as error:
            settle(self._committer.answered, [([future], [error])])

    def _admit_all(self, knocks: Sequence[Knock]) -> None:
        """Admit those who stand at the door, one after the other, each as soon as there is room."""
        for knock in knocks:
            try:
                knock.admit()
            except OncelogError as error:
                settle(self._committer.answered, [([knock.future], [error])])
            except BaseException as error:  # noqa: BLE001 (the committer has ended and says why)
                ended = self._committer.error or Unavailable(repr(error), outcome="unknown")
                settle(self._committer.answered, [([knock.future], [ended])])


def _extent(given: Any) -> tuple[int, int]:
    """Return how many rows were given, and about how many bytes."""
    if isinstance(given, list):
        return len(given), sum(len(record.value) for record in given if isinstance(record.value, bytes))
    return getattr(given, "num_rows", 1), getattr(given, "nbytes", 0)
