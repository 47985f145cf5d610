"""Makes the bytes of one part from sorted entries that come in slices."""

from __future__ import annotations

import numpy as np

from oncelog.dedup.runs import filters
from oncelog.dedup.runs.entries import Entries
from oncelog.errors import CorruptionError
from oncelog.format.runs import pages as page_format
from oncelog.format.runs import parts
from oncelog.format.runs.pages import PAGE_ENTRIES, Pages, page_count
from oncelog.format.runs.run import Digest, RunPart

SLICE_PAGES = 256
"""So many pages are worked on at once: what a kernel does without a pause stays below a few milliseconds."""

PartBytes = list[memoryview | bytes]


class PartBuilder:
    """Collects the sorted entries of one part, in memory: 32 bytes an entry and some for the last page.

    Keys begin with the ``bits`` bits of ``part``.
    """

    def __init__(self, log_id: str, part: int, bits: int) -> None:
        self._log_id = log_id
        self._part = part
        self._bits = bits
        self._pieces: list[Pages] = []
        self._rest = Entries.none()
        self._count = 0

    def add(self, entries: Entries) -> None:
        """Take the next entries; they are sorted, and none comes before those that were added."""
        self._count += len(entries)
        joined = Entries.joined([self._rest, entries]) if len(self._rest) else entries
        whole = len(joined) // PAGE_ENTRIES * PAGE_ENTRIES
        for start in range(0, whole, SLICE_PAGES * PAGE_ENTRIES):
            self._put(joined[start : min(whole, start + SLICE_PAGES * PAGE_ENTRIES)])
        self._rest = joined[whole:]

    def _put(self, entries: Entries) -> None:
        pages = page_format.empty_pages(page_count(len(entries)))
        page_format.put(pages, entries.high, entries.low, entries.fingerprints, entries.places)
        self._pieces.append(pages)

    def finish(self) -> tuple[RunPart, Digest, PartBytes]:
        """Return how the manifest knows the part, the digest of its entries, and its bytes.

        Filter and digest are made from the finished pages, so that the digest tells what a reader will find.
        """
        if len(self._rest):
            self._put(self._rest)
        words = filters.empty_filter(self._count)
        digest = Digest()
        last = 0, 0
        left = self._count
        for pages in self._pieces:
            entries = Entries.of_pages(pages, min(len(pages) * PAGE_ENTRIES, left))
            left -= len(entries)
            last = self._check_order(entries, last)
            filters.add(words, entries.high, entries.low, self._bits)
            digest += entries.digest()
        told, data = parts.encode(self._log_id, self._part, self._bits, self._count, digest, words, self._pieces)
        return told, digest, data

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
