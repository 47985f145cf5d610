"""Makes the bytes of one part from sorted entries that come in slices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oncelog.dedup.runs import filters
from oncelog.dedup.runs.entries import Entries
from oncelog.errors import CorruptionError
from oncelog.format.output import PIECE_BYTES, piece
from oncelog.format.runs import pages as page_format
from oncelog.format.runs import parts
from oncelog.format.runs.pages import PAGE, PAGE_BYTES, PAGE_ENTRIES, Pages, page_count
from oncelog.format.runs.run import Digest, RunPart

SLICE_PAGES = 256
"""So many pages are worked on at once: what a kernel does without a pause stays below a few milliseconds."""

_PIECE_PAGES = PIECE_BYTES // PAGE_BYTES
_PIECE_ENTRIES = _PIECE_PAGES * PAGE_ENTRIES

PartBytes = list[memoryview | bytes]


class PartBuilder:
    """Collects the sorted entries of one part, in memory: 32 bytes an entry and some for the last piece.

    Keys begin with the ``bits`` bits of ``part``.
    """

    def __init__(self, log_id: str, part: int, bits: int) -> None:
        self._log_id = log_id
        self._part = part
        self._bits = bits
        self._pieces: list[Pages] = []
        self._count = 0

    def add(self, entries: Entries) -> None:
        """Take the next entries; they are sorted, and none comes before those that were added."""
        start = 0
        while start < len(entries):
            pages, at = self._room()
            some = entries[start : start + _PIECE_ENTRIES - at]
            page_format.put(pages, *some.columns, at)
            start += len(some)
            self._count += len(some)

    def _room(self) -> tuple[Pages, int]:
        """Return the pages that are not full yet, and how many entries they have."""
        full, used = divmod(self._count, _PIECE_ENTRIES)
        if full == len(self._pieces):
            self._pieces.append(piece()[: _PIECE_PAGES * PAGE_BYTES].view(PAGE))
        return self._pieces[-1], used

    def finish(self) -> tuple[RunPart, Digest, PartBytes]:
        """Return how the manifest knows the part, the digest of its entries, and its bytes.

        Filter and digest are made from the finished pages, so that the digest tells what a reader will find.
        """
        words = filters.empty_filter(self._count)
        digest = Digest()
        last = 0, 0
        filled = list(self._filled())
        for pages, count in filled:
            page_format.complete(pages, count)
            entries = Entries.of_pages(pages, count)
            last = self._check_order(entries, last)
            filters.add(words, entries.high, entries.low, self._bits)
            digest += entries.digest()
        slices = [pages for pages, _ in filled]
        told, data = parts.encode(self._log_id, self._part, self._bits, self._count, digest, words, slices)
        return told, digest, data

    def _filled(self) -> Iterator[tuple[Pages, int]]:
        """Yield the pages that have entries, some at a time, and how many entries these have."""
        left = self._count
        for pages in self._pieces:
            for first in range(0, min(_PIECE_PAGES, page_count(left)), SLICE_PAGES):
                count = min(left, SLICE_PAGES * PAGE_ENTRIES)
                yield pages[first : first + page_count(count)], count
                left -= count

    def _check_order(self, entries: Entries, last: tuple[int, int]) -> tuple[int, int]:
        """Return the last key; entries out of order would not be found, so they are never stored."""
        high, low = entries.high, entries.low
        first = int(high[0]), int(low[0])
        ours = self._bits == 0 or bool((high >> np.uint64(64 - self._bits) == self._part).all())
        if not ours or first < last or not entries.are_sorted():
            message = f"part {self._part} of a run: its entries are out of order; nothing was stored"
            raise CorruptionError(message)
        return int(high[-1]), int(low[-1])


def build_part(log_id: str, part: int, bits: int, entries: Entries) -> tuple[RunPart, Digest, PartBytes]:
    """Return one part made of sorted entries, as ``PartBuilder.finish`` does."""
    builder = PartBuilder(log_id, part, bits)
    builder.add(entries)
    return builder.finish()
