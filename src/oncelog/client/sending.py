"""From records to frames of one session, and from answers to acks: what writers and producers share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from oncelog.client import frames_out
from oncelog.client.frames_out import FRAME_BYTES, FRAME_RECORDS, Frame, Gathered
from oncelog.client.session import Opening, Session
from oncelog.concurrency import futures
from oncelog.concurrency.futures import AckFuture
from oncelog.concurrency.pending import Pending, begun, failed, on_loop
from oncelog.dedup.producers import SEQUENCE_MAX, mixed, used_up
from oncelog.errors import AppendErrors, Closed, InvalidArgument, OncelogError, Unavailable, WriterFenced
from oncelog.format.payload import intake
from oncelog.format.payload.tables import Tabular
from oncelog.log.append import payloads
from oncelog.log.append.groups import record_bytes
from oncelog.log.append.sequences import stamped
from oncelog.settings import LogSettings
from oncelog.types import Ack, ColumnAcks, Record
from oncelog.wire import frames
from oncelog.wire.frames import Kind

if TYPE_CHECKING:
    from oncelog.client.log import RemoteLog

_P = TypeVar("_P")
_T = TypeVar("_T")

TABLE_ROWS = 65_536
TABLE_BYTES = 3 << 20
"""So many rows of a table go into one frame, at most, and about so many bytes."""


class Counting:
    """Counts the sequences of a producer, on the client: what is sent again carries the same ones.

    A session counts all sequences or none: one that was counted would hide a record that brings the same one.
    """

    def __init__(self, name: str, next_sequence: int) -> None:
        self._name = name
        self.next_sequence = next_sequence
        self._counted: bool | None = None

    def claim(self, records: int, given: int) -> None:
        """Raise ``InvalidArgument`` unless so many records, of which ``given`` carry a sequence, may be sent."""
        if 0 < given < records:
            message = f"producer {self._name!r}: some of its records carry a sequence, and some do not"
            raise InvalidArgument(message)
        counted = not given
        if self._counted is not None and self._counted != counted:
            raise mixed(self._name, counted=self._counted)
        if counted and self.next_sequence > SEQUENCE_MAX - records + 1:
            raise used_up(self._name)
        self._counted = counted

    def number(self, record: Record) -> Record:
        """Return a record with its sequence."""
        self.claim(1, int(record.sequence is not None))
        if record.sequence is not None:
            return record
        numbered = msgspec.structs.replace(record, sequence=self.next_sequence)
        self.next_sequence += 1
        return numbered


class Sending:
    """What writers and producers share: from records to frames of one session, and from answers to acks."""

    def __init__(self, log: RemoteLog, opening: Opening, *, initial_sequence: int | None = None) -> None:
        self.settings: LogSettings = log.settings_seen
        if initial_sequence is not None:
            intake.check_record(Record(b"", producer=opening.producer or "assigned", sequence=initial_sequence))
        self._log = log
        self._channel = log.channel
        self.session = Session(
            log.channel,
            opening,
            pending_records=self.settings.pending_records,
            pending_bytes=self.settings.pending_bytes,
        )
        try:
            welcome = self.session.open(opening.wait_s)
        except BaseException:
            self.session.end(Closed("this writer was never open"))
            raise
        self.log_id: str = welcome.log_id
        self.producer: str | None = welcome.producer if welcome.HasField("producer") else None
        self._ordering = threading.Lock()  # records are sent in the order in which they were numbered
        self._counting: Counting | None = None
        if self.producer is not None:
            last = welcome.last_sequence if welcome.HasField("last_sequence") else -1
            self._counting = Counting(self.producer, last + 1 if initial_sequence is None else initial_sequence)

    # One record.

    def checked(self, record: Record, assigned: Callable[[], str]) -> Record:
        """Return a record as it will be sent, or raise ``InvalidArgument``."""
        record = intake.exact(record)
        intake.check_record(record)
        if record.sequence is not None or record.producer is not None or self.producer is not None:
            if record.id is not None:
                raise payloads.named_twice(id=record.id)
            if record.producer is None:
                record = msgspec.structs.replace(record, producer=self.producer or assigned())
        if record.id is not None and self.settings.idempotence == "off":
            message = f"id {record.id!r}: this log has idempotence off, so it cannot keep the promise an id asks for"
            raise InvalidArgument(message)
        return record

    def is_repeatable(self, record: Record) -> bool:
        """Tell whether the log recognises a record that is sent again."""
        if record.producer is not None:
            return record.sequence is not None
        return record.id is not None or self.settings.idempotence == "content"

    def _in_order(self) -> contextlib.AbstractContextManager[object]:
        """Have records sent in the order in which they are numbered; without a producer nothing is numbered."""
        return contextlib.nullcontext() if self._counting is None else self._ordering

    def _numbered(self, record: Record) -> Record:
        """Return a record of this session's producer with its sequence."""
        if self._counting is not None and record.producer == self.producer:
            return self._counting.number(record)
        return record

    def refusal(self, records: Sequence[Record]) -> InvalidArgument | None:
        """Return why the records of this session's producer are refused, if they may not be sent."""
        if self._counting is None or not records:
            return None
        try:
            with self._ordering:
                self._counting.claim(len(records), sum(record.sequence is not None for record in records))
        except InvalidArgument as error:
            return error
        return None

    def submit(self, record: Record, timeout_s: float | None) -> Pending[Ack]:
        """Send a record, in one frame with others that arrive soon after it."""
        pending: Pending[Ack] = AckFuture(self.session.answered)
        try:
            self._submit(record, pending, self._channel.deadline(timeout_s))
        except Unavailable as error:
            return failed(error)
        return pending

    def append(self, record: Record, timeout_s: float | None) -> Ack:
        """Send a record, in one frame with others that arrive soon after it, and wait for its ack."""
        deadline_us = self._channel.deadline(timeout_s)
        pending: Pending[Ack] = begun()  # with a condition of its own: its neighbours' answers wake nobody here
        self._submit(record, pending, deadline_us)
        return self._result(pending, deadline_us, lambda: self.session.withdraw(pending))

    def _submit(self, record: Record, pending: Pending[Ack], deadline_us: int | None) -> None:
        size_bytes = record_bytes(record)
        self.session.room(1, size_bytes, deadline_us)
        if self._counting is None:
            self.session.submit(Gathered(record, pending, size_bytes, deadline_us, self.is_repeatable(record)))
            return
        with self._ordering:
            record = self._numbered(record)
            self.session.submit(Gathered(record, pending, size_bytes, deadline_us, self.is_repeatable(record)))

    # Many.

    def send(
        self, records: Sequence[Record], deadline_us: int | None, kind: Kind
    ) -> list[tuple[Frame, Pending[list[Ack | OncelogError]]]]:
        """Send records, without waiting for the answers."""
        runs = [records] if kind is Kind.BATCH else _runs(records)
        whole = self._room_on_loop(len(records), lambda: sum(map(record_bytes, records)))
        return _sent((run for run in runs if run), lambda run: self._send(kind, run, deadline_us, room=not whole))

    def _room_on_loop(self, count: int, size_bytes: Callable[[], int]) -> bool:
        """On an event loop, ask once for room for all records of a call, and return true.

        Nothing waits there: a call that found room for its first records alone would be written in part.
        """
        if not on_loop():
            return False
        self.session.room(count, size_bytes(), None)
        return True

    def _send(
        self, kind: Kind, records: Sequence[Record], deadline_us: int | None, *, room: bool
    ) -> tuple[Frame, Pending[list[Ack | OncelogError]]]:
        size_bytes = sum(map(record_bytes, records))
        pending = begun()
        if room:
            self.session.room(len(records), size_bytes, deadline_us)
        with self._in_order():
            numbered = [self._numbered(record) for record in records]
            frame = Frame(
                kind,
                frames_out.settling(pending, frames_out.results),
                records=numbered,
                count=len(records),
                size_bytes=size_bytes,
                deadline_us=deadline_us,
                repeatable=all(map(self.is_repeatable, numbered)),
            )
            self.session.send(frame)
        return frame, pending

    def waited(self, frame: Frame, pending: Future[Any], deadline_us: int | None) -> Any:
        """Return the answer to a frame; ``Unavailable`` when its time is over."""
        return self._result(pending, deadline_us, lambda: self.session.expire(frame))

    def _result(self, pending: Future[_T], deadline_us: int | None, give_up: Callable[[], OncelogError]) -> _T:
        """Wait for an answer until a deadline; then give up, and raise what that returns."""
        end_us = None if deadline_us is None else deadline_us + int(frames_out.GRACE_S * 1e6)
        try:
            return pending.result(self._channel.left(end_us))
        except TimeoutError:
            if pending.done():
                return pending.result()
            raise give_up() from None

    # Tables.

    def send_table(
        self, table: Tabular, producer: str | None, deadline_us: int | None, assigned: Callable[[], str]
    ) -> list[tuple[Frame, Pending[ColumnAcks]]]:
        """Send the rows of a table, in frames. A table with a bad row is refused before anything is sent."""
        with self._in_order():
            payload = payloads.intake_of(
                table, self.settings, self.log_id, lambda payload: self._owned_rows(payload, producer, assigned)
            )
            whole = self._room_on_loop(payload.num_rows, lambda: payload.nbytes)
            return _sent(_pieces(payload), lambda piece: self._send_rows(piece, deadline_us, room=not whole))

    def _owned_rows(self, payload: pa.RecordBatch, producer: str | None, assigned: Callable[[], str]) -> pa.RecordBatch:
        name = producer if producer is not None else self.producer
        names = payload.schema.names
        if name is None and "sequence" in names and "producer" not in names:
            name = assigned()
        if name is not None:
            payload = stamped(payload, name)
        if "producer" in payload.schema.names:
            payloads.check_named_once(payload)
        if self._counting is not None and name == self.producer:
            payload = self._counted(payload)
        return payload

    def _counted(self, payload: pa.RecordBatch) -> pa.RecordBatch:
        """Give rows without a sequence the next ones."""
        assert self._counting is not None
        if not (rows := payload.num_rows):
            return payload
        given = rows - payload.column("sequence").null_count if "sequence" in payload.schema.names else 0
        try:
            self._counting.claim(rows, given)
        except InvalidArgument as error:
            futures.all_acks([error] * rows)
        if given:
            return payload
        numbers = pa.array(self._counting.next_sequence + np.arange(rows), pa.int64())
        self._counting.next_sequence += rows
        names = [name for name in payload.schema.names if name != "sequence"]
        columns = {name: payload.column(name) for name in names}
        return pa.record_batch({**columns, "sequence": numbers})

    def _send_rows(
        self, piece: pa.RecordBatch, deadline_us: int | None, *, room: bool
    ) -> tuple[Frame, Pending[ColumnAcks]]:
        body = frames.table_bytes(piece)
        pending = begun()
        frame = Frame(
            Kind.TABLE,
            frames_out.settling(pending, frames_out.columns),
            body=memoryview(body),
            count=piece.num_rows,
            size_bytes=body.size,
            deadline_us=deadline_us,
            repeatable=self._are_repeatable(piece),
        )
        if room:
            self.session.room(piece.num_rows, body.size, deadline_us)
        self.session.send(frame)
        return frame, pending

    def _are_repeatable(self, piece: pa.RecordBatch) -> bool:
        names = piece.schema.names
        full = [name for name in ("id", "sequence") if name in names and not piece.column(name).null_count]
        return bool(full) or self.settings.idempotence == "content"

    # Leaving.

    def flush(self, timeout_s: float | None) -> None:
        """Return when everything was answered; ``Unavailable(outcome="unknown")`` when time runs out first."""
        if not self.session.wait_idle(timeout_s):
            message = "not everything was answered in time: what is pending stays so, retry with the same ids"
            raise Unavailable(message, outcome="unknown")

    def close(self, timeout_s: float | None) -> None:
        """Flush, and end the session."""
        try:
            self.flush(timeout_s)
        finally:
            self.session.end(Closed("this writer is closed"))


def _sent(pieces: Iterable[_P], send: Callable[[_P], _T]) -> list[_T]:
    """Send the pieces of one call, in order. If one cannot be sent, those before it are on their way nevertheless."""
    sent: list[_T] = []
    for piece in pieces:
        try:
            sent.append(send(piece))
        except OncelogError as error:
            if not sent:
                raise
            raise partly(error) from error
    return sent


def partly(error: OncelogError) -> OncelogError:
    """Return the error of one piece of a call as that of the call, of which other pieces are or may be stored."""
    message = f"{error}; other records of this call are stored, or may be: retry the call with the same ids"
    kind = WriterFenced if isinstance(error, WriterFenced) else Unavailable
    return kind(message, outcome="unknown")


def _rows(answer: ColumnAcks | AppendErrors) -> Iterator[Ack | OncelogError]:
    if isinstance(answer, AppendErrors):
        yield from answer.results
        return
    for position, duplicate, conflict in zip(answer.positions, answer.duplicates, answer.conflicts, strict=True):
        place = None if position < 0 else int(position)
        yield Ack(place, None, None, None, bool(duplicate), bool(conflict))


def _runs(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Cut records into runs that each fit a frame."""
    start = size_bytes = 0
    for row, record in enumerate(records):
        record_size = record_bytes(record)
        if row > start and (row - start >= FRAME_RECORDS or size_bytes + record_size > FRAME_BYTES):
            yield records[start:row]
            start, size_bytes = row, 0
        size_bytes += record_size
    if start < len(records):
        yield records[start:]


def _pieces(payload: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not payload.num_rows:
        return
    rows = max(1, min(TABLE_ROWS, payload.num_rows * TABLE_BYTES // max(payload.nbytes, 1)))
    for start in range(0, payload.num_rows, rows):
        yield payload.slice(start, rows)


def joined(answers: Sequence[ColumnAcks | AppendErrors]) -> ColumnAcks:
    """Return the answers to the pieces of a table as the answer to the whole; ``AppendErrors`` if one was refused."""
    parts = [answer for answer in answers if isinstance(answer, ColumnAcks)]
    if len(parts) < len(answers):
        futures.all_acks([result for answer in answers for result in _rows(answer)])
    if not parts:
        return ColumnAcks(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.bool_))
    return ColumnAcks(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.duplicates for part in parts]),
        np.concatenate([part.conflicts for part in parts]),
    )
