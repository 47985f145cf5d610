"""Jobs of one line: files into a log, and a log into files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import oncelog
from oncelog.clock import SYSTEM, Clock
from oncelog.errors import InvalidArgument
from oncelog.settings import LogSettings
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.history import Passing
from oncelog.spark.pipeline.pipeline import Outcome, Pipeline, Tell
from oncelog.spark.pipeline.rows import frames
from oncelog.spark.pipeline.spec import FILE_FORMATS, IdentitySpec, RunSpec, SourceSpec, Spec, Target
from oncelog.spark.session import session, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS = {".jsonl": "json", ".ndjson": "json", ".txt": "text", **{f".{name}": name for name in FILE_FORMATS}}
_UNFINISHED = {"_temporary"}
_UNFIT = "_oncelog_unfit"
_PLACE = ("position", "timestamp", "id")


class SparkFiles(msgspec.Struct, frozen=True):
    """Files that Spark reads or writes: where, in which format (``None``: by their names), on which Spark."""

    path: str
    format: str | None = None
    master: str = "local[*]"

    def kind(self) -> str:
        """Return the format; ``InvalidArgument`` when neither it nor a name says it."""
        if self.format is not None:
            return self.format
        path = spec.local_path(self.path) or Path(self.path)
        names = [path, *(sorted(path.iterdir()) if path.is_dir() else ())]
        found = next((_KINDS[name.suffix] for name in names if name.suffix in _KINDS), None)
        if found is None:
            message = f"{self.path}: its name does not say what is in it: give a format, as in --format json"
            raise InvalidArgument(message)
        return found


class Exported(msgspec.Struct, frozen=True):
    """How many records were exported; of how many a value did not fit the schema, and where the first of those is."""

    records: int
    unfit: int = 0
    first_unfit: int | None = None


def ingest(
    files: SparkFiles,
    url: str,
    log: str,
    *,
    id: str | None,
    create: bool = False,
    tell: Tell = lambda _: None,
    clock: Clock = SYSTEM,
    spark: SparkSession | None = None,
) -> Outcome:
    """Bring files into a log, each record once; run again, it adds what is not there.

    Without ``id``, the column that is the id, rows that are equal are one. ``NotFound`` when the log is not there, and
    is not to be created.
    """
    with oncelog.connect(url) as db:
        db.log(log, LogSettings(idempotence="content") if create and id is None else None, create=create)
    path = spec.local_path(files.path)
    if path is not None and not any(sign in files.path for sign in "*?[") and not path.exists():
        message = f"{files.path}: is not there"
        raise InvalidArgument(message)
    kind = files.kind()
    given = Spec(
        name="ingest",
        source=SourceSpec(
            format=kind,
            path=spec.place(files.path, Path()),
            streaming=False,
            options={"header": True, "inferSchema": False} if kind == "csv" else {},
        ),
        identity=IdentitySpec(column=id) if id is not None else IdentitySpec(content=True),
        log=Target(url=url, name=log),
        run=RunSpec(master=files.master, checkpoint="unused://"),
    )
    return Pipeline(given, Path(), clock, Passing()).run(tell, spark=spark)


def export(
    url: str,
    log: str,
    files: SparkFiles,
    *,
    schema: str | None = None,
    overwrite: bool = False,
    spark: SparkSession | None = None,
) -> Exported:
    """Write a log's records to files, and return how many; ``InvalidArgument`` when something is there already.

    With ``schema``, the columns of values that are JSON are taken out of them. A column that a value has not, or has
    with another type, is null; records with a value that is no JSON, or of another type, are counted.
    """
    with oncelog.connect(url) as db:
        end = db.log(log).end_position()
    mode = _mode(files.path, overwrite=overwrite)
    started = spark or session.start("export", files.master, log_file=Path(os.devnull))
    try:
        with spark_errors.told():
            return _export(started, url, log, files, schema, end, mode)
    finally:
        if spark is None:
            started.stop()


def _export(  # noqa: PLR0917
    spark: SparkSession, url: str, log: str, files: SparkFiles, schema: str | None, end: int, mode: str
) -> Exported:
    from pyspark.sql import Observation  # noqa: PLC0415 (as in session)
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 (as in session)

    found = spark.read.format(frames.FORMAT).options(url=url, log=log, endingOffsets=str(end)).load()
    unfit = f.expr("false")
    if schema is not None:
        columns = StructType.fromDDL(schema)
        if not isinstance(columns, StructType):
            message = f"the schema is {schema!r}, must be columns, as in 'id STRING, amount LONG'"
            raise InvalidArgument(message)
        wanted = StructType([*columns, StructField(_UNFIT, StringType())])
        parsed = f.from_json(f.col("value").cast("string"), wanted, {"columnNameOfCorruptRecord": _UNFIT})
        found = found.withColumn("record", parsed)
        unfit = f.col("record").isNull() | f.col("record").getField(_UNFIT).isNotNull()
    seen = Observation()
    place = f.when(unfit, f.col("position"))
    found = found.observe(
        seen, f.count(f.lit(1)).alias("records"), f.count(place).alias("unfit"), f.min(place).alias("first_unfit")
    )
    if schema is not None:
        found = frames.spread(found.withColumn("record", f.col("record").dropFields(_UNFIT)), _PLACE)
    elif files.kind() in {"csv", "json", "text"}:
        found = found.selectExpr("position", "timestamp AS stored_at", "id", "CAST(value AS STRING) AS value")
    found.write.mode(mode).format(files.kind()).save(files.path)
    return Exported(**seen.get)


def _mode(path: str, *, overwrite: bool) -> str:
    """Return what Spark does with what is there. A folder with something in it is refused, but for what an export left
    that was killed; elsewhere than on this machine, Spark looks.
    """
    folder = spec.local_path(path)
    if not overwrite and folder is None:
        return "errorifexists"
    if overwrite or folder is None or not folder.exists():
        return "overwrite"
    if not folder.is_dir() or any(one.name not in _UNFINISHED for one in folder.iterdir()):
        message = f"{path} is there already: name another folder, or say --overwrite"
        raise InvalidArgument(message)
    return "overwrite"
