"""Reading segments from files: loaded in one piece, cut into blocks, not copied again.

Segments are not mapped: a mapped file that shrinks, or has a bad sector, kills its reader with SIGBUS. A read that
fails is an error. What was loaded does not change either, whatever becomes of the file.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from oncelog.errors import CorruptionError, NotFound, OncelogError
from oncelog.format.block import HEADER_BYTES, BlockHeader, BlockScan, CheckedBlocks, read_header, scan
from oncelog.limits import MIB
from oncelog.storage.local.disk import Disk, Identity, close_quietly, explain
from oncelog.storage.local.objects import BLOCKS_SUFFIX, PUBLISHED, SEGMENTS
from oncelog.storage.local.published import PublishedEnd, boot_of, read_published
from oncelog.storage.local.recovery import whole_blocks

_KNOWN_MAX = 16
_INDEX_BYTES = 4 * MIB

_PASSED_BYTES = 256 * 1024
"""An index needs headers alone: the body of a block that is at least so large is not loaded for it."""
_BORDERS_MIN = 2

_LOAD_BYTES = 4 * MIB
"""As much is loaded at once, for bytes that are still in a cache of the processor are summed up and used sooner.
Smaller loads cost more calls than they save (decision 46).
"""

_Span = tuple[int, int]
"""A stretch of a file: where it begins and ends."""


def segment_path(home: Path, segment: int) -> Path:
    """Return where a segment's blocks are."""
    return home / SEGMENTS / f"{segment:020d}{BLOCKS_SUFFIX}"


class _Visible(NamedTuple):
    """What may be read of a segment: its content (if there is any), up to where, and how many entries, if known."""

    content: _Content | None
    end: int
    entries: int | None


_NOTHING = _Visible(None, 0, None)


class SegmentReader:
    """Reads the segments of one home. Safe to share between threads.

    What is learnt of a file is kept as long as it is among the last few that were read; which file a name stands for is
    looked up every time, so that a file that was removed, or made again, is never mistaken for what it was.
    """

    def __init__(self, disk: Disk, home: Path) -> None:
        self._disk = disk
        self._home = home
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Content] = OrderedDict()

    def blocks(self, segment: int, cursor: int, end: int | None, limit_bytes: int) -> tuple[list[pa.Buffer], int]:
        """Return whole blocks from ``cursor`` on, and the cursor behind them."""
        visible = self._visible(segment, end)
        if visible.content is None or cursor >= visible.end:
            return [], cursor
        return visible.content.blocks(cursor, visible.end, limit_bytes)

    def locate(self, segment: int, entry: int, end: int | None) -> int:
        """Return the cursor of the block that holds ``entry``, or the end of what is visible."""
        visible = self._visible(segment, end)
        if visible.content is None or (visible.entries is not None and entry >= visible.entries):
            return visible.end
        return visible.content.locate(entry, visible.end)

    def visible(self, segment: int) -> int:
        """Return how many entries of an open segment can be read now."""
        return self._visible(segment, None).entries or 0

    def learn(self, segment: int, whole: BlockScan) -> None:
        """Take over what was found out about a segment from its beginning on, bodies checked. It saves time only."""
        with contextlib.suppress(OncelogError):
            content = self._find(segment, whole.end) if whole.offsets else None
            if content is not None and content.size >= whole.end:
                content.learn(whole)

    def published(self) -> PublishedEnd | None:
        """Return the furthest end there is."""
        slots = self._read_published()
        return slots[-1] if slots else None

    def forget(self, segment: int | None = None) -> None:
        """Forget what was learnt of a segment's file, or of all. Buffers that were returned keep theirs."""
        with self._lock:
            if segment is None:
                self._known.clear()
            else:
                self._known.pop(segment, None)

    def _visible(self, segment: int, end: int | None) -> _Visible:
        """Return a segment's content and how far it may be read."""
        if end is None:
            return self._visible_open(segment)
        content = self._find(segment, end) if end else None
        if end and content is None:
            message = f"{segment_path(self._home, segment)}: the segment is gone"
            raise NotFound(message)
        if content is not None and content.size < end:
            message = f"{content.path}: {content.size} bytes, {end} were written: restore it from a copy"
            raise CorruptionError(message)
        return _Visible(content, end, None)

    def _visible_open(self, segment: int) -> _Visible:
        slots = self._read_published()
        if not slots:
            return _NOTHING
        furthest = slots[-1]
        if furthest.boot == boot_of(self._disk):
            own = [slot for slot in slots if slot.segment == segment and slot.boot == furthest.boot]
            if own or furthest.segment < segment:
                return self._visible_published(own[-1]) if own else _NOTHING
        # Its writer has gone on, or the machine was started since: all that is whole in the file is on disk, for good.
        content = self._find(segment, None)
        return _Visible(content, *content.whole()) if content is not None else _NOTHING

    def _visible_published(self, slot: PublishedEnd) -> _Visible:
        content = self._find(slot.segment, slot.end) if slot.end else None
        if content is None or content.size < slot.end:
            return _NOTHING
        return _Visible(content, slot.end, slot.entries)

    def _read_published(self) -> list[PublishedEnd]:
        path = self._home / PUBLISHED
        try:
            return read_published(self._disk, path)
        except OSError as error:
            raise explain(error, path) from error

    def _find(self, segment: int, needed_bytes: int | None) -> _Content | None:
        """Return a segment's file, which goes at least that far if it does at all; ``None``: to its end."""
        path = segment_path(self._home, segment)
        try:
            identity = self._disk.identity(path)
            with self._lock:
                known = self._known.get(segment)
                if known is not None and known.identity == identity:
                    self._known.move_to_end(segment)
                else:
                    known = None
            if known is not None and needed_bytes is not None and known.size >= needed_bytes:
                return known
            return self._find_again(path, segment, known) if identity is not None else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, path) from error

    def _find_again(self, path: Path, segment: int, known: _Content | None) -> _Content:
        descriptor = self._disk.open_to_read(path)
        try:
            identity, size = self._disk.identity_of(descriptor), self._disk.size(descriptor)
        finally:
            close_quietly(self._disk, descriptor)
        if known is not None and known.identity == identity:
            known.size = size
            return known
        found = _Content(self._disk, path, segment, identity, size)
        with self._lock:
            self._known[segment] = found
            self._known.move_to_end(segment)
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return found


class _Blocks(CheckedBlocks):
    """Blocks cut from a segment's file."""

    content: _Content
    span: _Span

    def on_sound(self) -> None:
        """Let the next one who reads these blocks know."""
        self.content.note_sound(self.span)


class _Content:
    """A segment's file, and what was learnt about it. Below a visible end nothing in it changes."""

    def __init__(self, disk: Disk, path: Path, segment: int, identity: Identity, size: int) -> None:
        self.path = path
        self.identity = identity
        self.size = size
        self._disk = disk
        self._segment = segment
        self._lock = threading.Lock()
        self._whole = (0, 0, 0)
        self._checked = (0, 0)  # from where to where the blocks' sums were found to hold
        self._sound = (0, 0)  # from where to where the payloads were found to be sound
        self._block_bytes = 1  # of the last block that was read: the next ones are likely to be as large
        self._offsets: list[int] = []
        self._first_entries: list[int] = []
        self._indexed_end = 0
        self._indexed_entries = 0

    def learn(self, whole: BlockScan) -> None:
        """Take over what was found from the file's beginning on, bodies checked."""
        with self._lock:
            self._checked = (0, whole.end)
            self._offsets, self._first_entries = list(whole.offsets), list(whole.first_entries)
            self._indexed_end = whole.end
            self._indexed_entries = whole.first_entries[-1] + whole.counts[-1]

    def blocks(self, cursor: int, end: int, limit_bytes: int) -> tuple[list[pa.Buffer], int]:
        """Return the blocks from ``cursor`` on that fit into the limit, or one that does not, each checked once.

        One that is damaged is returned by itself, unchecked: decoding reports it.
        """
        first, last = self._checked
        checked = first <= cursor < last
        limit = min(end, cursor + self._whole_blocks_bytes(limit_bytes), last if checked else end)
        borders = self._known_borders(cursor, limit) if checked else []
        if len(borders) >= _BORDERS_MIN:
            data = self._load(cursor, borders[-1])
        else:
            data = self._load_blocks(cursor, limit, end)
            found = scan(data, previous=None, bodies=not checked)
            if not found.offsets:
                size_bytes = self._header(data, cursor, end).size_bytes
                return [data.slice(0, size_bytes)], cursor + size_bytes
            self._note_checked(cursor, cursor + found.end)
            self._block_bytes = found.end - found.offsets[-1]
            borders = [cursor + offset for offset in (*found.offsets, found.end)]
        blocks = _Blocks(data.slice(begin - cursor, behind - begin) for begin, behind in pairwise(borders))
        blocks.content, blocks.span = self, (cursor, borders[-1])
        blocks.sound = self._sound[0] <= cursor and borders[-1] <= self._sound[1]
        return blocks, borders[-1]

    def _whole_blocks_bytes(self, limit_bytes: int) -> int:
        """Return how much to load at once, so that the load ends where a block ends if blocks stay as large as the last
        one: what is loaded of a block that does not end there is loaded again.
        """
        loaded = min(limit_bytes, _LOAD_BYTES)
        return loaded - loaded % self._block_bytes or min(limit_bytes, self._block_bytes)

    def _load(self, begin: int, end: int) -> pa.Buffer:
        """Return a stretch of the file, all of it."""
        try:
            descriptor = self._disk.open_to_read(self.path)
            try:
                same = self._disk.identity_of(descriptor) == self.identity
                data = self._disk.load(descriptor, end - begin, begin) if same else None
            finally:
                close_quietly(self._disk, descriptor)
        except OSError as error:
            raise explain(error, self.path) from error
        if data is None:
            message = f"{self.path}: the segment is gone"
            raise NotFound(message)
        if data.size < end - begin:
            message = f"{self.path}: ends at {begin + data.size}, {end} bytes were written: restore it from a copy"
            raise CorruptionError(message)
        return data

    def _load_blocks(self, cursor: int, limit: int, end: int) -> pa.Buffer:
        """Return the file from a block on, up to ``limit``, or to the end of that block if that is further."""
        data = self._load(cursor, min(end, max(limit, cursor + HEADER_BYTES)))
        size_bytes = self._header(data, cursor, end).size_bytes
        return data if data.size >= size_bytes else self._load(cursor, cursor + size_bytes)

    def _known_borders(self, cursor: int, limit: int) -> list[int]:
        """Return where blocks from ``cursor`` on begin and, last, end, if the index knows."""
        with self._lock:
            if limit > self._indexed_end:
                return []
            first = bisect.bisect_left(self._offsets, cursor)
            borders = self._offsets[first : bisect.bisect_right(self._offsets, limit)]
            if borders[:1] != [cursor]:
                return []
            return [*borders, limit] if limit == self._indexed_end else borders

    def _note_checked(self, begin: int, end: int) -> None:
        """Remember one stretch: that which was read on from, or the one that was just read."""
        with self._lock:
            self._checked = _joined(self._checked, (begin, end))

    def note_sound(self, span: _Span) -> None:
        """Remember that the payloads of blocks were decoded and found to be sound."""
        with self._lock:
            self._sound = _joined(self._sound, span)

    def locate(self, entry: int, end: int) -> int:
        """Return the cursor of the block with an entry, looking no further into the file than needed."""
        with self._lock:
            while entry >= self._indexed_entries and self._indexed_end < end:
                self._index_further(end)
            if entry >= self._indexed_entries:
                return end
            cursor = self._offsets[max(0, bisect.bisect_right(self._first_entries, entry) - 1)]
            return min(cursor, end)

    def whole(self) -> tuple[int, int]:
        """Return how far the file holds whole blocks, each checked once, and how many entries they have."""
        with self._lock:
            while self._whole_further():
                pass
            return self._whole[0], self._whole[1]

    def _whole_further(self) -> bool:
        """Look at the next blocks; tell whether there were some, and there may be more. The lock is held."""
        offset, entries, previous = self._whole
        if self.size - offset < HEADER_BYTES or not self._load(offset, offset + HEADER_BYTES).to_pybytes().strip(b"\0"):
            return False
        data = self._load(offset, min(self.size, offset + _INDEX_BYTES))
        found = whole_blocks(data, self.path, self._segment, entries=entries, previous=previous)
        if not found.offsets and data.size < self.size - offset:  # it may be longer than what was loaded
            data = self._load(offset, self.size)
            found = whole_blocks(data, self.path, self._segment, entries=entries, previous=previous)
        if found.offsets:
            self._whole = (offset + found.end, found.first_entries[-1] + found.counts[-1], found.checksum)
        return bool(found.offsets)

    def _index_further(self, end: int) -> None:
        """Index the next block, if it is large, or the next few. The lock is held."""
        cursor = self._indexed_end
        header = self._header(self._load(cursor, min(end, cursor + HEADER_BYTES)), cursor, end)
        if header.size_bytes >= _PASSED_BYTES:
            self._offsets.append(cursor)
            self._first_entries.append(header.first_entry)
            self._indexed_end = cursor + header.size_bytes
            self._indexed_entries = header.first_entry + header.count
            return
        found = scan(self._load_blocks(cursor, min(end, cursor + _INDEX_BYTES), end), previous=None)
        self._offsets.extend(cursor + offset for offset in found.offsets)
        self._first_entries.extend(found.first_entries)
        self._indexed_end = cursor + found.end
        self._indexed_entries = found.first_entries[-1] + found.counts[-1]

    def _header(self, data: pa.Buffer, cursor: int, end: int) -> BlockHeader:
        """Return the header of the block at ``cursor``, with which ``data`` begins, and which lies below ``end``."""
        try:
            header = read_header(data, 0)
        except CorruptionError as error:
            raise self._damaged(cursor, "its header's checksum does not match") from error
        if header is None or header.segment != self._segment:
            raise self._damaged(cursor, f"no block of segment {self._segment} begins there")
        if cursor + header.size_bytes > end:
            raise self._damaged(cursor, f"its block goes beyond the end at {end}")
        return header

    def _damaged(self, cursor: int, what: str) -> CorruptionError:
        return CorruptionError(f"{self.path}: damaged at offset {cursor}, {what}; restore the file from a copy")


def _joined(known: _Span, found: _Span) -> _Span:
    """Return the two stretches as one where they touch, else the one that was found."""
    touching = found[0] <= known[1] and found[1] >= known[0]
    return (min(known[0], found[0]), max(known[1], found[1])) if touching else found
