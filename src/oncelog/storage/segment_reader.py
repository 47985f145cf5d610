"""Reading segments from files: mapped, cut into blocks, never copied."""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from pathlib import Path

import pyarrow as pa

from oncelog.errors import CorruptionError, NotFound
from oncelog.format.block import BlockHeader, read_header
from oncelog.storage.disk import Disk, Identity, close_quietly, explain
from oncelog.storage.objects import BLOCKS_SUFFIX, PUBLISHED, SEGMENTS
from oncelog.storage.published import Published, boot_of, read_published
from oncelog.storage.recovery import whole_blocks

_MAPPED_MAX = 16
_INDEX_EVERY_BLOCKS = 16


def segment_path(home: Path, segment: int) -> Path:
    """Return where a segment's blocks are."""
    return home / SEGMENTS / f"{segment:020d}{BLOCKS_SUFFIX}"


class SegmentReader:
    """Reads the segments of one home. Safe to share between threads.

    Files are mapped as long as they are among the last few that were read; which file a name stands for is looked up
    every time, so that what was removed, or made anew, is never mistaken for what it was.
    """

    def __init__(self, disk: Disk, home: Path) -> None:
        self._disk = disk
        self._home = home
        self._lock = threading.Lock()
        self._mapped: OrderedDict[int, _Mapped] = OrderedDict()

    def blocks(self, segment: int, cursor: int, end: int | None, limit_bytes: int) -> tuple[list[pa.Buffer], int]:
        """Return whole blocks from ``cursor`` on, and the cursor behind them."""
        mapped, visible = self._visible(segment, end)
        found: list[pa.Buffer] = []
        last: BlockHeader | None = None
        while mapped is not None and cursor < visible and limit_bytes > 0:
            header = mapped.header(cursor, visible, last)
            found.append(mapped.content.slice(cursor, header.size_bytes))
            cursor += header.size_bytes
            limit_bytes -= header.size_bytes
            last = header
        return found, cursor

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Return the cursor of the block that holds ``entry``, or the end of what is visible."""
        mapped, visible = self._visible(segment, end)
        return mapped.locate(entry, visible) if mapped is not None else visible

    def published(self) -> Published | None:
        """Return the furthest end there is."""
        slots = self._read_published()
        return slots[-1] if slots else None

    def forget(self, segment: int | None = None) -> None:
        """Let go of a segment's file, or of all. Buffers that were returned keep theirs."""
        with self._lock:
            if segment is None:
                self._mapped.clear()
            else:
                self._mapped.pop(segment, None)

    def _visible(self, segment: int, end: int | None) -> tuple[_Mapped | None, int]:
        """Return a segment's content and how far it may be read."""
        if end is None:
            return self._visible_open(segment)
        mapped = self._map(segment, end) if end else None
        if end and mapped is None:
            message = f"{segment_path(self._home, segment)}: the segment is gone"
            raise NotFound(message)
        if mapped is not None and mapped.content.size < end:
            message = f"{mapped.path}: {mapped.content.size} bytes, {end} were written: restore it from a copy"
            raise CorruptionError(message)
        return mapped, end

    def _visible_open(self, segment: int) -> tuple[_Mapped | None, int]:
        slots = self._read_published()
        if not slots:
            return None, 0
        furthest = slots[-1]
        if furthest.boot == boot_of(self._disk):
            ends = [slot.end for slot in slots if slot.segment == segment and slot.boot == furthest.boot]
            if ends or furthest.segment < segment:
                visible = max(ends, default=0)
                mapped = self._map(segment, visible) if visible else None
                return mapped, min(visible, mapped.content.size) if mapped is not None else 0
        # Its writer has gone on, or the machine was started since: all that is whole in the file is on disk, for good.
        mapped = self._map(segment, None)
        return mapped, mapped.whole_end() if mapped is not None else 0

    def _read_published(self) -> list[Published]:
        path = self._home / PUBLISHED
        try:
            return read_published(self._disk, path)
        except OSError as error:
            raise explain(error, path) from error

    def _map(self, segment: int, needed_bytes: int | None) -> _Mapped | None:
        """Return a segment's file, mapped at least that far if it goes that far; ``None``: to its end."""
        path = segment_path(self._home, segment)
        try:
            identity = self._disk.identity(path)
            with self._lock:
                known = self._mapped.get(segment)
                if known is not None and known.identity == identity:
                    self._mapped.move_to_end(segment)
                else:
                    known = None
            if known is not None and needed_bytes is not None and known.content.size >= needed_bytes:
                return known
            return self._map_anew(path, segment, known) if identity is not None else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, path) from error

    def _map_anew(self, path: Path, segment: int, known: _Mapped | None) -> _Mapped:
        descriptor = self._disk.open_to_read(path)
        try:
            size = self._disk.size(descriptor)
            if known is not None and known.content.size == size:
                return known
            mapped = _Mapped(path, segment, self._disk.identity_of(descriptor), self._disk.map(descriptor, size))
        finally:
            close_quietly(self._disk, descriptor)
        with self._lock:
            self._mapped[segment] = mapped
            self._mapped.move_to_end(segment)
            while len(self._mapped) > _MAPPED_MAX:
                self._mapped.popitem(last=False)
        return mapped


class _Mapped:
    """A segment's file in memory, with what was learnt about it. Below a visible end nothing in it changes."""

    def __init__(self, path: Path, segment: int, identity: Identity, content: pa.Buffer) -> None:
        self.path = path
        self.identity = identity
        self.content = content
        self._segment = segment
        self._lock = threading.Lock()
        self._entries: list[int] = []
        self._cursors: list[int] = []
        self._whole = (0, 0, 0)

    def header(self, cursor: int, end: int, before: BlockHeader | None) -> BlockHeader:
        """Return the header of the block at ``cursor``, which lies below ``end`` and follows ``before``."""
        try:
            header = read_header(self.content, cursor)
        except CorruptionError as error:
            raise CorruptionError(self._damage(cursor, "its header's checksum does not match")) from error
        if header is None or header.segment != self._segment:
            raise CorruptionError(self._damage(cursor, f"no block of segment {self._segment} begins there"))
        if cursor + header.size_bytes > end:
            raise CorruptionError(self._damage(cursor, f"its block goes beyond the end at {end}"))
        if before is not None and header.previous != before.checksum:
            raise CorruptionError(self._damage(cursor, "its block does not follow the one before"))
        return header

    def locate(self, entry: int, end: int) -> int:
        """Return the cursor of the block with an entry, hopping from the nearest place that is known."""
        with self._lock:
            near = bisect.bisect_right(self._entries, entry) - 1
            cursor = self._cursors[near] if near >= 0 else 0
            hops = 0
            while cursor < end:
                header = self.header(cursor, end, None)
                behind = header.first_entry + header.count
                if entry < behind:
                    return cursor
                cursor += header.size_bytes
                hops += 1
                if hops % _INDEX_EVERY_BLOCKS == 0 and (not self._entries or behind > self._entries[-1]):
                    self._entries.append(behind)
                    self._cursors.append(cursor)
            return end

    def whole_end(self) -> int:
        """Return how far the file holds whole blocks, each checked once."""
        with self._lock:
            offset, entries, previous = self._whole
            found = whole_blocks(
                self.content, self.path, self._segment, offset=offset, entries=entries, previous=previous
            )
            if found.offsets:
                self._whole = (found.end, found.first_entries[-1] + found.counts[-1], found.checksum)
            return self._whole[0]

    def _damage(self, cursor: int, what: str) -> str:
        return f"{self.path}: damaged at offset {cursor}, {what}; restore the file from a copy"
