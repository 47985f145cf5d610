"""A job over a whole log gives the same, no matter whose hands do the work: threads, or the tasks of a Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

import oncelog
from oncelog import LogSettings, Record, Window
from oncelog.errors import CorruptionError, NotFound
from oncelog.log.jobs.workers import JobContext, Threads
from oncelog.log.log import Log
from oncelog.spark.session.tasks import Tasks
from tests.log.ingest.adoption import adopt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("pipeline")

FORGETFUL = LogSettings(window=Window(max_keys=40), segment_bytes=128 * 1024, seal="off")


def fill(log: Log) -> None:
    """Append records some of which the window has forgotten when they come again, in a dozen segments."""
    records = []
    for number in range(120):
        records.append(Record(b"%d" % (number % 60) * 4000, id=f"o-{number % 60}", type=f"t-{number % 3}"))
        if number % 50 == 0:
            records.append(Record(b"without an id"))
    with log.writer() as writer:
        for start in range(0, len(records), 20):
            writer.append_many(records[start : start + 20])


def made(folder: Path) -> Log:
    """Return a log, most of it sealed into several files, the rest not."""
    log = oncelog.connect(folder.as_uri()).log("orders", FORGETFUL, create=True)
    fill(log)
    log.seal()
    with log.writer() as writer:
        writer.append(b"last", id="o-2")
    return log


def test_tasks_find_and_purge_what_threads_do(tmp_path: Path, spark: SparkSession) -> None:
    """Audit, rebuild and purge by Spark's tasks: the same figures, the same window, the same records."""
    mine, theirs = made(tmp_path / "mine"), made(tmp_path / "theirs")
    tasks = Tasks(spark, (tmp_path / "theirs").as_uri(), "orders")
    assert len(theirs.files()) > 3
    by_threads = mine.audit("type")
    by_tasks = theirs.audit("type", hands=tasks)
    assert (by_threads.duplicates, by_threads.conflicts, len(by_threads.by)) == (60, 1, 4)
    assert msgspec.structs.replace(by_tasks, hours={}, bytes=0) == msgspec.structs.replace(
        by_threads, hours={}, bytes=0
    )
    assert mine.rebuild().ids == theirs.rebuild(hands=tasks).ids == 40
    assert msgspec.structs.asdict(mine.purge(remove=True)) == msgspec.structs.asdict(
        theirs.purge(remove=True, hands=tasks)
    )
    assert [(entry.position, entry.id) for entry in mine.read()] == [
        (entry.position, entry.id) for entry in theirs.read()
    ]
    assert theirs.verify().findings == ()
    with theirs.writer() as writer:
        again = writer.append(b"30" * 4000, id="o-30", type="t-0")
        assert (again.position, again.duplicate) == (92, True)  # where it was, though it was purged there


class Twice(Threads):
    """Hands that do all work twice, as Spark does when it takes a task for lost; the second result counts."""

    def each(self, desk: JobContext, work: Any, parts: Sequence[Any]) -> Iterator[Any]:
        """Yield what the second of two attempts at each part returns."""
        return super().each(desk, lambda *given: (work(*given), work(*given))[1], parts)


def test_work_that_is_done_twice_counts_once(tmp_path: Path) -> None:
    """A file that is written again by two attempts takes its place once; what the other wrote is nobody's."""
    log = made(tmp_path)
    assert log.audit(hands=Twice()) == log.audit()
    assert log.rebuild(hands=Twice()).ids == 40
    files = len(log.files())
    assert log.purge(remove=True, hands=Twice()).purged == 60
    assert len(log.files()) == files
    assert log.verify().ok
    assert log.audit().duplicates == 0


def refused(desk: JobContext, part: int) -> int:
    """Fail at one part, as work does on what is not there."""
    if part == 3:
        message = "gone"
        raise NotFound(message, first=7)
    return part + desk.first_position


@pytest.mark.parametrize("hands", ["threads", "tasks"])
def test_what_work_raises_is_raised(tmp_path: Path, hands: str, request: pytest.FixtureRequest) -> None:
    """The error itself, with what it carries, after what was done before it: so a newer manifest can be looked at."""
    oncelog.connect(tmp_path.as_uri()).log("orders", create=True)
    doing = Threads() if hands == "threads" else Tasks(request.getfixturevalue("spark"), tmp_path.as_uri(), "orders")
    desk = oncelog.connect(tmp_path.as_uri()).log("orders")._desk(10)
    done = doing.each(desk, refused, list(range(8)))
    assert list(zip(range(3), done, strict=False)) == [(0, 10), (1, 11), (2, 12)]
    with pytest.raises(NotFound, match="gone") as caught:
        next(done)
    assert caught.value.first == 7


def test_damaged_file_is_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    """One file of several is damaged: an audit says which, and what is in the others; a purge stops."""
    log = made(tmp_path)
    path = Path(log.files()[1].path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    found = log.audit()
    assert [path.name in one.what for one in found.findings] == [True]
    assert 60 < found.records < 124
    with pytest.raises(CorruptionError, match=path.name):
        log.purge(remove=True)


def test_purged_records_are_counted_apart(tmp_path: Path) -> None:
    """Records are what a reader sees."""
    log = made(tmp_path)
    log.seal()
    purged = log.purge(remove=True).purged
    found = log.audit("type")
    assert (found.records, found.purged) == (len(list(log.read())), purged)
    assert sum(share.records for share in found.by.values()) == found.records
    assert sum(share.records for share in found.hours.values()) == found.records


@pytest.mark.parametrize("column", ["position", "id", "timestamp", "value"])
def test_rows_are_counted_also_when_none_of_their_columns_is_needed(tmp_path: Path, column: str) -> None:
    """Values are not read by those who do not ask for them; a file with nothing else in it still has its rows."""
    log = oncelog.connect(tmp_path.as_uri()).log("orders", create=True)
    with log.writer() as writer:
        adopt(writer, [log.stage([pa.table({"value": [b"a", b"b", b"c"]})])])
    read = pa.Table.from_batches(list(log.read_arrow(1, columns=[column])))
    whole = pa.Table.from_batches(list(log.read_arrow(1)))
    assert read.column(column).to_pylist() == whole.column(column).to_pylist()
    assert log.audit().records == 3
