"""The bytes that Oncelog would write, written and synced: what no log on this disk can be faster than."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.contender import Contender
from benchmarks.records import Batch
from oncelog.format import block
from oncelog.format.payload.intake import normalise
from oncelog.settings import LogSettings
from oncelog.storage.local.disk import RealDisk
from oncelog.storage.local.filler import ZeroFiller

_SEGMENT_BYTES = LogSettings().segment_bytes
_WRITER = bytes(block.WRITER_BYTES)


class Raw(Contender):
    """``pwritev`` + ``fdatasync``. Zeros are kept ahead of the end by the code with which Oncelog does it."""

    name = "raw pwritev + fdatasync"
    note = "zeros ahead of the end, and a new file every 64 MiB, exactly as Oncelog keeps them"

    def open(self) -> None:
        """Begin the first file."""
        self._disk = RealDisk()
        self._files = self._blocks = self._records = 0
        self._begin()

    def close(self) -> None:
        """Let the file go."""
        self._filler.stop()
        os.close(self._descriptor)

    def _begin(self) -> None:
        path = self.folder / f"{self._files}.raw"
        self._files += 1
        self._end = 0
        self._descriptor = self._disk.open(path, create=True)
        self._filler = ZeroFiller(self._disk, path)
        self._filler.prepare(self._descriptor, 0, 0)
        self._disk.sync(self._descriptor)
        self._disk.sync_directory(self.folder)

    def prepare(self, batches: Sequence[Batch]) -> list[block.Encoded]:
        """Return the blocks that Oncelog would write."""
        self._records += sum(map(len, batches))
        return [self._encode(batch) for batch in batches]

    def _encode(self, batch: Batch) -> block.Encoded:
        return block.encode(
            normalise(batch.table()),
            segment=0,
            first_entry=0,
            first_position=0,
            epoch=1,
            writer=_WRITER,
            uptime_us=0,
            timestamp_us=0,
            previous=0,
        )

    def append(self, prepared: list[block.Encoded]) -> None:
        """Write and sync each block."""
        for encoded in prepared:
            self._store(encoded.chunks, encoded.size_bytes)

    def _store(self, chunks: Sequence[block.Chunk], size_bytes: int) -> None:
        if self._end >= _SEGMENT_BYTES:
            self.close()
            self._begin()
        end = self._end + size_bytes
        self._filler.prepare(self._descriptor, self._end, end)
        os.pwritev(self._descriptor, chunks, self._end)
        os.fdatasync(self._descriptor)
        self._end = end
        self._filler.fill_ahead(end)

    def append_one(self, id: str, value: bytes) -> None:
        """Write and sync a block that is ready: see ``ready``."""
        raise NotImplementedError

    def ready(self, id: str, value: bytes) -> list[block.Chunk]:
        """Return the block of one record."""
        return block.encode_one(
            value,
            id.encode(),
            segment=0,
            first_entry=0,
            first_position=0,
            epoch=1,
            writer=_WRITER,
            uptime_us=0,
            timestamp_us=0,
            previous=0,
        ).chunks

    def store_ready(self, chunks: list[block.Chunk]) -> None:
        """Write and sync what ``ready`` returned."""
        self._store(chunks, len(chunks[0]))

    def count(self) -> int:
        """Return how many records were prepared: what is written is not looked at."""
        return self._records


class RawFilled(Raw):
    """The same into a file that was filled with zeros, and synced, before the clock started."""

    name = "raw pwritev + fdatasync, zero-filled before"
    note = "what a recycled file would give"

    def prepare(self, batches: Sequence[Batch]) -> list[block.Encoded]:
        """Fill what the blocks will take."""
        blocks = super().prepare(batches)
        self.close()
        self._begin()
        zeros = bytes(1 << 20)
        for offset in range(0, sum(encoded.size_bytes for encoded in blocks), len(zeros)):
            os.pwrite(self._descriptor, zeros, offset)
        os.fdatasync(self._descriptor)
        return blocks

    def _store(self, chunks: Sequence[block.Chunk], size_bytes: int) -> None:
        os.pwritev(self._descriptor, chunks, self._end)
        os.fdatasync(self._descriptor)
        self._end += size_bytes
