"""Writing and reading segments as a log does, in one line each, for tests of homes."""

from __future__ import annotations

from typing import Self

from oncelog.storage.base import LogHome, SegmentEnd, SegmentWriter
from oncelog.testing.blocks import BlockChain


class ClaimedLog:
    """Holds a log for a while."""

    def __init__(self, home: LogHome) -> None:
        self.home = home

    def __enter__(self) -> None:
        self.claim = self.home.claim(0, force=False)

    def __exit__(self, *_: object) -> None:
        self.claim.release()


class Writing:
    """Holds a log and writes a segment, from its first block on."""

    def __init__(self, home: LogHome, segment: int, epoch: int = 1) -> None:
        self.home = home
        self.chain = BlockChain(segment, epoch=epoch)
        self.writer: SegmentWriter

    def __enter__(self) -> Self:
        self.claim = self.home.claim(0, force=False)
        self.writer = self.home.start_segment(self.chain.segment, self.chain.epoch)
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()
        self.claim.release()

    def append(self, *values: bytes) -> int:
        """Append the next block of the chain; return the cursor behind it."""
        number = len(self.chain.made)
        return self.writer.append(number, self.chain.block(*values))


def fill(home: LogHome, segment: int, blocks: int) -> BlockChain:
    """Write a segment of blocks with three records each, and leave it open."""
    with Writing(home, segment) as writing:
        for number in range(blocks):
            writing.append(b"a%d" % number, b"", b"c" * 100 * number)
    return writing.chain


def seal(home: LogHome, segment: int) -> SegmentEnd:
    """Fence a segment, as a writer that closes it does."""
    with ClaimedLog(home):
        return home.fence(segment, 1_000)


def read_all(home: LogHome, segment: int, end: int | None, cursor: int = 0) -> list[bytes]:
    """Return all blocks of a segment from a cursor on."""
    found: list[bytes] = []
    while True:
        blocks, cursor = home.blocks(segment, cursor, end, 10_000)
        if not blocks:
            return found
        found += [block.to_pybytes() for block in blocks]
