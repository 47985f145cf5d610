"""Writing a log with Spark: each row once, whatever is retried, replayed, restored or started again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from oncelog.errors import InvalidArgument
from oncelog.settings import LogSettings
from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.sink import StreamWriter
from tests.spark.jobs import Shop, ids

pytestmark = pytest.mark.xdist_group("spark")


def test_a_table_is_appended(shop: Shop) -> None:
    """All columns of a record come through, values may be text, and what is assigned cannot be given."""
    table = shop.spark.sql(
        "select 'a' as id, 'text' as value, 's' as stream, 'T' as type, '' as tenant, map('h', X'00') as headers"
    )
    shop.write(table)
    shop.write(shop.read().drop("position", "segment", "entry", "timestamp"), "copy", create="true")
    (entry,) = shop.entries()
    assert (entry.id, entry.value, entry.stream, entry.type, entry.tenant) == ("a", b"text", "s", "T", "")
    assert entry.headers == {"h": b"\0"}
    assert [each.value for each in shop.entries("copy")] == [b"text"]


def test_ids_are_written_once(shop: Shop) -> None:
    """A job that is run again, over rows in other partitions, adds what is new; by hand and by Spark in turn."""
    shop.append(range(5))
    shop.write(shop.rows(range(10)))
    shop.append(range(8, 12))
    shop.write(shop.rows(range(15), partitions=3).union(shop.rows(range(3), partitions=1)))
    assert shop.ids() == ids(range(15))
    assert shop.log().verify().ok


def test_a_batch_job_is_done_once(shop: Shop) -> None:
    """With producer and batchId a job that is run again is a no-op, without any ids; two different ones are two."""
    table = shop.rows(range(6)).select("value")
    shop.write(table, producer="nightly", batchId=20260101)
    shop.write(table.repartition(5), producer="nightly", batchId=20260101)
    assert len(shop.entries()) == 6
    shop.write(table, producer="nightly", batchId=20260102)
    assert len(shop.entries()) == 12
    with pytest.raises(PySparkException, match=r"batch 20260102 .* comes again with 7 rows"):
        shop.write(shop.rows(range(7)).select("value"), producer="nightly", batchId=20260102)
    assert len(shop.entries()) == 12


def test_an_empty_table_and_partitions_of_one_row(shop: Shop) -> None:
    """Nothing is nothing, and a task without rows stages no file."""
    shop.write(shop.rows([]), producer="p", batchId=0)
    assert shop.log().info().version == 1
    shop.write(shop.rows(range(3), partitions=9))
    assert shop.ids() == ids(range(3))


def kill_once(marker: Path) -> Any:
    """Return a step that kills its worker in the middle of the rows, once."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return step


def test_a_task_killed_in_the_middle_of_its_rows(shop: Shop, tmp_path: Path) -> None:
    """Spark tries it again: its rows are there once, although they have no ids."""
    marker = tmp_path / "killed"
    table = shop.rows(range(100), partitions=2).select("value")
    shop.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        shop.write(table.mapInArrow(kill_once(marker), table.schema))
    finally:
        shop.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert marker.exists()
    assert len(shop.entries()) == 100


def test_a_query_goes_on_from_its_checkpoint(shop: Shop) -> None:
    """What was read is written once; what has come since is added; the mark counts it all."""
    shop.append(range(10))
    stream = shop.stream(maxOffsetsPerTrigger=4).select("value")
    shop.copy(stream)
    shop.append(range(10, 15))
    shop.copy(stream)
    assert len(shop.entries("copy")) == 15
    (mark,) = shop.log("copy").marks()
    assert (mark.records, mark.duplicates, mark.conflicts) == (15, 0, 0)


def test_a_replay_in_another_order_and_in_other_partitions(shop: Shop) -> None:
    """The driver died after the commit: Spark replays the batch, its rows come out differently, nothing is added."""
    shop.append(range(50))
    shop.copy(shop.stream().select("value").repartition(3))
    assert shop.forget_last_commit() == 0
    query = shop.copy(shop.stream().select("value").repartition(2, "value"))
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [50]
    assert len(shop.entries("copy")) == 50
    assert sorted(entry.value for entry in shop.entries("copy")) == sorted(entry.value for entry in shop.entries())


def test_a_checkpoint_restored_from_a_backup(shop: Shop, tmp_path: Path) -> None:
    """Batch 1 comes again with other rows: an error that says so, or skipped, or added by id, as it is asked."""
    shop.append(range(4))
    stream = shop.stream().select("id", "value")
    shop.copy(stream)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    shop.append(range(4, 6))
    shop.copy(stream)
    shutil.copytree(tmp_path / "backup", tmp_path / "restored")
    shop.append(range(6, 9))
    with pytest.raises(PySparkException, match=r"batch 1 .* 2 rows .* comes again with 5 rows .*onReplay"):
        shop.copy(stream, checkpoint="restored")
    assert shop.ids("copy") == ids(range(6))
    shop.copy(stream, checkpoint="restored", onReplay="ids")
    assert shop.ids("copy") == ids(range(9))
    assert shop.log("copy").marks()[0].duplicates == 2


def test_a_new_checkpoint_under_an_old_producer_name(shop: Shop) -> None:
    """One query, restarted with a new checkpoint and the same producer name: refused with an explanation."""
    shop.append(range(4))
    stream = shop.stream().select("id", "value")
    shop.copy(stream, producer="copier")
    shop.append(range(4, 6))
    shop.copy(stream, producer="copier")
    with pytest.raises(PySparkException, match=r"producer 'copier' belongs to query .* another producer name"):
        shop.copy(stream, checkpoint="new", producer="copier")
    assert shop.ids("copy") == ids(range(6))
    shop.copy(stream, checkpoint="newer", producer="copier-2")
    assert shop.ids("copy") == ids(range(6)), "ids recognise what the new name cannot"


def test_two_queries_take_turns_on_one_log(shop: Shop) -> None:
    """Both write all their batches at the same time, beside a service that appends: nothing is lost or doubled."""
    shop.append(range(12))
    first = shop.stream(maxOffsetsPerTrigger=3).selectExpr("concat('a-', id) as id", "value")
    second = shop.stream(maxOffsetsPerTrigger=4).selectExpr("concat('b-', id) as id", "value")
    queries = [
        shop.copying(first, checkpoint="first").start(),
        shop.copying(second, checkpoint="second").start(),
    ]
    for query in queries:
        query.awaitTermination()
    shop.append(range(100, 103), "copy")
    wanted = [f"{query}-id-{number}" for query in "ab" for number in range(12)] + ids(range(100, 103))
    assert shop.ids("copy") == sorted(wanted)
    assert sorted(mark.last for mark in shop.log("copy").marks()) == [2, 3]


def test_two_writes_in_one_foreach_batch(shop: Shop) -> None:
    """Both are there: they share query and batch, so no mark may be made of those. Named, a replay is a no-op."""
    shop.append(range(6))

    def write(table: DataFrame, number: int) -> None:
        shop.write(table.selectExpr("concat('x-', id) as id", "value"), "copy", create="true")
        shop.write(table.selectExpr("concat('y-', id) as id", "value"), "copy")
        shop.write(table.select("value"), "plain", create="true", producer="plain", batchId=number)

    def run() -> None:
        query = shop.stream().writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", str(shop.folder / "checkpoint")).start().awaitTermination()

    run()
    shop.forget_last_commit()
    run()
    assert shop.ids("copy") == sorted(f"{side}-id-{number}" for side in "xy" for number in range(6))
    assert len(shop.entries("plain")) == 6


def test_conflicts(shop: Shop) -> None:
    """Rows whose id is taken go to the log of conflicts, which Spark reads too; or stop the batch; or are dropped."""
    shop.append(range(4))
    wrong = shop.rows(range(2, 6)).selectExpr("id", "concat(value, X'21') as value")
    with pytest.raises(PySparkException, match=r"2 of 4 rows have an id that is taken by other content"):
        shop.write(wrong, onConflict="error")
    assert shop.ids() == ids(range(4))
    shop.write(wrong)
    shop.write(wrong)
    assert shop.ids() == ids(range(6))
    assert sorted(row.id for row in shop.read("conflicts.orders").collect()) == ids([2, 3])
    shop.write(wrong.selectExpr("id", "X'00' as value"), onConflict="original")
    assert shop.read("conflicts.orders").count() == 2


def test_ids_by_column_and_by_content(shop: Shop) -> None:
    """A row is known by a column of the user's choice, or by what it says."""
    table = shop.rows(range(4)).withColumnRenamed("id", "order_id")
    for _ in range(2):
        shop.write(table, idColumn="order_id")
    assert shop.ids() == ids(range(4))
    plain = shop.rows(range(4)).select("value")
    for _ in range(2):
        shop.write(plain.union(plain), "content", create="true", ids="content")
    assert len(shop.entries("content")) == 4
    with shop.database() as db:
        db.log("always", LogSettings(idempotence="content"), create=True)
    for _ in range(2):
        shop.write(plain, "always")
    assert len(shop.entries("always")) == 4


def test_columns_that_are_wrong(shop: Shop) -> None:
    """What ``test_options`` finds reaches the user, before a task has run."""
    with pytest.raises(PySparkException, match="value is int, must be binary or string"):
        shop.write(shop.spark.sql("select 1 as value"))
    assert (shop.entries(), list(Path(shop.folder, "db").rglob("*.parquet"))) == ([], [])


def test_rows_that_are_bad(shop: Shop) -> None:
    """One error that names column, rule and a sample, and nothing is adopted, of other partitions neither."""
    bad = shop.rows([7], partitions=1).selectExpr("id", "cast(null as binary) as value")
    rule = "column value: is null, must have a value; the row: id='id-7'"
    with pytest.raises(PySparkException, match=rf"nothing was: partition \d+, row 0, {rule}"):
        shop.write(shop.rows(range(6)).union(bad), producer="p", batchId=1)
    assert (shop.entries(), shop.log().marks()) == ([], [])


def test_a_log_is_only_appended_to(shop: Shop) -> None:
    """Overwriting, complete output and a stream's own batch numbers are refused, with the reason."""
    with pytest.raises(PySparkException, match="only ever appended to"):
        shop.rows([1]).write.format("oncelog").options(**shop.options("orders", {})).mode("overwrite").save()
    counted = shop.stream().groupBy("id").count().selectExpr("id", "cast(count as string) as value")
    with pytest.raises(PySparkException, match="only ever appended to"):
        shop.copying(counted).outputMode("complete").start().awaitTermination()
    with pytest.raises(PySparkException, match="a stream numbers its batches itself"):
        shop.copy(shop.stream().select("value"), batchId=3)


def test_a_log_that_is_held_is_waited_for(shop: Shop) -> None:
    """A service that keeps the log makes a job fail after its time, with a name for it; nothing was written."""
    with shop.database() as db, db.log("orders").writer(), pytest.raises(PySparkException, match="LogBusy"):
        shop.write(shop.rows([1]), writerWaitSeconds=0)
    assert shop.entries() == []


def test_ids_for_a_log_that_keeps_none(shop: Shop) -> None:
    """What the log itself refuses is told like a bad row: once, and before anything is adopted."""
    with shop.database() as db:
        db.log("off", LogSettings(idempotence="off"), create=True)
    with pytest.raises(PySparkException, match=r"nothing was: .* idempotence off"):
        shop.write(shop.rows(range(3)), "off")
    shop.write(shop.rows(range(3)).select("value"), "off")
    assert len(shop.entries("off")) == 3


def test_commit_without_a_message_is_an_error(shop: Shop) -> None:
    """Spark has at least one message for every batch, even for one without rows: none at all is not "no rows".

    A continuous trigger commits epochs like this, without a row of them.
    """
    options = WriteOptions(url=shop.url, log="orders")
    writer = StreamWriter(options, StructType([StructField("value", BinaryType())]), overwrite=False)
    with pytest.raises(InvalidArgument, match=r"continuous=…\) does so, and is not supported"):
        writer.commit([None, None], 0)
