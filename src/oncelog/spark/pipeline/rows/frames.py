"""A spec as Spark frames: the rows of the source, the records of the log, and the rows of the sink."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oncelog.dedup.fingerprint import LINEAGE
from oncelog.errors import InvalidArgument
from oncelog.limits import ID_BYTES_MAX, LABEL_BYTES_MAX, VALUE_BYTES_MAX
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.rows import encoding, plain_types, source_files, widening
from oncelog.spark.pipeline.rows.encoding import quoted
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec
from oncelog.spark.pipeline.whole_file import write_whole
from oncelog.storage.local import links

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from oncelog.spark.reading.reader import Sums

FORMAT = "oncelog"
SCHEMA_FILE = widening.SCHEMA_FILE
_COUNTED = {"double": 2.0**53, "float": 2.0**24}
"""Below these, two whole numbers are two numbers of the type."""
_PLAIN_SQL = re.compile(
    r"\s*SELECT\s+(?P<columns>.+?)\s+FROM\s+`?source`?(?P<rest>\s+WHERE\s.+?)?\s*;?\s*", re.IGNORECASE | re.DOTALL
)
_OTHER_SQL = re.compile(
    r"\b(DISTINCT|GROUP|JOIN|UNION|INTERSECT|EXCEPT|MINUS|HAVING|LATERAL|OVER|LIMIT|ORDER|WITH)\b|\bSELECT\b.*\bSELECT\b",
    re.IGNORECASE | re.DOTALL,
)


def options(given: dict[str, Any]) -> dict[str, str]:
    """Return options as Spark takes them: all of them text."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}


def log_options(given: Spec) -> dict[str, str]:
    """Return the options that name the log."""
    return {"url": given.log.url, "log": given.log.name}


def source(spark: SparkSession, given: Spec, found: Accumulator[Sums], schema: StructType | None = None) -> DataFrame:
    """Return what the source has: a stream where Spark can follow it, else all there is.

    ``schema`` is given for one file of a source whose columns are known.
    """
    wanted = given.source
    reader: Any = spark.readStream if wanted.is_streaming else spark.read
    reader = reader.format(wanted.format).options(**options(wanted.options))
    if schema is not None and wanted.format.lower() == "text":
        return _texts(reader, wanted.path, schema)
    known = source_schema(spark, given, found) if schema is None else schema
    if isinstance(known, str):
        known = spark.createDataFrame([], known).schema
    if source_files.is_read_here(given) and known is not None:
        return source_files.frame(spark, given, known, found)
    if known is not None:
        reader = reader.schema(known)
    loaded: DataFrame = reader.load(wanted.path) if wanted.path is not None else reader.load()
    return plain_types.plain(loaded, wanted.path)


def _texts(reader: Any, path: str | None, schema: StructType) -> DataFrame:
    """Return the lines of a file of text. A column that its folders do not have (``day=1``) is null: Spark would refuse
    the schema.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)
    from pyspark.sql.types import StructType  # noqa: PLC0415 (as in session)

    loaded: DataFrame = reader.schema(StructType(schema.fields[:1])).load(path)
    columns = [f.col(quoted(one.name)) if one.name in loaded.columns else f.lit(None) for one in schema.fields]
    return loaded.select(
        *(column.cast(one.dataType).alias(one.name) for one, column in zip(schema.fields, columns, strict=True))
    )


def source_schema(spark: SparkSession, given: Spec, found: Accumulator[Sums]) -> StructType | str | None:
    """Return the schema to read with; ``None`` where the format knows its own.

    One that was taken from files is kept: taken again from more files, a column's type might change, and with
    it the content of records that are sent again.
    """
    wanted = given.source
    if wanted.schema_changes == "widen":
        return widening.schema(spark, given, _known(spark, given), found)
    followed = wanted.is_streaming and wanted.format.lower() in FILE_FORMATS
    if wanted.schema is not None or not (followed or source_files.is_read_here(given)):
        return wanted.schema
    kept = _kept(given)
    if kept is not None:
        return kept
    if wanted.format.lower() == "json":
        lines: Any = source_files.texts(spark, given, found).rdd.map(_first)
        return spark.read.options(**options(wanted.options)).json(lines).schema
    batch: Any = spark.read.format(wanted.format).options(**options(wanted.options))
    return plain_types.plain(batch.load(wanted.path), wanted.path).schema


def _kept(given: Spec) -> StructType | None:
    """Return the schema that an earlier run kept."""
    folder = spec.local_path(given.checkpoint)
    if folder is None or not (folder / SCHEMA_FILE).exists():
        return None
    return plain_types.kept(folder / SCHEMA_FILE)


def _known(spark: SparkSession, given: Spec) -> StructType | None:
    """Return the schema that a pipeline has so far: what earlier runs kept, and what the spec says."""
    kept, text = _kept(given), given.source.schema
    said = None if text is None else spark.createDataFrame([], text).schema
    return widening.merged(kept, said)[0] if kept is not None and said is not None else kept or said


def _first(row: Any) -> Any:
    return row[0]


def keep_schema(given: Spec, found: DataFrame, at_us: int) -> list[str]:
    """Keep a schema that was taken from files, for the next run; return what has changed in one that widens."""
    folder = spec.local_path(given.checkpoint)
    if folder is not None and given.source.schema_changes == "widen":
        folder.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
        names = [name for name in source_files.visible(found) if name != source_files.RESCUED]
        known = _known(found.sparkSession, given)
        return widening.keep(folder, known, found.select(*map(quoted, names)).schema, at_us)
    if folder is not None and given.source.schema is None and not (folder / SCHEMA_FILE).exists():
        folder.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
        names = [name for name in source_files.visible(found) if name != source_files.RESCUED]
        write_whole(folder / SCHEMA_FILE, found.select(*map(quoted, names)).schema.json().encode())
    return []


def rows(given: Spec, found: DataFrame) -> DataFrame:
    """Return the rows that are to be records: the source's, or what the spec's SQL makes of them.

    The hidden columns stay where the SQL is plain enough to be sure that nothing else changes with them.
    """
    if given.transform is None:
        return found
    session = found.sparkSession
    found.select(*map(quoted, source_files.visible(found))).createOrReplaceTempView("source")
    plain = session.sql(given.transform.sql)
    hidden = [name for name in found.columns if name in source_files.HIDDEN]
    more = _with_hidden(given.transform.sql, hidden) if hidden else None
    if more is None:
        return plain
    from pyspark.errors import PySparkException  # noqa: PLC0415 (as in session)

    found.createOrReplaceTempView("oncelog_source")
    try:
        wider = session.sql(more)
    except PySparkException:
        return plain
    return wider if wider.columns == [*plain.columns, *hidden] else plain


def _with_hidden(sql: str, hidden: list[str]) -> str | None:
    """Return SQL that selects the hidden columns, too, from the view that has them; ``None`` if that may mean more.

    >>> _with_hidden("SELECT a FROM source WHERE a > 0", ["_x"])
    'SELECT a, _x FROM oncelog_source WHERE a > 0'
    >>> _with_hidden("SELECT DISTINCT a FROM source", ["_x"])
    """
    found = _PLAIN_SQL.fullmatch(sql)
    if found is None or not is_plain(sql):
        return None
    starred = re.search(r"(^|,)\s*\*", found["columns"])
    columns = found["columns"] if starred else ", ".join([found["columns"], *hidden])
    return f"SELECT {columns} FROM oncelog_source{found['rest'] or ''}"  # noqa: S608 (the user's own)


def is_plain(sql: str) -> bool:
    """Tell whether SQL takes each row of the source by itself: columns, and a condition at most. So it needs all rows.

    >>> is_plain("SELECT a FROM source WHERE a > 0"), is_plain("SELECT a FROM source LIMIT 1")
    (True, False)
    """
    return _PLAIN_SQL.fullmatch(sql) is not None and _OTHER_SQL.search(sql) is None


def records(given: Spec, found: DataFrame, version: int, batch: int | None = None) -> DataFrame:
    """Return rows in the columns of a log, with ``reason``: why a row cannot be a record, null if it can."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    wanted = given.log
    columns = {"value": _value(given, found, version)}
    id, is_exact = _identity(given), f.lit(True)
    if id is not None:
        columns["id"], is_exact = id.cast("string"), _is_exact(found, id)
    for name in ("stream", "type", "tenant"):
        column = getattr(wanted.columns, name)
        if column is not None:
            columns[name] = f.col(quoted(column)).cast("string")
    if given.source.lineage:
        columns["headers"] = _lineage(found, batch)
    made = [column.alias(name) for name, column in columns.items()]
    hidden = [name for name in found.columns if name in source_files.HIDDEN]
    rescued = f.col(source_files.RESCUED).isNotNull() if source_files.RESCUED in found.columns else f.lit(False)
    chosen = found.select(*made, *hidden, rescued.alias("rescued"), is_exact.alias("is_exact"))
    return chosen.withColumn("reason", _reason(list(columns))).drop("is_exact")


def _identity(given: Spec) -> Column | None:
    """Return the id of a row, in its own type; ``None`` if the log makes one of the content, or there is none."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    if given.identity.column is not None:
        return f.col(quoted(given.identity.column))
    return None if given.identity.expression is None else f.expr(given.identity.expression)


def _is_exact(found: DataFrame, id: Column) -> Column:
    """Return whether no other id is the same number: above what its type counts exactly, a row would be taken for a
    duplicate of another.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    most = _COUNTED.get(found.select(id.alias("id")).schema["id"].dataType.typeName())
    return f.lit(True) if most is None else f.coalesce(f.abs(id) < most, f.lit(True))


def _lineage(found: DataFrame, batch: int | None) -> Column:
    """Return where each row came from, as headers; ``InvalidArgument`` where SQL made rows that have no one place."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    if source_files.HIDDEN[0] not in found.columns:
        message = (
            "source.lineage: rows that transform.sql puts together or takes from elsewhere have no one file and line: "
            "select columns FROM source, with a WHERE if need be; or remove lineage"
        )
        raise InvalidArgument(message)
    parts = [f.col(source_files.HIDDEN[0]), f.col(source_files.HIDDEN[1]).cast("string")]
    parts += [] if batch is None else [f.lit(str(batch))]
    named = [(f.lit(name), part.cast("binary")) for name, part in zip(LINEAGE, parts, strict=False)]
    return f.create_map(*(each for pair in named for each in pair))


def _reason(names: list[str]) -> Column:
    """Return what keeps a row from being a record."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    found = f.when(f.col("value").isNull(), "the value is missing")
    found = found.when(f.octet_length("value") > VALUE_BYTES_MAX, f"the value has more than {VALUE_BYTES_MAX} bytes")
    if "id" in names:
        found = found.when(f.col("id").isNull() | (f.col("id") == ""), "the id is missing")
        found = found.when(
            ~f.col("is_exact"),
            "the id is a DOUBLE or FLOAT too large to be told from others: have it as STRING, LONG or DECIMAL",
        )
        found = found.when(f.octet_length("id") > ID_BYTES_MAX, f"the id has more than {ID_BYTES_MAX} bytes")
    for name in ("stream", "type", "tenant"):
        if name in names:
            size = f.octet_length(name)
            found = found.when((size > LABEL_BYTES_MAX) | (size == 0), f"{name} must have 1 to {LABEL_BYTES_MAX} bytes")
    return found


def _value(given: Spec, found: DataFrame, version: int) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    if given.log.value == "json":
        return encoding.encoded(found, version, source_files.visible(found))
    return f.col(quoted(given.log.value)).cast("binary")


def log_view(spark: SparkSession, given: Spec, shape: StructType, version: int) -> DataFrame:
    """Return the log as a stream, with ``record``: the row that a record was made of, where its value is JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    reader = spark.readStream.format(FORMAT).options(**log_options(given), startingOffsets="earliest")
    found = reader.load()
    if given.log.value != "json":
        return found
    return found.withColumn("record", encoding.decoded(f.col("value"), shape, version))


def shape_of(found: DataFrame) -> StructType:
    """Return the schema of a record: the visible columns."""
    return found.select(*map(quoted, source_files.visible(found))).schema


def going_on(given: Spec, log: DataFrame) -> DataFrame:
    """Return what goes on to the sink: what the spec's SQL makes of the log, or each record with its place.

    ``InvalidArgument`` for a column that readers of the sink's folders would take for another.
    """
    assert given.sink is not None
    found = _selected(given, log)
    if given.sink.format.lower() in FILE_FORMATS and "batch" in map(str.lower, found.columns):
        message = (
            "the sink's folders are called batch=…, so that its readers would take the folder's number for the column "
            'batch: give the column another name in sink.sql, as in "SELECT record.batch AS lot, … FROM log"'
        )
        raise InvalidArgument(message)
    return found


def _selected(given: Spec, log: DataFrame) -> DataFrame:
    assert given.sink is not None
    if given.sink.sql is not None:
        log.createOrReplaceTempView("log")
        return log.sparkSession.sql(given.sink.sql)
    if given.sink.format.lower() == FORMAT:
        return log.select("value", "id", "stream", "type", "headers", "tenant")
    if given.log.value == "json":
        return spread(log, ("position", "timestamp"))
    return log.selectExpr("position", "timestamp AS stored_at", "id", "value")


def spread(log: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each record's columns, behind some of the log's own. A column of the record keeps its name; one of the log
    gets another.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    names = log.select("record.*").columns
    taken = {name.lower() for name in names}
    places = [(column, "stored_at" if column == "timestamp" else column) for column in columns]
    own = [f.col(column).alias(name if name not in taken else f"log_{name}") for column, name in places]
    return log.select(*own, *(f.col("record").getField(name).alias(name) for name in names))
