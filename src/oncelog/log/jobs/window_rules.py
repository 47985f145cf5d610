"""Judging what a log holds by its own rules: no id is stored again too soon, and a snapshot tells what the log
tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.producers import Producers
from oncelog.dedup.repeats import distinct
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow, WindowState
from oncelog.format.identities import Identities
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.snapshot import ProducerMark, Snapshot
from oncelog.log.stored import bases
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.stored.rows import Rows
from oncelog.log.takeover.recovery import Remembered, fold_some

Severity = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be: how bad, where, and what.

    An *error* breaks a promise; a *warning* costs time or safety but no record; a *note* is worth knowing.
    """

    severity: Severity
    where: str
    what: str


class WindowRepeats:
    """Looks for ids that were stored again although the log still knew them."""

    def __init__(self, manifest: Manifest, covered: Callable[[int], bool]) -> None:
        window = manifest.writer_window
        unbounded = window is not None and window.unbounded
        self._rule = _NeverAgain(manifest, covered) if unbounded else _NotTooSoon(manifest)

    def add(self, given: Remembered) -> list[str]:
        """Add records of one segment; return what is wrong with them."""
        return self._rule.add(given) if len(given.keys) else []

    def adopt(self, segment: Segment, identities: Identities) -> list[str]:
        """Add the ids of an adopted file; return what is wrong with them."""
        return self._rule.adopt(segment, identities)

    @property
    def tail(self) -> WindowState | None:
        """The ids that no run covers, of a log without bounds."""
        return self._rule.table.dump() if isinstance(self._rule, _NeverAgain) else None


class _NeverAgain:
    """The rule of a log that remembers without bounds: no id that is in the log comes again.

    It was in force from ``window_since`` on. Before that position an id may occur several times: the bounded window of
    those days had forgotten it. What a run covers is compared by ``MemoryCheck``, without being in memory.
    """

    def __init__(self, manifest: Manifest, covered: Callable[[int], bool]) -> None:
        self._first = manifest.first_position
        self._since = manifest.window_since
        self._covered = covered
        self.table = Table()

    def add(self, given: Remembered) -> list[str]:
        return [] if self._covered(int(given.positions[0])) else self._judge(given.keys, given.positions)

    def adopt(self, segment: Segment, identities: Identities) -> list[str]:
        if self._covered(segment.next_position - 1):  # a run may begin behind the first, where the log was truncated
            return []
        order = np.argsort(identities.rows)
        positions = segment.first_position + identities.rows[order].astype(np.int64)
        alive = positions >= self._first  # ids before were forgotten with their records, and may have come again
        return self._judge(identities.keys[order][alive], positions[alive]) if alive.any() else []

    def _judge(self, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> list[str]:
        before = self.table.find(keys)
        earlier = np.full(len(keys), -1, np.int64)
        earlier[before >= 0] = self.table.positions(before[before >= 0])
        if not distinct(keys):
            within = _previous(keys)
            earlier[within >= 0] = positions[within[within >= 0]]
        zeros = np.zeros(len(keys), np.int64)
        starts = np.ones(len(keys), np.bool_)
        self.table.fold(WindowState(keys, positions, zeros.view(np.uint64), zeros, zeros, starts))
        return [
            f"the id at position {positions[row]} is also at {earlier[row]}, where the log still remembers it"
            for row in np.flatnonzero((earlier >= 0) & (positions >= self._since))[:3]
        ]


class _NotTooSoon:
    """The rule of a bounded window: no id comes again while the window knows it, by the writer's own clock.

    The window here keeps, instead of positions, how many ids were stored before: an id may be stored again once as
    many ids as the window has keys came after it (after its batch began), or its time is over. Adopted ids are not
    among those that are counted; for them only time counts.
    """

    def __init__(self, manifest: Manifest) -> None:
        kept = manifest.writer_window
        self._judged = kept is not None and not kept.refresh_on_hit
        self._max_keys = kept.keys_max if kept is not None else 1
        self._duration_us = kept.duration_us if kept is not None else 1
        self._since = manifest.window_since
        self._window = DedupWindow(self._duration_us, self._max_keys)
        self._adopted = Adopted(self._duration_us)
        self._count = 0

    def add(self, given: Remembered) -> list[str]:
        if not self._judged or given.positions[0] < self._since:
            return []
        return self._add(given)

    def _add(self, given: Remembered) -> list[str]:
        """Add many commits at once if all their ids are new, else fewer: then the window must age as it did."""
        self._window.evict(int(given.ticks[0]))
        if not self._has_known(given):
            numbers, batch_numbers = self._numbers(given)
            self._window.add(given.keys, numbers, batch_numbers.astype(np.uint64))
            self._window.commit_each(given.ticks, given.ticks)
            return []
        borders = given.borders()
        if not len(borders):
            return self._add_commit(given)
        middle = int(borders[len(borders) // 2])
        return self._add(given.cut(0, middle)) + self._add(given.cut(middle, len(given.keys)))

    def _has_known(self, given: Remembered) -> bool:
        """Tell whether an id is in the window, was adopted, or comes twice. What is absent now is so later, too."""
        self._adopted.evict(int(given.ticks[0]))
        return (
            not distinct(given.keys)
            or bool((self._window.find(given.keys) >= 0).any())
            or (bool(self._adopted) and bool((self._adopted.find(given.keys).positions >= 0).any()))
        )

    def _numbers(self, given: Remembered) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many ids came before each, and before the batch of each."""
        numbers = np.arange(self._count, self._count + len(given.keys))
        self._count += len(numbers)
        return numbers, numbers[np.maximum.accumulate(np.where(given.starts, np.arange(len(numbers)), 0))]

    def _add_commit(self, given: Remembered) -> list[str]:
        keys, positions, uptime_us = given.keys, given.positions, int(given.ticks[0])
        numbers, batch_numbers = self._numbers(given)
        previous = _previous(keys)
        wrong = self._adopted_before(keys, positions, uptime_us)
        wrong += self._within_commit(previous, numbers - batch_numbers[previous], positions)
        handles = self._window.find(keys)
        known = handles >= 0
        if known.any():
            wrong += self._too_soon(handles[known], numbers[known], positions[known])
            self._window.evict_through(int(handles[known].max()))
        last = np.ones(len(keys), np.bool_)
        last[previous[previous >= 0]] = False
        self._window.add(keys[last], numbers[last], batch_numbers[last].astype(np.uint64))
        self._window.commit(self._count, uptime_us, uptime_us)
        return wrong

    def adopt(self, segment: Segment, identities: Identities) -> list[str]:
        if not self._judged or segment.first_position < self._since:
            return []
        keys = identities.keys
        positions = segment.first_position + identities.rows.astype(np.int64)
        self._window.evict(segment.last_uptime_us)
        wrong = self._adopted_before(keys, positions, segment.last_uptime_us)
        twice = np.flatnonzero((keys[1:] == keys[:-1]).all(axis=1))
        wrong += [f"the id at position {positions[row + 1]} is also at {positions[row]}" for row in twice[:3]]
        handles = self._window.find(keys)
        known = handles >= 0
        if known.any():
            numbers = np.full(np.count_nonzero(known), self._count)
            wrong += self._too_soon(handles[known], numbers, positions[known])
        self._adopted.add(segment, identities)
        return wrong

    def _adopted_before(self, keys: NDArray[np.uint64], positions: NDArray[np.int64], uptime_us: int) -> list[str]:
        self._adopted.evict(uptime_us)
        if not self._adopted:
            return []
        found = self._adopted.find(keys).positions
        return [
            f"the id at position {positions[row]} was adopted at {found[row]}, within the window"
            for row in np.flatnonzero(found >= 0)[:3]
        ]

    def _within_commit(
        self, previous: NDArray[np.int64], since_batch: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> list[str]:
        """Return which ids were stored twice by one commit, or by several of the same moment."""
        repeats = np.flatnonzero((previous >= 0) & (since_batch < self._max_keys))
        return [f"the id at position {positions[row]} is also at {positions[previous[row]]}" for row in repeats[:3]]

    def _too_soon(
        self, handles: NDArray[np.int64], numbers: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> list[str]:
        since_batch = numbers - self._window.fingerprints(handles).astype(np.int64)
        soon = np.flatnonzero(since_batch < self._max_keys)
        return [
            f"the id at position {positions[row]} was stored {since_batch[row]} ids before, within the window"
            for row in soon[:3]
        ]


class SnapshotCheck:
    """Compares a snapshot with the fold of the log up to its watermark."""

    def __init__(self, taken: Snapshot, manifest: Manifest) -> None:
        self._taken = taken
        self._refreshed = manifest.settings.window.refresh_on_hit
        self._window = Table() if taken.tail_from >= 0 else DedupWindow(taken.duration_us, taken.max_keys)
        self._segments = frozenset(number for number, _ in taken.segments)
        self._matched = np.zeros(len(taken.positions), np.bool_)
        self._order = np.argsort(taken.positions)
        self._sorted = taken.positions[self._order]

    @property
    def is_of_table(self) -> bool:
        """Whether it has the ids of adopted files, too: those of a bounded window are kept beside it."""
        return isinstance(self._window, Table)

    def add(self, given: Remembered, segment: int) -> None:
        """Add records of a segment; those behind the watermark, and behind what was on its way then, are left out.

        A snapshot of a table names the segments of which it has all ids: runs had those of the others.
        """
        end = max(self._taken.watermark, self._taken.pending_until)
        given = given.between(0, end)
        if isinstance(self._window, Table):
            if segment in self._segments:
                self._window.fold(given.between(self._taken.tail_from, end).state())
        else:
            fold_some(self._window, given)
        positions = given.positions
        if not len(self._sorted) or not len(positions):
            return
        places = np.searchsorted(self._sorted, positions)
        inside = (places < len(self._sorted)) & (self._sorted[np.minimum(places, len(self._sorted) - 1)] == positions)
        if not inside.any():
            return
        entries = self._order[places[inside]]
        keys, prints = given.keys[inside], given.fingerprints[inside]
        same = (self._taken.identities[entries] == keys).all(axis=1) & (self._taken.fingerprints[entries] == prints)
        self._matched[entries[same]] = True

    def findings(self, manifest: Manifest) -> list[Finding]:
        """Return where the snapshot and the fold differ."""
        found = []
        where = f"snapshot up to {self._taken.watermark}"
        wrong = np.flatnonzero(~self._matched & (self._taken.positions >= manifest.first_position))
        if len(wrong):
            first = self._taken.positions[wrong[0]]
            what = f"{len(wrong)} of its ids are not in the log where it says, the first at {first}"
            found.append(Finding("error", where, what))
        lacking = self._lacking()
        if len(lacking):
            what = f"lacks {len(lacking)} ids that the log says are within the window, the first at {lacking.min()}"
            found.append(Finding("error", where, what))
        return found

    def _lacking(self) -> NDArray[np.int64]:
        """Return the positions whose ids the fold has, and the snapshot has not."""
        if self._refreshed:
            return np.empty(0, np.int64)
        self._window.evict(self._taken.uptime_us)
        positions = self._window.dump().positions
        return positions[~np.isin(positions, self._sorted) & (positions < self._taken.watermark)]


class ProducerCheck:
    """Compares how far producers got, as a snapshot has it, with their last records before its watermark."""

    def __init__(self, taken: Snapshot) -> None:
        self._taken = taken
        self._producers = Producers()

    def add(self, rows: Rows) -> None:
        """Add records; those behind the watermark are left out."""
        bases.fold_producers(self._producers, rows.cut(0, self._taken.watermark - rows.first_position))

    def findings(self, first_position: int) -> list[Finding]:
        """Return where the snapshot and the log differ, as far as the log goes back."""
        told = self._producers.marks()
        wrong = [
            name
            for name, mark in self._taken.producers.items()
            if mark.last_position >= first_position and not _is_same(mark, told.get(name))
        ]
        if not wrong:
            return []
        what = f"{len(wrong)} of its producers got to another place by the log, the first: {wrong[0]!r}"
        return [Finding("error", f"snapshot up to {self._taken.watermark}", what)]


def _is_same(mark: ProducerMark, other: ProducerMark | None) -> bool:
    if other is None:
        return False
    return (mark.last_sequence, mark.last_position) == (other.last_sequence, other.last_position)


def _previous(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return, for each row, the row before it with the same key, -1 if there is none."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # rows of one key stay in their order
    same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    previous = np.full(len(keys), -1, np.int64)
    previous[order[1:][same]] = order[:-1][same]
    return previous
