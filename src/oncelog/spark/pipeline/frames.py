"""A spec as Spark sees it: what is read, what becomes a record, and what a record becomes on its way out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "oncelog"
SCHEMA_FILE = "schema.json"


def options(given: dict[str, Any]) -> dict[str, str]:
    """Return options as Spark takes them: all of them text."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}


def log_options(given: Spec) -> dict[str, str]:
    """Return the options that name the log."""
    return {"url": given.log.url, "log": given.log.name}


def source(spark: SparkSession, given: Spec) -> DataFrame:
    """Return what the source has: a stream where Spark can follow it, else all there is."""
    wanted = given.source
    reader: Any = spark.readStream if wanted.is_streaming else spark.read
    reader = reader.format(wanted.format).options(**options(wanted.options))
    schema = source_schema(spark, given)
    if schema is not None:
        reader = reader.schema(schema)
    found: DataFrame = reader.load(wanted.path) if wanted.path is not None else reader.load()
    return found


def source_schema(spark: SparkSession, given: Spec) -> StructType | str | None:
    """Return the schema to read with; ``None`` where the format knows its own.

    One that was taken from files is kept: were it taken anew from more files, a column's type might change, and with
    it the content of records that are sent again.
    """
    wanted = given.source
    if wanted.schema is not None or not wanted.is_streaming or wanted.format.lower() not in FILE_FORMATS:
        return wanted.schema
    from pyspark.sql.types import StructType  # noqa: PLC0415 (as in session)

    folder = spec.local_path(given.checkpoint)
    kept = folder / SCHEMA_FILE if folder is not None else None
    if kept is not None and kept.exists():
        return StructType.fromJson(msgspec.json.decode(kept.read_bytes()))
    batch: Any = spark.read.format(wanted.format).options(**options(wanted.options))
    found: StructType = batch.load(wanted.path).schema
    return found


def keep_schema(given: Spec, found: DataFrame) -> None:
    """Keep a schema that was taken from files, for the next run."""
    folder = spec.local_path(given.checkpoint)
    if folder is not None and given.source.schema is None and not (folder / SCHEMA_FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / SCHEMA_FILE, found.schema.json().encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole, or not at all."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)


def rows(given: Spec, found: DataFrame) -> DataFrame:
    """Return the rows that are to be records: the source's, or what the spec's SQL makes of them."""
    if given.transform is None:
        return found
    found.createOrReplaceTempView("source")
    return found.sparkSession.sql(given.transform.sql)


def records(given: Spec, found: DataFrame) -> DataFrame:
    """Return rows in the columns of a log."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    wanted = given.log
    columns = [_value(given, found).alias("value")]
    identity = given.identity
    if identity.column is not None:
        columns.append(f.col(f"`{identity.column}`").cast("string").alias("id"))
    elif identity.expression is not None:
        columns.append(f.expr(identity.expression).cast("string").alias("id"))
    for name in ("stream", "type", "tenant"):
        column = getattr(wanted.columns, name)
        if column is not None:
            columns.append(f.col(f"`{column}`").cast("string").alias(name))
    return found.select(*columns)


def _value(given: Spec, found: DataFrame) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    if given.log.value == "json":
        return f.to_json(f.struct(*(f"`{name}`" for name in found.columns))).cast("binary")
    return f.col(f"`{given.log.value}`").cast("binary")


def log_view(spark: SparkSession, given: Spec, shape: StructType) -> DataFrame:
    """Return the log as a stream, with ``record``: the row that a record was made of, where its value is JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    reader = spark.readStream.format(FORMAT).options(**log_options(given), startingOffsets="earliest")
    found = reader.load()
    if given.log.value != "json":
        return found
    return found.withColumn("record", f.from_json(f.col("value").cast("string"), _nullable(shape)))


def _nullable(shape: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 (as in session)

    return StructType([StructField(field.name, field.dataType, nullable=True) for field in shape.fields])


def going_on(given: Spec, log: DataFrame) -> DataFrame:
    """Return what goes on to the sink: what the spec's SQL makes of the log, or each record with its place."""
    assert given.sink is not None
    if given.sink.sql is not None:
        log.createOrReplaceTempView("log")
        return log.sparkSession.sql(given.sink.sql)
    if given.sink.format.lower() == FORMAT:
        return log.select("value", "id", "stream", "type", "headers", "tenant")
    if given.log.value == "json":
        return log.selectExpr("position", "timestamp AS stored_at", "record.*")
    return log.selectExpr("position", "timestamp AS stored_at", "id", "value")
