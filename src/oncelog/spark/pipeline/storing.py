"""A batch of rows into the log, and the account of it: rows in = stored + duplicates + conflicts + rejected + left out.

The log counts what it stored, knew before and put aside, in the mark of the query, in the same version of its manifest
as the rows. So the counts are right after a kill at any step: a batch that comes again finds its mark, and its counts
are in the sums already. The reader reports the rows of the source, file by file; the rows that SQL left out are the
difference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec

import oncelog
from oncelog.clock import Clock
from oncelog.errors import Unavailable
from oncelog.log.ingest import batch_marks
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.log import Log
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.sink import deliver
from oncelog.spark.pipeline.rows import frames, source_files, taken_files, vanished_files
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.reading import bytes_of
from oncelog.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession

    from oncelog.spark.reading.reader import Sums


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch. ``rows`` came in; ``left_out`` is what SQL left out, negative for what it made.

    ``totals`` are the records, duplicates and conflicts of the query's mark, of all its batches together. ``missing``
    rows are in neither place: the pipeline must say so.
    """

    rows: int = 0
    rejected: int = 0
    rescued: int = 0
    left_out: int = 0
    missing: int = 0
    totals: tuple[int, int, int] | None = None


NOTHING = Account()
_KEPT_BYTES = 8 << 20
_CHANGING_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""How long to wait before a batch is tried again because a file was changed while it was read."""

Written = tuple[dict[str, int], "Sums"]
"""What was seen of the rows, and what was found in the files."""


class Storing:
    """Stores the batches of one query."""

    def __init__(self, given: Spec, log: Log, found: Accumulator[Sums], version: int, clock: Clock) -> None:
        self._spec = given
        self._clock = clock
        self._log = log
        self._found = found
        self._version = version
        self.accounts: dict[tuple[str, int], Account] = {}

    def store(
        self, rows: DataFrame, batch: int, query: str, taken: Collection[str], listed: Collection[str]
    ) -> set[str]:
        """Store a batch once, with what is no record put aside; note the account of it.

        ``taken`` are the files of the batch, ``listed`` those that Spark found of them. Those that were gone are noted,
        to be read when they are back, and returned.
        """
        known: Any = None

        def write() -> Written:
            nonlocal known
            known = self._mark(query)  # an attempt before may have stored the batch, and counted it
            return self._write(rows, batch, query)

        seen, found = self._settled(rows, write)
        gone = self._gone(found, taken, listed, rows.sparkSession)
        vanished_files.note(self._spec, gone)
        self._put_aside(found, batch, query)
        self.accounts[query, batch] = self._account(seen, found, batch, query, known)
        return gone

    def _gone(self, found: Sums, taken: Collection[str], listed: Collection[str], spark: SparkSession) -> set[str]:
        """Return the files of a batch that were not there to be read, and are not empty: Spark reads no empty files.

        Where all files are read, one that was not read was gone, also if it is back by now: to read it again makes
        duplicates at most. Spark need not read all files for some SQL, such as ``LIMIT``, or any for ``WHERE false``,
        and does not tell which files it reads itself. Then a file was gone if Spark did not list it, or if it is gone.
        """
        names = {taken_files.local_name(path) for path, _, _ in found}
        vanished = {taken_files.local_name(path) for (path, _, _), one in found.items() if one.vanished}
        unread = set(taken) - (names - vanished)  # a file that is gone for one of its parts is read as a whole later
        sql = None if self._spec.transform is None else self._spec.transform.sql
        if not source_files.is_read_here(self._spec) or not (sql is None or (found and frames.is_plain(sql))):
            unread = (unread & vanished) | (unread - set(listed)) | taken_files.missing(unread)
        return {file for file in unread if file in vanished or not taken_files.is_empty(self._spec, file, spark)}

    def pass_over(self, taken: Collection[str], spark: SparkSession) -> None:
        """Note the files of a batch of which Spark reads none: those that are there are to be read alone."""
        vanished_files.note(self._spec, {file for file in taken if not taken_files.is_empty(self._spec, file, spark)})

    def next_batch(self, query: str) -> int:
        """Return the number of a batch that is none of those that the log has of a query."""
        mark = self._mark(query)
        return 0 if mark is None else mark.last + 1

    def store_all(self, rows: DataFrame, write: Callable[[DataFrame], None]) -> Account:
        """Store all rows of a source that Spark does not follow. ``Unavailable`` if a file that was listed is gone: the
        next run lists what there is then.
        """
        seen, found = self._settled(rows, lambda: self._written(rows, write, None, {}))
        gone = sorted({path for (path, _, _), one in found.items() if one.vanished})
        if gone:
            message = f"{gone[0]} was listed, and was gone when it was to be read ({len(gone):,} such files): run again"
            raise Unavailable(message)
        self._put_aside(found, None, "")
        read = sum(one.rows for one in found.values()) if found else seen["rows"]
        bad = sum(one.rejected for one in found.values())
        return Account(
            rows=read + bad, rejected=bad + seen["bad"], rescued=seen["rescued"], left_out=read - seen["rows"]
        )

    def _settled(self, rows: DataFrame, write: Callable[[], Written]) -> Written:
        """Write rows; do so again, a little later, if a file was changed while it was read: its rows were not stored.

        A stream divides large files once a batch: Spark keeps what it has shuffled. The parts of a file that has since
        changed are those of the old one, so every further attempt reads each file as a whole.
        """
        context = rows.sparkSession.sparkContext
        try:
            for wait_s in (*_CHANGING_S, None):
                self._found.value = {}
                try:
                    return write()
                except Exception as error:
                    if wait_s is None or bytes_of.CHANGED not in str(error):
                        raise
                context.setLocalProperty(bytes_of.UNDIVIDED, "true")
                condition = threading.Condition()
                with condition:
                    self._clock.wait(condition, wait_s)
        finally:
            context.setLocalProperty(bytes_of.UNDIVIDED, None)  # type: ignore[arg-type]  # that is how Spark removes it
        raise AssertionError

    def _write(self, rows: DataFrame, batch: int, query: str) -> Written:
        named = {"producer": query, "batchId": str(batch)}

        def write(good: DataFrame) -> None:
            good.write.format(frames.FORMAT).mode("append").options(**self.options(), **named).save()

        return self._written(rows, write, batch, named)

    def _written(
        self, rows: DataFrame, write: Callable[[DataFrame], None], batch: int | None, named: dict[str, str]
    ) -> Written:
        """Write the rows that can be records, and put the others aside."""
        seen = self._observed(rows, write, batch)
        found = dict(self._found.value)
        if seen["bad"]:
            versions = bytes_of.seen((path, one.version) for (path, _, _), one in found.items())
            context = rows.sparkSession.sparkContext
            context.setLocalProperty(bytes_of.SEEN, versions)
            try:
                self._reject(frames.records(self._spec, rows, self._version, batch), named)
            finally:
                context.setLocalProperty(bytes_of.SEEN, None)  # type: ignore[arg-type]  # as in _settled
        return seen, found

    def options(self) -> dict[str, str]:
        """Return the options of the sink.

        A batch that comes again after a kill has other rows if a file has changed meanwhile: Spark notes the names of
        files, not their content. Every row of a pipeline has an id, so the ids tell which rows are new.
        """
        return {**frames.log_options(self._spec), "onConflict": self._spec.log.on_conflict, "onReplay": "ids"}

    def _observed(self, rows: DataFrame, write: Callable[[DataFrame], None], batch: int | None) -> dict[str, int]:
        """Write the rows that can be records, and return how many there were of each kind."""
        from pyspark.sql import Observation  # noqa: PLC0415 (as in session)
        from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

        records = frames.records(self._spec, rows, self._version, batch)
        seen = Observation()
        counted = records.observe(
            seen,
            f.count(f.lit(1)).alias("rows"),
            f.count_if(f.col("reason").isNotNull()).alias("bad"),
            f.count_if("rescued").alias("rescued"),
        )
        if self._spec.source.on_bad_row == "fail":
            counted = counted.where(_refused(records))
        names = [name for name in records.columns if name not in {"reason", "rescued", *source_files.HIDDEN}]
        write(counted.where(f.col("reason").isNull()).select(*names))
        return {name: int(count) for name, count in seen.get.items()}

    def _reject(self, records: DataFrame, named: dict[str, str]) -> None:
        """Put rows aside that cannot be records: they are computed once more, for there are few."""
        from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

        bad = records.where(f.col("reason").isNotNull())
        if self._spec.source.on_bad_row == "drop":
            return
        here = {name: f.col(name) if name in records.columns else f.lit(None) for name in source_files.HIDDEN}
        file, line = (here[name].cast("string") for name in source_files.HIDDEN[:2])
        value = f.coalesce(here[source_files.HIDDEN[2]].cast("binary"), f.col("value"), f.lit(b""))
        value = f.substring(value, 1, _KEPT_BYTES)  # a row that is too large is no record of that log, either
        place = f.concat_ws("\n", file, line, "reason").cast("binary")
        headers = {"file": file, "line": line, "reason": f.col("reason")}
        pairs = [
            part for name, text in headers.items() for part in (f.lit(name), f.coalesce(text, f.lit("")).cast("binary"))
        ]
        rejected = bad.select(
            value.alias("value"), f.sha2(f.concat(place, value), 256).alias("id"), f.create_map(*pairs).alias("headers")
        )
        target = {"url": self._spec.log.url, "log": self._spec.log.rejected, "create": "true", "onReplay": "ids"}
        if named:
            target |= {"producer": f"{named['producer']}/records", "batchId": named["batchId"]}
        rejected.write.format(frames.FORMAT).mode("append").options(**target).save()

    def _put_aside(self, found: Sums, batch: int | None, query: str) -> None:
        """Bring what the reader staged into the log of rejected rows."""
        staged = [file for one in found.values() for file in one.staged]
        if not staged:
            return
        wanted = self._spec.log
        mark = None if batch is None else BatchName(producer=query, number=batch, owner=query)
        with oncelog.connect(wanted.url) as db:
            options = WriteOptions(url=wanted.url, log=wanted.rejected, on_replay="ids")
            deliver(db.log(wanted.rejected, create=True), staged, mark, options)

    def _mark(self, query: str) -> Any:
        return batch_marks.find(self._log.marks(), query)

    def _account(self, seen: dict[str, int], found: Sums, batch: int, query: str, known: Any) -> Account:
        mark = self._mark(query)
        totals = (0, 0, 0) if mark is None else (mark.records, mark.duplicates, mark.conflicts)
        before = (0, 0, 0) if known is None else (known.records, known.duplicates, known.conflicts)
        good = seen["rows"] - seen["bad"]
        here = sum(totals) - sum(before)
        replayed = known is not None and known.last >= batch
        missing = 0 if replayed and not here else good - here
        read = sum(one.rows for one in found.values()) if found else seen["rows"]
        left_out = read - seen["rows"]
        if self._spec.transform is None:
            missing, left_out = missing + left_out, 0
        rejected = sum(one.rejected for one in found.values())
        return Account(
            rows=read + rejected,
            rejected=rejected + seen["bad"],
            rescued=seen["rescued"],
            left_out=left_out,
            missing=missing,
            totals=totals,
        )


def _refused(records: DataFrame) -> Column:
    """Return a condition that every row meets, and that ends the job at a row that cannot be a record."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    file, line = source_files.HIDDEN[:2]
    place = [f.col(file), f.lit(", line "), f.col(line).cast("string"), f.lit(": ")] if file in records.columns else []
    row = f.coalesce(f.col("value").cast("string"), f.lit("null")).substr(1, 200)
    told = f.concat(f.lit(spark_errors.OURS), *place, f.col("reason"), f.lit("; the row: "), row)
    return f.assert_true(f.col("reason").isNull(), told).isNull()
