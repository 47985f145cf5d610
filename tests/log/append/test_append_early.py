"""One record at a time on a disk: what can be done while the device works is done then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oncelog.connect import Database
from oncelog.errors import Unavailable
from oncelog.log.append import alone
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
    """After a sync each call costs three times as much: only what must wait for the sync is done behind it. A block of
    a page or more is not begun early; all else is the same.
    """
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
    early = ["write", "begin_sync", "ack"] if size_bytes < 4000 else ["ack", "write"]
    assert calls == [*early, "identity", "sync", "write"]
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
