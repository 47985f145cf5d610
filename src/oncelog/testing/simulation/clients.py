"""Clients of a log in a simulated world: writers that retry, and readers that follow."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from oncelog.errors import (
    AppendErrors,
    Closed,
    IdConflict,
    InvalidArgument,
    LogBusy,
    NotFound,
    OncelogError,
    Unavailable,
    WriterFenced,
)
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings
from oncelog.testing.simulation.history import Attempt, Outcome, RunHistory
from oncelog.testing.simulation.scheduler import Process
from oncelog.testing.simulation.world import World
from oncelog.types import Ack, Record

LOG = "orders"
SETTINGS = LogSettings(segment_age_s=1.5, snapshot_interval_s=2.0, commit_interval_s=0.01)
OTHER = b"other"
"""A content that conflicts with the usual one."""

CALLS_MAX, THINK_S = 20, 0.6
_CONFLICTS = 0.03
_RETRIES = 0.3
_SEALS = 0.5
_APPEND_TIMEOUT_S = 8.0


class Ids:
    """The ids that clients write: mostly new ones, and again and again one that somebody has tried before."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance
        self._count = 0

    def record(self) -> Record:
        """Return a record to append. Its content follows from its id, but now and then it is another."""
        if self._count and self._random.random() < _RETRIES:
            number = self._random.randrange(self._count)
        else:
            number = self._count
            self._count += 1
        other = self._random.random() < _CONFLICTS
        return Record(OTHER if other else b"value of %d" % number, id=f"id-{number}")

    def batch(self) -> list[Record]:
        """Return a few records with different ids."""
        records = {record.id: record for record in (self.record() for _ in range(self._random.randint(2, 5)))}
        return list(records.values())


class WritingClient:
    """A process that appends, one call after the other, and takes the log whenever it does not have it."""

    def __init__(
        self, world: World, process: Process, history: RunHistory, ids: Ids, *, is_over: Callable[[], bool]
    ) -> None:
        self.process = process
        self._world = world
        self._history = history
        self._ids = ids
        self._is_over = is_over
        self._random = random.Random(f"{world.seed} {process.name}")

    def run(self) -> None:
        """Write until the run is over."""
        while not self._is_over():
            try:
                with self._world.connect(self.process) as db:
                    log = db.log(LOG, SETTINGS, create=True)
                    takeover = "force" if self._random.random() < 0.5 else "polite"  # noqa: PLR2004
                    with log.writer(wait_s=2.0, takeover=takeover) as writer:  # type: ignore[arg-type]
                        self._write(writer)
                    if self._random.random() < _SEALS:
                        log.seal()
            except (Unavailable, WriterFenced, LogBusy, Closed, NotFound):
                self._world.scheduler.sleep(self._random.random())

    def _write(self, writer: Writer) -> None:
        for _ in range(self._random.randint(1, CALLS_MAX)):
            if self._is_over():
                return
            style = self._random.choice((self._one, self._one, self._many, self._batch, self._submitted))
            style(writer)
            self._world.scheduler.sleep(self._random.random() * THINK_S)

    def _one(self, writer: Writer) -> None:
        record = self._ids.record()
        self._told([record], lambda: [writer.append(record.value, id=record.id, timeout_s=_APPEND_TIMEOUT_S)])

    def _many(self, writer: Writer) -> None:
        records = self._ids.batch()
        self._told(records, lambda: writer.append_many(records, timeout_s=_APPEND_TIMEOUT_S))

    def _batch(self, writer: Writer) -> None:
        records = self._ids.batch()
        self._told(records, lambda: writer.append_batch(records, timeout_s=_APPEND_TIMEOUT_S))

    def _submitted(self, writer: Writer) -> None:
        records = self._ids.batch()

        def call() -> list[Ack | OncelogError | None]:
            futures = [writer.submit(record.value, id=record.id) for record in records]
            return [_result(future) for future in futures]

        self._told(records, call)

    def _told(self, records: Sequence[Record], call: Callable[[], Sequence[Ack | OncelogError | None]]) -> None:
        """Make a call, and note what came of each record. Raises what ends the writer."""
        began_us = self._world.scheduler.now_us
        # Before the call: a process that is killed in it has asked for these, and never learns the outcome.
        slots = [len(self._history.attempts) + number for number in range(len(records))]
        for record in records:
            self._history.attempts.append(self._attempt(record, began_us, None))
        ended: OncelogError | None = None
        try:
            answers = call()
        except AppendErrors as error:
            answers = error.results
        except OncelogError as error:
            answers, ended = [error] * len(records), error
        for slot, record, answer in zip(slots, records, answers, strict=True):
            self._history.attempts[slot] = self._attempt(record, began_us, answer)
        if isinstance(ended, WriterFenced | Closed):
            raise ended

    def _attempt(self, record: Record, began_us: int, answer: Ack | OncelogError | None) -> Attempt:
        assert record.id is not None
        ack = answer if isinstance(answer, Ack) else None
        now_us = self._world.scheduler.now_us
        return Attempt(self.process.name, record.id, record.value, began_us, now_us, outcome_of(answer), ack)


def _result(future: Future[Ack]) -> Ack | OncelogError | None:
    try:
        return future.result(_APPEND_TIMEOUT_S)
    except TimeoutError:
        return None
    except OncelogError as error:
        return error


def outcome_of(answer: Ack | OncelogError | None) -> Outcome:
    """Return what an answer says of its record."""
    if isinstance(answer, Ack):
        return "acked"
    if isinstance(answer, IdConflict):
        return "conflict"
    if isinstance(answer, InvalidArgument):
        return "refused"
    if isinstance(answer, Unavailable | WriterFenced):
        return "not written" if answer.outcome == "not written" else "unknown"
    return "unknown"


class ReadingClient:
    """A process that follows the log from its beginning."""

    def __init__(self, world: World, process: Process, history: RunHistory, *, is_over: Callable[[], bool]) -> None:
        self.process = process
        self._world = world
        self._history = history
        self._is_over = is_over

    def run(self) -> None:
        """Read until the run is over; go on behind the last record when something fails."""
        next_position = 0
        while not self._is_over():
            try:
                with self._world.connect(self.process) as db, db.log(LOG).tail(next_position) as entries:
                    while not self._is_over():
                        entry = entries.poll(timeout_s=0.5)
                        if entry is not None:
                            self._history.saw(self.process.name, entry)
                            next_position = entry.position + 1
            except (Unavailable, NotFound, Closed):
                self._world.scheduler.sleep(0.2)
