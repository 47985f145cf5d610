"""How far an open segment may be read, told by its writer to every process of the machine.

A file of one page with two slots, written in turn after each sync of the segment and read through the page cache;
it is synced when a segment starts only. A slot that is half-written fails its checksum, and the other one stands. A
slot names the start of the machine it was written in: once that is past, whatever the segment's file holds is on disk.

::

    0    8  xxh3 of the machine's boot id        24   8  entries below the end
    8    8  segment                              32   8  xxh3 of the 32 bytes above
    16   8  end: the cursor behind the last block
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import xxhash

from oncelog.storage.local.disk import Disk, close_quietly

_CONTENT = struct.Struct("<QQQQ")
_CHECKSUM = struct.Struct("<Q")
_SLOT_OFFSETS = (0, 2048)
_FILE_BYTES = 4096


class PublishedEnd(NamedTuple):
    """An end that was published: segment and cursor, and the start of the machine it was published in."""

    boot: int
    segment: int
    end: int
    entries: int


def boot_of(disk: Disk) -> int:
    """Return the number that stands for this start of the machine."""
    return xxhash.xxh3_64_intdigest(disk.boot_id.encode())


def read_published(disk: Disk, path: Path) -> list[PublishedEnd]:
    """Return the slots that hold, the furthest last. Those of this start of the machine outdo all others."""
    boot = boot_of(disk)
    found = [slot for slot in _slots(disk, path) if slot is not None]
    return sorted(found, key=lambda slot: (slot.boot == boot, slot.segment, slot.end))


class Publisher:
    """Tells readers how far they may go, for the one writer of a log. Raises ``OSError``."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._boot = boot_of(disk)
        self._descriptor: int | None = None
        self._turn = 0

    def begin(self, segment: int, end: int, entries: int) -> None:
        """Publish a segment's end durably, so that a power cut leaves a slot that tells of it."""
        slots = read_published(self._disk, self._path)
        self._open()
        # Both slots: one of an earlier start says "all is on disk" and must not outlive one of this start that gets
        # damaged; and when a power cut tears the one that was being written and takes the other back, that is left.
        # But for one that tells of a later segment, whose readers would lose sight of it.
        self.publish(segment, end, entries)
        if not any(slot.boot == self._boot and slot.segment > segment for slot in slots):
            self.publish(segment, end, entries)
        assert self._descriptor is not None
        self._disk.sync(self._descriptor)
        self._disk.sync_directory(self._path.parent)

    def publish(self, segment: int, end: int, entries: int) -> None:
        """Let readers go up to ``end``: everything below it is on stable storage."""
        self.write(self.slot(segment, end, entries))

    def slot(self, segment: int, end: int, entries: int) -> bytes:
        """Return what ``write`` publishes, once everything below ``end`` is on stable storage."""
        content = _CONTENT.pack(self._boot, segment, end, entries)
        return content + xxhash.xxh3_64_digest(content)[::-1]  # little endian, as ``_CHECKSUM`` reads it

    def write(self, slot: bytes) -> None:
        """Publish what ``slot`` returned."""
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        try:
            self._disk.write(self._descriptor, [slot], _SLOT_OFFSETS[self._turn])
        except OSError:
            self.close()
            raise
        self._turn ^= 1

    def close(self) -> None:
        """Let go of the file. May be repeated; publishing opens it again."""
        if self._descriptor is not None:
            close_quietly(self._disk, self._descriptor)
        self._descriptor = None

    def _open(self) -> None:
        """Open the file, and begin with the slot that is not the furthest."""
        self.close()
        furthest = read_published(self._disk, self._path)[-1:]
        self._turn = 0 if furthest and _slots(self._disk, self._path)[1] == furthest[0] else 1
        self._descriptor = self._disk.open(self._path, create=True)
        if self._disk.size(self._descriptor) < _FILE_BYTES:
            self._disk.write(self._descriptor, [bytes(_FILE_BYTES)], 0)


def _slots(disk: Disk, path: Path) -> list[PublishedEnd | None]:
    try:
        descriptor = disk.open_to_read(path)
    except FileNotFoundError:
        return [None for _ in _SLOT_OFFSETS]
    try:
        data = disk.read(descriptor, _FILE_BYTES, 0)
    finally:
        close_quietly(disk, descriptor)
    return [_decode(data, offset) for offset in _SLOT_OFFSETS]


def _decode(data: bytes, offset: int) -> PublishedEnd | None:
    if len(data) < offset + _CONTENT.size + _CHECKSUM.size:
        return None
    content = data[offset : offset + _CONTENT.size]
    (checksum,) = _CHECKSUM.unpack_from(data, offset + _CONTENT.size)
    return PublishedEnd(*_CONTENT.unpack(content)) if xxhash.xxh3_64_intdigest(content) == checksum else None
