"""Blocks as a writer makes them, for tests of homes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from oncelog.format import block
from oncelog.format.payload.schema import VALUE, schema_of
from oncelog.storage.base import Chunk

_WRITER = b"a test's writer."


class BlockChain:
    """Makes the blocks of one segment, each following the one before.

    >>> chain = BlockChain(segment=0)
    >>> pieces = chain.block(b"first", b"second")
    >>> chain.entries, chain.end_bytes == sum(map(len, pieces))
    (2, True)
    """

    def __init__(self, segment: int, *, epoch: int = 1, first_position: int = 0) -> None:
        self.segment = segment
        self.epoch = epoch
        self.entries = 0
        self.checksum = 0
        self.end_bytes = 0
        self.made: list[bytes] = []
        self._first_position = first_position

    def block(self, *values: bytes) -> Sequence[Chunk]:
        """Return the pieces of the next block, with a record for each value."""
        payload = pa.record_batch([pa.array(values, pa.binary())], schema=schema_of(VALUE))
        encoded = block.encode(
            payload,
            segment=self.segment,
            first_entry=self.entries,
            first_position=self._first_position + self.entries,
            epoch=self.epoch,
            writer=_WRITER,
            uptime_us=0,
            timestamp_us=0,
            previous=self.checksum,
        )
        self.entries += len(values)
        self.checksum = encoded.checksum
        self.end_bytes += encoded.size_bytes
        self.made.append(b"".join(bytes(memoryview(chunk)) for chunk in encoded.chunks))
        return encoded.chunks
