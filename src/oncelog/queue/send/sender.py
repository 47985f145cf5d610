"""The way in: the gate that knows how each attempt to send ended, and the append behind it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from oncelog.clock import Clock
from oncelog.errors import (
    AppendErrors,
    Closed,
    CorruptionError,
    IdConflict,
    InvalidArgument,
    OncelogError,
    Unavailable,
    WriterFenced,
)
from oncelog.format.payload import plain
from oncelog.log import inner
from oncelog.log.append.answers import id_conflict
from oncelog.log.writer import Writer
from oncelog.queue.rules import message as message_module
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.settings import QueueSettings
from oncelog.queue.send.topic import Topic
from oncelog.queue.send.writer_turns import WriterTurns
from oncelog.queue.state import gate
from oncelog.queue.state.database import WAIT_S, WAIT_S_MIN, StateDatabase, patience_s
from oncelog.types import Ack, AckRun, Entry, Record, moment

OnPending = Literal["join", "refuse"]
Status = Literal["PENDING", "COMMITTED", "FAILED"]
_FORGET_EVERY = 256
_TURNS_MAX = 10
_NEAR = 64
"""Messages no further apart than this are read in one go."""

_Answers = Sequence[Ack | OncelogError]
_Append = Callable[[Writer, float], _Answers]
"""From a writer, and the seconds that are left, to the answers of what was appended."""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The answer to a send: the message is durable, at this place; ``duplicate``: since an earlier attempt."""

    partition: int
    position: int
    timestamp: datetime | None
    duplicate: bool = False


class SendStatus(msgspec.Struct, frozen=True):
    """How far an attempt to send has come, and how the last one that failed did so.

    ``PENDING``: begun, and of at least one attempt the outcome is not known. ``COMMITTED``: in the queue, at
    ``position``. ``FAILED``: every attempt surely wrote nothing; sending begins again, and ``last_error`` stays to
    be seen.
    """

    status: Status
    last_error: str | None
    partition: int
    position: int | None


class Outgoing(NamedTuple):
    """A record on its way to a partition; with an identity if it may be repeated."""

    partition: int
    record: Record


class _Gated(NamedTuple):
    """Sends that are through the gate: those that it knows to be in the queue, by identity, and how each ended."""

    committed: dict[str, int]
    ended: list[Ack | OncelogError]


class Sender:
    """The producers' side of one queue, in this process. Safe to share between threads."""

    def __init__(
        self, topic: Topic, queue_id: int, database: StateDatabase, clock: Clock, settings: QueueSettings
    ) -> None:
        self._topic = topic
        self._database = database
        self._clock = clock
        self._settings = settings
        self._turns = WriterTurns(topic.name, queue_id, list(topic.logs), database, clock)
        self._lock = threading.Lock()
        self._pending: Counter[str] = Counter()
        self._begun = 0
        self._next_partition = clock.token(1)[0]

    # From messages to records.

    def outgoing(self, given: object) -> Outgoing:
        """Return a message as it goes into a log; ``InvalidArgument`` when it cannot be one."""
        if isinstance(given, Message) and given.is_plain:
            return Outgoing(self._any_partition(), Record(given.value))
        message = message_module.check(given)
        identity = message_module.identity(message.tenant, message.key, message.id) if message.id else None
        return Outgoing(self.partition_of(message), message_module.record_of(message, identity))

    def partition_of(self, message: Message) -> int:
        """Return the partition of a message; one without key and id goes where this process writes already."""
        picked = message_module.partition_of(message.key, message.id, self._topic.partitions)
        return picked if picked is not None else self._any_partition()

    def _any_partition(self) -> int:
        if self._topic.partitions == 1:
            return 0
        among = self._turns.held() or range(self._topic.partitions)
        self._next_partition += 1
        return among[self._next_partition % len(among)]

    # Sending.

    def send_messages(self, given: Sequence[object], timeout_s: float, on_pending: OnPending) -> list[Sent]:
        """Send messages, as ``send`` does; ``InvalidArgument`` if one of them cannot be sent, and then none is."""
        values = message_module.plain_values(given) if self._topic.partitions == 1 else None
        payload = None if values is None else plain.payload_of_values(values)
        if payload is None:
            return self.send([self.outgoing(one) for one in given], timeout_s, on_pending)
        check_on_pending(on_pending)
        return self._send_payload(payload, self._clock.elapsed_us() + round(timeout_s * 1e6))

    def _send_payload(self, payload: pa.RecordBatch, deadline_us: int) -> list[Sent]:
        """Append messages that are only values to the only partition, in a column: no record is made of each."""
        answers = self._append(0, lambda writer, left_s: inner.append_payload(writer, payload, left_s), deadline_us)
        if isinstance(answers, OncelogError):
            answers = [answers] * payload.num_rows
        if isinstance(answers, AckRun):
            positions = range(answers.position, answers.position + len(answers))
            return list(map(Sent, repeat(0), positions, repeat(moment(answers.time_us))))
        return all_sent([_sent(0, answer) for answer in answers])

    def send(self, outgoing: Sequence[Outgoing], timeout_s: float, on_pending: OnPending) -> list[Sent]:
        """Append records, each decided on its own; ``AppendErrors`` if some were refused and others not."""
        check_on_pending(on_pending)
        deadline_us = self._clock.elapsed_us() + round(timeout_s * 1e6)
        if outgoing and self._topic.partitions == 1:
            return all_sent(self._send(0, [one.record for one in outgoing], on_pending, deadline_us))
        results: list[Sent | OncelogError] = [Unavailable("not sent")] * len(outgoing)
        rows_of: dict[int, list[int]] = {}
        for row, one in enumerate(outgoing):
            rows_of.setdefault(one.partition, []).append(row)
        for partition, rows in rows_of.items():
            sent: Sequence[Sent | OncelogError]
            try:
                sent = self._send(partition, [outgoing[row].record for row in rows], on_pending, deadline_us)
            except OncelogError as error:  # what went to other partitions is there all the same
                sent = [error] * len(rows)
            for row, answer in zip(rows, sent, strict=True):
                results[row] = answer
        return all_sent(results)

    def _send(
        self, partition: int, records: list[Record], on_pending: OnPending, deadline_us: int
    ) -> list[Sent | OncelogError]:
        """Append records to one partition, through the gate."""
        if on_pending == "refuse" and (pending := self._pending_of(partition, records)):
            others = [record for record in records if record.id not in pending]
            sent = iter(self._send(partition, others, "join", deadline_us))
            return [_pending_error(record) if record.id in pending else next(sent) for record in records]
        with self._through_gate(partition, records, deadline_us) as gated:
            known = self._known(partition, records, gated.committed)
            new = [record for row, record in enumerate(records) if row not in known] if known else records
            appended = iter(self._append_records(partition, new, deadline_us) if new else [])
            gated.ended.extend(known.get(row) or next(appended) for row in range(len(records)))
        return [
            _sent(partition, answer) if isinstance(answer, Ack) else _in_the_users_words(record, answer)
            for record, answer in zip(records, gated.ended, strict=True)
        ]

    def _known(
        self, partition: int, records: Sequence[Record], committed: Mapping[str, int]
    ) -> dict[int, Ack | OncelogError]:
        """Return, by row, the answers to records that the gate knows to be in the queue.

        The gate may remember an id longer than the log does. What ``status`` calls COMMITTED is not sent again.
        """
        if not committed:
            return {}
        entries = self._read(partition, sorted(committed.values()))
        end = self._topic.logs[partition].end_position()
        found: dict[int, Ack | OncelogError] = {}
        for row, record in enumerate(records):
            position = committed.get(record.id) if record.id is not None else None
            if position is None or position >= end:  # the log was put back to before: it lacks the message
                continue
            entry = entries.get(position)
            if entry is None:  # settled and trimmed since
                found[row] = Ack(position, None, None, None, duplicate=True)
            elif entry.id == record.id:
                found[row] = self._compared(record, entry)
        return found

    def _compared(self, record: Record, entry: Entry) -> Ack | OncelogError:
        """Return the answer to a record, of which an entry has the id: its place, if the content is the same."""
        same = all(getattr(entry, name) == getattr(record, name) for name in ("value", "stream", "headers", "tenant"))
        if not same and self._settings.log.on_conflict == "error":
            return id_conflict(entry.id, entry.position)
        return Ack(entry.position, entry.segment, entry.entry, entry.timestamp, duplicate=True, conflict=not same)

    def _read(self, partition: int, positions: Sequence[int]) -> dict[int, Entry]:
        """Return the entries at positions, those that are still there; near ones are read together."""
        found: dict[int, Entry] = {}
        first = positions[0]
        for position, following in zip(positions, (*positions[1:], None), strict=True):
            if following is None or following - position > _NEAR:
                entries = self._topic.read(partition, first, position + 1 - first)
                found.update((entry.position, entry) for entry in entries)
                first = position if following is None else following
        return found

    def _append_records(self, partition: int, records: list[Record], deadline_us: int) -> _Answers:
        repeatable = all(record.id is not None for record in records)
        append = lambda writer, left_s: _append_to(writer, records, left_s)  # noqa: E731
        answers = self._append(partition, append, deadline_us, repeatable=repeatable)
        return [answers] * len(records) if isinstance(answers, OncelogError) else answers

    def _append(
        self, partition: int, append: _Append, deadline_us: int, *, repeatable: bool = False
    ) -> _Answers | OncelogError:
        """Append to one partition, again where that is safe: another writer may take the log in between.

        Returns the answers to the records, or the one error that is the answer to all of them.
        """
        for turn in range(_TURNS_MAX):
            left_s = max(0.0, (deadline_us - self._clock.elapsed_us()) / 1e6)
            try:
                with self._turns.writing(partition, left_s) as writer:
                    try:
                        return append(writer, left_s)
                    except (Closed, WriterFenced):
                        self._turns.drop(partition, writer)
                        raise
            except (Closed, WriterFenced) as error:
                known = isinstance(error, WriterFenced) and error.outcome == "not written"
                if turn + 1 == _TURNS_MAX or self._turns.closed or not (repeatable or known):
                    return error
            except OncelogError as error:
                return error
        raise AssertionError

    # The gate.

    @contextlib.contextmanager
    def _through_gate(self, partition: int, records: Sequence[Record], deadline_us: int) -> Iterator[_Gated]:
        """Note that sends of records with an identity begin, and how they ended."""
        identities = [record.id for record in records if record.id is not None]
        if not identities:
            yield _Gated({}, [])
            return
        with self._lock:
            self._pending.update(identities)
        try:
            left_s = (deadline_us - self._clock.elapsed_us()) / 1e6
            gated = _Gated(self._begin(partition, identities, left_s), [])
            yield gated
            outcomes = [
                _outcome(record.id, answer)
                for record, answer in zip(records, gated.ended, strict=True)
                if record.id is not None
            ]
            self._end([one for one in outcomes if one is not None])
        finally:
            with self._lock:
                self._pending -= Counter(identities)

    def _begin(self, partition: int, identities: Sequence[str], timeout_s: float = WAIT_S) -> dict[str, int]:
        """Note that sends begin; return those that are in the queue already, with their positions."""
        now_us = self._clock.now_us()
        with self._database.writing(durable=False, wait_s=patience_s(timeout_s)) as transaction:
            committed = gate.committed(transaction, self._topic.name, identities)
            pairs = [(identity, partition) for identity in identities]
            gate.begin(transaction, self._topic.name, pairs, self._turns.session, now_us)
            if self._begun % _FORGET_EVERY == 0:
                gate.forget(transaction, self._topic.name, now_us - round(self._settings.gate_s * 1e6))
            self._begun += 1
        return committed

    def _end(self, outcomes: Sequence[tuple[str, str, str | None, int | None]]) -> None:
        """Note how sends ended. If that cannot be noted, the log knows it all the same."""
        noting = self._database.writing(durable=False, wait_s=WAIT_S_MIN)
        with contextlib.suppress(Unavailable, CorruptionError), noting as transaction:
            gate.end(transaction, self._topic.name, outcomes)

    def _pending_of(self, partition: int, records: Sequence[Record]) -> set[str]:
        """Return those identities that are on their way, here or in the process that writes the partition now."""
        identities = [record.id for record in records if record.id is not None]
        with self._lock:
            here = {identity for identity in identities if self._pending[identity]}
        with self._database.reading(durable=False) as transaction:
            rows = [(identity, gate.known(transaction, self._topic.name, identity)) for identity in identities]
        elsewhere = {
            identity
            for identity, row in rows
            if row is not None and row.status == "PENDING" and row.session != self._turns.session
        }
        return here if elsewhere <= here or self._can_write(partition) else here | elsewhere

    def _can_write(self, partition: int) -> bool:
        """Tell whether the partition is free: then who began and did not end is gone, and the log knows the end."""
        try:
            with self._turns.writing(partition, 0.0):
                return True
        except Unavailable:
            return False

    def status(self, identity: str) -> SendStatus | None:
        """Return what is known of an identity; ``None`` if nothing is, or not any more."""
        with self._database.reading(durable=False) as transaction:
            row = gate.known(transaction, self._topic.name, identity)
        if row is None:
            return None
        return SendStatus(row.status, row.last_error, row.partition, row.position)  # type: ignore[arg-type]

    def take_writers(self, timeout_s: float) -> None:
        """Become the writer of every partition, and stay so until somebody else asks."""
        for partition in range(self._topic.partitions):
            with self._turns.writing(partition, timeout_s):
                pass

    def close(self) -> None:
        """Let every writer go."""
        self._turns.close()


def _append_to(writer: Writer, records: list[Record], timeout_s: float) -> _Answers:
    if len(records) == 1:
        one = records[0]
        return [
            writer.append(
                one.value, id=one.id, stream=one.stream, headers=one.headers, tenant=one.tenant, timeout_s=timeout_s
            )
        ]
    try:
        return list(writer.append_many(records, timeout_s=timeout_s))
    except AppendErrors as errors:
        return list(errors.results)


def _sent(partition: int, answer: Ack | OncelogError) -> Sent | OncelogError:
    if not isinstance(answer, Ack):
        return answer
    assert answer.position is not None, "a record without a sequence has a position"
    return Sent(partition, answer.position, answer.timestamp, answer.duplicate)


def _in_the_users_words(record: Record, error: OncelogError) -> OncelogError:
    """Return an error that names the id as its sender knows it, not as the log does."""
    if not isinstance(error, IdConflict):
        return error
    text = (
        f"{_given_name(record)} is taken by other content, stored at position {error.position}: give this message an "
        "id of its own"
    )
    return IdConflict(text, position=error.position)


def _outcome(identity: str, answer: Ack | OncelogError) -> tuple[str, str, str | None, int | None] | None:
    """Return how a send ended, for the gate; ``None`` while that is not known."""
    if isinstance(answer, Ack):
        return identity, "COMMITTED", None, answer.position
    if isinstance(answer, IdConflict):
        return identity, "COMMITTED", None, answer.position  # by the first, whose content stands
    if getattr(answer, "outcome", None) == "unknown":
        return None
    return identity, "FAILED", str(answer), None


def check_on_pending(on_pending: object) -> None:
    """Raise ``InvalidArgument`` for what no attempt can do that meets another one on its way."""
    if on_pending not in ("join", "refuse"):
        error = f"on_pending is {on_pending!r}, must be 'join' or 'refuse'"
        raise InvalidArgument(error)


def all_sent(results: list[Sent | OncelogError]) -> list[Sent]:
    """Return the answers to messages; ``AppendErrors`` with all of them, or the only one, if some are errors."""
    errors = [result for result in results if isinstance(result, OncelogError)]
    if not errors:
        return results  # type: ignore[return-value]
    if len(results) == 1:
        raise errors[0]
    text = f"{len(errors)} of {len(results)} messages failed, the first: {errors[0]}"
    raise AppendErrors(text, results=results)


def _pending_error(record: Record) -> Unavailable:
    text = (
        f"{_given_name(record)} is PENDING: an attempt to send it is on its way; wait for it, or join it "
        "(on_pending='join')"
    )
    return Unavailable(text)


def _given_name(record: Record) -> str:
    """Return the id of a record, and its key, as its sender knows them."""
    envelope = record.headers.get(message_module.ENVELOPE) if record.headers else None
    id = message_module.given_id(record.id or "", record.tenant or "", record.stream or "", envelope)
    return f"id {id!r} of key {record.stream!r}" if record.stream else f"id {id!r}"
