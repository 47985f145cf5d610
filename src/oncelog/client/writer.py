"""A writer over the wire: a session. Any number of them write one log; the server holds its one writer."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from oncelog import arguments
from oncelog.client.frames_out import Frame
from oncelog.client.sending import Sending, joined, partly
from oncelog.client.session import Opening
from oncelog.concurrency import futures
from oncelog.concurrency.pending import Pending, begun, failed, settle
from oncelog.dedup.producers import ProducerMark
from oncelog.errors import CorruptionError, InvalidArgument, OncelogError, Unsupported
from oncelog.format.payload.tables import Tabular
from oncelog.handle import Handle, closes_anywhere
from oncelog.log.append.answers import Admitted
from oncelog.log.append.counters import Counts
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.ingest.ingester import Ingested, OnConflict, OnReplay
from oncelog.log.producer import Producer
from oncelog.log.stored.staged import Staged
from oncelog.log.writer import Writer
from oncelog.settings import TIMEOUT_S
from oncelog.types import Ack, ColumnAcks, Record
from oncelog.wire.frames import Kind

if TYPE_CHECKING:
    from oncelog.client.log import RemoteLog

_T = TypeVar("_T")


class RemoteWriter(Writer):
    """A session that writes one log. Made by ``Log.writer``; safe to share between threads.

    It flushes and closes its own records, nobody else's. ``Unavailable(outcome="unknown")``: retry with the same id.
    """

    def __init__(self, log: RemoteLog, opening: Opening, *, initial_sequence: int | None = None) -> None:
        Handle.__init__(self)
        self._log = log
        self._sending = Sending(log, opening, initial_sequence=initial_sequence)
        self._acting = threading.local()
        self._assigning = threading.Lock()
        self._assigned: str | None = None
        self._producers: list[RemoteProducer] = []

    # One record.

    def append(
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
    ) -> Ack:
        record = self._checked(Record(value, id, stream, type, headers, producer, sequence, tenant))
        return self._sending.append(record, timeout_s)

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
        record = self._checked(Record(value, id, stream, type, headers, producer, sequence, tenant))
        return self._sending.submit(record, timeout_s)

    def _checked(self, record: Record) -> Record:
        self._check_usable()
        return self._sending.checked(record, self._own_producer)

    def _own_producer(self) -> str:
        with self._assigning:
            if self._assigned is None:
                self._assigned = f"producer-{self._log.channel.clock.token(16).hex()}"
            return self._assigned

    # Many.

    def append_many(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> list[Ack]:
        return self._many(records, timeout_s).waited()

    def submit_many(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> Pending[list[Ack]]:
        return _submitted(lambda: self._many(records, timeout_s))

    def _many(self, records: Sequence[Record], timeout_s: float | None) -> _Call[list[Ack]]:
        self._check_usable()
        results: list[Ack | OncelogError | None] = []
        good: list[Record] = []
        for record in arguments.listed(records):
            try:
                good.append(self._checked(record))
                results.append(None)
            except (InvalidArgument, Unsupported) as error:
                results.append(error)
        if (refusal := self._sending.refusal(good)) is not None:
            results = [refusal if result is None else result for result in results]
            good = []
        deadline_us = self._log.channel.deadline(timeout_s)

        def answer(found: list[list[Ack | OncelogError]]) -> list[Ack]:
            answers = iter(result for part in found for result in part)
            return futures.all_acks([next(answers) if result is None else result for result in results])

        return _Call(self._sending, self._sending.send(good, deadline_us, Kind.EACH), deadline_us, answer)

    def append_batch(
        self,
        records: Sequence[Record],
        *,
        timeout_s: float | None = TIMEOUT_S,
        judge: Callable[[Admitted], None] | None = None,
    ) -> list[Ack]:
        return self._batch(records, timeout_s, judge).waited()

    def submit_batch(
        self,
        records: Sequence[Record],
        *,
        timeout_s: float | None = TIMEOUT_S,
        judge: Callable[[Admitted], None] | None = None,
    ) -> Pending[list[Ack]]:
        return _submitted(lambda: self._batch(records, timeout_s, judge))

    def _batch(
        self, records: Sequence[Record], timeout_s: float | None, judge: Callable[[Admitted], None] | None
    ) -> _Call[list[Ack]]:
        if judge is not None:
            what = "judge"
            raise unsupported(what)
        checked = [self._checked(record) for record in arguments.listed(records)]
        if (refusal := self._sending.refusal(checked)) is not None:
            raise refusal
        deadline_us = self._log.channel.deadline(timeout_s)

        def answer(found: list[list[Ack | OncelogError]]) -> list[Ack]:
            for result in (results := [result for part in found for result in part]):
                if isinstance(result, OncelogError):
                    raise result
            return futures.all_acks(results)

        return _Call(self._sending, self._sending.send(checked, deadline_us, Kind.BATCH), deadline_us, answer)

    def append_arrow(
        self, table: Tabular, *, producer: str | None = None, timeout_s: float | None = TIMEOUT_S
    ) -> ColumnAcks:
        return self._arrow(table, producer, timeout_s).waited()

    def submit_arrow(
        self, table: Tabular, *, producer: str | None = None, timeout_s: float | None = TIMEOUT_S
    ) -> Pending[ColumnAcks]:
        return _submitted(lambda: self._arrow(table, producer, timeout_s))

    def _arrow(self, table: Tabular, producer: str | None, timeout_s: float | None) -> _Call[ColumnAcks]:
        self._check_usable()
        deadline_us = self._log.channel.deadline(timeout_s)
        sent = self._sending.send_table(table, producer, deadline_us, self._own_producer)
        return _Call(self._sending, sent, deadline_us, joined)

    # Producers.

    @arguments.checked
    def as_producer(
        self,
        name: str | None = None,
        *,
        initial_sequence: int | None = None,
        takeover: Literal["polite", "force"] = "polite",
    ) -> Producer:
        """Return a producer: a session of its own. Without a name it is given a unique one."""
        self._check_usable()
        if name == "":
            message = "producer '': must not be empty; leave it out to be given a name"
            raise InvalidArgument(message)
        opening = Opening(self._log.name, name or "", takeover, 0.0)
        producer = RemoteProducer(RemoteWriter(self._log, opening, initial_sequence=initial_sequence))
        self._producers.append(producer)
        return producer

    @property
    def producer(self) -> str:
        self._check_process()
        return self._sending.producer or self._own_producer()

    @property
    def last_sequence(self) -> int | None:
        name = self._sending.producer or self._assigned
        return None if name is None else self.last_sequence_of(name)

    def last_sequence_of(self, name: str) -> int | None:
        mark = self.producers().get(name)
        return None if mark is None else mark.last_sequence

    def producers(self) -> dict[str, ProducerMark]:
        self._check_process()
        return self._log.producers()

    # Living and leaving.

    def flush(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        self._check_usable()
        self._sending.flush(timeout_s)

    def snapshot(self) -> None:
        self._check_usable()
        self._log.job("snapshot")

    @arguments.checked
    def ingest(
        self,
        staged: Sequence[Staged],
        batch: BatchName | None = None,
        *,
        on_conflict: OnConflict = "quarantine",
        on_replay: OnReplay = "error",
        timeout_s: float | None = TIMEOUT_S,
    ) -> Ingested:
        """Make of staged files a part of the log what is not in it; say what that was. With a batch, safe to repeat."""
        self._check_usable()
        files = arguments.instances("staged", staged, Staged)
        return self._log.ingest(files, batch, on_conflict=on_conflict, on_replay=on_replay, timeout_s=timeout_s)

    def counts(self) -> Counts:
        """Return what the server's writer has counted since it took the log."""
        self._check_process()
        return self._log.info().counters or Counts()

    @property
    def window_state(self) -> Mapping[str, int | None]:
        self._check_process()
        return self._log.info().window

    @property
    def last_position(self) -> int:
        return self._log.end_position() - 1

    @closes_anywhere
    def close(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Flush this session's records and end it; the log stays open for others. May be repeated."""
        if self._closed:
            return
        if timeout_s is not None:
            arguments.seconds("timeout_s", timeout_s)
        if not self._closes_now():
            return
        try:
            for producer in self._producers:
                producer.close()
        finally:
            self._sending.close(timeout_s)


class RemoteProducer(Producer):
    """One producer of a log: a session of its own, which counts its sequences. Made by ``Writer.as_producer``."""

    def __init__(self, writer: RemoteWriter) -> None:
        super().__init__(writer, writer.producer)

    @property
    def last_sequence(self) -> int | None:
        self._check_process()
        return self._writer.last_sequence_of(self.name)

    @closes_anywhere
    def close(self) -> None:
        """Flush this producer's records and end its session. May be repeated."""
        if self._closes_now():
            self._writer.close()


class _Call(Generic[_T]):
    """Frames that are on their way, and what makes one answer of theirs."""

    def __init__(
        self,
        sending: Sending,
        sent: Sequence[tuple[Frame, Pending[Any]]],
        deadline_us: int | None,
        answer: Callable[[list[Any]], _T],
    ) -> None:
        self._sending = sending
        self._sent = sent
        self._deadline_us = deadline_us
        self._answer = answer

    def waited(self) -> _T:
        """Wait for all answers."""
        return self._joined(lambda frame, pending: self._sending.waited(frame, pending, self._deadline_us))

    def _joined(self, answered: Callable[[Frame, Pending[Any]], Any]) -> _T:
        """Return one answer of those to the frames, or raise one error that is true of all frames."""
        found: list[Any] = []
        errors: list[OncelogError] = []
        for frame, pending in self._sent:
            try:
                found.append(answered(frame, pending))
            except OncelogError as error:
                errors.append(error)
                if getattr(error, "outcome", "") == "unknown":
                    break
        if errors:
            raise _of_all(errors, stored=bool(found))
        return self._answer(found)

    def pending(self) -> Pending[_T]:
        """Return what has the answer once all are here."""
        pending = begun()
        left = len(self._sent)
        counting = threading.Lock()

        def ended(_: Future[Any] | None) -> None:
            nonlocal left
            with counting:
                left -= 1
                if left > 0:
                    return
            settle(pending, lambda: self._joined(lambda _, one: one.result()))

        for _, one in self._sent:
            one.add_done_callback(ended)
        if not self._sent:
            ended(None)
        return pending


def _of_all(errors: Sequence[OncelogError], *, stored: bool) -> OncelogError:
    """Return the error of a call some frames of which failed. "Not written" must be true of all its frames."""
    first = errors[0]
    unknown = next((error for error in errors if getattr(error, "outcome", "") == "unknown"), None)
    if unknown is not None:
        return unknown
    return partly(first) if stored and not isinstance(first, InvalidArgument | CorruptionError) else first


def _submitted(call: Callable[[], _Call[_T]]) -> Pending[_T]:
    """Return what has the answer to a call that is not waited for. Every error is in it."""
    try:
        return call().pending()
    except OncelogError as error:
        return failed(error)


def unsupported(what: str) -> Unsupported:
    """Return the error for what only the process that holds a log can do."""
    message = (
        f"{what.lstrip('_')}: the server holds the log, and this is not done over a connection: "
        "do it where the database is, by the URL that the server has (file://…, s3://…)"
    )
    return Unsupported(message)


def absent(kind: type, names: Sequence[str]) -> None:
    """Have a class refuse what only the process that holds a log can do."""
    for name in names:

        def refuse(self: object, *args: object, _name: str = name, **kwargs: object) -> None:  # noqa: ARG001
            raise unsupported(_name)

        there = inspect.getattr_static(kind, name, None)
        setattr(kind, name, property(refuse) if isinstance(there, property) else refuse)


WRITER_ABSENT = (
    "_append_rows",
    "_begin_at",
    "_check_held",
    "_epoch",
    "_find",
    "_follow_policy",
    "_forget_producer",
    "_has_ended",
    "_leave_producer",
    "_own_as",
    "_window_from",
)
"""What rooms of one process call of each other on a writer: not a part of the public surface."""

absent(RemoteWriter, WRITER_ABSENT)
