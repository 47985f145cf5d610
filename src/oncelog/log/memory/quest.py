"""The search for many keys in the pages of parts: which pages to read, and what they say."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.runs import search
from oncelog.errors import CorruptionError
from oncelog.format.runs import pages as page_format
from oncelog.format.runs.pages import (
    COLUMNS_AT,
    END,
    PAGE_ENTRIES,
    PLACE_SHIFT,
    PLACES_AT,
    START,
    Pages,
    place_in,
    places_at,
)
from oncelog.format.runs.run import Run
from oncelog.log.memory.objects import OpenPart, RunObjects

Column = NDArray[np.uint64]
Rows = NDArray[np.int64]

GROUP_PAGES = 16
"""Pages that lie no further apart are read together: 64 KiB."""

READ_PAGES_MAX = 256
"""The most pages of one read: 1 MiB."""

SCAN_SHARE = 8
"""Where more than one page in so many is needed, all are read from the first to the last."""

_DONE = 1 << 62
"""The page of a key that is looked for no more."""

_FIRST = COLUMNS_AT // 8


class Found(msgspec.Struct, frozen=True):
    """What a set of runs knows of many ids. ``positions`` has -1 where none is remembered.

    ``failed`` marks ids of which nobody can tell, because a page that may have them is damaged: an id that failed is
    not absent. ``errors`` says what was damaged.
    """

    positions: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]
    starts: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    errors: tuple[CorruptionError, ...] = ()

    @classmethod
    def nothing(cls, count: int) -> Found:
        """Return that none of so many ids is remembered."""
        starts, ends, failed = (np.zeros(count, np.bool_) for _ in range(3))
        return cls(np.full(count, -1, np.int64), np.zeros(count, np.uint64), starts, ends, failed)

    @property
    def found(self) -> NDArray[np.bool_]:
        """Which ids are remembered."""
        return self.positions >= 0

    def check(self) -> None:
        """Raise the first ``CorruptionError`` if any id failed."""
        if self.failed.any():
            raise self.errors[0]


class QuestAnswers:
    """The findings so far, for each row of a batch. ``failed_at`` is the end of the newest run that could not be
    searched for the row.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._errors: list[CorruptionError] = []
        self._any = False  # nearly all batches are new ids: then there are no arrays either

    def _begin(self) -> None:
        """Make room for findings, with the first of them."""
        if not self._any:
            self._any = True
            self._positions = np.full(self._count, -1, np.int64)
            self._fingerprints = np.zeros(self._count, np.uint64)
            self._marks = np.zeros(self._count, np.uint64)
            self._failed_at = np.full(self._count, -1, np.int64)

    def note(self, rows: Rows, fingerprints: Column, places: Column, base: int) -> None:
        """Note hits in a run that begins at position ``base``, for those rows of which no newer one is known."""
        if not len(rows):
            return
        self._begin()
        positions = (places >> np.uint64(PLACE_SHIFT)).view(np.int64) + base
        newer = positions > self._positions[rows]
        rows = rows[newer]
        self._positions[rows] = positions[newer]
        self._fingerprints[rows] = fingerprints[newer]
        self._marks[rows] = places[newer]

    def note_one(self, row: int, fingerprint: int, place: int) -> None:
        """Note a hit, unless a newer one is known; its place has an absolute position."""
        self._begin()
        if place >> PLACE_SHIFT > self._positions[row]:
            self._positions[row] = place >> PLACE_SHIFT
            self._fingerprints[row] = fingerprint
            self._marks[row] = place & (START | END)

    def fail(self, rows: Rows, end: int, error: CorruptionError) -> None:
        """Note that a run that ends at position ``end`` cannot tell of these rows."""
        self._begin()
        self._failed_at[rows] = np.maximum(self._failed_at[rows], end)
        self._errors.append(error)

    def settled(self, first_position: int) -> Found | None:
        """Return what was found; ``None`` when nothing was. A hit in a newer run than the one that failed is the answer
        all the same.
        """
        if not self._any:
            return None
        failed = self._failed_at > self._positions
        self._positions[failed | (self._positions < first_position)] = -1
        starts, ends = ((self._marks & np.uint64(mark)) != 0 for mark in (START, END))
        return Found(self._positions, self._fingerprints, starts, ends, failed, tuple(self._errors))


class Quest:
    """The search for some keys, sorted, in one part of a run. ``rows`` are those of the keys in their batch."""

    def __init__(self, part: OpenPart, run: Run, rows: Rows, high: Column, low: Column) -> None:
        self.part = part
        self._base, self._end = run.first_position, run.next_position
        self._rows, self._high, self._low = rows, high, low
        self._pages = self._next = self._last = np.empty(0, np.int64)

    def search_singly(self, answers: QuestAnswers) -> None:
        """Search the keys one by one: for a few of them that is quicker than the arrays."""
        for row, high, low in zip(self._rows.tolist(), self._high.tolist(), self._low.tolist(), strict=True):
            try:
                found = find_in_part(self.part, high, low)
            except CorruptionError as error:
                answers.fail(np.array([row]), self._end, error)
                continue
            if found is not None:
                place, fingerprint = found
                answers.note_one(row, fingerprint, place + (self._base << PLACE_SHIFT))

    def begin(self, answers: QuestAnswers) -> bool:
        """Find out where to look for each key; tell whether there is anything to look for."""
        try:
            self.part.check_index()
        except CorruptionError as error:
            answers.fail(self._rows, self._end, error)
            return False
        self._pages, self._last = search.page_spans(self.part.index, self._high)
        self._next = np.full(len(self._pages), _DONE)
        return True

    def reads(self) -> list[tuple[int, int]]:
        """Return which pages to read, as first page and count."""
        if self.part.is_mapped:
            return [(0, self.part.head.pages)]
        return grouped(np.unique(self._pages), self.part.head.pages)

    def settle(self, first: int, count: int, pages: Pages | CorruptionError, answers: QuestAnswers) -> None:
        """Search the keys that are looked for in these pages, or note that they could not be read."""
        span = np.searchsorted(self._pages, [first, first + count])
        mine = np.arange(span[0], span[1])
        if isinstance(pages, CorruptionError):
            answers.fail(self._rows[mine], self._end, pages)
            return
        bad = self.part.bad_pages(pages, first, self.part.unchecked(self._pages[mine]))
        if bad:
            hurt = np.isin(self._pages[mine], bad)
            answers.fail(self._rows[mine[hurt]], self._end, page_format.damaged(self.part.key, bad[0]))
            mine = mine[~hurt]
        at = self._pages[mine] - first
        slots = search.find_in_pages(pages, at, self._high[mine], self._low[mine])
        hit = np.flatnonzero(slots >= 0)
        at, found = at[hit], slots[hit]
        answers.note(self._rows[mine[hit]], pages["fingerprint"][at, found], places_at(pages, at, found), self._base)
        on = mine[slots == search.GO_ON]
        self._next[on] = self._pages[on] + 1

    def goes_on(self) -> bool:
        """Keep the keys that may be in a next page; tell whether there are any."""
        left = np.flatnonzero(self._next <= self._last)
        self._rows, self._high, self._low = self._rows[left], self._high[left], self._low[left]
        self._pages, self._last = self._next[left], self._last[left]
        self._next = np.full(len(left), _DONE)
        return len(left) > 0


def find_in_part(part: OpenPart, high: int, low: int) -> tuple[int, int] | None:
    """Return place and fingerprint of the newest entry of one mixed key; ``None`` when it is not in the part."""
    part.check_index()
    index = part.index_view
    number = max(0, bisect.bisect_left(index, high) - 1)
    while number < len(index) and index[number] <= high:
        page = part.page(number)
        end = _FIRST + part.head.entries_in(number)
        words = page[:PLACES_AT].cast("Q")
        at = bisect.bisect_left(words, high, _FIRST, end)
        while at < end and words[at] == high:
            if words[at + PAGE_ENTRIES] == low:
                return place_in(page, at - _FIRST), words[at + 2 * PAGE_ENTRIES]
            at += 1
        if at < end:
            return None
        number += 1
    return None


def search_all(objects: RunObjects, quests: Sequence[Quest], answers: QuestAnswers) -> None:
    """Search everything that is looked for, with the reads of all parts on their way together."""
    left = [quest for quest in quests if quest.begin(answers)]
    while left:
        reads = [(quest, first, count) for quest in left for first, count in quest.reads()]
        for (quest, first, count), pages in zip(reads, objects.each(_read, reads), strict=True):
            quest.settle(first, count, pages, answers)
        left = [quest for quest in left if quest.goes_on()]


def _read(wanted: tuple[Quest, int, int]) -> Pages | CorruptionError:
    quest, first, count = wanted
    try:
        return quest.part.read(first, count)
    except CorruptionError as error:
        return error


def grouped(pages: Rows, total: int) -> list[tuple[int, int]]:
    """Return reads that have all these pages, sorted and each once, as first page and count.

    >>> grouped(np.array([3, 5, 90]), 1000)
    [(3, 3), (90, 1)]
    """
    gap = total if len(pages) * SCAN_SHARE > total else GROUP_PAGES
    groups: list[tuple[int, int]] = []
    for page in pages.tolist():
        first, count = groups[-1] if groups else (page, 0)
        if groups and page - (first + count) < gap and page + 1 - first <= READ_PAGES_MAX:
            groups[-1] = first, page + 1 - first
        else:
            groups.append((page, 1))
    return groups
