"""Files into rows: Oncelog's reader of a pipeline's source beside Spark's own reader and functions."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Measurement, Plan, timed
from oncelog.clock import SYSTEM
from oncelog.spark.pipeline.checks import check
from oncelog.spark.pipeline.pipeline import Pipeline
from oncelog.spark.pipeline.rows import encoding, frames
from oncelog.spark.reading.reader import FoundParam
from oncelog.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from oncelog.spark.pipeline.spec import Spec

LINES = "Spark, JSON lines of 150 bytes into rows"
SMALL = "Spark, 5,000 files of one row"
PLAIN = "Spark's reader: fields that the schema has, alone"
COUNTED = "Spark's reader, with counts, file names and the column of corrupt lines"
NAMED = "Spark's functions that find unknown fields, repeated keys and a second object on a line"
OURS = "Oncelog's reader: all of that, and the number of each line"
UNKNOWN = "Oncelog's reader, with a field in every line that the schema has not"
BATCH = "Spark's reader, a batch, its best settings"
READ = "Oncelog's reader, a batch"
STREAM = "Oncelog's reader, a stream"
PIPELINE = "Oncelog's pipeline: a stream that is stored in a log, once"
ROWS, ROWS_QUICK, FILES, FILES_QUICK = 200_000, 4_000, 5_000, 20
_PARTS = 4
_SCHEMA = "id STRING, customer STRING, amount LONG, price DOUBLE, paid BOOLEAN, note STRING"
_NAMES = ("id", "customer", "amount", "price", "paid", "note")
_SPEC = """\
name = "files"
[source]
format = "json"
path = "{path}"
schema = "{schema}"
streaming = {streaming}
[identity]
column = "id"
[log]
url = "data"
name = "rows"
"""


def files(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure readers on two cores: many lines, lines with a field too many, and many small files."""
    folder.mkdir(parents=True)
    started = session.start("benchmark", "local[2]", log_file=folder / "spark.log")
    try:
        return _Readers(started, folder, plan).all()
    finally:
        started.stop()


class _Readers:
    """What is measured, on one session."""

    def __init__(self, spark: SparkSession, folder: Path, plan: Plan) -> None:
        self._spark = spark
        self._folder = folder
        self._rounds = 1 if plan.quick else 2
        self._rows, self._files = (ROWS_QUICK, FILES_QUICK) if plan.quick else (ROWS, FILES)
        self._counter = itertools.count()

    def all(self) -> list[Measurement]:
        self._make("lines", _PARTS, self._rows // _PARTS)
        self._make("unknown", _PARTS, self._rows // _PARTS, more=',"extra":1')
        self._make("small", self._files, 1)
        lines = self._rounds_of(
            {
                PLAIN: lambda: self._done(_plain(self._loaded("lines"))),
                COUNTED: lambda: self._done(_counted(self._loaded("lines", "_corrupt STRING"))),
                NAMED: lambda: self._done(_named(self._spark.read.text(str(self._folder / "lines")))),
                OURS: lambda: self._done(self._ours("lines")),
                UNKNOWN: lambda: self._done(self._ours("unknown")),
            }
        )
        small = self._rounds_of(
            {
                BATCH: lambda: self._done(_plain(self._loaded("small"))),
                READ: lambda: self._done(self._ours("small")),
                STREAM: self._stream,
                PIPELINE: self._pipeline,
            }
        )
        found = [
            Measurement(workload=LINES, contender=name, unit="records/s", rounds=[self._rows / took for took in each])
            for name, each in lines.items()
        ]
        return found + [
            Measurement(workload=SMALL, contender=name, unit="s", rounds=each, larger_is_better=False)
            for name, each in small.items()
        ]

    def _make(self, name: str, count: int, rows: int, more: str = "") -> None:
        """Write files of JSON lines."""
        folder = self._folder / name
        folder.mkdir()
        for file in range(count):
            lines = [_line(number, more) for number in range(file * rows, (file + 1) * rows)]
            (folder / f"{file:05}.json").write_text("".join(lines))

    def _rounds_of(self, contenders: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
        """Return how long each takes, round by round in turn, after a warm-up."""
        took: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(self._rounds + 1):
            for name, work in contenders.items():
                seconds = timed(work)
                if number or self._rounds == 1:
                    took[name].append(seconds)
        return took

    def _done(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def _loaded(self, name: str, more: str = "") -> DataFrame:
        reader = self._spark.read.schema(f"{_SCHEMA}, {more}" if more else _SCHEMA)
        if more:
            reader = reader.option("columnNameOfCorruptRecord", more.split(maxsplit=1)[0])
        return reader.json(str(self._folder / name))

    def _spec(self, name: str, place: Path, *, streaming: bool) -> Spec:
        place.mkdir(exist_ok=True)
        text = _SPEC.format(path=self._folder / name, schema=_SCHEMA, streaming=str(streaming).lower())
        (place / "spec.toml").write_text(text)
        given, wrong = check.check(place / "spec.toml")
        assert given is not None, wrong
        return given

    def _records(self, name: str, *, streaming: bool) -> DataFrame:
        given = self._spec(name, self._folder / "spec", streaming=streaming)
        param: Any = FoundParam()
        rows = frames.source(self._spark, given, self._spark.sparkContext.accumulator({}, param))
        return frames.records(given, frames.rows(given, rows), encoding.NEWEST)

    def _ours(self, name: str) -> DataFrame:
        from pyspark.sql import Observation  # noqa: PLC0415 (as in session)
        from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

        bad = f.count_if(f.col("reason").isNotNull())
        return self._records(name, streaming=False).observe(Observation(), f.count(f.lit(1)), bad)

    def _stream(self) -> None:
        checkpoint = self._folder / f"checkpoint-{next(self._counter)}"
        writer = self._records("small", streaming=True).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(600)
        shutil.rmtree(checkpoint)

    def _pipeline(self) -> None:
        place = self._folder / f"pipeline-{next(self._counter)}"
        given = self._spec("small", place, streaming=True)
        done = Pipeline(given, place, SYSTEM).run(lambda _: None, spark=self._spark)
        assert (done.stored, done.missing) == (self._files, 0)
        shutil.rmtree(place)


def _line(number: int, more: str) -> str:
    order = f'"id":"order-{number:08}","customer":"customer-{number % 9973}","amount":{number * 7919 % 100_000}'
    return f'{{{order},"price":{number / 8},"paid":true,"note":"{"n" * 40}"{more}}}\n'


def _plain(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    return rows.select("id", f.to_json(f.struct(*_NAMES)).alias("value"))


def _counted(rows: DataFrame) -> DataFrame:
    from pyspark.sql import Observation  # noqa: PLC0415 (as in session)
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    value = f.to_json(f.struct(*_NAMES)).alias("value")
    made = rows.select("id", value, "_corrupt", f.col("_metadata.file_path").alias("file"))
    return made.observe(Observation(), f.count(f.lit(1)), f.count_if(f.col("_corrupt").isNotNull()))


def _named(lines: DataFrame) -> DataFrame:
    """Return what Spark's functions make of lines, each wrapped so that what is behind its object is seen."""
    from pyspark.sql import Observation  # noqa: PLC0415 (as in session)
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    wrapped = f.concat(f.lit('{"r":'), f.col("value"), f.lit("}"))
    options = {"columnNameOfCorruptRecord": "_corrupt"}
    parsed = f.from_json(
        wrapped, f"r STRUCT<{_SCHEMA.replace(' ', ': ').replace(',:', ',')}>, _corrupt STRING", options
    )
    unknown = f.array_except(f.json_object_keys("value"), f.array(*map(f.lit, _NAMES)))
    strict = f.try_parse_json(wrapped).isNull().alias("strict")
    place = f.col("_metadata.file_path").alias("file")
    found = lines.select(parsed.alias("p"), strict, unknown.alias("unknown"), place)
    value = f.to_json("p.r").alias("value")
    made = found.select("p.r.id", value, "p._corrupt", "strict", "unknown", "file")
    return made.observe(Observation(), f.count(f.lit(1)), f.count_if(f.col("strict") | f.col("_corrupt").isNotNull()))
