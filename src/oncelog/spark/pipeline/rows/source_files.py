"""Files as a source: Spark names them, ``reading`` finds their rows, and Spark's own types are put on them.

What has no place in the schema is kept as text in ``_rescued``. Each row knows its file and line, in columns that are
no part of a record.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.rows import bucket_files
from oncelog.spark.pipeline.rows.encoding import quoted
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.reading import exact
from oncelog.spark.reading.csv_text import Dialect
from oncelog.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    from oncelog.spark.reading.reader import Sums, Wanted

FORMATS = ("json", "csv", "parquet")
RESCUED = "_rescued"
HIDDEN = ("_oncelog_file", "_oncelog_line", "_oncelog_text")
"""Where a row came from, and what it said."""

LISTING = (
    "maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "pathGlobFilter", "recursiveFileLookup", "cleanSource",
    "sourceArchiveDir", "maxFileAge", "fileNameOnly", "modifiedAfter", "modifiedBefore",
)  # fmt: skip
"""Options that say which files are read."""

_CORRUPT = "_oncelog_corrupt"
_FILES = "path STRING, modificationTime TIMESTAMP, length LONG, content BINARY"
_CHECKED = {"byte", "short", "integer", "long", "double", "float", "boolean", "string"}
_NEVER = "365000d"
PART_BYTES = 64 << 20
"""A file of JSON lines that is larger than this is read in parts, by several tasks."""

PARTS_MAX = 8


def is_read_here(given: Spec) -> bool:
    """Tell whether the source's files are read by ``reading``, and not by Spark."""
    return given.source.format.lower() in FORMATS and given.source.path is not None


def option(given: Spec, name: str) -> str | None:
    """Return an option of the source, however its name is written."""
    found = {key.lower(): value for key, value in given.source.options.items()}.get(name.lower())
    return None if found is None else str(found).lower() if isinstance(found, bool) else str(found)


def is_set(given: Spec, name: str) -> bool:
    """Tell whether an option of the source is true, in upper or lower case, as Spark takes it."""
    return (option(given, name) or "").lower() == "true"


def is_of_storage(name: str) -> bool:
    """Tell whether an option may be one of Spark's file systems, such as ``fs.s3a.endpoint``."""
    return "." in name or _SECRETS.search(name) is not None


def frame(spark: SparkSession, given: Spec, schema: StructType, found: Accumulator[Sums]) -> DataFrame:
    """Return the rows of the source: its columns, ``_rescued``, and the hidden ones.

    ``InvalidArgument`` if a column has a name of Oncelog's own, or if an option is no format of times.
    """
    own = next((name for name in schema.fieldNames() if _OWN.fullmatch(name)), None)
    if own is not None:
        message = (
            f"{own} is a column that Oncelog makes: write source.schema without it, and the field is kept in {RESCUED}"
        )
        raise InvalidArgument(message)
    _check_formats(spark, given)
    wanted = _wanted(given, schema, _zone(spark, given))
    rows = _read(spark, given, wanted, found)
    kind = given.source.format.lower()
    typed = {"json": _json, "csv": _csv, "parquet": _parquet}[kind](rows, given, schema)
    if given.source.schema_changes != "fail":
        return typed
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    place = [f.col(HIDDEN[0]), f.lit(", line "), f.col(HIDDEN[1]).cast("string")]
    told = f.concat(f.lit(spark_errors.OURS), *place, f.lit(": the schema has no place for "), f.col(RESCUED))
    return typed.where(f.assert_true(f.col(RESCUED).isNull(), told).isNull()).drop(RESCUED)


def texts(spark: SparkSession, given: Spec, found: Accumulator[Sums], paths: Sequence[str] | None = None) -> DataFrame:
    """Return the objects of JSON files, or of some of them, as they are written."""
    from oncelog.spark.reading.reader import Wanted  # noqa: PLC0415 (as in session)

    wanted = Wanted(kind="json", columns=(), encoding=encoding(given), on_bad_row="drop", root=root(given))
    return _read(spark, given, wanted, found, streaming=False, paths=paths).select(HIDDEN[2])


def _read(
    spark: SparkSession,
    given: Spec,
    wanted: Wanted,
    found: Accumulator[Sums],
    *,
    streaming: bool | None = None,
    paths: Sequence[str] | None = None,
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 (as in session)

    from oncelog.spark.reading.reader import FilesReader, output  # noqa: PLC0415 (as in session)

    streaming = given.source.is_streaming if streaming is None else streaming
    away = None if streaming else _in_bucket(spark, given, paths)
    if away is not None:
        return away.mapInArrow(FilesReader(wanted, found), from_arrow_schema(output(wanted)))
    reader: Any = spark.readStream.schema(_FILES) if streaming else spark.read
    reader = reader.format("binaryFile")
    listing = {name: value for name in LISTING if (value := option(given, name)) is not None}
    # Of a stream, Storing finds the files that Spark leaves out. Else, a file that is gone must end the job.
    listing["ignoreMissingFiles"] = str(streaming).lower()
    for name, value in ({"maxFileAge": _NEVER} | listing if streaming else listing).items():
        reader = reader.option(name, value)
    assert given.source.path is not None
    files = reader.load(given.source.path if paths is None else list(paths))
    if spec.local_path(given.source.path) is None:
        named = files.select("path", "content")
    elif wanted.kind == "json" and _has_large(given):
        named = _divided(files)
    else:
        named = files.select("path")
    made = named.mapInArrow(FilesReader(wanted, found), from_arrow_schema(output(wanted)))
    result: DataFrame = made
    return result


def _in_bucket(spark: SparkSession, given: Spec, paths: Sequence[str] | None) -> DataFrame | None:
    """Return the files of a source in a bucket, or some of them, to be fetched by the tasks; ``None`` for another.

    ``s3a://`` is left to Spark: a user of that URL has Spark's file system for it.
    """
    path = given.source.path or ""
    url = bucket_files.url_of(path)
    if url is None or path.startswith("s3a:"):
        return None
    choice = (option(given, name) for name in ("pathGlobFilter", "modifiedAfter", "modifiedBefore"))
    named = [(name,) for name in (bucket_files.listed(url, *choice) if paths is None else paths)]
    files = spark.createDataFrame(named, "path STRING")
    return files.repartition(2 * spark.sparkContext.defaultParallelism)


def _has_large(given: Spec) -> bool:
    """Tell whether a source on this machine has a file that is read in parts."""
    path = spec.local_path(given.source.path or "")
    listed_now = () if path is None else listed(path, option(given, "pathGlobFilter"))
    return any(_size(found) > PART_BYTES for found in listed_now)


def _size(path: str) -> int:
    """Return how many bytes a file has; none if it is gone, or a link to nothing: Spark lists neither."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 (one of very many)
    except OSError:
        return 0


def listed(path: Path, pattern: str | None) -> Iterator[str]:
    """Yield the files of a source as Spark lists them: hidden ones are left out, at any depth."""
    for top in glob.glob(str(path)):  # noqa: PTH207 (an absolute pattern)
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith((".", "_")) or "=" in name]
            for name in names:
                if not name.startswith((".", "_")) and (pattern is None or fnmatch.fnmatch(name, pattern)):
                    yield os.path.join(folder, name)  # noqa: PTH118 (one of very many)
        if os.path.isfile(top):  # noqa: PTH113 (as above)
            yield top


def _divided(files: DataFrame) -> DataFrame:
    """Return files with large ones in several parts, which go to several tasks: a file is a task of its own otherwise.

    A task reads a file up to its part to know the number of its first line, so there are not many parts.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    count = f.greatest(f.lit(1), f.least(f.lit(PARTS_MAX), f.ceil(f.col("length") / PART_BYTES))).cast("int")
    part = {"number": f.col("number"), "count": count, "length": f.col("length")}
    part["changed_ms"] = f.unix_millis("modificationTime")
    each = files.withColumn("number", f.explode(f.sequence(f.lit(0), count - 1)))
    found = each.select("path", f.struct(*(column.alias(name) for name, column in part.items())).alias("part"))
    return found.repartition(2 * files.sparkSession.sparkContext.defaultParallelism)


def _wanted(given: Spec, schema: StructType, zone: str | None) -> Wanted:
    from oncelog.spark.reading.reader import Wanted  # noqa: PLC0415 (as in session)

    kind: Any = given.source.format.lower()
    return Wanted(
        kind=kind,
        columns=tuple(schema.fieldNames()),
        shape={} if kind == "parquet" else shape(schema, _formatted(given), zone),
        kinds=_kinds(schema) if kind == "json" else (),
        schema=_arrow(schema) if kind == "parquet" else b"",
        dialect=dialect(given),
        encoding=encoding(given),
        on_bad_row=given.source.on_bad_row,
        url=given.log.url,
        log=given.log.rejected,
        root=root(given),
    )


def root(given: Spec) -> str:
    """Return the folder of a source on this machine that no pattern is part of; nothing for a source elsewhere."""
    path = spec.local_path(given.source.path or "")
    return "" if path is None else str(Path(*itertools.takewhile(_PLAIN_PART.fullmatch, path.absolute().parts)))


def _kinds(schema: StructType) -> tuple[str, ...]:
    """Return the types of the columns, if the reader knows the values of all of them as Spark does; else nothing."""
    from oncelog.spark.reading.reader import KINDS  # noqa: PLC0415 (as in session)

    names = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
    found = tuple(names.get(kind, kind) for kind in (field.dataType.simpleString() for field in schema.fields))
    return found if all(kind in KINDS for kind in found) else ()


def _arrow(schema: StructType) -> bytes:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 (as in session)

    return bytes(to_arrow_schema(schema, timezone="UTC").serialize().to_pybytes())


def dialect(given: Spec) -> Dialect:
    """Return how the cells of CSV are written."""
    return Dialect(
        sep=(option(given, "sep") or option(given, "delimiter") or ",").replace("\\t", "\t"),
        quote=option(given, "quote") if option(given, "quote") is not None else '"',  # type: ignore[arg-type]
        escape=option(given, "escape"),
        header=is_set(given, "header"),
        null=option(given, "nullValue") or "",
    )


def encoding(given: Spec) -> str | None:
    """Return how the texts of the source are encoded, if an option says so."""
    return option(given, "encoding") or option(given, "charset")


_FORMATS = {"date": "dateFormat", "timestamp": "timestampFormat", "timestamp_ntz": "timestampNTZFormat"}


def _formatted(given: Spec) -> frozenset[str]:
    """Return the types whose texts have the format that an option says."""
    return frozenset(name for name, format in _FORMATS.items() if option(given, format) is not None)


def _check_formats(spark: SparkSession, given: Spec) -> None:
    """Have Spark look at formats of times. A wrong one would fail in a task, or have all times of JSON rescued."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 (as in session)
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    for name in _FORMATS.values():
        pattern = option(given, name)
        if pattern is None:
            continue
        try:
            spark.range(1).select(f.try_to_timestamp(f.lit("x"), f.lit(pattern))).collect()
        except PySparkException as error:
            message = (
                f"source.options.{name}: {pattern!r} is no format of Spark's: write one such as dd.MM.yyyy HH:mm:ss"
            )
            raise InvalidArgument(message) from error


def _zone(spark: SparkSession, given: Spec) -> str | None:
    """Return the zone of times that name none; ``None`` for one whose clocks never skip an hour, such as UTC."""
    asked = option(given, "timeZone") or spark.conf.get("spark.sql.session.timeZone")
    jvm = cast("Any", spark)._jvm  # noqa: SLF001 (Spark has no other way)
    zone = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(asked)
    return None if zone.getRules().isFixedOffset() else str(zone.getId())


def shape(kind: DataType, formatted: Collection[str] = (), zone: str | None = None) -> Any:
    """Return a type as ``json_text`` knows it. What a text of a ``formatted`` type means is for Spark alone."""
    from pyspark.sql import types as t  # noqa: PLC0415 (as in session)

    if isinstance(kind, t.StructType):
        return {field.name: shape(field.dataType, formatted, zone) for field in kind.fields}
    if isinstance(kind, t.ArrayType):
        return [shape(kind.elementType, formatted, zone)]
    if isinstance(kind, t.MapType):
        return (shape(kind.valueType, formatted, zone),)
    if isinstance(kind, t.VariantType):
        return None
    name = kind.simpleString() if isinstance(kind, t.DecimalType) else kind.typeName()
    if name in formatted:
        return "formatted"
    return exact.in_zone(zone) if name == "timestamp" and zone is not None else name


def _merged(first: Column, second: Column) -> Column:
    """Return the fields of two objects, each JSON or null, as one."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    both = f.concat(first.substr(f.lit(1), f.length(first) - 1), f.lit(","), second.substr(f.lit(2), f.length(second)))
    return f.when(first.isNull(), second).when(second.isNull(), first).otherwise(both)


def _fields(cells: Mapping[str, Column]) -> Column:
    """Return the cells that are not null as an object of texts; null if there are none."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    if not cells:
        return f.lit(None).cast("string")
    names = f.array(*(f.lit(name) for name in cells))
    found = f.map_filter(f.map_from_arrays(names, f.array(*cells.values())), lambda _, cell: cell.isNotNull())
    return f.when(f.size(found) > 0, f.to_json(found))


def _member(text: Column, name: str) -> Column:
    """Return a member of an object, as text. A path has no way to write a quote: such a name is looked up in a map."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    if _PLAIN_NAME.fullmatch(name):
        return f.get_json_object(text, f"$['{name}']")
    return f.from_json(text, "map<string,string>").getItem(name)


def _held(cell: Column, field: StructField) -> Column:
    """Return a cell; null where its type does not hold all that was written, which is rescued."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    if not exact.is_checked(shape(field.dataType)):
        return cell
    return f.when(_member(f.col("_oncelog_extra"), field.name).isNull(), cell)


_OWN = re.compile(rf"{RESCUED}|_oncelog_.*", re.IGNORECASE)
_PLAIN_PART = re.compile(r"[^*?\[{\\]+")
_PLAIN_NAME = re.compile(r"[^'*\[\]]+")
_SECRETS = re.compile("password|secret|token|credential|access.?key", re.IGNORECASE)
"""Options of the storage that are secret. No option of from_json has such a name."""


def _json(rows: DataFrame, given: Spec, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 (as in session)

    # A plan, and so Spark's event log, spells out what from_json is given: no password of the storage among it.
    asked = {name: str(value) for name, value in given.source.options.items() if name not in LISTING}
    own = {name: value for name, value in asked.items() if not _SECRETS.search(name)}
    options = {**own, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "multiLine": "true"}
    fields = [StructField(field.name, field.dataType, nullable=True) for field in schema.fields]
    text = f.col(HIDDEN[2])
    parsed = f.from_json(text, StructType([*fields, StructField(_CORRUPT, StringType())]), options)
    clean = f.col("_oncelog_clean")
    typed = [name for name in rows.columns if re.fullmatch(r"c\d+", name)]
    parsed = f.when(~clean, parsed) if typed else parsed
    found = rows.select(parsed.alias("r"), *HIDDEN, "_oncelog_extra", *typed, clean)
    record = f.col("r")
    mistyped: dict[str, Column] = {}
    for field in fields:
        cell = _member(text, field.name)
        kind = shape(field.dataType)
        unknown = _member(f.col("_oncelog_extra"), field.name).isNull()
        if not isinstance(kind, str):
            mistyped[field.name] = f.when(unknown, cell)
        elif kind not in _CHECKED:
            mistyped[field.name] = f.when(unknown & record.getField(field.name).isNull(), cell)
    more = _merged(f.col("_oncelog_extra"), _fields(mistyped))
    rescued = f.when(record.getField(_CORRUPT).isNull(), f.col("_oncelog_extra")).otherwise(f.coalesce(more, text))
    cells = [_held(record.getField(field.name), field) for field in fields]
    if typed:
        cells = [f.when(clean, f.col(name)).otherwise(cell) for name, cell in zip(typed, cells, strict=True)]
    columns = [cell.alias(field.name) for cell, field in zip(cells, fields, strict=True)]
    return found.select(*columns, rescued.alias(RESCUED), *HIDDEN)


def _csv(rows: DataFrame, given: Spec, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    typed: dict[str, Column] = {}
    mistyped: dict[str, Column] = {}
    for at, field in enumerate(schema.fields):
        cell = f.col(f"c{at}")
        typed[field.name] = _cast(cell, field.dataType, given)
        if field.dataType.typeName() != "string":
            mistyped[field.name] = f.when(cell.isNotNull() & typed[field.name].isNull(), cell)
    rescued = _merged(f.col("_oncelog_extra"), _fields(mistyped)).alias(RESCUED)
    fitting = {name: f.when(mistyped[name].isNull(), typed[name]) for name in mistyped}
    columns = [fitting.get(name, cell).alias(name) for name, cell in typed.items()]
    return rows.select(*columns, rescued, *HIDDEN[:2])


def _cast(cell: Column, kind: DataType, given: Spec) -> Column:
    """Return a cell in its type; null where it is not of that type."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    name = kind.typeName()
    moments, days = option(given, "timestampFormat"), option(given, "dateFormat")
    if name == "timestamp" and moments is not None:
        found = f.try_to_timestamp(cell, f.lit(moments))
        written = _as_local(cell, moments)  # null where the format has a zone
        return f.when(written.isNull() | (found.cast("timestamp_ntz") == written), found)  # else clocks skipped it
    if name == "date" and days is not None:
        return f.try_to_timestamp(cell, f.lit(days)).cast("date")
    local = option(given, "timestampNTZFormat")
    if name == "timestamp_ntz" and local is not None:
        return _as_local(cell, local)
    return cell.try_cast(kind)


def _as_local(cell: Column, format: str) -> Column:
    """Return a cell as a local time. No function takes a format for one, and gives null for other texts."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    parsed = f.from_json(f.to_json(f.struct(cell.alias("t"))), "t TIMESTAMP_NTZ", {"timestampNTZFormat": format})
    return parsed.getField("t")


def _parquet(rows: DataFrame, given: Spec, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    del given
    columns = [f.col(quoted(name)) for name in schema.fieldNames()]
    return rows.select(*columns, f.col("_oncelog_extra").alias(RESCUED), *HIDDEN[:2])


def visible(rows: DataFrame) -> list[str]:
    """Return the columns that are a part of the record."""
    return [name for name in rows.columns if name not in HIDDEN]
