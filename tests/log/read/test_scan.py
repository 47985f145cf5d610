"""What a scan tells storage of its way: which closed segment it reads next."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from oncelog import LogSettings, limits
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.log.read.scan import Scan
from oncelog.log.stored import manifests
from oncelog.log.stored.manifests import Manifests
from oncelog.storage.base import Following
from oncelog.storage.memory import MemoryHome, MemoryStorage
from tests.log.shop import plain, stage

Told = list[tuple[int, Following | None]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Return which segments are read of any home in memory, each with the one that is read next."""
    found: Told = []
    blocks = MemoryHome.blocks

    def watched(  # noqa: PLR0917 (as the method)
        home: MemoryHome, segment: int, cursor: int, end: int | None, limit_bytes: int, then: Following | None = None
    ) -> tuple[Sequence[pa.Buffer], int]:
        if cursor == 0:
            found.append((segment, then))
        return blocks(home, segment, cursor, end, limit_bytes, then)

    monkeypatch.setattr(MemoryHome, "blocks", watched)
    return found


def filled(*, adopted: bool = False) -> MemoryStorage:
    """Return a home with a log of two closed segments, of a block each, perhaps a file behind them, then two more."""
    storage = MemoryStorage()
    log = Database(storage).log("orders", LogSettings(segment_bytes=limits.SEGMENT_BYTES_MIN, seal="off"), create=True)
    files = [stage(log, plain(range(3)))] if adopted else []
    for part in range(2):
        with log.writer() as writer:
            for _ in range(2):
                writer.append(b"v" * limits.SEGMENT_BYTES_MIN)
            if part == 0 and files:
                writer.ingest(files)
    return storage


def scan_of(storage: MemoryStorage) -> Scan:
    """Return a scan that is at the first record."""
    home = storage.home("orders")
    scan = Scan(home, Manifests(home, SYSTEM), "orders")
    scan.begin("earliest")
    return scan


def test_the_segment_that_is_read_next_is_named(told: Told) -> None:
    """A home that fetches ahead goes on with it; behind the last there is none."""
    scan = scan_of(filled())
    while scan.next_rows():
        pass
    assert told == [(0, (1, 1)), (1, (2, 1)), (2, (3, 1)), (3, None)]


def test_a_segment_that_is_not_read_is_not_named(told: Told) -> None:
    """Of a scan that ends before it, nothing of the next segment is wanted."""
    scan = scan_of(filled())
    while scan.next_rows(2):
        pass
    assert told == [(0, (1, 1)), (1, None)]


def test_a_segment_far_behind_the_next_is_not_named(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments in pages are not looked up for it, and the first that is in no page is not the next one."""
    monkeypatch.setattr(manifests, "INLINE_SEGMENTS_MAX", 1)
    monkeypatch.setattr(manifests, "PAGE_SEGMENTS", 1)
    scan = scan_of(filled())
    while scan.next_rows():
        pass
    assert told == [(0, None), (1, None), (2, (3, 1)), (3, None)]


def test_a_segment_in_a_file_is_not_named(told: Told) -> None:
    """It has no blocks."""
    scan = scan_of(filled(adopted=True))
    told.clear()
    while scan.next_rows():
        pass
    (first, behind_it), (second, file), *_, (_, end) = told
    assert (first, behind_it) == (0, (second, 1))
    assert file is end is None
