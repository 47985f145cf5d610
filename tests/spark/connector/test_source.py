"""Reading a log with Spark, in batches and as a stream: the same records, in parallel, and never more than is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from oncelog.errors import NotFound
from oncelog.limits import KIB
from oncelog.settings import LogSettings
from oncelog.spark.connector import schema
from oncelog.spark.connector.options import ReadOptions
from oncelog.spark.connector.source import BatchReader
from oncelog.types import Entry, Record
from tests.log.ingest.adoption import adopt
from tests.spark.jobs import Shop, ids

pytestmark = pytest.mark.xdist_group("spark")


def as_entries(table: DataFrame) -> list[Entry]:
    """Return a table's rows as entries, by position."""
    found = []
    for row in table.orderBy("position").collect():
        fields: dict[str, Any] = row.asDict()
        fields["timestamp"] = fields["timestamp"].astimezone(UTC)
        fields["value"] = bytes(fields["value"])
        if fields["headers"] is not None:
            fields["headers"] = {name: bytes(value) for name, value in fields["headers"].items()}
        found.append(Entry(**fields))
    return found


def record(number: int) -> Record:
    """Return a record: of kinds that have different columns."""
    if number % 3 == 0:
        return Record(b"%d" % number)
    if number % 3 == 1:
        return Record(b"", id=f"é-{number}", stream="s", type="Paid", headers={"a": b"\0\xff", "": b""}, tenant="")
    return Record(b"x" * 3000, id=f"id-{number}")


def fill(shop: Shop) -> None:
    """Write a log with everything in it: sealed files, adopted ones, closed segments, and one without its writer."""
    with shop.database() as db:
        log = db.log("mixed", LogSettings(segment_bytes=64 * KIB, block_bytes=16 * KIB, seal="off"), create=True)
        with log.writer() as writer:
            writer.append_many([record(number) for number in range(60)])
            log.seal()
            staged = log.stage([pa.table({"id": ["adopted"], "value": pa.array([b"v"], pa.binary())})])
            adopt(writer, [staged])
            writer.append_many([record(number) for number in range(60, 150)])
        with log.writer() as writer:
            writer.append_many([record(number) for number in range(150, 160)])


def test_read_with_spark_equals_read_without(shop: Shop) -> None:
    """Record for record and column for column, however many tasks share the work; also while a writer is there."""
    fill(shop)
    expected = shop.entries("mixed")
    assert len(expected) == 161
    with shop.database() as db, db.log("mixed").writer() as writer:
        writer.append(b"open", id="open")
        expected = shop.entries("mixed")
        for partitions in (1, 4):
            table = shop.read("mixed", minPartitions=partitions)
            assert table.rdd.getNumPartitions() >= partitions
            assert as_entries(table) == expected
        assert as_entries(shop.read("mixed", startingOffsets=70, endingOffsets=71)) == expected[70:71]
        moment = expected[90].timestamp
        later = [entry for entry in expected if entry.timestamp >= moment]
        assert as_entries(shop.read("mixed", startingTimestamp=moment.isoformat())) == later


def test_columns_by_option_and_by_schema(shop: Shop) -> None:
    """What is not asked for is not read, and comes in the order that is asked for."""
    fill(shop)
    expected = [(entry.id, entry.position) for entry in shop.entries("mixed")]
    assert [tuple(row) for row in shop.read("mixed", columns="id, position").collect()] == expected
    reader = shop.spark.read.format("oncelog").options(url=shop.url, log="mixed")
    assert [row[0] for row in reader.schema("entry long").load().collect()] == [e.entry for e in shop.entries("mixed")]
    assert reader.load().count() == len(expected)
    for bad in ("id int", "name string"):
        with pytest.raises(PySparkException, match=r"schema: (column id is int, must be string|no column 'name')"):
            reader.schema(bad).load().count()


@pytest.mark.parametrize(("enabled", "asked"), [(False, True), (True, False), (True, True)])
def test_filters(shop: Shop, *, enabled: bool, asked: bool) -> None:
    """Filters mean the same whether or not Spark hands them down, and is asked to: fewer tasks, never other rows.

    Spark keeps what it planned for one query of a table for the next one that has no filters: so a table that is used
    again must not be narrowed, unless that is asked for.
    """
    fill(shop)
    expected = shop.entries("mixed")
    moment = expected[100].timestamp
    shop.spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        table = shop.read("mixed", maxRecordsPerPartition=40)
        asking = {"maxRecordsPerPartition": 40, "pushFilters": "true"}
        conditions = {
            "position >= 20 and position < 41": expected[20:41],
            "position > 5 and position <= 4": [],
            "id in ('id-2', 'é-4', 'none')": [expected[2], expected[4]],
            f"timestamp >= timestamp'{moment.isoformat()}'": [e for e in expected if e.timestamp >= moment],
            f"timestamp < timestamp'{moment.isoformat()}'": [e for e in expected if e.timestamp < moment],
            "id is null or value = X''": [e for e in expected if e.id is None or e.value == b""],
        }
        for condition in conditions if enabled and asked else list(conditions)[:2]:
            fresh = shop.read("mixed", **asking) if asked else table
            assert as_entries(fresh.where(condition)) == conditions[condition], condition
        fresh = shop.read("mixed", **asking) if asked else table
        narrowed = fresh.where("position >= 20 and position < 41").select("position")
        assert narrowed.rdd.getNumPartitions() == (1 if enabled and asked else 5)
    finally:
        shop.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_empty_log(shop: Shop) -> None:
    """No records are no rows, and no error."""
    assert shop.read().count() == 0
    query = shop.copy(shop.stream().select("id", "value"))
    assert query.exception() is None
    shop.append(range(3))
    assert shop.read(startingOffsets="latest").count() == 0
    with pytest.raises(PySparkException, match="position 4 of log 'orders' is behind its end, 3"):
        shop.read(startingOffsets=4).count()
    assert shop.read(startingOffsets=3, endingOffsets=100).count() == 0


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_hundreds_of_segments(shop: Shop, count: int) -> None:
    """Small segments share tasks: hundreds of them are not hundreds of tasks."""
    with shop.database() as db:
        log = db.log("orders")
        with log.writer() as writer:
            one = [
                log.stage([pa.table({"id": [f"id-{number}"], "value": pa.array([b"v"], pa.binary())})])
                for number in range(count)
            ]
            adopt(writer, one)
    table = shop.read(columns="id")
    assert table.rdd.getNumPartitions() == 1
    assert sorted(row.id for row in table.collect()) == ids(range(count))
    assert shop.read(minPartitions=5).rdd.getNumPartitions() == 5


def test_a_truncated_start(shop: Shop) -> None:
    """What was truncated before it was read is an error; with failOnDataLoss off, reading goes on behind it."""
    with shop.database() as db:
        log = db.log("short", LogSettings(idempotence="off"), create=True)
        with log.writer() as writer:
            writer.append_many([Record(b"value %d" % number) for number in range(20)])
    query = shop.copy(shop.stream("short", maxOffsetsPerTrigger=4).select("value"), checkpoint="slow")
    assert query.lastProgress is not None
    with shop.database() as db:
        with db.log("short").writer() as writer:
            writer.append_many([Record(b"value %d" % number) for number in range(20, 30)])
        assert db.log("short").truncate(25).first_position == 25
    assert shop.read("short").count() == 5, "who starts at the earliest starts where the log does"
    with pytest.raises(PySparkException, match=r"begins at position 25.*failOnDataLoss"):
        shop.read("short", startingOffsets=3).count()
    assert shop.read("short", startingOffsets=3, failOnDataLoss="false").count() == 5
    with pytest.raises(PySparkException, match=r"begins at position 25.*failOnDataLoss"):
        shop.copy(shop.stream("short").select("value"), checkpoint="slow")
    shop.copy(shop.stream("short", failOnDataLoss="false").select("value"), checkpoint="slow")
    assert len(shop.entries("copy")) == 25


def test_a_stream_is_admitted_in_parts_and_says_how_far_it_is(shop: Shop) -> None:
    """A limit bounds each batch, availableNow ends where the log did, progress tells the log's end."""
    shop.append(range(10))
    stream = shop.stream(maxOffsetsPerTrigger=4, startingOffsets=1).select("id", "value")
    query = shop.copy(stream)
    progress = [each for each in query.recentProgress if each.numInputRows]
    assert [each.numInputRows for each in progress] == [4, 4, 1]
    end = json.loads(progress[0].sources[0].latestOffset)
    assert (end["position"], end["log"]) == (10, shop.log().log_id)
    shop.append(range(10, 12))
    shop.copy(stream)
    assert shop.ids("copy") == ids(range(1, 12))


def test_a_log_that_was_made_anew_is_another(shop: Shop) -> None:
    """Positions of a log that was deleted mean nothing in the one that has its name now."""
    shop.append(range(5))
    shop.copy(shop.stream().select("id", "value"))
    with shop.database() as db:
        db.delete("orders")
        db.log("orders", create=True)
    shop.append(range(100, 103))
    with pytest.raises(PySparkException, match="deleted and made again"):
        shop.copy(shop.stream().select("id", "value"))
    shop.copy(shop.stream(failOnDataLoss="false").select("id", "value"))
    assert shop.ids("copy") == ids([*range(5), *range(100, 103)])


def test_options_that_are_wrong(shop: Shop) -> None:
    """What ``test_options`` finds reaches the user, before anything is read."""
    with pytest.raises(PySparkException, match="there is no log 'nothing'"):
        shop.read("nothing").count()


def test_a_moment_in_milliseconds(shop: Shop) -> None:
    """Kafka's timestamps are milliseconds since 1970."""
    shop.append(range(3))
    before_ms = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert shop.read(startingTimestamp=before_ms).count() == 3
    assert shop.read(startingTimestamp=before_ms * 100).count() == 0


def test_a_table_that_was_planned_does_not_read_another_log_of_the_name(shop: Shop) -> None:
    """Spark keeps what it planned, and a task may run late: positions of a log that was deleted are none of the log
    that was made again under its name.
    """
    shop.write(shop.rows(range(20)), create="true")
    reader = BatchReader(ReadOptions(url=shop.url, log="orders"), schema.of(["value"]))
    [part] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == 20
    with shop.database() as db:
        db.delete("orders")
        with db.log("orders", create=True).writer() as writer:
            writer.append_many([record(number) for number in range(30)])
    with pytest.raises(NotFound, match="made again"):
        next(reader.read(part))
