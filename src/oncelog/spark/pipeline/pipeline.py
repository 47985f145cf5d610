"""Running a pipeline: rows become records of a log, once, and go on from there. It may be killed at any moment.

Two queries of Spark do it. The first writes into the log, which recognises what it has. The second reads the log by
position, and writes each batch of what it read once. One run at a time holds the pipeline's lease.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import oncelog
from oncelog.clock import Clock
from oncelog.errors import NotFound
from oncelog.log.log import Log
from oncelog.spark.pipeline import history, lease, spec
from oncelog.spark.pipeline.checks import check, ownership
from oncelog.spark.pipeline.history import BatchDone, Ended, Events, Leg, Started
from oncelog.spark.pipeline.lease import PipelineLease
from oncelog.spark.pipeline.rows import encoding, frames, source_files, taken_files, vanished_files
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec
from oncelog.spark.pipeline.storing import NOTHING, Account, Storing
from oncelog.spark.session import session, spark_errors
from oncelog.spark.sinks import compaction, shared_folder
from oncelog.spark.sinks import folder as folders
from oncelog.types import micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

_BATCH_ONLY = {"avro", "jdbc", "xml"}
"""What Spark does not write as a stream."""

_STAGED = (*FILE_FORMATS, "delta", "iceberg")
_LOOK_S: Any = 0.2
"""How often Spark is asked how far it is."""

Tell = Callable[[BatchDone], None]
Write = Callable[["DataFrame", int], None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, and what is there now. ``rows`` were read by this run, ``attempts`` by all of them.

    ``attempts`` = ``stored`` + ``duplicates`` + ``conflicts`` + ``rejected`` + ``left_out`` (by SQL) + ``missing``, and
    ``missing`` is 0 unless something is wrong. ``replaced`` are files that have changed since they were read: what is
    new in them was not read. ``passed_over`` are files that Spark does not list. ``vanished`` are files that were
    listed, were gone when they were to be read, and are not back. ``widened`` is what this run added to the schema.
    """

    pipeline: str
    log: str
    rows: int
    attempts: int
    stored: int
    duplicates: int
    conflicts: int
    exported: int | None
    batches: int
    seconds: float
    rejected: int = 0
    rescued: int = 0
    left_out: int = 0
    missing: int = 0
    replaced: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


class Pipeline:
    """A spec that is being run."""

    def __init__(self, given: Spec, folder: Path, clock: Clock, kept: Events | None = None) -> None:
        self.spec = given
        self.history: Events = kept if kept is not None else history.of(given, folder)
        self._clock = clock
        self._db = oncelog.connect(given.log.url)
        self._log: Log = self._db.log(given.log.name, _creating(self._db, given), create=True)
        self._last: dict[Leg, int] = {}
        self._rows = self._batches = 0
        self._failure: Exception | None = None
        self._version = ownership.encoding_of(spec.local_path(given.checkpoint))
        self._lease: PipelineLease = lease.NoLease()
        self._widened: list[str] = []
        self._noting = threading.Lock()  # a batch notes the files that it reads alone, while others are looked at

    def run(
        self, tell: Tell, *, follow: bool = False, spark: SparkSession | None = None, wait_s: float = 0.0
    ) -> Outcome:
        """Run until all there is has gone through; with ``follow``, until it is stopped.

        Without a session, one is started for this run, and stopped after it. ``LogBusy``, which says who runs, when
        another run of this pipeline does not end within ``wait_s``.
        """
        with lease.held(self.spec, self._clock, wait_s) as self._lease:
            return self._run_alone(tell, follow=follow, spark=spark)

    def _run_alone(self, tell: Tell, *, follow: bool, spark: SparkSession | None) -> Outcome:
        begin_us = self._clock.elapsed_us()
        checkpoint = spec.local_path(self.spec.checkpoint)
        if checkpoint is not None:
            ownership.own(self.spec, checkpoint, self._log.log_id)
        stored, conflicts = self.counted()
        self.history.add(Started(at_us=self._clock.now_us(), stored=stored, conflicts=conflicts))
        log_file = checkpoint / "spark.log" if checkpoint is not None else Path(os.devnull)
        with spark_errors.told(log_file), self._session(spark, log_file) as running:
            self._run(running, tell, follow=follow)
        self.history.add(Ended(at_us=self._clock.now_us()))
        return self._outcome((self._clock.elapsed_us() - begin_us) / 1e6)

    @contextmanager
    def _session(self, given: SparkSession | None, log_file: Path) -> Iterator[SparkSession]:
        """Yield the session that was given, or one of this run's own."""
        run = self.spec.run
        spark = given or session.start(self.spec.name, run.master, run.conf, run.packages, log_file=log_file)
        try:
            yield spark
        finally:
            if given is None:
                spark.stop()

    def _run(self, spark: SparkSession, tell: Tell, *, follow: bool) -> None:
        self._spark = spark
        self._counted = spark.sparkContext.accumulator({}, _found_param())
        found = frames.source(spark, self.spec, self._counted)
        self._widened = frames.keep_schema(self.spec, found, self._clock.now_us())
        rows = frames.rows(self.spec, found)
        encoding.check(rows.schema)
        frames.records(self.spec, rows, self._version)  # wrong columns are an error before a row is read
        self._storing = Storing(self.spec, self._log, self._counted, self._version, self._clock)
        self._tell = tell
        self._schema: StructType | None = None if source_files.is_read_here(self.spec) else found.schema
        self._read_vanished()
        if not found.isStreaming:
            self._write_once(rows, tell)
        elif follow:
            self._follow([self._into(rows, follow=True), *self._out(spark, rows, follow=True)], tell)
            return
        else:
            self._finish("into the log", self._into(rows), tell)
        for query in self._out(spark, rows):
            self._finish("out of the log", query, tell)

    def _into(self, rows: DataFrame, *, follow: bool = False) -> StreamingQuery:
        """Start the query that writes into the log."""
        writer: Any = rows.writeStream.queryName("into the log").foreachBatch(self._telling(self._store))
        writer = writer.option("checkpointLocation", f"{self.spec.checkpoint}/into-log")
        started: StreamingQuery = writer.trigger(**self._trigger(follow=follow)).start()
        return started

    def _store(self, rows: DataFrame, batch: int) -> None:
        """Store a batch, whose rows the log counts."""
        query = _query(rows)
        running: Any = self._spark.streams.get(query)  # the session of a batch is another, which has no queries
        taken = taken_files.of_batch(self.spec, batch, rows.sparkSession)
        listed = taken_files.listed(running, self._spark, self.spec) if taken else ()
        if taken and not listed:
            self._storing.pass_over(taken, self._spark)
        else:
            self._storing.store(rows, batch, query, taken, listed)
        self._read_vanished()

    def _read_vanished(self) -> None:
        """Store the rows of files that are back: Spark took them, and does not read them again. Some were never gone:
        beside folders such as ``day=1``, Spark takes a file of the source's folder, and does not read it.

        A file is settled behind its note in the history: a kill in between makes duplicates, and no count is lost.
        """
        for file in vanished_files.back(self.spec):
            begin_us, changed_ms = self._clock.now_us(), vanished_files.changed_ms(file)
            query = f"{taken_files.query_of(self.spec)}/vanished"
            batch = self._storing.next_batch(query)
            alone = vanished_files.alone(self.spec, file)
            rows = frames.rows(alone, frames.source(self._spark, alone, self._counted, self._schema))
            gone = self._storing.store(rows, batch, query, {file}, {file})  # Spark fails for one file that is gone
            account = self._storing.accounts.pop((query, batch))
            took_ms = (self._clock.now_us() - begin_us) // 1000
            self._note(
                self._tell,
                "into the log",
                batch=batch,
                rows=account.rows,
                triggered_us=begin_us,
                duration_ms=took_ms,
                query=query,
                account=account,
            )
            if not gone:
                vanished_files.settle(self.spec, file, changed_ms)

    def _write_once(self, rows: DataFrame, tell: Tell) -> None:
        """Write all that a source has which Spark cannot follow; what the log has of it is recognised."""
        begin_us = self._clock.now_us()
        writing = self._storing.options()
        account = self._storing.store_all(
            rows, lambda good: good.write.format(frames.FORMAT).mode("append").options(**writing).save()
        )
        took_ms = (self._clock.now_us() - begin_us) // 1000
        number = history.summed(list(self.history)).batches
        self._note(
            tell,
            "into the log",
            batch=number,
            rows=account.rows,
            triggered_us=begin_us,
            duration_ms=took_ms,
            account=account,
        )

    def _out(self, spark: SparkSession, rows: DataFrame, *, follow: bool = False) -> Iterator[StreamingQuery]:
        """Start the query that reads the log and writes to the sink, if there is one."""
        sink = self.spec.sink
        if sink is None:
            return
        if sink.format.lower() in _STAGED:
            local = spec.local_path(sink.path) if sink.path is not None else None
            staged = shared_folder.folder_of(sink.path, local, frames.options(sink.options))
            if staged is not None:
                shared_folder.check(spark.sparkContext, staged)
        going = frames.going_on(self.spec, frames.log_view(spark, self.spec, frames.shape_of(rows), self._version))
        writer: Any = going.writeStream.queryName("out of the log")
        writer = writer.option("checkpointLocation", f"{self.spec.checkpoint}/out-of-log")
        once = self._once()
        if once is not None:
            writer = writer.foreachBatch(self._telling(once))
        else:
            writer = writer.format(sink.format).options(**frames.options(sink.options))
            writer = writer.option("path", sink.path) if sink.path is not None else writer
        yield writer.trigger(**self._trigger(follow=follow)).start()

    def _once(self) -> Write | None:
        """Return what writes a batch to the sink, where that is not left to Spark."""
        assert self.spec.sink is not None
        name = self.spec.sink.format.lower()
        if name in FILE_FORMATS:
            return self._write_folder
        if name == "delta":
            return self._write_delta
        if name == "iceberg":
            return self._write_iceberg
        return self._append if name in _BATCH_ONLY else None

    def _telling(self, write: Write) -> Write:
        """Return what keeps the error of a batch: of an error in Python, Spark tells the first line of its trace."""

        def told(rows: DataFrame, batch: int) -> None:
            try:
                self._lease.check()
                write(rows, batch)
            except Exception as error:
                self._failure = error
                raise

        return told

    def _write_folder(self, rows: DataFrame, batch: int) -> None:
        """Write a batch as a folder of its own, once, also beside another run that does the same."""
        sink = self.spec.sink
        assert sink is not None
        assert sink.path is not None
        table = folders.table(sink.path, spec.local_path(sink.path), self._clock)
        compaction.place_of(table, self._clock).recover()
        folder = folders.Folder(table, self._clock)
        query = _query(rows)
        folder.own(query, self.spec.name)
        writer = rows.write.options(**frames.options(sink.options)).partitionBy(*sink.partition_by)
        folder.write(query, batch, writer.format(sink.format).save)

    def _append(self, rows: DataFrame, _: int) -> None:
        """Append a batch to what Spark writes as a whole only: done again, it is there twice."""
        sink = self.spec.sink
        assert sink is not None
        rows.write.format(sink.format).mode("append").options(**frames.options(sink.options)).save(sink.path)

    def _write_delta(self, rows: DataFrame, batch: int) -> None:
        """Write a batch as one commit of a Delta table, once, also beside another run that does the same."""
        from oncelog.spark.sinks.delta import Delta  # noqa: PLC0415 (an extra)

        sink = self.spec.sink
        assert sink is not None
        assert sink.path is not None
        query = _query(rows)
        table = Delta(spec.local_path(sink.path) or sink.path, sink.partition_by, self._clock)
        table.own(query, self.spec.name)
        table.write(query, batch, _as_parquet(rows, sink.partition_by))

    def _write_iceberg(self, rows: DataFrame, batch: int) -> None:
        """Write a batch as one commit of an Iceberg table, once, also beside another run that does the same."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 (as in session)

        from oncelog.spark.sinks.iceberg import Iceberg  # noqa: PLC0415 (an extra)

        sink = self.spec.sink
        assert sink is not None
        table = Iceberg(frames.options(sink.options), self._clock)
        table.write(_query(rows), batch, to_arrow_schema(rows.schema, timezone="UTC"), _as_parquet(rows, ()))

    def _trigger(self, *, follow: bool) -> dict[str, Any]:
        return {"processingTime": f"{self.spec.run.every_s} seconds"} if follow else {"availableNow": True}

    def _finish(self, leg: Leg, query: StreamingQuery, tell: Tell) -> None:
        """Wait until a query has done all there is."""
        with self._own_errors():
            while not query.awaitTermination(_LOOK_S):
                self._look(leg, query, tell)
        self._look(leg, query, tell)

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise the error that a batch failed with, in place of what Spark says of it."""
        try:
            yield
        except Exception as error:
            if self._failure is None:
                raise
            raise self._failure from error

    def _follow(self, queries: list[StreamingQuery], tell: Tell) -> None:
        """Wait until somebody stops the process, or a query fails."""
        legs: list[Leg] = ["into the log", "out of the log"]
        with _stopped_politely() as stopping, self._own_errors():
            while not stopping and all(query.isActive for query in queries):
                queries[0].awaitTermination(_LOOK_S)
                for leg, query in zip(legs, queries, strict=False):
                    self._look(leg, query, tell)
        for leg, query in zip(legs, queries, strict=False):
            query.stop()
            self._look(leg, query, tell)
            failure = query.exception()
            if failure is not None:
                raise self._failure or failure

    def _look(self, leg: Leg, query: StreamingQuery, tell: Tell) -> None:
        """Tell of the batches that were done since the last look."""
        for done in query.recentProgress:
            known: Any = done
            account = self._storing.accounts.get((known["id"], known["batchId"])) if leg == "into the log" else None
            rows = known["numInputRows"] if account is None else account.rows
            if known["batchId"] <= self._last.get(leg, -1) or not rows:
                continue
            self._last[leg] = known["batchId"]
            self._batches += 1
            self._note(
                tell,
                leg,
                batch=known["batchId"],
                rows=rows,
                triggered_us=micros(datetime.fromisoformat(known["timestamp"])),
                exported=_position(known["sources"][0]["endOffset"]) if leg == "out of the log" else None,
                duration_ms=int(known["durationMs"].get("triggerExecution", 0)),
                query=known["id"] if account is not None else "",
                account=account or Account(),
            )

    def _note(
        self,
        tell: Tell,
        leg: Leg,
        *,
        batch: int,
        rows: int,
        triggered_us: int,
        duration_ms: int,
        exported: int | None = None,
        query: str = "",
        account: Account = NOTHING,
    ) -> None:
        stored, conflicts = self.counted()
        done = BatchDone(
            leg=leg,
            batch=batch,
            rows=rows,
            at_us=self._clock.now_us(),
            triggered_us=triggered_us,
            duration_ms=duration_ms,
            stored=stored,
            conflicts=conflicts,
            exported=exported,
            query=query,
            account=account,
        )
        with self._noting:
            self._rows += rows if leg == "into the log" else 0
            self.history.add(done)
            tell(done)

    def counted(self) -> tuple[int, int]:
        """Return how many records the log has had, and how many rows are quarantined."""
        try:
            aside = self._db.log(self.spec.log.conflicts).info().last_position + 1
        except NotFound:
            aside = 0
        return self._log.info().last_position + 1, aside

    def _outcome(self, seconds: float) -> Outcome:
        done = history.summed(list(self.history))
        files = taken_files.files(self.spec)
        return Outcome(
            pipeline=self.spec.name,
            log=self.spec.log.name,
            rows=self._rows,
            attempts=done.attempts,
            stored=done.settled,
            duplicates=done.duplicates,
            conflicts=done.aside,
            exported=done.exported or 0 if self.spec.sink is not None else None,
            batches=self._batches,
            seconds=seconds,
            rejected=done.rejected,
            rescued=done.rescued,
            left_out=done.left_out,
            missing=done.missing,
            replaced=() if files is None else files.replaced,
            passed_over=() if files is None else files.passed_over,
            vanished=() if files is None else files.vanished,
            widened=tuple(self._widened),
        )


def _creating(db: oncelog.Database, given: Spec) -> Any:
    """Return the settings to create a log with; ``None`` to take it as it is."""
    try:
        db.log(given.log.name)
    except NotFound:
        return check.wanted_settings(given)
    return given.log.settings


def _as_parquet(rows: DataFrame, partition_by: Sequence[str]) -> Callable[[str], None]:
    """Return what writes rows as Parquet files that the table libraries read: times are whole microseconds."""
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return rows.write.partitionBy(*partition_by).parquet


def _found_param() -> Any:
    from oncelog.spark.reading.reader import FoundParam  # noqa: PLC0415 (as in session)

    return FoundParam()


def _query(rows: DataFrame) -> str:
    """Return the id of the query whose batch this is: it is kept in the checkpoint."""
    return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _position(offset: Any) -> int | None:
    """Return the position in an offset of Oncelog's source."""
    if isinstance(offset, str):
        offset = msgspec.json.decode(offset)
    if isinstance(offset, dict):
        return next((value for value in offset.values() if isinstance(value, int)), None)
    return offset if isinstance(offset, int) else None


@contextmanager
def _stopped_politely() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, instead of dying of them, so that the batch in flight is finished."""
    got: list[int] = []
    before = {number: signal.signal(number, lambda number, _: got.append(number)) for number in (2, 15)}
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
