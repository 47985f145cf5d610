"""What a writer remembers when it opens, folded from what the log holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import oncelog
from oncelog import limits
from oncelog.format.gather import GatheredBlocks, gather
from oncelog.log.log import Log
from oncelog.log.stored import files
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
