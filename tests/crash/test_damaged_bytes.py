"""Bytes that are not those that were written: an error, or the right records all the same, and never wrong ones."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from oncelog.connect import Database
from oncelog.errors import Closed, CorruptionError, OncelogError
from oncelog.format import block, gather, snapshot
from oncelog.format.snapshot import Snapshot
from oncelog.limits import KIB, MIB
from oncelog.settings import LogSettings, Window
from oncelog.storage.local.home import LocalStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.types import Entry, Record
from tests.log.worlds import LOG, ROOT
from tests.models.history import Request, send

SOAK = os.environ.get("ONCELOG_SOAK") == "1"
SETTINGS = LogSettings(window=Window(duration_s=1e6, max_keys=1000), segment_bytes=64 * KIB, snapshot_interval_s=1e6)
HOME = ROOT / "logs" / LOG


class Tree(msgspec.Struct, frozen=True):
    """The files of a log that was closed in peace, and what it holds."""

    files: dict[Path, bytes]
    entries: list[Entry]
    requests: list[Request]


def records(letter: str, count: int, size_bytes: int = 12) -> tuple[Record, ...]:
    """Return records that differ in everything."""
    names = [f"{letter}{number}" for number in range(count)]
    return tuple(Record(name.encode().ljust(size_bytes, b"."), id=name) for name in names)


REQUESTS = [
    Request("one", records("a", 1)),
    Request("many", records("b", 3)),
    Request("batch", records("c", 2)),
    Request("one", records("d", 1, 40)),
    Request("arrow", records("e", 2)),
]


def connected(disk: SimulatedDisk) -> Database:
    """Open the database on a disk, in a process of its own."""
    clock = SimulatedClock(auto_advance=True)
    return Database(LocalStorage(ROOT, disk, clock), clock)


@cache
def tree(kind: str) -> Tree:
    """Return a small log of two segments, each written by its own writer, with snapshots; sealed or not."""
    disk = SimulatedDisk(file_bytes_max=MIB)
    db = connected(disk)
    log = db.log(LOG, SETTINGS, create=True)
    for part in (REQUESTS[:3], REQUESTS[3:]):
        with log.writer() as writer:
            for request in part:
                send(writer, request)
                if request.kind in ("batch", "arrow"):
                    writer.snapshot()
    if kind == "sealed":
        log.seal()
    entries = list(log.read())
    assert len(entries) == 9
    db.close()
    return Tree({path: bytes(disk.content(path)) for path in walk(disk, ROOT)}, entries, REQUESTS)


def walk(disk: SimulatedDisk, folder: Path) -> Iterator[Path]:
    """Yield the files below a folder."""
    for name, is_folder in sorted(disk.list_directory(folder)):
        if is_folder:
            yield from walk(disk, folder / name)
        else:
            yield folder / name


def disk_of(files: dict[Path, bytes]) -> SimulatedDisk:
    """Return a disk with these files."""
    disk = SimulatedDisk(file_bytes_max=MIB)
    for path, content in files.items():
        for folder in reversed(path.parents[:-1]):
            disk.make_directory(folder)
        descriptor = disk.open(path, create=True)
        disk.write(descriptor, [content], 0)
        disk.close(descriptor)
    return disk


def tolerates(kind: str, path: Path, content: bytes | None, *, write: bool = True) -> str:
    """Put other bytes, or none, in the place of a file, and use the log; return what came of it.

    Raises ``AssertionError`` for records that are wrong or lost, and lets every error pass that is not Oncelog's.
    """
    whole = tree(kind)
    changed = {name: data for name, data in whole.files.items() if name != path}
    if content is not None:
        changed[path] = content
    disk = disk_of(changed)
    read = attempt(lambda: reads(disk, whole))
    return f"{read}, {attempt(lambda: retries(disk, whole))}" if write or SOAK else read


def attempt(use: Callable[[], None]) -> str:
    """Use the log, and return the error it ended with, if that is one that Oncelog raises on purpose."""
    try:
        use()
    except Closed as error:
        message = "a bug, told as Closed"
        raise AssertionError(message) from error
    except OncelogError as error:
        return type(error).__name__
    return "right"


def reads(disk: SimulatedDisk, whole: Tree) -> None:
    """Read everything, one by one and in columns."""
    log = connected(disk).log(LOG)
    assert list(log.read()) == whole.entries, "other records are read than were written"
    values = [value for batch in log.read_arrow() for value in batch.column("value").to_pylist()]
    assert values == [entry.value for entry in whole.entries], "other columns are read than were written"


def retries(disk: SimulatedDisk, whole: Tree) -> None:
    """Become the writer, send everything again, and read it."""
    db = connected(disk)
    log = db.log(LOG)
    expected = {entry.value: entry.position for entry in whole.entries}
    with log.writer(wait_s=0) as writer:
        for request in whole.requests:
            for record, answer in zip(request.records, send(writer, request), strict=True):
                assert answer.duplicate, f"{record.id} was written again"
                assert answer.position == expected[record.value], f"{record.id} is told to be somewhere else"
        assert send(writer, Request("one", records("z", 1)))[0].position == len(whole.entries), "a position is wrong"
    assert list(log.read())[:-1] == whole.entries, "other records are read than were written"


def files(kind: str, folder: str) -> list[tuple[Path, bytes]]:
    """Return the files of a log below a folder, or the one file of that name, the newest last."""
    found = [(path, data) for path, data in tree(kind).files.items() if path.relative_to(HOME).parts[0] == folder]
    assert found, f"the log has nothing below {folder}: it no longer tests what it is to test"
    return found


def places(data: bytes, stride: int) -> list[int]:
    """Return the offsets to change: every so many, and of long runs of zeros, which fill files up, only some."""
    if SOAK:
        return list(range(len(data)))
    runs = [range(*match.span()) for match in re.finditer(rb"\0{65,}", data)]
    zeros = {offset for run in runs for offset in run}
    some = {offset for run in runs for offset in (*run[::4999], run[-1])}
    return [offset for offset in range(len(data)) if offset in some or (offset not in zeros and offset % stride == 0)]


def flipped(data: bytes, offset: int, mask: int) -> bytes:
    """Return the bytes with some bits of one of them changed."""
    return data[:offset] + bytes([data[offset] ^ mask]) + data[offset + 1 :]


FOLDERS = [
    # What, and how many bytes apart the changes are in the newest file and in those before it.
    ("blocks", "manifest", 1, 7),
    ("blocks", "bodies", 1, 97),
    ("blocks", "segments", 1, 1),
    ("blocks", "dedup_snapshot", 2, 7),
    ("blocks", "published", 1, 1),
    ("blocks", "lock", 5, 5),
    ("sealed", "sealed", 7, 7),
    ("sealed", "manifest", 11, 53),
    ("sealed", "bodies", 23, 211),
]


@pytest.mark.parametrize(("kind", "folder", "stride", "stride_before"), FOLDERS)
def test_a_byte_that_changed(kind: str, folder: str, stride: int, stride_before: int) -> None:
    """Every byte of every file, one at a time: an error or the right records, for readers and for writers."""
    found = files(kind, folder)
    for path, data in found:
        for offset in places(data, stride if path == found[-1][0] else stride_before):
            # A writer reads what it needs through the same checks, so of these it tries some.
            tolerates(kind, path, flipped(data, offset, 0xFF), write=folder != "segments" or offset % 4 == 0)


@pytest.mark.parametrize(("kind", "folder", "stride", "stride_before"), FOLDERS)
def test_a_bit_that_changed(kind: str, folder: str, stride: int, stride_before: int) -> None:
    """A single bit is enough to be noticed, wherever it is."""
    found = files(kind, folder)
    for path, data in found:
        for offset in places(data, 29 * (stride if path == found[-1][0] else stride_before)):
            for bit in range(8) if SOAK else (offset % 8,):
                tolerates(kind, path, flipped(data, offset, 1 << bit))


@pytest.mark.parametrize("kind", ["blocks", "sealed"])
def test_a_file_that_is_cut_short_or_too_long(kind: str) -> None:
    """A file of another length is an error, or nothing depends on what is missing."""
    for path, data in tree(kind).files.items():
        content = len(data.rstrip(b"\0"))
        shares = range(content) if SOAK else {0, 1, content // 3, content - 64, content - 1}
        for length in {*(max(0, share) for share in shares), content, (content + len(data)) // 2, len(data) - 1}:
            tolerates(kind, path, data[:length])
        for more in (b"\0", b"\xff" * 64, data):
            tolerates(kind, path, data + more)


@pytest.mark.parametrize("kind", ["blocks", "sealed"])
def test_a_file_that_is_missing(kind: str) -> None:
    """A file that is gone is an error, or nothing depended on it."""
    for path in tree(kind).files:
        tolerates(kind, path, None)


def test_a_file_in_the_place_of_another() -> None:
    """A file that is whole, and stands where another belongs, is not taken for it."""
    for folder in ("manifest", "bodies", "dedup_snapshot", "segments"):
        for path, _ in files("blocks", folder):
            for other, data in files("blocks", folder):
                if other != path:
                    tolerates("blocks", path, data)


def test_damage_is_told() -> None:
    """Damage to what a log cannot do without is reported as such to every caller that reads it."""
    told: Counter[str] = Counter()
    for folder in ("manifest", "bodies", "segments"):
        path, data = files("blocks", folder)[-1]
        told[tolerates("blocks", path, flipped(data, 40, 0xFF)).partition(",")[0]] += 1
    assert told == {"CorruptionError": 3}


# That these tests can tell.


class WeakDigest:
    """A checksum that is always right."""

    def update(self, _: object) -> None:
        """Look at nothing."""

    def intdigest(self) -> int:
        """Return the same whatever was given."""
        return 1


def test_records_that_nobody_checks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: where blocks have no real checksums, a changed byte comes out as a wrong record, and is found."""
    weak = SimpleNamespace(xxh3_64_intdigest=lambda _: 1, xxh3_64=WeakDigest)
    monkeypatch.setattr(block, "xxhash", weak)
    for module in (block, gather):
        monkeypatch.setattr(module, "_digest", weak.xxh3_64_intdigest)
    whole = tree.__wrapped__("blocks")
    path = max(path for path in whole.files if path.suffix == ".blocks")
    data = whole.files[path]
    changed = {**whole.files, path: data.replace(b"d0......", b"d0,.....")}
    with pytest.raises(AssertionError, match="other records"):
        reads(disk_of(changed), whole)


def test_a_damaged_snapshot_that_is_read_as_empty_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: where a damaged snapshot passes for an empty window, what is retried is written again, and found."""

    def lenient(data: bytes, what: str) -> Snapshot:
        try:
            return decode(data, what)
        except CorruptionError:
            head = snapshot.decode_head(data, what)
            nothing = np.empty(0, np.int64)
            return Snapshot(
                log_id=head.log_id,
                created_us=head.created_us,
                uptime_us=head.uptime_us,
                watermark=head.watermark,
                duration_us=head.duration_us,
                max_keys=head.max_keys,
                segments=[],
                identities=np.empty((0, 2), np.uint64),
                positions=nothing,
                fingerprints=np.empty(0, np.uint64),
                ticks=nothing,
                times=nothing,
                starts=np.empty(0, np.bool_),
            )

    decode = snapshot.decode
    monkeypatch.setattr(snapshot, "decode", lenient)
    path, data = files("blocks", "dedup_snapshot")[-1]
    with pytest.raises(AssertionError, match="was written again"):
        tolerates("blocks", path, flipped(data, len(data) // 2, 0xFF))
