"""Jobs over a whole log, beside Spark that reads the same rows from Parquet and groups them by id."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Measurement, Plan, timed
from benchmarks.records import Source
from oncelog import LogSettings, Window
from oncelog.connect import connect
from oncelog.log.log import Log
from oncelog.spark.session import session

WORKLOAD = "jobs, 10 M records on two cores"
STARTED = "jobs, from the command to its end, a log of ten records"
GROUPED = "Spark, the same rows from Parquet, grouped by id"
AUDIT, REBUILD, FIND, PURGE = (f"Oncelog, {job}" for job in ("audit", "rebuild", "purge, find", "purge, remove"))
BARE_SINK = "Spark, started, ten rows into a Python sink that does nothing"
BARE_SOURCE = "Spark, started, ten rows from a Python source into Parquet"
EXPORT, INGEST, SMALL_AUDIT = (f"Oncelog, {job}" for job in ("export", "ingest", "audit"))
ROWS, ROWS_QUICK = 10_000_000, 100_000
BATCH_ROWS = 10_000
LATE_ROWS = 100
"""So many of each batch, one in a hundred, came before, and when they come again the window has forgotten them."""
LATE_BATCHES = 3
_SPARK = """
import sys
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, WriterCommitMessage
from oncelog.spark import session

class Reader(DataSourceReader):
    def read(self, partition):
        yield from ((f"o-{number}",) for number in range(10))

class Writer(DataSourceArrowWriter):
    def write(self, iterator):
        for _ in iterator:
            pass
        return WriterCommitMessage()

class Bare(DataSource):
    @classmethod
    def name(cls):
        return "bare"

    def schema(self):
        return "id string"

    def reader(self, schema):
        return Reader()

    def writer(self, schema, overwrite):
        return Writer()

spark = session.start("bare", "local[2]")
spark.dataSource.register(Bare)
if sys.argv[1] == "sink":
    spark.read.json(sys.argv[2]).write.format("bare").mode("append").save()
else:
    spark.read.format("bare").load().write.mode("overwrite").parquet(sys.argv[3])
spark.stop()
"""


def jobs(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure audit, rebuild and purge, each by itself, and what a job costs beyond Spark's start."""
    folder.mkdir(parents=True)
    rows, rounds = (ROWS_QUICK, 1) if plan.quick else (ROWS, 2)
    with connect((folder / "db").as_uri()) as db:
        late = db.log("late", _remembering(BATCH_ROWS), create=True)
        _fill(late, _with_late(rows))
        took = {GROUPED: _grouped(folder, late, rounds)}
        for name, work in ((AUDIT, lambda: _audit(late)), (FIND, late.purge)):
            took[name] = [timed(work) for _ in range(rounds)]
        took[PURGE] = [timed(lambda: late.purge(remove=True))]
        assert late.audit().ok
        db.delete("late")
        whole = db.log("whole", _remembering(2 * rows), create=True)
        _fill(whole, (batch.table() for batch in _batches(rows)))
        took[REBUILD] = [timed(whole.rebuild) for _ in range(rounds)]
    found = [
        Measurement(workload=WORKLOAD, contender=name, unit="s", rounds=each, larger_is_better=False)
        for name, each in took.items()
    ]
    return found + _started(folder, 1 if plan.quick else 4)


def _remembering(keys: int) -> LogSettings:
    return LogSettings(window=Window(duration_s=86_400, max_keys=keys), seal="off")


def _fill(log: Log, batches: Iterator[pa.RecordBatch]) -> None:
    with log.writer() as writer:
        for batch in batches:
            writer.append_arrow(batch)
    log.seal()


def _batches(rows: int) -> Iterator[Any]:
    records = Source(100)
    return (records.batch(BATCH_ROWS) for _ in range(rows // BATCH_ROWS))


def _with_late(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield records some of which came some batches before."""
    earlier: list[pa.RecordBatch] = []
    for batch in _batches(rows):
        table = batch.table()
        if len(earlier) == LATE_BATCHES:
            table = pa.concat_batches([table.slice(LATE_ROWS), earlier.pop(0)])
        earlier.append(table.take(pa.array(np.arange(0, BATCH_ROWS - LATE_ROWS, BATCH_ROWS // LATE_ROWS)[:LATE_ROWS])))
        yield table


def _audit(log: Log) -> None:
    assert log.audit().duplicates


def _grouped(folder: Path, log: Log, rounds: int) -> list[float]:
    """Return how long Spark takes to group the rows of the log's own files, which are Parquet, by id."""
    conf = {"spark.driver.memory": "4g"}
    spark = session.start("benchmark", "local[2]", conf, log_file=folder / "spark.log")
    try:
        table = spark.read.parquet(*(str(file.path) for file in log.files()))
        grouped = table.groupBy("id").count().where("count > 1")
        return [timed(grouped.count) for _ in range(rounds + 1)][1:]  # the first is the JVM's to warm up
    finally:
        spark.stop()


def _started(folder: Path, rounds: int) -> list[Measurement]:
    """Return how long jobs take from the command to its end when there is next to nothing to do."""
    compileall.compile_dir(Path(session.__file__).parents[1], quiet=1)  # as pip does when it installs
    source = folder / "few.json"
    source.write_text("".join(f'{{"id": "o-{number}"}}\n' for number in range(10)))
    url, out = (folder / "few").as_uri(), folder / "few-out"
    oncelog = (sys.executable, "-m", "oncelog.cli")
    ingest = (*oncelog, "ingest", "few", str(source), "--id", "id", "--create", "--url", url)
    commands = {
        BARE_SINK: (sys.executable, "-c", _SPARK, "sink", str(source), str(out)),
        BARE_SOURCE: (sys.executable, "-c", _SPARK, "source", str(source), str(out)),
        INGEST: (*ingest, "--master", "local[2]"),
        EXPORT: (*oncelog, "export", "few", str(out), "--overwrite", "--url", url, "--master", "local[2]"),
        SMALL_AUDIT: (*oncelog, "audit", "few", "--url", url),
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):  # in turn: what Spark's own start takes changes by seconds
        for name, command in commands.items():
            took[name].append(timed(_running(command, out)))
    return [
        Measurement(workload=STARTED, contender=name, unit="s", rounds=each, larger_is_better=False)
        for name, each in took.items()
    ]


def _running(command: tuple[str, ...], out: Path) -> Callable[[], None]:
    def run() -> None:
        shutil.rmtree(out, ignore_errors=True)
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run
