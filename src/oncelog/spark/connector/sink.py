"""Writing a log from Spark, exactly once: tasks stage, the driver adopts, and a mark says how far the query has come.

A task that is retried or speculated stages twice and is heard once; what is never adopted is removed by its age. The
driver's commit is one manifest version with all rows and the mark in it. Killed before it, nothing happened and the
batch comes again; killed after it, the batch comes again and its mark says that it is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from oncelog.errors import InvalidArgument, OncelogError, Unavailable, WriterFenced
from oncelog.log import inner
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.ingest.ingester import Ingested
from oncelog.log.log import Log
from oncelog.log.stored.staged import Staged
from oncelog.names import CONFLICTS
from oncelog.redaction import redacted
from oncelog.spark.connector import connections, schema
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.staging import StagedResult, Stager

ATTEMPTS_MAX = 3
TIDY_BATCHES = 64
"""How often a stream puts small files together, and looks for files that were never adopted."""

QUERY = "sql.streaming.queryId"
_logger = logging.getLogger("oncelog.spark")


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver: what it staged, and of which query it is a part (empty: of none)."""

    partition: int
    query: str
    taken: StagedResult = field(default_factory=StagedResult)


class _LogSink:
    """What batch and stream writers have in common. A stream's commit gets a writer that is made again, so nothing is
    remembered here.
    """

    def __init__(self, options: WriteOptions, wanted: StructType, *, overwrite: bool) -> None:
        if overwrite:
            message = "a log is only ever appended to: use mode('append'), or outputMode('append') for a stream"
            raise InvalidArgument(message)
        schema.check_write(wanted, options.id_column)
        self._options = options
        self._open()  # a log that is not there is an error before a task runs

    def _open(self) -> Log:
        options = self._options
        return connections.log(options.url, options.log, options.storage, create=options.create)

    def _stage(self, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(QUERY) or ""
        taken = Stager(self._open(), self._options).stage(batches)
        connections.spare_what_is_loaded("write")
        return TaskMessage(context.partitionId(), query, taken)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: BatchName | None) -> Ingested:
        heard = sorted((each for each in messages if isinstance(each, TaskMessage)), key=lambda each: each.partition)
        if not heard:
            message = (
                f"log {self._options.log}, {batch}: Spark commits without a message of any task, so that nothing is "
                "known of its rows: nothing was written. trigger(continuous=…) does so, and is not supported: use "
                "trigger(processingTime=…) or trigger(availableNow=True)"
            )
            raise InvalidArgument(message)
        check_rows(heard)
        staged = [file for message in heard for file in message.taken.staged]
        if not staged:
            return Ingested()
        log = self._open()
        done = deliver(log, staged, batch, self._options)
        _logger.info("log %s, %s: %s", log.name, batch, done)
        if done.conflicts:
            _logger.warning("%s", _told_of_conflicts(log.name, done.conflicts, self._options))
        return done

    def _tidy(self) -> None:
        """Put small files together, and remove what was staged long ago and never adopted, saying so. The batch is in:
        this is not worth failing for.
        """
        try:
            log = self._open()
            inner.tidy(log)
            gone = log.sweep()
        except OncelogError as error:
            _logger.warning("log %s was not tidied up: %s", self._options.log, error)
            return
        if gone:
            _logger.warning("log %s: %d staged files were never adopted and are removed", self._options.log, len(gone))


def _told_of_conflicts(name: str, count: int, options: WriteOptions) -> str:
    """Return what to say of rows that were not stored, because their ids are taken by other content."""
    rows = f"log {name}: {count} rows have an id that another record has, with other content, and were not stored"
    if options.on_conflict != "quarantine":
        return f"{rows}: the first stands (onConflict=original)"
    aside = f"{CONFLICTS}{name}"
    return f"{rows}. They are in the log {aside}: oncelog log cat {aside} --url {redacted(options.url)}"


def query_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return the query whose tasks these messages are from (empty: of none)."""
    return next((message.query for message in messages if isinstance(message, TaskMessage)), "")


def check_rows(messages: Sequence[TaskMessage]) -> None:
    """Raise one ``InvalidArgument`` for all rows that cannot be written, if there are any."""
    bad = [(message.partition, message.taken.bad) for message in messages if message.taken.bad is not None]
    if not bad:
        return
    partition, first = bad[0]
    more = f" ({len(bad) - 1} more partitions have bad rows)" if len(bad) > 1 else ""
    message = (
        f"rows cannot be written, and nothing was: partition {partition}, row {first.row}, {first.rule}"
        f"{f'; the row: {first.sample}' if first.sample else ''}{more}"
    )
    raise InvalidArgument(message)


def deliver(log: Log, staged: Sequence[Staged], batch: BatchName | None, options: WriteOptions) -> Ingested:
    """Bring staged files into the log as its writer, which is let go at once: others take turns.

    An outcome that is not known is settled by doing it again: the mark, or the ids, tell whether it was done.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            with log.writer(wait_s=options.writer_wait_s) as writer:
                return writer.ingest(
                    staged, batch, on_conflict=options.on_conflict, on_replay=options.on_replay, timeout_s=None
                )
        except (Unavailable, WriterFenced):
            if attempt == ATTEMPTS_MAX or (batch is None and any(file.ids < file.records for file in staged)):
                raise
    raise AssertionError


class BatchWriter(_LogSink, DataSourceArrowWriter):
    """Appends a table. With ``producer`` and ``batchId`` a job that is run again does nothing."""

    def __init__(self, options: WriteOptions, wanted: StructType, *, overwrite: bool) -> None:
        if (options.producer is None) != (options.batch is None):
            message = "options producer and batchId: both make a batch write idempotent, one without the other nothing"
            raise InvalidArgument(message)
        super().__init__(options, wanted, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stage a task's rows."""
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Adopt what the tasks staged."""
        options = self._options
        batch = None
        if options.producer is not None and options.batch is not None:
            batch = BatchName(producer=options.producer, number=options.batch, owner=query_of(messages))
        self._commit(messages, batch)
        if (options.batch or 0) % TIDY_BATCHES == 0:
            self._tidy()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: a commit may have come through, and a task may still run. Staged files are removed by age."""


class StreamWriter(_LogSink, DataSourceStreamArrowWriter):
    """Appends micro-batches, each once: its number is compared with the mark of the query, or of ``producer``."""

    def __init__(self, options: WriteOptions, wanted: StructType, *, overwrite: bool) -> None:
        if options.batch is not None:
            message = "option batchId: a stream numbers its batches itself"
            raise InvalidArgument(message)
        super().__init__(options, wanted, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stage a task's rows."""
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Adopt what the tasks staged, unless this batch is there."""
        query = query_of(messages)
        self._commit(messages, BatchName(producer=self._options.producer or query, number=batchId, owner=query))
        if batchId % TIDY_BATCHES == 0:
            self._tidy()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: a commit may have come through, and a task may still run. Staged files are removed by age."""
