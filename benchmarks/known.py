"""Spark on a log that remembers many ids: rows that are new, the same rows again, and a commit of ten rows.

``--ids`` says how many ids are remembered when measuring begins.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Measurement, Plan, timed
from benchmarks.records import Source
from oncelog import LogSettings
from oncelog.connect import connect
from oncelog.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEW, KNOWN, TEN, TEN_EMPTY = "new rows", "rows that are there already", "ten new rows", "ten new rows, an empty log"
ROWS, ROWS_QUICK = 10_000_000, 20_000
ROUNDS = 3
_FILES = 8
_BATCH_ROWS = 10_000
_VALUE_BYTES = 16


def workload(ids: int) -> str:
    """Return the name of the workload with so many ids."""
    return f"Spark sink among {ids:,} ids"


def known(folder: Path, plan: Plan) -> list[Measurement]:
    """Fill a log, then measure on two cores."""
    folder.mkdir(parents=True)
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([f"{root}/src", os.environ.get("PYTHONPATH", "")])
    ids, rows = (10 * _BATCH_ROWS, ROWS_QUICK) if plan.quick else (plan.ids, ROWS)
    started = session.start("benchmark", "local[2]", {"spark.driver.memory": "4g"}, log_file=folder / "spark.log")
    try:
        return _Runs(started, folder, ids, rows, 1 if plan.quick else ROUNDS).all()
    finally:
        started.stop()


class _Runs:
    """What is measured, on one session and one large log."""

    def __init__(self, spark: SparkSession, folder: Path, ids: int, rows: int, rounds: int) -> None:
        self._spark, self._folder = spark, folder
        self._ids, self._rows, self._rounds = ids, rows, rounds
        self._source = Source(_VALUE_BYTES)
        self._url = (folder / "db").as_uri()
        self._counter = itertools.count()

    def all(self) -> list[Measurement]:
        self._fill()
        self._append(self._input(_FILES * 10), "large")  # what is loaded once
        new, again, ten, ten_empty = [], [], [], []
        for _ in range(self._rounds):
            rows = self._input(self._rows)
            new.append(self._rows / self._append(rows, "large"))
            again.append(self._rows / self._append(rows, "large"))
            ten.append(self._append(self._input(10, files=1), "large"))
            ten_empty.append(self._append(self._input(10, files=1), f"empty-{next(self._counter)}"))
        return [
            self._row(NEW, "records/s", new),
            self._row(KNOWN, "records/s", again),
            self._row(TEN, "s", ten, larger=False),
            self._row(TEN_EMPTY, "s", ten_empty, larger=False),
        ]

    def _row(self, what: str, unit: str, rounds: list[float], *, larger: bool = True) -> Measurement:
        name = workload(self._ids)
        return Measurement(workload=name, contender=what, unit=unit, rounds=rounds, larger_is_better=larger)

    def _fill(self) -> None:
        settings = LogSettings(block_bytes=16 << 20)
        with connect(self._url) as db, db.log("large", settings, create=True).writer() as writer:
            for _ in range(self._ids // _BATCH_ROWS):
                writer.append_arrow(self._source.batch(_BATCH_ROWS).table(), timeout_s=None)

    def _input(self, rows: int, *, files: int = _FILES) -> Path:
        """Write new rows as Parquet files; return their folder."""
        folder = self._folder / f"input-{next(self._counter)}"
        folder.mkdir()
        for number in range(files):
            left = rows // files
            batches = [self._source.batch(min(_BATCH_ROWS, left - at)).table() for at in range(0, left, _BATCH_ROWS)]
            table = pa.Table.from_batches(batches).select(["id", "value"])
            pq.write_table(table, folder / f"{number}.parquet", compression="none", use_dictionary=False)
        return folder

    def _append(self, rows: Path, log: str) -> float:
        """Append the rows of a folder; return the seconds."""
        options = {"url": self._url, "log": log, "create": "true"}
        table = self._spark.read.parquet(str(rows))
        return timed(lambda: table.write.format("oncelog").options(**options).mode("append").save())
