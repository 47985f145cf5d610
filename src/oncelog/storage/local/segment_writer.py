"""Appending to a segment's file: written, synced, published, and only then answered for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oncelog.errors import CorruptionError, InvalidArgument, WriterFenced
from oncelog.format.block import HEADER_BYTES, read_extent
from oncelog.storage.base import Chunk
from oncelog.storage.bell import Bell
from oncelog.storage.local.disk import Disk, Identity, close_quietly, explain
from oncelog.storage.local.filler import AHEAD_BYTES_MIN, ZeroFiller
from oncelog.storage.local.lock import LocalClaim
from oncelog.storage.local.published import Publisher

_SMALL_BYTES_MAX = 4095
"""Write-back of a block up to this size is started before the sync also where nobody has work for the time between."""


class LocalSegmentWriter:
    """Appends blocks to one file, one unsynced block at a time.

    After a failure nothing is assumed of the pages that were in flight (a failed sync drops them, and a second one
    would succeed without them): the file is opened again, and the same block written again at the same place.
    """

    in_flight_max = 1
    commit_interval_s = 0.0
    ends_early = False

    def __init__(
        self, disk: Disk, path: Path, segment: int, *, claim: LocalClaim, publisher: Publisher, bell: Bell
    ) -> None:
        self._disk = disk
        self._path = path
        self._segment = segment
        self._claim = claim
        self._publisher = publisher
        self._bell = bell
        self._filler = ZeroFiller(disk, path)
        self._descriptor: int | None = None
        self._identity: Identity | None = None
        self._begun: Chunk | None = None  # what ``begin`` wrote, until ``append``, or until the file is closed
        self._fenced = False
        self._count = 0
        self._end = 0
        self._last_offset = 0
        self._last_header = b""

    def begin(self, number: int, block: Sequence[Chunk]) -> None:
        """Write a block, and start its write-back. ``append`` does the rest; or all of it, if this fails."""
        first = block[0]
        size_bytes = len(first) if len(block) == 1 else sum(map(len, block))
        claim, disk = self._claim, self._disk
        with claim.writing:
            descriptor, offset = self._descriptor, self._end
            if descriptor is None or number != self._count or self._fenced or not claim.is_held:
                return
            self._descriptor = None
            try:
                if offset + size_bytes >= self._filler.filled:
                    self._filler.prepare(descriptor, offset, offset + size_bytes)
                disk.write(descriptor, block, offset)
                disk.begin_sync(descriptor, offset, size_bytes)
            except BaseException as error:
                close_quietly(self._disk, descriptor)
                if isinstance(error, OSError):
                    return
                raise
            self._descriptor, self._begun = descriptor, first

    def append(self, number: int, block: Sequence[Chunk]) -> int:
        """Store a block under the next number; return the offset behind it."""
        with self._claim.writing:
            if not self._claim.is_held:
                self._claim.check()
            if self._fenced:
                message = f"{self._path}: the segment was closed to this writer"
                raise WriterFenced(message, outcome="unknown")
            first = block[0]
            head = first[:HEADER_BYTES] if type(first) is bytes else _head(block)
            if number != self._count:
                assert number == self._count - 1, f"block {number} offered, {self._count} is next"
                return self._recognised(head)
            try:
                return self._store(head, block)
            except OSError as error:
                raise explain(error, self._path, "unknown") from error

    def start(self) -> None:
        """Make the file and its first zeros durable; raises ``OSError``."""
        self._descriptor = self._disk.open(self._path, create=True)
        self._identity = self._disk.identity_of(self._descriptor)
        self._filler.prepare(self._descriptor, 0, 0)
        self._disk.sync(self._descriptor)
        self._disk.sync_directory(self._path.parent)
        self._publisher.begin(self._segment, 0, 0)

    def fence(self) -> None:
        """Refuse every later append. The caller holds the claim's ``writing``, so none is running."""
        self._fenced = True
        self.close()

    def close(self) -> None:
        """Let go of the file, and of the thread that fills it. May be repeated."""
        self._filler.stop()
        self._publisher.close()
        self._drop()

    def _store(self, head: bytes, block: Sequence[Chunk]) -> int:
        extent = read_extent(head)
        if extent is None or extent[0] != self._segment:
            message = f"not a block of segment {self._segment}"
            raise InvalidArgument(message)
        _, entries, size_bytes = extent
        descriptor, is_begun = self._descriptor, self._begun is block[0]
        if descriptor is None:  # after a failure nothing is assumed of what was written
            descriptor, is_begun = self._reopen(), False
        self._descriptor = None
        end = self._end + size_bytes
        try:
            if not is_begun:
                self._write(descriptor, block, end)
            self._sync(descriptor, end, entries)
        except BaseException:
            close_quietly(self._disk, descriptor)
            raise
        self._descriptor, self._begun = descriptor, None
        self._last_offset, self._last_header, self._end = self._end, head, end
        self._count += 1
        self._bell.nudge()
        return end

    def _write(self, descriptor: int, block: Sequence[Chunk], end: int) -> None:
        if end >= self._filler.filled:
            self._filler.prepare(descriptor, self._end, end)
        self._disk.write(descriptor, block, self._end)
        if end - self._end <= _SMALL_BYTES_MAX:
            self._disk.begin_sync(descriptor, self._end, end - self._end)

    def _sync(self, descriptor: int, end: int, entries: int) -> None:
        """Make what was written durable, then visible. What can be done before the sync is done while the device
        works.
        """
        if self._disk.identity(self._path) != self._identity:
            raise self._gone()
        slot = self._publisher.slot(self._segment, end, entries)
        if end >= AHEAD_BYTES_MIN:
            self._filler.fill_ahead(end)
        self._disk.sync(descriptor)
        self._publisher.write(slot)

    def _gone(self) -> CorruptionError:
        """Return what to say when the name leads elsewhere: what is written to an unlinked file is lost with it."""
        message = (
            f"{self._path}: was removed or replaced under its writer: this write is not stored, and what was "
            "acknowledged before went with the file; put it back if it was moved, and open the log again"
        )
        return CorruptionError(message)

    def _reopen(self) -> int:
        """Return a new descriptor, after a failure, when the last block is found where it was."""
        descriptor = self._disk.open(self._path)
        if self._disk.read(descriptor, len(self._last_header), self._last_offset) != self._last_header:
            close_quietly(self._disk, descriptor)
            message = f"{self._path}: the block at offset {self._last_offset} was acknowledged and is no longer there"
            raise CorruptionError(message)
        self._identity = self._disk.identity_of(descriptor)
        return descriptor

    def _recognised(self, head: bytes) -> int:
        """Answer again for the block that was stored last. The header's checksum stands for all of it."""
        if head != self._last_header:
            message = f"{self._path}: block {self._count - 1} is there with other bytes"
            raise WriterFenced(message)
        return self._end

    def _drop(self) -> None:
        if self._descriptor is not None:
            close_quietly(self._disk, self._descriptor)
        self._descriptor = None


def _head(block: Sequence[Chunk]) -> bytes:
    """Return a block's first bytes, its header, wherever the pieces are cut."""
    if len(block[0]) >= HEADER_BYTES:
        return bytes(memoryview(block[0])[:HEADER_BYTES])
    return b"".join(bytes(memoryview(chunk)[:HEADER_BYTES]) for chunk in block)[:HEADER_BYTES]
