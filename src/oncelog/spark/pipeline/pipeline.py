"""Running a pipeline: rows become records of a log, once, and go on from there. It may be killed at any moment.

Two queries of Spark do it. The first writes into the log, which recognises what it has. The second reads the log by
position, and writes what it read under the batch's own name, so that a batch that is done again replaces itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import oncelog
from oncelog.clock import Clock
from oncelog.errors import NotFound
from oncelog.log.log import Log
from oncelog.spark.pipeline import check, frames, history, ownership, spec
from oncelog.spark.pipeline.history import Batch, Ended, Events, Leg, Started
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec
from oncelog.spark.session import session, spark_errors
from oncelog.types import micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BATCH_ONLY = {"avro", "jdbc", "xml"}
"""What Spark does not write as a stream."""

_LOOK_S: Any = 0.2
"""How often Spark is asked how far it is."""

Tell = Callable[[Batch], None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, and what is there now. ``rows`` were read by this run, ``attempts`` by all of them."""

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

    def run(self, tell: Tell, *, follow: bool = False, spark: SparkSession | None = None) -> Outcome:
        """Run until all there is has gone through; with ``follow``, until it is stopped.

        Without a session, one is started for this run, and stopped after it.
        """
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
        found = frames.source(spark, self.spec)
        frames.keep_schema(self.spec, found)
        rows = frames.rows(self.spec, found)
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
        writer = frames.records(self.spec, rows).writeStream.format(frames.FORMAT).queryName("into the log")
        writer = writer.options(**self._sink_options()).option("checkpointLocation", f"{self.spec.checkpoint}/into-log")
        return writer.trigger(**self._trigger(follow=follow)).start()

    def _sink_options(self) -> dict[str, str]:
        return {**frames.log_options(self.spec), "onConflict": self.spec.log.on_conflict}

    def _write_once(self, rows: DataFrame, tell: Tell) -> None:
        """Write all that a source has which Spark cannot follow; what the log has of it is recognised."""
        from pyspark.sql import Observation  # noqa: PLC0415 (as in session)
        from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

        begin_us = self._clock.now_us()
        seen = Observation()
        records = frames.records(self.spec, rows).observe(seen, f.count(f.lit(1)).alias("rows"))
        records.write.format(frames.FORMAT).mode("append").options(**self._sink_options()).save()
        count = int(seen.get["rows"])
        took_ms = (self._clock.now_us() - begin_us) // 1000
        number = history.summed(list(self.history)).batches
        self._note(tell, "into the log", batch=number, rows=count, triggered_us=begin_us, duration_ms=took_ms)

    def _out(self, spark: SparkSession, rows: DataFrame, *, follow: bool = False) -> Iterator[StreamingQuery]:
        """Start the query that reads the log and writes to the sink, if there is one."""
        sink = self.spec.sink
        if sink is None:
            return
        going = frames.going_on(self.spec, frames.log_view(spark, self.spec, rows.schema))
        writer: Any = going.writeStream.queryName("out of the log")
        writer = writer.option("checkpointLocation", f"{self.spec.checkpoint}/out-of-log")
        name = sink.format.lower()
        if name in FILE_FORMATS:
            writer = writer.foreachBatch(self._write_folder)
        elif name == "delta":
            writer = writer.foreachBatch(self._write_delta)
        elif name in _BATCH_ONLY:
            writer = writer.foreachBatch(self._append)
        else:
            writer = writer.format(sink.format).options(**frames.options(sink.options))
            writer = writer.option("path", sink.path) if sink.path is not None else writer
        yield writer.trigger(**self._trigger(follow=follow)).start()

    def _write_folder(self, rows: DataFrame, batch: int) -> None:
        """Write a batch as a folder of its own: done again, it replaces itself, whoever reads the files."""
        sink = self.spec.sink
        assert sink is not None
        writer = rows.write.mode("overwrite").options(**frames.options(sink.options)).partitionBy(*sink.partition_by)
        writer = writer.option("partitionOverwriteMode", "static")  # the whole folder, whatever the session is set to
        writer.format(sink.format).save(f"{sink.path}/batch={batch:010d}")

    def _append(self, rows: DataFrame, _: int) -> None:
        """Append a batch to what Spark writes as a whole only: done again, it is there twice."""
        sink = self.spec.sink
        assert sink is not None
        rows.write.format(sink.format).mode("append").options(**frames.options(sink.options)).save(sink.path)

    def _write_delta(self, rows: DataFrame, batch: int) -> None:
        """Write a batch under a transaction that Delta knows, so that done again it is skipped."""
        sink = self.spec.sink
        assert sink is not None
        transaction = self._transaction(rows, batch)
        writer = rows.write.format("delta").mode("append").options(**frames.options(sink.options), **transaction)
        writer.partitionBy(*sink.partition_by).save(sink.path)

    def _transaction(self, rows: DataFrame, batch: int) -> dict[str, str]:
        """Return what Delta knows a batch again by. A query whose checkpoint is lost is another one: its batches count
        from 0, and under the old name Delta would skip them, with what is new in them.
        """
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        return {"txnAppId": f"oncelog/{self.spec.name}/{query}", "txnVersion": str(batch)}

    def _trigger(self, *, follow: bool) -> dict[str, Any]:
        return {"processingTime": f"{self.spec.run.every_s} seconds"} if follow else {"availableNow": True}

    def _finish(self, leg: Leg, query: StreamingQuery, tell: Tell) -> None:
        """Wait until a query has done all there is."""
        while not query.awaitTermination(_LOOK_S):
            self._look(leg, query, tell)
        self._look(leg, query, tell)

    def _follow(self, queries: list[StreamingQuery], tell: Tell) -> None:
        """Wait until somebody stops the process, or a query fails."""
        legs: list[Leg] = ["into the log", "out of the log"]
        with _stopped_politely() as stopping:
            while not stopping and all(query.isActive for query in queries):
                queries[0].awaitTermination(_LOOK_S)
                for leg, query in zip(legs, queries, strict=False):
                    self._look(leg, query, tell)
        for leg, query in zip(legs, queries, strict=False):
            query.stop()
            self._look(leg, query, tell)
            failure = query.exception()
            if failure is not None:
                raise failure

    def _look(self, leg: Leg, query: StreamingQuery, tell: Tell) -> None:
        """Tell of the batches that were done since the last look."""
        for progress in query.recentProgress:
            known: Any = progress
            if known["batchId"] <= self._last.get(leg, -1) or not known["numInputRows"]:
                continue
            self._last[leg] = known["batchId"]
            self._batches += 1
            self._note(
                tell,
                leg,
                batch=known["batchId"],
                rows=known["numInputRows"],
                triggered_us=micros(datetime.fromisoformat(known["timestamp"])),
                exported=_position(known["sources"][0]["endOffset"]) if leg == "out of the log" else None,
                duration_ms=int(known["durationMs"].get("triggerExecution", 0)),
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
    ) -> None:
        stored, conflicts = self.counted()
        done = Batch(
            leg=leg,
            batch=batch,
            rows=rows,
            at_us=self._clock.now_us(),
            triggered_us=triggered_us,
            duration_ms=duration_ms,
            stored=stored,
            conflicts=conflicts,
            exported=exported,
        )
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
        )


def _creating(db: oncelog.Database, given: Spec) -> Any:
    """Return the settings to create a log with; ``None`` to take it as it is."""
    try:
        db.log(given.log.name)
    except NotFound:
        return check.wanted_settings(given)
    return given.log.settings


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
