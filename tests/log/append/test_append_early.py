"""Appends on a disk: what can be done while the device works is done then."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncelog.connect import Database
from oncelog.dedup.identity import Hasher
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow
from oncelog.errors import Unavailable
from oncelog.log.append import alone
from oncelog.log.append.open_segment import SegmentRun
from oncelog.log.writer import Writer
from oncelog.storage.base import Chunk
from oncelog.storage.local.disk import Identity, RealDisk
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.local.segment_writer import LocalSegmentWriter
from oncelog.types import Ack


class NotingDisk(RealDisk):
    """Notes what an append asks of the disk, in order."""

    def __init__(self) -> None:
        """Begin with nothing noted."""
        super().__init__()
        self.calls: list[str] = []

    def write(self, descriptor: int, chunks: Sequence[Chunk], offset: int) -> None:
        """Note a write."""
        self.calls.append("write")
        super().write(descriptor, chunks, offset)

    def begin_sync(self, descriptor: int, offset: int, length: int) -> None:
        """Note that write-back is started."""
        self.calls.append("begin_sync")
        super().begin_sync(descriptor, offset, length)

    def identity(self, path: Path) -> Identity | None:
        """Note a look at the name."""
        self.calls.append("identity")
        return super().identity(path)

    def sync(self, descriptor: int) -> None:
        """Note a sync."""
        self.calls.append("sync")
        super().sync(descriptor)


@pytest.mark.parametrize("size_bytes", [100, 4000])
def test_the_ack_is_made_while_the_device_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """After a sync each call costs three times as much: only what must wait for the sync is done behind it."""
    disk = NotingDisk()

    def noting(*given: Any) -> Ack:
        disk.calls.append("ack")
        return Ack(*given)

    with Database(LocalStorage(tmp_path, disk)) as db, db.log("orders", create=True).writer() as writer:
        first = writer.append(b"first", id="first")
        monkeypatch.setattr(alone, "Ack", noting)
        disk.calls.clear()
        second = writer.append(bytes(size_bytes), id="second")
        calls = list(disk.calls)
        again = writer.append(bytes(size_bytes), id="second")
    assert calls == ["write", "begin_sync", "ack", "identity", "sync", "write"]
    assert (first.position, first.entry, second.position, second.entry) == (0, 0, 1, 1)
    assert (again.position, again.segment, again.entry, again.timestamp) == (
        second.position,
        second.segment,
        second.entry,
        second.timestamp,
    )


def test_a_record_without_an_id_is_stored_once_although_its_ack_could_not_be_made_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt stores the block, and nobody made the ack meanwhile: that is no reason to append once more."""
    with Database(LocalStorage(tmp_path)) as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append(b"first")
            refused = iter([Unavailable("the device is busy")])

            def begin(*_: object) -> None:
                for error in refused:
                    raise error

            monkeypatch.setattr(LocalSegmentWriter, "begin", begin)
            assert writer.append(b"second").position == 1
            assert next(refused, None) is None
        with log.read() as entries:
            assert [entry.value for entry in entries] == [b"first", b"second"]


ROWS = pa.table(
    {
        "id": [f"order-{number}" for number in range(1000)],
        "value": [b"%100d" % number for number in range(1000)],
    }
)


def filled(db: Database) -> None:
    """Make a log whose table has room, so that a batch of new rows is entered in one walk."""
    with db.log("orders", create=True).writer() as writer:
        for part in range(3):
            ids = [f"before-{part}-{number}" for number in range(20_000)]
            writer.append_arrow(pa.table({"id": ids, "value": [b"v"] * len(ids)}))


def test_fingerprints_are_hashed_while_the_device_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New rows are decided by their ids: their values are hashed, and their ids put into the sieve, behind the write
    and before the sync.
    """
    disk = NotingDisk()
    hashed, finish = Hasher.fingerprints, Table.finish

    def noting(hasher: Hasher, payload: pa.RecordBatch) -> Any:
        disk.calls.append("hash")
        return hashed(hasher, payload)

    def finished(table: Table, count: int | None = None) -> None:
        finish(table, count)
        disk.calls.append("finished")

    monkeypatch.setattr(Hasher, "fingerprints", noting)
    monkeypatch.setattr(Table, "finish", finished)
    with Database(LocalStorage(tmp_path, disk)) as db:
        filled(db)
        with db.log("orders").writer() as writer:
            writer.append(b"the first of a segment")
            disk.calls.clear()
            writer.append_arrow(ROWS)
            calls = list(disk.calls)
            changed = ROWS.set_column(1, "value", pa.array([b"%99d" % number for number in range(1000)]))
            assert writer.append_arrow(ROWS).duplicates.all()
            assert not db.log("orders").verify().findings
            with pytest.raises(Exception, match="1000"):
                writer.append_arrow(changed)
    begun = calls.index("begin_sync")
    assert calls[begun - 1] == "write"
    assert calls[begun:] == ["begin_sync", "hash", "finished", "identity", "sync", "write"]


@pytest.mark.parametrize("again", [KeyboardInterrupt, MemoryError])
def test_what_interrupts_the_work_beside_the_device_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: type[BaseException]
) -> None:
    """The block is written and not synced then. Ctrl-C: it is stored all the same, once. A bug or no memory: the writer
    ends, and a retry with the next one finds what is there.
    """
    raised = iter([again()])
    finish = DedupWindow.finish

    def interrupted(window: DedupWindow, count: int | None = None) -> None:
        for error in raised:
            raise error
        finish(window, count)

    with Database(LocalStorage(tmp_path)) as db:
        filled(db)
        log = db.log("orders")
        with log.writer() as writer:
            monkeypatch.setattr(DedupWindow, "finish", interrupted)
            with pytest.raises((KeyboardInterrupt, Exception)):
                writer.append_arrow(ROWS)
            assert next(raised, None) is None
            if again is KeyboardInterrupt:
                assert writer.append_arrow(ROWS).duplicates.all()
        with log.writer() as writer:
            writer.append_arrow(ROWS)
            assert writer.append_arrow(ROWS).duplicates.all()
        assert log.info().last_position == 60_999
        assert not log.verify().findings


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_block_that_was_begun_when_the_writer_ended_has_the_answer_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """The device is slow, and a close runs out of time meanwhile: the log is let go between the write and the sync."""
    begun, let_go = threading.Event(), threading.Event()
    begin_sync, abandon = RealDisk.begin_sync, SegmentRun.abandon

    def slow(disk: RealDisk, descriptor: int, offset: int, length: int) -> None:
        begin_sync(disk, descriptor, offset, length)
        if waits:
            waits.clear()
            begun.set()
            let_go.wait()

    def abandoned(run: SegmentRun) -> None:
        abandon(run)
        let_go.set()

    waits: list[bool] = []
    monkeypatch.setattr(RealDisk, "begin_sync", slow)
    monkeypatch.setattr(SegmentRun, "abandon", abandoned)
    errors: list[BaseException] = []

    def append(writer: Writer) -> None:
        try:
            if rows == 1:
                writer.append(ROWS["value"][0].as_py(), id="order-0")
            else:
                writer.append_arrow(ROWS)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    with Database(LocalStorage(tmp_path)) as db:
        filled(db)
        log = db.log("orders")
        writer = log.writer()
        writer.append(b"the first of a segment")
        let_go.clear()
        waits.append(True)
        thread = threading.Thread(target=append, args=(writer,))
        thread.start()
        begun.wait()
        with pytest.raises(Unavailable, match="not stored in time"):
            writer.close(timeout_s=0)
        thread.join()
        assert [getattr(error, "outcome", None) for error in errors] == ["unknown"]
        with log.writer() as after:
            after.append_arrow(ROWS)
            assert after.append_arrow(ROWS).duplicates.all()
        assert log.info().last_position == 61_000
        assert not log.verify().findings


def test_a_block_that_is_stored_is_not_kept(tmp_path: Path) -> None:
    """A writer that has nothing to do takes no memory for the large record that it stored last."""
    with Database(LocalStorage(tmp_path)) as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"first")
        tracemalloc.start()
        try:
            writer.append(bytes(4 << 20), id="large")
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
        finally:
            tracemalloc.stop()
