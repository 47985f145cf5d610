"""Offsets of a log that is not what the checkpoint knew: made again, restored from a copy, truncated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog.connect import Database, connect
from oncelog.errors import NotFound
from oncelog.log.log import Log
from oncelog.settings import LogSettings
from oncelog.spark.connector import schema
from oncelog.spark.connector.options import ReadOptions
from oncelog.spark.connector.streaming import Offset, StreamReader

COLUMNS = schema.of(["position", "value"])


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """Return a database on a disk, with ten orders in a log."""
    made = connect(tmp_path.as_uri())
    fill(made, 10)
    return made


def fill(db: Database, count: int) -> Log:
    """Append so many orders to the log, which is created if it is not there."""
    log = db.log("orders", LogSettings(idempotence="off"), create=True)
    with log.writer() as writer:
        for _ in range(count):
            writer.append(b"x")
    return log


def reader(db: Database, **options: str) -> StreamReader:
    """Return what Spark reads the log with, as a stream."""
    return StreamReader(ReadOptions.parse({"url": db.url, "log": "orders"} | options), COLUMNS)


def read(stream: StreamReader, start: Offset, end: Offset) -> list[int]:
    """Return the positions that a micro-batch reads."""
    parts = stream.partitions(start, end)
    return [row["position"] for part in parts for batch in stream.read(part) for row in batch.to_pylist()]


def test_a_batch_of_a_log_that_is_gone_does_not_read_the_new_one(db: Database) -> None:
    """Killed before it was done, a batch comes again by offsets of the old log: were the new one read by them, the next
    batch, which begins at its start, would read the same records again.
    """
    before = reader(db).initialOffset()
    planned = reader(db).latestOffset(before, ReadAllAvailable())
    db.delete("orders")
    fill(db, 12)
    with pytest.raises(NotFound, match="made again"):
        reader(db).partitions(before, planned)
    stream = reader(db, failOnDataLoss="false")
    assert read(stream, before, planned) == []
    assert read(stream, planned, stream.latestOffset(planned, ReadAllAvailable())) == list(range(12))


def test_a_log_that_ends_before_the_checkpoint_is_told(db: Database) -> None:
    """A log restored from an older copy: to wait until it has grown past the offset would leave out what grew. So a
    query that may go on does so from where the log ends.
    """
    behind = {"log": db.log("orders").log_id, "position": 14}
    with pytest.raises(NotFound, match="older copy"):
        reader(db).latestOffset(behind, ReadAllAvailable())
    lenient = reader(db, failOnDataLoss="false")
    end = lenient.latestOffset(behind, ReadAllAvailable())
    assert (end["position"], read(lenient, behind, end)) == (10, [])
    planned = behind | {"position": 8}
    with pytest.raises(NotFound, match="older copy"):
        reader(db).partitions(planned, behind)
    assert read(lenient, planned, behind) == [8, 9], "a batch that was planned, and not done, ends there, too"
    target = reader(db)
    target.prepareForTriggerAvailableNow()
    fill(db, 4)
    assert target.latestOffset(behind, ReadAllAvailable()) == behind, "what came since is for the next run"
    assert read(lenient, end, lenient.latestOffset(end, ReadAllAvailable())) == [10, 11, 12, 13]


def test_truncated_beyond_the_end_of_a_batch(db: Database) -> None:
    """What was planned, and truncated before it was read, is lost: an error, or nothing, and then the rest."""
    stream = reader(db, failOnDataLoss="false")
    start = stream.initialOffset()
    end = start | {"position": 3}
    log = db.log("orders")
    log.seal()
    assert log.truncate(10).first_position == 10
    with pytest.raises(NotFound, match="truncated before it was read"):
        reader(db).partitions(start, end)
    assert read(stream, start, end) == []
    fill(db, 2)
    assert read(stream, end, stream.latestOffset(end, ReadAllAvailable())) == [10, 11]
