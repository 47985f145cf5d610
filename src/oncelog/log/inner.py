"""What other rooms ask of a log and of its writer, and no user: the inner half of ``Log`` and ``Writer``.

A user who completes ``log.`` or ``writer.`` sees the public surface only. Streams, queues, the server, Spark and the
command line call the functions here. This is the one module that reads private parts of these two classes. A remote log
answers the same functions, where its server can.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from oncelog.errors import NotFound, OncelogError
from oncelog.format.base import Base
from oncelog.format.manifest import File
from oncelog.format.payload.tables import Tabular
from oncelog.log.find import Compared
from oncelog.log.info import Extent
from oncelog.log.ingest import staging
from oncelog.log.jobs.workers import JobContext
from oncelog.log.read.reader import Reader, Tail
from oncelog.log.read.scan import Scan, Start
from oncelog.log.stored.rows import Rows
from oncelog.log.stored.staged import Staged
from oncelog.log.takeover.fencing import Holding
from oncelog.storage.base import LogHome
from oncelog.types import Ack, Location

if TYPE_CHECKING:
    from oncelog.log.ending import Ending
    from oncelog.log.log import Log
    from oncelog.log.open_writer import Term
    from oncelog.log.producer import Producer
    from oncelog.log.writer import Writer

T = TypeVar("T")

# A log.


def home(log: Log) -> LogHome:
    """Return where the log lives, for what is kept beside it and can be told by it."""
    return log._home


def scan(log: Log, columns: Sequence[str] | None = None) -> Scan:
    """Return a place in the log that moves forward, by runs of records: what reading is made of."""
    return log._scan(columns)


def reader(
    log: Log, start: Start, *, limit: int | None, columns: Sequence[str] | None, lease_s: float | None
) -> Reader:
    """Return a reader of all columns or those named, which gives the rows as they are kept."""
    return log._reader(start, limit=limit, columns=columns, lease_s=lease_s)


def keep_small(reader: Reader, size_bytes: int) -> None:
    """Let a reader hold no more than so many bytes of the log at once, or one block."""
    reader._scan.keep_small(size_bytes)


def base(log: Log) -> Base:
    """Return what is remembered of the records that were truncated away: all before the log's first position."""
    return log._base()


def extents(log: Log, start: int, end: int) -> list[Extent]:
    """Return how the records from ``start`` to ``end`` are kept, so that work on them can be shared out."""
    return log._extents(start, end)


def desk(log: Log, first_position: int) -> JobContext:
    """Return what work on parts of a log is done with, in another process; the log begins at ``first_position``."""
    return log._desk(first_position)


def prepare(log: Log, tables: Iterable[Tabular], columns: Iterable[str] | None = None) -> staging.Prepared:
    """Make the file that ``Log.stage`` writes; ``columns`` are all that it has, if they are given."""
    return log._prepare(tables, columns)


def store(log: Log, prepared: staging.Prepared) -> Staged:
    """Write what was prepared."""
    return log._store(prepared)


def compare(log: Log, table: pa.Table | pa.RecordBatch) -> Compared:
    """Return which rows of a table, with the columns of ``append_arrow``, the log knows. Nothing is written."""
    return log._compare(table)


def tidy(log: Log) -> None:
    """Put small files together, and remove what retention does not want kept. Writers that append do so themselves."""
    log._tidy()


def is_same(log: Log, other: Log) -> bool:
    """Tell whether another handle is of this very log, not of one that was deleted and created again."""
    return log._is_same(other)


def is_there(log: Log) -> bool:
    """Tell whether this log still exists: false if it was deleted, also if a new log has its name."""
    return log._is_there()


def end_tails(log: Log) -> None:
    """End those who follow a log that was deleted."""
    log._end_tails()


def file(log: Log, first_position: int) -> File | None:
    """Return the sealed file of a log that begins with a position; ``None`` if there is none."""
    return log._file(first_position)


def follow_policy(log: Log) -> None:
    """Have the writer that is open here keep to the policy for producers as it is stored now."""
    log._follow_policy()


def holding(log: Log) -> Holding:
    """Return who holds the log."""
    return log._holding()


def hold(log: Log, term: Term, wait_s: float, *, ask: bool) -> Writer:
    """Become the log's writer in the name of a server. With ``ask`` its holder is asked first, as ``Log.writer`` does;
    without, it is taken. ``LogBusy`` if another took it since the epoch of ``term``.
    """
    return log._taken(wait_s, term, ask=ask)


def is_lent(log: Log) -> bool:
    """Tell whether the log's writer is lent by its server, and not opened here."""
    return log._is_lent


def lent(log: Log) -> contextlib.AbstractContextManager[Writer]:
    """Return the writer that the log's server lends, for a while."""
    return log._lent()


# A tail.


def end_deleted(tail: Tail, error: NotFound) -> None:
    """End a tail with an error: its log was deleted in this process."""
    tail._end_deleted(error)


def check_there_elsewhere(tail: Tail) -> None:
    """Switch off that a tail without new records checks whether its log was deleted: its owner checks."""
    tail._checks_there = False


def take_made(tail: Tail, limit: int, make: Callable[[Rows], T], pay: Callable[[int], bool] | None = None) -> T | None:
    """Return what is made of the next rows of a tail, those that are there now, at most ``limit``; ``None``: none are.

    With ``pay``, not every call looks, as ``Tail.take_patiently`` says. Who takes this takes no entries.
    """
    return tail._take_made(limit, make, pay)


def has_rows(tail: Tail) -> bool:
    """Tell whether a tail has rows that it read and that nobody took yet."""
    return bool(tail._rows)


# A writer.


def append_rows(writer: Writer | Producer, table: Tabular, timeout_s: float | None) -> Sequence[Ack | OncelogError]:
    """Append the rows of a table, each decided on its own; return the ack of each, or its error."""
    return writer._append_rows(table, timeout_s)


def append_payload(writer: Writer, payload: pa.RecordBatch, timeout_s: float | None) -> Sequence[Ack | OncelogError]:
    """Append rows that need no check, as ``format.payload.plain`` makes them; return the ack of each, or its error."""
    return writer._append_payload(payload, timeout_s)


def epoch(writer: Writer) -> int:
    """Return the number of this writer among those of its log."""
    return writer._epoch


def has_ended(writer: Writer) -> bool:
    """Tell whether a writer takes no records any more: it was closed, or lost the log, or lets the log go."""
    return writer._has_ended


def check_held(writer: Writer) -> None:
    """Raise ``WriterFenced`` if another writer has taken the log. A negative answer is given only after this."""
    writer._check_held()


def find(writer: Writer, id: str, stream: str | None = None) -> Location | None:
    """Return where the durable record with an id is, ``None`` if the writer does not remember it."""
    return writer._find(id, stream)


def ending(writer: Writer) -> Ending:
    """Return what ends a writer, also once the writer is dropped."""
    return writer._ending


def window_from(writer: Writer) -> int | None:
    """Return the first position that the dedup window needs; ``None`` when there is no window, or no writer."""
    return writer._window_from


def begin_at(writer: Writer, first_position: int) -> None:
    """Note that the log was truncated to a position."""
    writer._begin_at(first_position)


def own(writer: Writer, name: str | None, initial_sequence: int | None = None) -> None:
    """Make all that is appended by a writer, and names no other producer, that of one producer."""
    writer._own_as(name, initial_sequence)


def acting(writer: Writer, producer: Producer) -> contextlib.AbstractContextManager[None]:
    """Let this thread append for a producer inside the ``with`` block."""
    return writer._acting_for(producer)


def leave_producer(writer: Writer, producer: Producer) -> None:
    """End the session of a producer that was closed."""
    writer._leave_producer(producer)


def forget_producer(writer: Writer, name: str, remember: Callable[[str, int], None]) -> None:
    """Forget how far a producer got, after ``remember`` has stored that it is forgotten."""
    writer._forget_producer(name, remember)


def writer_follow_policy(writer: Writer) -> None:
    """Have a writer keep to the policy for producers as it is stored now."""
    writer._follow_policy()
