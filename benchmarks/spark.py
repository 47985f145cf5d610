"""Spark: the source against the best that a Python source can do, the sink against what people use today."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from benchmarks.measure import Measurement, Plan, timed
from benchmarks.records import Source
from oncelog.connect import connect
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.sink import BatchWriter
from oncelog.spark.session import session
from pyspark_oncelog import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = "Spark source, 100-byte values"
SINK = "Spark sink, 100-byte values, ids deduplicated"
DRIVER = "Spark sink, the driver's own work"
MICRO = "Spark, a micro-batch of 10 rows"
OURS = "Oncelog"
REPEATED = "Python source that repeats one Arrow batch"
COLUMNS = "Spark reading the same columns of the same sealed files"
PARQUET = "Parquet, Spark's own, no ids"
DROPPED = "dropDuplicates + Parquet"
NOOP = "Python sink that does nothing"
ROWS, ROWS_QUICK = 10_000_000, 50_000
FILES = 8
BATCH_ROWS = 10_000
_SCHEMA = "id string, value binary"


class Repeating(DataSource):
    """Yields one Arrow batch again and again: no Python source can do better."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "repeating"

    def schema(self) -> str:
        """Return the columns."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the reader."""
        return _RepeatingReader(self.options["file"], int(self.options["rows"]))


class _RepeatingReader(DataSourceReader):
    def __init__(self, path: str, rows: int) -> None:
        self._path = path
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // FILES) for _ in range(FILES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        (batch,) = pq.read_table(self._path).slice(0, BATCH_ROWS).combine_chunks().to_batches()
        yield from itertools.repeat(batch, max(1, partition.value // batch.num_rows))


class Nothing(DataSource):
    """Takes micro-batches and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nothing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802
        """Return the writer."""
        return _NothingWriter()


class _NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Timed(DefaultSource):
    """The sink, with the time that its commit takes noted in a file."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "timed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return the writer."""
        return _TimedWriter(WriteOptions.parse(self.options), schema, self.options["noted"], overwrite=overwrite)


class _TimedWriter(BatchWriter):
    def __init__(self, options: WriteOptions, wanted: StructType, noted: str, *, overwrite: bool) -> None:
        super().__init__(options, wanted, overwrite=overwrite)
        self._noted = noted

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        started = time.perf_counter()
        super().commit(messages)
        Path(self._noted).write_text(str(time.perf_counter() - started))


def spark(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure source and sink, batch and streaming, on two cores."""
    folder.mkdir(parents=True)
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, f"{root}/src", os.environ.get("PYTHONPATH", "")])
    started = session.start("benchmark", "local[2]", {"spark.driver.memory": "4g"}, log_file=folder / "spark.log")
    try:
        for source in (Repeating, Nothing, Timed):
            started.dataSource.register(source)
        return _Runs(started, folder, ROWS_QUICK if plan.quick else ROWS, 1 if plan.quick else 3).all()
    finally:
        started.stop()


class _Runs:
    """What is measured, on one session."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, rounds: int) -> None:
        self._spark = spark
        self._folder = folder
        self._rows = rows
        self._rounds = rounds
        self._url = (folder / "db").as_uri()
        self._output = folder / "output"
        self._counter = itertools.count()

    def all(self) -> list[Measurement]:
        self._make_input()
        sink = self._sink()
        return [*sink, *self._source(), *self._micro()]

    def _make_input(self) -> None:
        """Write the rows as Parquet files, uncompressed, which Spark reads at a multiple of what it writes."""
        records = Source(100)
        (self._folder / "input").mkdir()
        for number in range(FILES):
            count = max(1, self._rows // FILES // BATCH_ROWS)
            table = pa.Table.from_batches([records.batch(BATCH_ROWS).table() for _ in range(count)])
            path = self._folder / "input" / f"{number}.parquet"
            pq.write_table(table.select(["id", "value"]), path, compression="none", use_dictionary=False)

    def _input(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "input"))

    def _rates(self, contenders: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Return rows a second of each contender, round by round in turn, after a warm-up. What earlier rounds wrote is
        removed off the clock.
        """
        rows = self._input().count()
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(self._rounds + 1):
            for name, work in contenders.items():
                self._clean()
                took_s = timed(work)
                if number or self._rounds == 1:
                    rates[name].append(rows / took_s)
        return rates

    def _sink(self) -> list[Measurement]:
        noted = self._folder / "noted"
        shares: list[float] = []

        def ours() -> None:
            started = time.perf_counter()
            options = {"url": self._url, "log": f"log-{next(self._counter)}", "create": "true", "noted": str(noted)}
            self._input().write.format("timed").options(**options).mode("append").save()
            shares.append(100 * float(noted.read_text()) / (time.perf_counter() - started))

        contenders = {
            OURS: ours,
            PARQUET: lambda: self._parquet(self._input()),
            DROPPED: lambda: self._parquet(self._input().dropDuplicates(["id"])),
        }
        rates = self._rates(contenders)
        found = [
            Measurement(workload=SINK, contender=name, unit="records/s", rounds=rounds, durable=name == OURS)
            for name, rounds in rates.items()
        ]
        share = Measurement(
            workload=DRIVER, contender=OURS, unit="% of the job", rounds=shares[-self._rounds :], larger_is_better=False
        )
        return [*found, share]

    def _clean(self) -> None:
        """Remove what was written, but for the newest log, which the source reads."""
        shutil.rmtree(self._output, ignore_errors=True)
        with connect(self._url) as db:
            for name in self._logs()[:-1]:
                db.delete(name)

    def _logs(self) -> list[str]:
        """Return the logs that were written, the newest last."""
        with connect(self._url) as db:
            return sorted((name for name in db.logs() if name.startswith("log-")), key=lambda name: int(name[4:]))

    def _parquet(self, table: DataFrame) -> None:
        table.write.parquet(str(self._output))

    def _source(self) -> list[Measurement]:
        ours = {"url": self._url, "log": self._logs()[-1], "columns": "id,value"}
        first = str(self._folder / "input" / "0.parquet")

        def read(name: str, options: dict[str, str]) -> Callable[[], Any]:
            return self._reading(self._spark.read.format(name).options(**options).load())

        rates = self._rates(
            {
                OURS: read("oncelog", ours),
                REPEATED: read("repeating", {"file": first, "rows": str(self._rows)}),
                COLUMNS: self._reading(self._spark.read.parquet(*self._sealed()).select("id", "value")),
            }
        )
        return [
            Measurement(workload=SOURCE, contender=name, unit="records/s", rounds=rounds)
            for name, rounds in rates.items()
        ]

    @staticmethod
    def _reading(table: DataFrame) -> Callable[[], Any]:
        return lambda: table.write.format("noop").mode("overwrite").save()

    def _sealed(self) -> list[str]:
        """Return the files of the log that is read."""
        with connect(self._url) as db:
            return [file.path for file in db.log(self._logs()[-1]).files()]

    def _micro(self) -> list[Measurement]:
        """Return how long a micro-batch takes, beside the same with a sink that does nothing."""
        found = []
        batches = 5 if self._rounds == 1 else 40
        reading = {"url": self._url, "log": self._logs()[-1], "maxOffsetsPerTrigger": "10", "startingOffsets": "0"}
        stream = self._spark.readStream.format("oncelog").options(**reading).load().select("id", "value")
        for name, format in ((NOOP, "nothing"), (OURS, "oncelog")):
            checkpoint = self._folder / f"checkpoint-{format}"
            options = {"url": self._url, "log": "micro", "create": "true", "checkpointLocation": str(checkpoint)}
            query = stream.writeStream.format(format).options(**options).start()
            while query.lastProgress is None or query.lastProgress.batchId < batches:
                query.awaitTermination(1)
            query.stop()
            took = [each.durationMs["triggerExecution"] / 1000 for each in query.recentProgress[3:batches]]
            found.append(Measurement(workload=MICRO, contender=name, unit="s", rounds=took, larger_is_better=False))
        return found
