"""The writer: admits records that are new, answers those that are not, and hands the rest to the committer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec
import pyarrow as pa

from oncelog import arguments, limits
from oncelog.concurrency import futures
from oncelog.dedup.content import content_id
from oncelog.errors import Closed, InvalidArgument, OncelogError, Unsupported, WriterFenced
from oncelog.format.payload import intake, plain
from oncelog.format.payload.tables import Tabular
from oncelog.format.runs.run import Run
from oncelog.handle import Generation, close_soon, closes_anywhere, weakly
from oncelog.log.append import payloads
from oncelog.log.append.absorber import Absorber
from oncelog.log.append.admitter import Admitter
from oncelog.log.append.alone import Alone
from oncelog.log.append.answers import Admitted, Answers
from oncelog.log.append.counters import Counts
from oncelog.log.append.decider import Decider
from oncelog.log.append.session import WriterSession
from oncelog.log.ending import Ending
from oncelog.log.ingest.adopter import Adopter
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.ingest.ingester import Ingested, Ingester, OnConflict, OnReplay
from oncelog.log.standing import Standing
from oncelog.log.stored.staged import Staged
from oncelog.log.submitting import Submission, Submitting
from oncelog.log.takeover.handover import Watch
from oncelog.log.upkeep.keeper import Keeper
from oncelog.log.upkeep.memory_keeper import MemoryKeeper
from oncelog.settings import TIMEOUT_S, ProducerPolicy
from oncelog.storage.base import Claim
from oncelog.types import Ack, ColumnAcks, Location, Record

_TIMEOUT_US = int(TIMEOUT_S * 1e6)


class Writer(Submitting):
    """The one writer of a log. Made by ``Log.writer``; safe to share between threads.

    Every method that returns an ``Ack`` returns it when the record is durable, or, for a duplicate, when the original
    is. ``Unavailable(outcome="unknown")`` means that the record stays pending: retry with the same id.
    """

    _what = "writer"

    def __init__(
        self,
        session: WriterSession,
        *,
        claim: Claim,
        watch: Watch,
        watermark: int,
        policy: Callable[[], ProducerPolicy],
        unreadable: Sequence[Run],
    ) -> None:
        super().__init__()
        self._run = session.run
        self._core = core = session.core
        self._committer = session.committer
        self._settings = session.settings
        self._clock = session.clock
        self._window = core.window
        self._uptime = core.uptime
        self._counters = core.counters
        self._standing = Standing(session)
        self._log_id = session.run.known.manifest.log_id
        self._names_content = session.settings.idempotence == "content"
        self._produce(core.sequences, policy)
        self._begin_to_admit(session)
        self._open_door()
        memory = MemoryKeeper(session, unreadable)
        self._adopter = Adopter(session, memory)
        self._ingester = Ingester(session, self._adopter)
        self._keeper = Keeper(session, memory, watermark=watermark, follow_policy=weakly(self._follow_policy))
        self._ending = Ending(
            session, claim=claim, watch=watch, keeper=self._keeper, door=self._door, standing=self._standing
        )

    def _begin_to_admit(self, session: WriterSession) -> None:
        """Make what decides records, and answers them."""
        self._answers = Answers(session.run, session.recall, session.settings)
        decider = Decider(session.core)
        self._absorber = Absorber(session, decider, self._answers)
        self._committer.absorb = self._absorber.absorb
        self._alone = Alone(session, decider)
        self._admitter = Admitter(
            session,
            decider,
            self._absorber,
            check_owner=weakly(self._check_owner),
            check_owners=weakly(self._check_owners),
        )

    # Appending one record.

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
        """Append one record; return where it is, or where it was when its id was seen before.

        Raises ``InvalidArgument`` (``IdConflict`` when the id is taken by other content), ``Unavailable`` when storage
        does not answer within ``timeout_s``, ``WriterFenced`` when another writer took the log.
        """
        is_bare = stream is None and type is None and headers is None and tenant is None  # by far the most are
        if is_bare and producer is None and sequence is None and self._is_plain(value, id):
            timeout_us = _TIMEOUT_US if timeout_s is TIMEOUT_S else self._micros(timeout_s)
            alone = self._alone.append(value, id, timeout_us)
            if isinstance(alone, Ack):
                return alone
            if alone is not None:
                return self._answers.one(alone, id)
        record = self._checked(Record(value, id, stream, type, headers, producer, sequence, tenant))
        return self._answers.one(self._admitter.one(record, self._deadline(timeout_s)), record.id)

    def _is_plain(self, value: object, id: object) -> bool:
        """Tell, at little cost, whether ``_checked`` would find nothing to refuse nor to change."""
        if self._closed or self._generation != Generation.number:
            self._check_usable()
        if self._own is not None or type(value) is not bytes or len(value) > limits.VALUE_BYTES_MAX:
            return False
        if id is None:
            return not self._names_content
        return type(id) is str and 0 < len(id) <= limits.ID_BYTES_MAX and id.isascii() and self._window is not None

    def _checked(self, record: Record) -> Record:
        """Return the record as it will be stored, or raise ``InvalidArgument``."""
        self._check_usable()
        record = intake.exact(record)
        intake.check_record(record)
        if record.producer is not None or record.sequence is not None or self._own is not None:
            record = self._owned(record)
        if record.id is not None and self._window is None:
            message = f"id {record.id!r}: this log has idempotence off, so it cannot keep the promise an id asks for"
            raise InvalidArgument(message)
        if record.id is None and self._names_content and record.producer is None:
            record = payloads.replace(record, id=content_id(self._log_id, record))
        return record

    # Appending many.

    def append_many(self, records: Sequence[Record], *, timeout_s: float | None = TIMEOUT_S) -> list[Ack]:
        """Append records, each decided on its own; return their acks in order.

        Settles every record, then raises ``AppendErrors`` (with the ack or the error of each) if any was refused.
        """
        deadline_us = self._deadline(timeout_s)
        submission = self._admit_many(arguments.listed(records), deadline_us)
        self._wait_until_stored(submission, deadline_us)
        return cast("list[Ack]", submission.answer())

    def _admit_many(self, records: Sequence[Record], deadline_us: int | None) -> Submission:
        """Admit records; the answer is their acks, or ``AppendErrors``."""
        payload = self._plain(records)
        if payload is not None:
            admitted, pieces = self._admitter.payload(payload, deadline_us)
            return Submission(admitted, pieces, lambda: self._all_acks(admitted))
        results: list[Ack | OncelogError | None] = [None] * len(records)
        good: list[int] = []
        checked: list[Record] = []
        for row, record in enumerate(records):
            try:
                checked.append(self._checked(record))
                good.append(row)
            except (InvalidArgument, Unsupported) as error:
                self._check_usable()
                results[row] = error
                self._counters.refused += 1
        admitted, pieces = self._admitter.payload(payloads.payload_of(checked), deadline_us)

        def answer() -> list[Ack]:
            for row, result in zip(good, self._answers.rows(admitted), strict=True):
                results[row] = result
            return futures.all_acks(results)

        return Submission(admitted, pieces, answer)

    def _plain(self, records: Sequence[Record]) -> pa.RecordBatch | None:
        """Return records in columns when they are plain and all may be stored, else ``None``."""
        self._check_usable()
        payload = plain.payload(records) if self._own is None else None
        if payload is None or (self._window is None and "id" in payload.schema.names):
            return None
        return payloads.check_columns(payload, self._settings, self._log_id)

    def append_batch(
        self,
        records: Sequence[Record],
        *,
        timeout_s: float | None = TIMEOUT_S,
        judge: Callable[[Admitted], None] | None = None,
    ) -> list[Ack]:
        """Append records all or none; return their acks in order.

        Exactly a stored batch, in its order, gets the original acks. All new: written, as one block. Anything else is
        ``PartialOverlap``; an id that occurs twice in the batch, or on some records only, is ``InvalidArgument``; a
        stored batch with other content is ``IdConflict``. Nothing is written then. ``judge`` sees what was decided
        before anything is done, and may refuse it by raising. No other thread decides at the same time.
        """
        deadline_us = self._deadline(timeout_s)
        submission = self._admit_batch(arguments.listed(records), deadline_us, judge)
        self._wait_until_stored(submission, deadline_us)
        return cast("list[Ack]", submission.answer())

    def _admit_batch(
        self, records: Sequence[Record], deadline_us: int | None, judge: Callable[[Admitted], None] | None
    ) -> Submission:
        """Admit a batch; the answer is its acks, or the error for which nothing was written."""
        checked = [self._checked(record) for record in records]
        if judge is not None:
            arguments.function("judge", judge)
        payload = payloads.batch_payload(checked, self._settings)
        if not checked:
            return Submission(Admitted(payload), 1, list)
        admitted = self._admitter.together(payload, judge, deadline_us)

        def answer() -> list[Ack]:
            results = self._answers.rows(admitted)
            for result in results:
                if isinstance(result, OncelogError):
                    raise result
            return futures.all_acks(results)

        return Submission(admitted, 1, answer)

    def append_arrow(
        self, table: Tabular, *, producer: str | None = None, timeout_s: float | None = TIMEOUT_S
    ) -> ColumnAcks:
        """Append the rows of a table, each decided on its own; return positions and duplicates in columns.

        ``table`` may be a frame of pandas or polars, too, or another object with ``__arrow_c_stream__``. Columns:
        ``value`` (binary, or string: stored as UTF-8), and optionally ``id``, ``stream``, ``type``, ``tenant``
        (string), ``headers`` (map of string to binary), ``producer`` and ``sequence`` (int64). Rows that do not say
        theirs are of ``producer``, if that is given. A position is -1 for a sequence from too long ago. A table with a
        bad row is ``InvalidArgument`` and nothing of it is written; rows whose id is taken by other content, or whose
        sequence is out of order, are ``AppendErrors``, after every other row is stored.
        """
        deadline_us = self._deadline(timeout_s)
        submission = self._admit_arrow(table, producer, deadline_us)
        self._wait_until_stored(submission, deadline_us)
        return cast("ColumnAcks", submission.answer())

    def _admit_arrow(self, table: Tabular, producer: str | None, deadline_us: int | None) -> Submission:
        """Admit the rows of a table; the answer is in columns, or ``AppendErrors``."""
        self._check_usable()
        payload = payloads.intake_of(
            table, self._settings, self._log_id, lambda payload: self._owned_rows(payload, producer)
        )
        admitted, pieces = self._admitter.payload(payload, deadline_us)

        def answer() -> ColumnAcks:
            if admitted.refused or (self._settings.on_conflict == "error" and admitted.conflicts.any()):
                self._all_acks(admitted)
            return ColumnAcks(admitted.positions, admitted.duplicates, admitted.conflicts)

        return Submission(admitted, pieces, answer)

    def _append_rows(self, table: Tabular, timeout_s: float | None) -> Sequence[Ack | OncelogError]:
        """Append the rows of a table, each decided on its own; return the ack of each, or its error."""
        deadline_us = self._deadline(timeout_s)
        submission = self._admit_arrow(table, None, deadline_us)
        self._wait_until_stored(submission, deadline_us)
        return self._each_answer(submission.admitted)

    def _append_payload(self, payload: pa.RecordBatch, timeout_s: float | None) -> Sequence[Ack | OncelogError]:
        """Append rows that need no check, each decided on its own; return the ack of each, or its error."""
        self._check_usable()
        deadline_us = self._deadline(timeout_s)
        stored = payloads.check_columns(self._owned_rows(payload, None), self._settings, self._log_id)
        admitted, pieces = self._admitter.payload(stored, deadline_us)
        submission = Submission(admitted, pieces, lambda: self._each_answer(admitted))
        self._wait_until_stored(submission, deadline_us)
        return cast("Sequence[Ack | OncelogError]", submission.answer())

    def _each_answer(self, admitted: Admitted) -> Sequence[Ack | OncelogError]:
        """Return the ack of each row that is stored, or its error; acks that follow each other are a run."""
        run = admitted.run()
        return self._answers.rows(admitted) if run is None else run

    def _wait_until_stored(self, submission: Submission, deadline_us: int | None) -> None:
        newest = submission.admitted.newest
        if newest is None:
            return
        try:
            self._committer.locked(self._committer.wait, newest, deadline_us)
        except WriterFenced as error:  # it tells of the last piece, and those before may be stored
            outcome = "unknown" if submission.pieces > 1 else error.outcome
            raise WriterFenced(str(error), outcome=outcome) from error

    def _all_acks(self, admitted: Admitted) -> list[Ack]:
        """Return the acks of rows that are stored, or raise ``AppendErrors`` if one of them was refused."""
        answers = self._answers.rows(admitted)
        if admitted.refused or admitted.conflicts.any():
            return futures.all_acks(answers)
        return cast("list[Ack]", answers)

    @arguments.checked
    def _find(self, id: str, stream: str | None = None) -> Location | None:
        """Return where the durable record with an id is, ``None`` if the log does not remember it."""
        self._check_usable()
        ticket = self._admitter.known(id, stream)
        if ticket is None:
            return None
        found, fingerprint = ticket
        ack = self._answers.one(found, id)
        if ack.position is None or ack.segment is None or ack.entry is None or ack.timestamp is None:
            return None  # truncated meanwhile
        return Location(
            position=ack.position,
            segment=ack.segment,
            entry=ack.entry,
            timestamp=ack.timestamp,
            fingerprint=fingerprint,
        )

    # Living and leaving.

    def flush(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Return when all that was submitted is durable; ``Unavailable(outcome="unknown")`` when time runs out
        first.
        """
        self._check_usable()
        deadline_us = self._deadline(timeout_s)
        self._door.wait_idle(timeout_s)
        self._committer.locked(self._committer.settle_all, deadline_us)

    def snapshot(self) -> None:
        """Store a dedup snapshot of what is durable now. Writers do this by themselves, by time and by count."""
        self._check_usable()
        self._keeper.snapshot()

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
        """Make of staged files a part of the log what is not in it, all by one manifest version; say what that was.

        With a ``batch`` that is in already, nothing is done; if it came with other rows, ``on_replay`` says whether
        that is an ``InvalidArgument``, or it is taken for done (``"skip"``), or rows with new ids are added
        (``"ids"``). Rows whose id is taken by other content go to the log ``conflicts.<log>`` (``"quarantine"``), or
        are an ``IdConflict`` and nothing is written (``"error"``), or are dropped (``"original"``).
        ``Unavailable(outcome="unknown")`` ends this writer: ingest the same batch again with the next one.
        """
        self._check_usable()
        files = arguments.instances("staged", staged, Staged)
        return self._ingester.ingest(
            files, batch, on_conflict=on_conflict, on_replay=on_replay, deadline_us=self._deadline(timeout_s)
        )

    def counts(self) -> Counts:
        """Return what this writer has counted so far, also once it is closed."""
        self._check_process()
        return self._committer.locked(self._counts)

    def _counts(self) -> Counts:
        """Return what was counted. The lock is held."""
        return msgspec.structs.replace(self._counters.counts(), forgotten=self._standing.forgotten())

    @property
    def window_state(self) -> Mapping[str, int | None]:
        """How full the dedup window is: keys, pending, evicted, bytes (those of the sieve, too), and the age of its
        oldest key in seconds. Of a writer that is closed: how full it was then.
        """
        self._check_process()
        return self._committer.locked(self._standing.state)

    @property
    def _window_from(self) -> int | None:
        """The first position that the dedup window needs; ``None`` when there is no window, or this writer is
        closed.
        """
        return None if self._closed else self._keeper.window_from()

    @property
    def _epoch(self) -> int:
        """The number of this writer among those of its log."""
        return self._run.known.manifest.epoch

    @property
    def _has_ended(self) -> bool:
        """Whether this writer takes no records any more: it was closed, or lost the log, or lets the log go."""
        return self._closed or self._committer.is_leaving

    def _begin_at(self, first_position: int) -> None:
        """Note that the log was truncated to a position."""
        self._keeper.begin_at(first_position)

    @property
    def last_position(self) -> int:
        """The position of the last record that is durable; -1 when there is none."""
        return self._core.stored_position - 1

    @closes_anywhere
    def close(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Store what is pending, close the segment and let the log go. May be repeated, and called anywhere.

        Raises ``Unavailable(outcome="unknown")`` when storage does not take what is pending in time; the log is let go
        all the same, and the next writer decides. A signal handler, a callback or a ``__del__`` that interrupted a call
        of this package closes in a thread of its own, which ends before the process does.
        """
        try:
            self._ending.close(timeout_s=timeout_s)
        finally:
            self._closed = self._ending.closed

    def __del__(self) -> None:
        """Have the log let go that its user has forgotten: soon, in another thread. ``ResourceWarning`` says so."""
        ending: Ending | None = getattr(self, "_ending", None)  # ``None`` if it never was a writer
        if not self._closed and ending is not None:
            close_soon(ending)

    def _begin_to_close(self) -> None:
        self._committer.refuse(Closed("this writer is being closed"))

    def _check_held(self) -> None:
        """Raise ``WriterFenced`` if another writer has taken the log.

        Until its next write a writer does not notice that by itself. What it remembers is then still true of what was
        stored, and no longer of what was not: a "no" is said only after this.
        """
        self._check_process()
        self._committer.locked(self._committer.check)
        try:
            self._run.check_held()
        except WriterFenced as error:
            self._committer.locked(self._committer.fenced, error)
            raise

    def _deadline(self, timeout_s: float | None) -> int | None:
        timeout_us = _TIMEOUT_US if timeout_s is TIMEOUT_S else self._micros(timeout_s)
        return None if timeout_us is None else self._clock.elapsed_us() + timeout_us

    def _micros(self, timeout_s: float | None) -> int | None:
        return None if timeout_s is None else int(arguments.seconds("timeout_s", timeout_s) * 1e6)
