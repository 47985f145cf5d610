"""The timestamps of a run's commits, opened when somebody asks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import CorruptionError, NotFound
from oncelog.format.runs.pages import PAGE_BYTES
from oncelog.format.runs.run import Run, TimesPart
from oncelog.format.runs.times import Commits, TimesHead, decode_front, decode_page
from oncelog.log.memory.objects import RunObjects

_READ_PAGES = 256


class _Opened(NamedTuple):
    """Head and index of an object, and all its bytes if they are mapped."""

    head: TimesHead
    first_positions: NDArray[np.int64]
    mapped: memoryview | None


class OpenTimes:
    """One object with timestamps. Safe to share between threads."""

    def __init__(self, objects: RunObjects, key: str, told: TimesPart) -> None:
        self.told = told
        self.is_damaged = False
        self._objects = objects
        self._key = key
        self._known: _Opened | None = None

    @classmethod
    def of(cls, objects: RunObjects, run: Run) -> list[OpenTimes]:
        """Return the objects of a run, in order. Nothing is read yet."""
        return [cls(objects, run.times_key(number), told) for number, told in enumerate(run.times)]

    def timestamps_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the commits of these positions were made; they are relative, and none is before the first."""
        try:
            return self._timestamps_of(positions)
        except (CorruptionError, NotFound):
            self.is_damaged = True
            raise

    def _timestamps_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.argsort(positions, kind="stable")
        sought = positions[order]
        index = self._opened().first_positions
        pages = np.searchsorted(index, sought, side="right") - 1
        numbers, starts = np.unique(pages, return_index=True)
        times = np.empty(len(positions), np.int64)
        spans = itertools.pairwise((*starts.tolist(), len(pages)))
        for (start, end), commits in zip(spans, self._objects.each(self._page, numbers.tolist()), strict=True):
            at = np.searchsorted(commits.positions, sought[start:end], side="right") - 1
            times[order[start:end]] = commits.timestamps_us[at]
        return times

    def commits(self) -> Iterator[Commits]:
        """Yield all commits in order, some pages at a time."""
        head = self._opened().head
        for first in range(0, head.pages, _READ_PAGES):
            count = min(_READ_PAGES, head.pages - first)
            raw = self._read(first, count)
            for number in range(count):
                page = raw[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
                yield decode_page(page, first + number, head, self._key)

    def _opened(self) -> _Opened:
        if self._known is None:
            here = self._objects.is_here
            data = self._objects.home.read(self._key, 0, None if here else self.told.front_bytes, mapped=here)
            head, index = decode_front(data, self.told, self._key)
            self._known = _Opened(head, index, memoryview(data).cast("B") if here else None)
        return self._known

    def _page(self, number: int) -> Commits:
        return decode_page(self._read(number, 1), number, self._opened().head, self._key)

    def _read(self, first: int, count: int) -> memoryview:
        start, length = self.told.front_bytes + first * PAGE_BYTES, count * PAGE_BYTES
        mapped = self._opened().mapped
        if mapped is None:
            data = memoryview(self._objects.home.read(self._key, start, length)).cast("B")
        else:
            data = mapped[start : start + length]
        if len(data) != length:
            message = f"{self._key}: ends before page {first + count}; `oncelog rebuild` makes the run again"
            raise CorruptionError(message)
        return data
