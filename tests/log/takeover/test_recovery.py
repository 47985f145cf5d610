"""What a writer remembers when it opens, folded from what the log holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import oncelog
from oncelog import limits
from oncelog.connect import Database
from oncelog.dedup.window import DedupWindow
from oncelog.errors import Closed, Unavailable, WriterFenced
from oncelog.format.gather import GatheredBlocks, gather
from oncelog.format.manifest import Manifest
from oncelog.log import inner
from oncelog.log.append.open_segment import SegmentRun
from oncelog.log.log import Log
from oncelog.log.stored import files
from oncelog.log.takeover.recovery import LeftTable
from oncelog.testing.disk import SimulatedDisk
from tests.log import shop as shops
from tests.log.memory.orders import SETTINGS, many, remember
from tests.log.retries import on_disk

APPENDS = 7
PRODUCERS = ("a", "b", "c")


def crashed(log: Log, disk: SimulatedDisk) -> None:
    """Store records of a producer, one block each, and crash."""
    writer = log.writer(producer="importer")
    for number in range(APPENDS):
        writer.append(b"paid", sequence=number)
    disk.crash()


def test_the_tail_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read once for the ids and once for the producers: reading is most of what an open after a crash costs."""
    disk = SimulatedDisk()
    crashed(on_disk(disk).log("orders", create=True), disk)
    read: list[pa.Buffer] = []

    def counted(buffers: Iterable[pa.Buffer], **options: Any) -> Iterator[GatheredBlocks]:
        buffers = list(buffers)
        read.extend(buffers)
        return gather(buffers, **options)

    monkeypatch.setattr(files, "gather", counted)
    with on_disk(disk).log("orders").writer(producer="importer") as writer:
        assert len(read) == APPENDS
        assert writer.last_sequence == APPENDS - 1
        assert writer.append(b"paid", sequence=APPENDS - 1).duplicate


@pytest.mark.parametrize("snapshots", ["kept", "deleted"])
def test_producers_are_found_outside_the_tail(tmp_path: Path, snapshots: str) -> None:
    """Segments whose ids are in runs are not read for ids, and still tell how far producers got."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", create=True)
        for name in PRODUCERS:
            with log.writer(producer=name) as writer:
                writer.append(b"paid", sequence=3)
            with log.writer() as writer:
                writer.append(b"paid", id=name)
        assert log.rebuild().runs
    if snapshots == "deleted":
        for path in tmp_path.rglob("snapshot_*"):
            path.unlink()
    with oncelog.connect(tmp_path.as_uri()) as db:
        for name in PRODUCERS:
            with db.log("orders").writer(producer=name) as writer:
                assert writer.last_sequence == 3
                assert writer.append(b"paid", sequence=3).duplicate
            with db.log("orders").writer() as writer:
                assert writer.append(b"paid", id=name).duplicate


@pytest.mark.parametrize("home", [shops.in_memory, shops.on_disk])
def test_an_older_part_of_the_log_is_not_folded_over_a_snapshot(
    home: Callable[[], shops.Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost run in the middle is read again for its ids. What producers did there is older than the snapshot says."""
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS", 8)
    monkeypatch.setattr(limits, "MEMORY_MERGED_RUNS", 4)
    monkeypatch.setattr(limits, "MEMORY_RUN_IDS_MIN", 4)
    shop = home()
    log = shop.log(SETTINGS)
    for sequence in range(2):
        with log.writer(producer="importer") as writer:
            writer.append(b"paid", sequence=sequence)
        with log.writer() as writer:
            many(writer, range(8 * sequence, 8 * sequence + 8))
        with log.writer() as writer:
            remember(writer)
            writer._keeper.snapshot()
    first, second = log._manifest().memory
    assert first.next_position <= second.first_position
    shop.home.delete(first.part_key(0))
    with shop.log().writer(producer="importer") as writer:
        assert writer.last_sequence == 1
        assert writer.append(b"paid", sequence=1).duplicate


class ReadTail:
    """How many blocks were read of segments that no run covers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks = 0

        def counted(buffers: Iterable[pa.Buffer], **options: Any) -> Iterator[GatheredBlocks]:
            buffers = list(buffers)
            self.blocks += len(buffers)
            return gather(buffers, **options)

        monkeypatch.setattr(files, "gather", counted)


def left(db: Database, numbers: Iterable[int]) -> None:
    """Append orders as a writer that is closed at once."""
    with db.log("orders", SETTINGS, create=True).writer() as writer:
        many(writer, numbers)


def unknown(db: Database, numbers: range) -> list[int]:
    """Return which of these orders a new writer takes for new."""
    with db.log("orders").writer() as writer:
        return [number for number, ack in zip(numbers, many(writer, numbers), strict=True) if not ack.duplicate]


def test_the_next_writer_of_a_process_does_not_read_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that closes its writer after each batch read all ids that no run has, each time."""
    db, read = on_disk(SimulatedDisk()), ReadTail(monkeypatch)
    left(db, range(20))
    assert unknown(db, range(24)) == [20, 21, 22, 23]
    assert unknown(db, range(24)) == []
    assert read.blocks == 0


def test_a_writer_that_has_left_its_table_does_not_touch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next writer of the process holds another lock: a search or a truncation beside its appends would lose ids."""
    log = on_disk(SimulatedDisk()).log("orders", SETTINGS, create=True)
    first = log.writer()
    many(first, range(20))
    memory = first._keeper._memory
    runs = memory._recall.view.runs
    opened = memory._opened(runs)
    monkeypatch.setattr(memory, "_opened", lambda _: opened)  # it has read the manifest before it ended
    first._ending._let_go()
    with log.writer() as second:
        assert second._core.window is first._core.window
        inner.begin_at(first, 20)
        with pytest.raises(WriterFenced):
            memory.renew(runs)
        with pytest.raises(WriterFenced):
            inner.find(first, "o-1")
        assert all(ack.duplicate for ack in many(second, range(20)))


@pytest.mark.parametrize("asked", [False, True], ids=["closed", "asked"])
def test_a_writer_has_ended_before_its_table_is_left(monkeypatch: pytest.MonkeyPatch, *, asked: bool) -> None:
    """In a bucket the next one may take the table at once."""
    writer = on_disk(SimulatedDisk()).log("orders", SETTINGS, create=True).writer()
    reasons = []
    of = LeftTable.of

    def noted(window: DedupWindow | None, manifest: Manifest) -> LeftTable | None:
        reasons.append(type(writer._committer.error))
        return of(window, manifest)

    monkeypatch.setattr(LeftTable, "of", noted)
    many(writer, range(20))
    if asked:
        writer._ending._let_go()
    writer.close()
    assert reasons == [WriterFenced if asked else Closed]


def test_another_process_wrote_in_between() -> None:
    """What this process remembers is not all: the other's ids are known."""
    disk = SimulatedDisk()
    here, there = on_disk(disk), on_disk(disk)
    left(here, range(20))
    left(there, range(20, 40))
    assert unknown(here, range(44)) == [40, 41, 42, 43]


def test_another_process_took_the_log_and_wrote_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a table that was left by the last writer is taken over."""
    disk = SimulatedDisk()
    here, there = on_disk(disk), on_disk(disk)
    left(here, range(20))
    left(there, range(0))
    read = ReadTail(monkeypatch)
    assert unknown(here, range(20)) == []
    assert read.blocks > 0


def test_what_was_truncated_in_between_is_forgotten() -> None:
    """The next writer of the process does not remember what the log does not hold any more."""
    shop = shops.on_disk()
    here, there = shop.process(), shop.process()
    left(here, range(8))
    with here.log("orders").writer() as writer:
        many(writer, range(8, 16))
        shop.clock.advance(601)
        many(writer, range(16, 20))
    assert there.log("orders").truncate(8).first_position == 8
    assert unknown(here, range(20)) == list(range(8))


def test_a_large_table_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has written many logs does not keep the ids of all of them in memory."""
    monkeypatch.setattr(limits, "MEMORY_LEFT_BYTES_MAX", 1)
    db, read = on_disk(SimulatedDisk()), ReadTail(monkeypatch)
    left(db, range(20))
    assert db.log("orders")._held.left is None
    assert unknown(db, range(20)) == []
    assert read.blocks > 0


def test_a_writer_that_could_not_close_its_segment_leaves_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the log ends is then decided by the next writer, which reads the log."""
    db = on_disk(SimulatedDisk())

    def away(*_: object) -> None:
        message = "no answer"
        raise Unavailable(message)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentRun, "finish", away)
        left(db, range(20))
    assert db.log("orders")._held.left is None
    assert unknown(db, range(21)) == [20]
