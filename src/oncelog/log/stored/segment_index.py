"""Where stored positions are: their segments, found by one search however many segments there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog.format.manifest import Manifest, Page, Segment
from oncelog.log.stored.manifests import Manifests

Numbers = NDArray[np.int64]


class Places(NamedTuple):
    """The segments and entries of positions, and when those segments began and ended; all -1 for one that is gone."""

    segments: Numbers
    entries: Numbers
    first_us: Numbers
    last_us: Numbers


class _Columns(NamedTuple):
    """Neighbouring segments in columns."""

    first: Numbers
    following: Numbers
    number: Numbers
    first_us: Numbers
    last_us: Numbers

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> _Columns:
        rows = [
            (each.first_position, each.next_position, each.number, each.first_timestamp_us, each.last_timestamp_us)
            for each in segments
        ]
        return cls(*np.array(rows, np.int64).reshape(len(rows), 5).T)


class SegmentIndex:
    """The closed segments of a log in columns. A page never changes, so its columns are made once."""

    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._pages: dict[str, _Columns] = {}
        self._inline: tuple[tuple[Segment, ...], _Columns] = ((), _Columns.of(()))

    def places(self, manifest: Manifest, positions: Numbers) -> Places:
        """Return where positions of closed segments are. ``NotFound``, from a page that is gone: look again."""
        found = Places(*(np.full(len(positions), -1, np.int64) for _ in Places._fields))
        inline = self._columns(manifest.segments)
        begin = int(inline.first[0]) if len(inline.first) else manifest.next_position
        old = np.flatnonzero((positions < begin) & (positions >= 0))
        if old.size and manifest.pages:
            numbers = np.searchsorted([page.next_position for page in manifest.pages], positions[old], side="right")
            for number in np.unique(numbers[numbers < len(manifest.pages)]).tolist():
                self._fill(found, self._page(manifest.pages[number]), positions, old[numbers == number])
        if old.size < len(positions):
            self._fill(found, inline, positions, np.flatnonzero(positions >= begin))
        return found

    def _columns(self, segments: tuple[Segment, ...]) -> _Columns:
        held, columns = self._inline
        if held is not segments:
            columns = _Columns.of(segments)
            self._inline = segments, columns
        return columns

    def _page(self, page: Page) -> _Columns:
        columns = self._pages.get(page.key)
        if columns is None:
            columns = self._pages[page.key] = _Columns.of(self._manifests.page(page))
        return columns

    @staticmethod
    def _fill(found: Places, columns: _Columns, positions: Numbers, rows: Numbers) -> None:
        wanted = positions[rows]
        at = np.searchsorted(columns.first, wanted, side="right") - 1
        inside = (at >= 0) & (wanted < columns.following[np.maximum(at, 0)]) if len(columns.first) else at >= 0
        rows, at = rows[inside], at[inside]
        found.segments[rows] = columns.number[at]
        found.entries[rows] = positions[rows] - columns.first[at]
        found.first_us[rows] = columns.first_us[at]
        found.last_us[rows] = columns.last_us[at]
