"""Sealed files, opened: each is checked once, as a whole, before any of it is believed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import xxhash

from oncelog.errors import CorruptionError
from oncelog.format.gather import gather
from oncelog.format.manifest import File, Segment
from oncelog.format.sealed import Piece, SealedFile
from oncelog.limits import MIB
from oncelog.log.stored.rows import Rows
from oncelog.storage.base import LogHome

OPEN_MAX = 4
OPEN_BYTES_MAX = 128 * MIB
"""How much of files is kept in memory for the next look; the newest always is."""

READ_BYTES = 8 << 20


class SealedFiles:
    """The sealed files of a log, the last few kept open. Safe to share between threads."""

    def __init__(self, home: LogHome) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._open: OrderedDict[str, SealedFile] = OrderedDict()

    def open(self, file: File) -> SealedFile:
        """Return a file that was checked; ``CorruptionError`` when its bytes are not those that were sealed."""
        with self._lock:
            found = self._open.get(file.key)
        if found is not None:
            return found
        data = self._home.read(file.key)
        if data.size != file.size_bytes or xxhash.xxh3_64_intdigest(data) != file.checksum:
            message = f"{file.key}: not the {file.size_bytes} bytes that were sealed; restore it from a copy"
            raise CorruptionError(message)
        opened = SealedFile(data, file.key)
        with self._lock:
            self._open[file.key] = opened
            while len(self._open) > 1 and (len(self._open) > OPEN_MAX or self._open_bytes() > OPEN_BYTES_MAX):
                self._open.popitem(last=False)
        return opened

    def _open_bytes(self) -> int:
        return sum(found.size_bytes for found in self._open.values())

    def rows(
        self, segment: Segment, entry: int, names: Sequence[str] | None = None, not_before_us: int | None = None
    ) -> Iterator[Rows]:
        """Yield a sealed segment's records from ``entry`` on; ``names`` are the columns that are needed."""
        file = segment.file
        assert file is not None
        opened = self.open(file)
        if opened.rows < file.row + segment.entries:
            message = f"{file.key} has {opened.rows} rows, segment {segment.number} needs {file.row + segment.entries}"
            raise CorruptionError(message)
        for piece in opened.pieces(file.row + entry, file.row + segment.entries, names, not_before_us):
            yield _as_rows(segment, file, piece)


def _as_rows(segment: Segment, file: File, piece: Piece) -> Rows:
    entry = piece.first_row - file.row
    return Rows(
        piece.payload,
        segment.number,
        segment.first_position + entry,
        entry,
        segment.first_timestamp_us if piece.timestamps_us is None else piece.timestamps_us,
        segment.last_uptime_us if piece.uptimes_us is None else piece.uptimes_us,
        piece.purged,
    )


def rows_of(
    home: LogHome, files: SealedFiles, segment: Segment, start: int, *, recheck: bool = False
) -> Iterator[Rows]:
    """Yield a closed segment's records, from position ``start`` (or its first) on.

    ``recheck``: check all blocks in full, also blocks that an earlier read has checked.
    """
    entry = max(0, start - segment.first_position)
    if segment.file is not None:
        yield from files.rows(segment, entry)
        return
    cursor = home.locate(segment.number, entry, segment.end) if entry else 0
    while cursor < segment.end:
        buffers, cursor = home.blocks(segment.number, cursor, segment.end, READ_BYTES)
        for blocks in gather(list(buffers) if recheck else buffers, full=recheck):
            rows = Rows.of_blocks(blocks)
            if rows.next_position > start:
                yield rows.cut(start - rows.first_position)
