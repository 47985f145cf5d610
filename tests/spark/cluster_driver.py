"""Jobs on a cluster in which tasks have twins and executors die. ``python cluster_driver.py MASTER FOLDER [URL]``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from oncelog import LogSettings, Window
from oncelog.spark.session import session
from oncelog.spark.session.tasks import Tasks
from tests.spark.cluster import PYTHON_PATH
from tests.spark.jobs import CONF, Shop

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.executorEnv.PYTHONPATH": PYTHON_PATH,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def attempt() -> tuple[int, int]:
    """Return which partition this is, and which attempt at it."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), context.attemptNumber()


def with_twin(fifo: str, folder: str) -> Step:
    """Return a step that stalls in the first attempt at a partition until its twin has all its rows."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, number = attempt()
        if partition == 0 and number == 0:
            Path(folder, "stalled").touch()
            with open(fifo, "rb") as twin:  # noqa: PTH123
                twin.read()
        yield from batches
        if partition == 0 and number > 0:
            Path(folder, "twin").touch()
            with open(fifo, "wb"):  # noqa: PTH123
                pass

    return step


def killing(folder: str) -> Step:
    """Return a step that kills its executor in the middle of a partition, once."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marker = Path(folder, "killed")
        for batch in batches:
            yield batch
            if attempt() == (1, 0) and not marker.exists():
                marker.touch()
                daemon = os.getppid()
                executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
                os.kill(executor, signal.SIGKILL)

    return step


def purge_late(shop: Shop, tasks: Tasks) -> None:
    """Have the cluster find, and purge, what came again when the window had forgotten it."""
    log = shop.database().log("late", LogSettings(window=Window(max_keys=10), seal="off"), create=True)
    for numbers in (range(50), range(50, 70), range(50)):
        shop.append(numbers, "late")
    log.seal()
    assert log.audit(hands=tasks) == log.audit()
    assert log.rebuild(hands=tasks).ids == log.rebuild().ids
    assert log.purge(remove=True, hands=tasks).purged == 50
    assert [entry.position for entry in log.read()] == list(range(70))


def main(master: str, folder: str, database: str | None = None) -> None:
    """Write tables without ids, so that nothing but the commit keeps rows from being there twice."""
    spark = session.start("cluster", master, CONF | SPECULATION)
    shop = Shop(spark, Path(folder))
    if database is not None:
        shop.url = database
    table = shop.rows(range(400), partitions=4).select("value").cache()
    assert table.count() == 400
    fifo = Path(folder, "fifo")
    os.mkfifo(fifo)
    shop.write(table.mapInArrow(with_twin(str(fifo), folder), table.schema), "twins", create="true")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    shop.write(table.mapInArrow(killing(folder), table.schema), "killed", create="true")
    assert shop.read("twins", minPartitions=4).select("value").distinct().count() == 400
    if database is None:  # a server does these jobs itself
        purge_late(shop, Tasks(spark, shop.url, "late"))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
