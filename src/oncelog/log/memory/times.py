"""The timestamps of a run's commits, opened when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import CorruptionError
from oncelog.format.runs.pages import PAGE_BYTES
from oncelog.format.runs.run import Run, TimesPart
from oncelog.format.runs.times import Commits, TimesHead, decode_front, decode_page
from oncelog.log.memory.objects import RunObjects

_READ_PAGES = 256


class OpenTimes:
    """One object with timestamps. Safe to share between threads."""

    def __init__(self, objects: RunObjects, key: str, told: TimesPart) -> None:
        self.told = told
        self._objects = objects
        self._key = key
        self._front: tuple[TimesHead, NDArray[np.int64]] | None = None

    @classmethod
    def of(cls, objects: RunObjects, run: Run) -> list[OpenTimes]:
        """Return the objects of a run, in order. Nothing is read yet."""
        return [cls(objects, run.times_key(number), told) for number, told in enumerate(run.times)]

    def timestamps_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the commits of these positions were made; they are relative, and none is before the first."""
        _, index = self._opened()
        pages = np.searchsorted(index, positions, side="right") - 1
        times = np.empty(len(positions), np.int64)
        numbers = np.unique(pages).tolist()
        for number, commits in zip(numbers, self._objects.each(self._page, numbers), strict=True):
            mine = np.flatnonzero(pages == number)
            at = np.searchsorted(commits.positions, positions[mine], side="right") - 1
            times[mine] = commits.timestamps_us[at]
        return times

    def commits(self) -> Iterator[Commits]:
        """Yield all commits in order, some pages at a time."""
        head, _ = self._opened()
        for first in range(0, head.pages, _READ_PAGES):
            count = min(_READ_PAGES, head.pages - first)
            raw = self._read(first, count)
            for number in range(count):
                page = raw[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
                yield decode_page(page, first + number, head, self._key)

    def _opened(self) -> tuple[TimesHead, NDArray[np.int64]]:
        if self._front is None:
            data = self._objects.home.read(self._key, 0, self.told.front_bytes)
            self._front = decode_front(data, self.told, self._key)
        return self._front

    def _page(self, number: int) -> Commits:
        return decode_page(self._read(number, 1), number, self._opened()[0], self._key)

    def _read(self, first: int, count: int) -> memoryview:
        start = self.told.front_bytes + first * PAGE_BYTES
        data = self._objects.home.read(self._key, start, count * PAGE_BYTES)
        if data.size != count * PAGE_BYTES:
            message = f"{self._key}: ends before page {first + count}; `oncelog rebuild` makes the run again"
            raise CorruptionError(message)
        return memoryview(data).cast("B")
