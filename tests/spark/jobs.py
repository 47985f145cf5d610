"""Jobs on a shop's database, as a user would write them, and what is in its logs as a reader without Spark sees it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from oncelog.connect import Database, connect
from oncelog.log.log import Log
from oncelog.types import Entry

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "100",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "oncelog-tests-warehouse")),
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
} | ({"spark.jars": str(JDBC_DRIVER)} if JDBC_DRIVER.exists() else {})
"""A session that starts and ends quickly, with PostgreSQL's driver for Java (Debian: libpostgresql-jdbc-java)."""


class Shop:
    """A database in a folder, and jobs on it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.url = (folder / "db").as_uri()

    def database(self) -> Database:
        """Open the database without Spark."""
        return connect(self.url)

    def log(self, name: str = "orders") -> Log:
        """Open a log without Spark."""
        return self.database().log(name)

    def options(self, log: str, given: dict[str, Any]) -> dict[str, str]:
        """Return options as Spark wants them."""
        return {"url": self.url, "log": log} | {name: str(value) for name, value in given.items()}

    def rows(self, numbers: Iterable[int], partitions: int = 2, prefix: str = "id-") -> DataFrame:
        """Return a table of rows with ids and values."""
        content = [(f"{prefix}{number}", f"value {number}".encode()) for number in numbers]
        return self.spark.createDataFrame(content, "id string, value binary").repartition(partitions)

    def write(self, table: DataFrame, log: str = "orders", **options: Any) -> None:
        """Append a table to a log."""
        table.write.format("oncelog").options(**self.options(log, options)).mode("append").save()

    def read(self, log: str = "orders", **options: Any) -> DataFrame:
        """Return a log as a table."""
        return self.spark.read.format("oncelog").options(**self.options(log, options)).load()

    def stream(self, log: str = "orders", **options: Any) -> DataFrame:
        """Return a log as a stream."""
        return self.spark.readStream.format("oncelog").options(**self.options(log, options)).load()

    def copying(self, table: DataFrame, log: str = "copy", checkpoint: str = "checkpoint", **options: Any) -> Any:
        """Return what writes a stream to a log, to be started."""
        return (
            table.writeStream.format("oncelog")
            .options(**self.options(log, {"create": "true"} | options))
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
        )

    def copy(
        self, table: DataFrame, log: str = "copy", checkpoint: str = "checkpoint", **options: Any
    ) -> StreamingQuery:
        """Write all that a stream has now to a log, and return when that is done."""
        query: StreamingQuery = self.copying(table, log, checkpoint, **options).start()
        query.awaitTermination()
        return query

    def forget_last_commit(self, checkpoint: str = "checkpoint") -> int:
        """Make Spark believe that the last batch was not committed, as if the driver had died: it will come again."""
        commits = self.folder / checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        for path in commits.glob(f"*{last}*"):
            path.unlink()
        return last

    def append(self, numbers: Iterable[int], log: str = "orders") -> None:
        """Append records by hand."""
        values = [f"value {number}".encode() for number in numbers]
        ids = [f"id-{value.decode().removeprefix('value ')}" for value in values]
        with self.database() as db, db.log(log).writer() as writer:
            writer.append_arrow(pa.table({"id": ids, "value": pa.array(values, pa.binary())}))

    def entries(self, log: str = "orders") -> list[Entry]:
        """Return all records of a log, read without Spark."""
        with self.database() as db:
            return list(db.log(log).read())

    def ids(self, log: str = "orders") -> list[str | None]:
        """Return the ids of all records of a log, sorted."""
        return sorted((entry.id for entry in self.entries(log)), key=str)


def ids(numbers: Iterable[int], prefix: str = "id-") -> list[str]:
    """Return the ids of numbers, sorted."""
    return sorted(f"{prefix}{number}" for number in numbers)


def said(error: PySparkException | Exception) -> str:
    """Return what an error says, without the traces that Spark wraps around it."""
    return str(error)


def numbers(values: Sequence[bytes]) -> list[int]:
    """Return the numbers in values."""
    return sorted(int(value.removeprefix(b"value ")) for value in values)


@contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Have Spark write its event log, as readable text, into a new folder."""
    context, jvm = spark.sparkContext, spark._jvm
    assert jvm is not None
    assert context._conf._jconf is not None
    conf = context._conf._jconf.clone().set("spark.eventLog.compress", "false")
    folder.mkdir()
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "secrets", jvm.scala.Option.empty(), jvm.java.net.URI(folder.as_uri()), conf
    )
    listener.start()
    context._jsc.sc().addSparkListener(listener)
    try:
        yield
        context._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        context._jsc.sc().removeSparkListener(listener)
        listener.stop()
