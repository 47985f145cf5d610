"""Checking a spec with Spark: do the columns exist, is the SQL right, does the source answer. Nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline import lines, mistakes
from oncelog.spark.pipeline.mistakes import Mistake, nearest
from oncelog.spark.pipeline.rows import encoding, frames, source_files
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
_UNRESOLVED = re.compile(r"name `(?P<name>[^`]+)` cannot be resolved")
_LOG_COLUMNS = "position LONG, segment LONG, entry LONG, timestamp TIMESTAMP, id STRING, stream STRING, type STRING, \
value BINARY, headers MAP<STRING, BINARY>, producer STRING, sequence LONG, tenant STRING"


def check(path: Path, given: Spec, spark: SparkSession) -> tuple[str | None, list[Mistake]]:
    """Return the schema of the rows that would be records, and what Spark says is wrong."""
    places = mistakes.read(path).places
    checked = _Checked(spark, given)
    found = [
        msgspec.structs.replace(mistake, line=lines.line_of(places, lines.parts(mistake.key)))
        for mistake in checked.mistakes()
    ]
    return checked.schema, found


class _WrongSpec(Exception):
    def __init__(self, mistake: Mistake) -> None:
        super().__init__()
        self.mistake = mistake


class _Checked:
    def __init__(self, spark: SparkSession, given: Spec) -> None:
        self._spark = spark
        self._spec = given
        self.schema: str | None = None

    def mistakes(self) -> Iterator[Mistake]:
        """Yield mistakes, as far as one can see behind the first of each part."""
        try:
            found = self._try("source.schema" if self._spec.source.schema else "source", self._source)
            self._check_query("transform.sql", self._spec.transform.sql if self._spec.transform else None)
            rows = self._try("transform.sql", lambda: frames.rows(self._spec, found))
        except _WrongSpec as wrong:
            yield wrong.mistake
            return
        self.schema = frames.shape_of(rows).simpleString()
        yield from self._columns(rows)
        if self._spec.source.lineage and source_files.HIDDEN[0] not in rows.columns:
            what = "rows that SQL puts together, or takes from elsewhere, have no one file and line"
            yield Mistake("source.lineage", what, "select columns FROM source in transform.sql, or remove lineage")
        if self._spec.sink is None:
            return
        try:
            self._check_query("sink.sql", self._spec.sink.sql)
            going = self._try("sink.sql", lambda: frames.going_on(self._spec, self._log(rows)))
        except _WrongSpec as wrong:
            yield wrong.mistake
            return
        yield from self._going(going)

    def _check_query(self, key: str, sql: str | None) -> None:
        """Refuse SQL that is no query: Spark would run it (ADD JAR, DROP TABLE, INSERT) when it is to look at it."""
        if sql is None or self._parses(f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)"):  # noqa: S608  parsed only
            return
        if self._parses(sql):  # else it is a mistake, which Spark tells without running anything
            raise _WrongSpec(Mistake(key, "is a command, and not a query", "write a SELECT"))

    def _parses(self, sql: str) -> bool:
        from pyspark.errors import ParseException  # noqa: PLC0415 (as in session)

        session: Any = self._spark._jsparkSession  # noqa: SLF001  the parser has no other door
        try:
            session.sessionState().sqlParser().parsePlan(sql)
        except ParseException:
            return False
        return True

    def _source(self) -> DataFrame:
        from oncelog.spark.reading.reader import FoundParam  # noqa: PLC0415 (as in session)

        found: Any = self._spark.sparkContext.accumulator({}, FoundParam())
        return frames.source(self._spark, self._spec, found)

    def _log(self, rows: DataFrame) -> DataFrame:
        """Return an empty log, to be analysed in place of the real one, which may not be there yet."""
        from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

        empty = self._spark.createDataFrame([], _LOG_COLUMNS)
        if self._spec.log.value != "json":
            return empty
        shape = frames.shape_of(rows)
        return empty.withColumn("record", encoding.decoded(f.col("value"), shape, encoding.NEWEST))

    def _columns(self, rows: DataFrame) -> Iterator[Mistake]:
        """Look for the columns that the spec names."""
        wanted = self._spec
        named = {"identity.column": wanted.identity.column}
        named |= {f"log.columns.{name}": getattr(wanted.log.columns, name) for name in ("stream", "type", "tenant")}
        if wanted.log.value != "json":
            named["log.value"] = wanted.log.value
        for key, name in named.items():
            if name is not None and name not in rows.columns:
                yield _no_column(key, name, rows.columns)
        if wanted.identity.expression is not None:
            expression = wanted.identity.expression
            try:
                self._try("identity.expression", lambda: rows.selectExpr(expression))
            except _WrongSpec as wrong:
                yield wrong.mistake

    def _going(self, going: DataFrame) -> Iterator[Mistake]:
        sink = self._spec.sink
        assert sink is not None
        for name in sink.partition_by:
            if name not in going.columns:
                yield _no_column("sink.partition_by", name, going.columns)
        double = sorted({name for name in going.columns if going.columns.count(name) > 1})
        if double and sink.sql is None:
            hint = 'write sink.sql = "SELECT position AS log_position, record.* FROM log"'
            yield Mistake("sink", f"the record has columns that the log has, too: {', '.join(double)}", hint)
        if sink.format.lower() == frames.FORMAT and "value" not in going.columns:
            yield Mistake("sink.sql", "a log's records have a value, and this has none", "select … AS value")

    def _try(self, key: str, work: Callable[[], _T]) -> _T:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 (as in session)
        from pyspark.errors import PySparkException  # noqa: PLC0415 (as in session)

        try:
            return work()
        except InvalidArgument as error:
            raise _WrongSpec(Mistake(key, str(error))) from error
        except (PySparkException, Py4JJavaError) as error:
            raise _WrongSpec(_explained(key, spark_errors.said(error))) from error


def _no_column(key: str, name: str, columns: list[str]) -> Mistake:
    meant = nearest(name, columns)
    hint = f"did you mean {meant}?" if meant else f"there is {', '.join(columns)}"
    return Mistake(key, f"there is no column {name}", hint)


def _explained(key: str, message: str) -> Mistake:
    """Return what Spark says, without what it says beside it."""
    text = message.split("\n", maxsplit=1)[0].split(" SQLSTATE", maxsplit=1)[0]
    text = re.sub(r"^\[[\w.]+\] ", "", text)
    hint = None
    if "Did you mean" in text:
        text, _, rest = text.partition(" Did you mean one of the following? ")
        hint = f"did you mean {rest.strip('[]. ').replace('`', '').split(',')[0]}?"
    if "Couldn't connect" in text:
        hint = "see whether it answers at that url, and lets that user, with that password, in"
    if key == "source" and "does not exist" in text:
        hint = "look at dbtable, or query, in options, and at what that user may see"
    if text.startswith("there is no class"):
        hint = 'add the jar that has it to [run], as in conf = { "spark.jars" = "driver.jar" }'
    if "No suitable driver" in text or "DriverWrapper" in text:
        hint = 'name it in options, as in driver = "org.postgresql.Driver", and its jar in [run]'
    unresolved = _UNRESOLVED.search(text)
    if unresolved is not None:
        text = f"there is no column {unresolved['name']}"
    return Mistake(key, text.rstrip("."), hint)
