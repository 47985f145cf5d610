"""Where a segment's file ends: what a crash or a power cut left of it, made certain before it counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from oncelog.errors import CorruptionError
from oncelog.format import block
from oncelog.limits import MIB
from oncelog.storage.base import SegmentEnd
from oncelog.storage.local.disk import Disk, close_quietly
from oncelog.storage.local.objects import Objects

_MAGIC = int.from_bytes(block.MAGIC, "little")
_EMPTY = block.BlockScan([], [], [], 0, 0, "end")


def recover(
    disk: Disk, path: Path, segment: int, *, torn: Path, objects: Objects, published_end: int
) -> tuple[SegmentEnd, block.BlockScan]:
    """Find a segment's end, make sure of it on stable storage, and clear what is behind it; return its blocks, too.

    ``torn`` is the folder where torn bytes are kept; ``published_end`` is how far readers were
    let. ``CorruptionError`` when a block is bad before the tail: there are whole ones behind it, or it was published.
    Raises ``OSError``.
    """
    try:
        descriptor = disk.open(path)
    except FileNotFoundError:
        return _tail(_EMPTY, 0), _EMPTY
    try:
        content = disk.load(descriptor, disk.size(descriptor), 0)
        whole = whole_blocks(content, path, segment)
        _check_nothing_is_lost(content, path, segment, whole, published_end)
        aside = torn / f"{segment:020d}-{whole.end}.bin"
        torn_bytes = _keep_torn(content, segment, whole, aside, objects)
        _make_certain(disk, descriptor, content, whole, torn_bytes)
        return _tail(whole, torn_bytes), whole
    finally:
        close_quietly(disk, descriptor)


def whole_blocks(
    content: pa.Buffer, path: Path, segment: int, *, offset: int = 0, entries: int = 0, previous: int = 0
) -> block.BlockScan:
    """Return the blocks of a segment from ``offset`` on, as far as each is whole and follows the one before."""
    found = block.scan(content, offset, previous=previous, bodies=True)
    if not found.offsets:
        return found
    behind = [first + count for first, count in zip(found.first_entries, found.counts, strict=True)]
    first = block.read_header(content, offset)
    if first is None or first.segment != segment:
        return block.BlockScan([], [], [], offset, previous, "no block")
    if found.first_entries != [entries, *behind[:-1]]:
        message = f"{path}: the blocks from offset {offset} on are whole and chained, and their entries have gaps"
        raise CorruptionError(message)
    return found


def _tail(whole: block.BlockScan, torn_bytes: int) -> SegmentEnd:
    entries = whole.first_entries[-1] + whole.counts[-1] if whole.offsets else 0
    return SegmentEnd(
        entries=entries,
        blocks=len(whole.offsets),
        end=whole.end,
        checksum=whole.checksum,
        torn_bytes=torn_bytes,
        size_bytes=whole.end,
    )


def _check_nothing_is_lost(
    content: pa.Buffer, path: Path, segment: int, whole: block.BlockScan, published_end: int
) -> None:
    if whole.end < published_end:
        message = (
            f"{path}: damaged at offset {whole.end}, and blocks up to {published_end} were acknowledged: "
            "restore the file from a copy"
        )
        raise CorruptionError(message)
    later = _later_block(content, segment, whole)
    if later is not None:
        message = (
            f"{path}: damaged at offset {whole.end}, before the whole block at {later}: restore the file from a copy"
        )
        raise CorruptionError(message)


def _later_block(content: pa.Buffer, segment: int, whole: block.BlockScan) -> int | None:
    """Return where a block of this segment begins behind the damage, if there is one.

    A header that holds says how far its block goes: what looks like a block in there is somebody's value.
    """
    entries = whole.first_entries[-1] + whole.counts[-1] if whole.offsets else 0
    torn = _header(content, whole.end)
    own = torn is not None and torn.segment == segment and torn.previous == whole.checksum
    start = whole.end + (torn.size_bytes if torn is not None and own else block.ALIGNMENT_BYTES)
    words = np.frombuffer(content, dtype="<u8", count=content.size // 8)
    places = np.flatnonzero(words[start // 8 :: block.ALIGNMENT_BYTES // 8] == _MAGIC)
    for place in places.tolist():
        offset = start + place * block.ALIGNMENT_BYTES
        header = _header(content, offset)
        if header is not None and header.segment == segment and header.first_entry > entries:
            return int(offset)
    return None


def _header(content: pa.Buffer, offset: int) -> block.BlockHeader | None:
    try:
        return block.read_header(content, offset)
    except CorruptionError:
        return None


def _keep_torn(content: pa.Buffer, segment: int, whole: block.BlockScan, aside: Path, objects: Objects) -> int:
    """Keep the bytes behind the tail aside, and return how many there are, or were the first time."""
    stale = _header(content, whole.end)
    if stale is not None and stale.segment != segment:
        return 0
    torn_bytes = _end_of_content(content, whole.end) - whole.end
    if torn_bytes:
        objects.create(aside, [content.slice(whole.end, torn_bytes)])
    return max(torn_bytes, objects.read(aside, 0, None).size if objects.exists(aside) else 0)


def _end_of_content(content: pa.Buffer, start: int) -> int:
    """Return the offset behind the last byte that is not zero, ``start`` when there is none."""
    values = np.frombuffer(content, dtype=np.uint8)
    end = content.size
    while end > start:
        begin = max(start, end - MIB)
        nonzero = np.flatnonzero(values[begin:end])
        if nonzero.size:
            return int(begin + nonzero[-1] + 1)
        end = begin
    return start


def _make_certain(disk: Disk, descriptor: int, content: pa.Buffer, whole: block.BlockScan, torn_bytes: int) -> None:
    """Write the last block again, and zeros over the torn bytes: what was read may be in the page cache only.

    The blocks before it were synced before it was begun.
    """
    if whole.offsets:
        last = whole.offsets[-1]
        disk.write(descriptor, [content.slice(last, whole.end - last).to_pybytes()], last)
    if torn_bytes:
        disk.write(descriptor, [bytes(torn_bytes)], whole.end)
    disk.sync(descriptor)
