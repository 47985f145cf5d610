"""The runs of a log as one immutable set: which ids are remembered, and where their newest records are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.runs.mix import mixed_key, mixed_keys
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unsupported
from oncelog.format.runs.pages import END, PLACE_SHIFT, START
from oncelog.format.runs.run import Run
from oncelog.log.memory.objects import OpenPart, RunObjects
from oncelog.log.memory.quest import Answers, Found, Quest, find_in_part, search_all, search_few
from oncelog.log.memory.times import OpenTimes

Column = NDArray[np.uint64]
Rows = NDArray[np.int64]

FEW = 8
"""So few keys that may be in a mapped part are searched one by one: most of them are not there."""


class Hit(NamedTuple):
    """Where one id is stored: the newest record that has it. ``start`` and ``end``: of its batch it is first, last."""

    position: int
    fingerprint: int
    start: bool
    end: bool


class _OpenRun(NamedTuple):
    run: Run
    parts: list[OpenPart]
    times: list[OpenTimes]


class RunSet:
    """Runs, oldest first, whose ranges do not overlap. Never changed: a new set is made from this one.

    ``number`` grows with every set that is made from another. Safe to share between threads.
    """

    def __init__(self, objects: RunObjects, opened: Sequence[_OpenRun], number: int) -> None:
        self.number = number
        self.runs = tuple(each.run for each in opened)
        self._objects = objects
        self.opened = tuple(opened)
        self._newest_first = self.opened[::-1]

    @classmethod
    def open(cls, objects: RunObjects, runs: Sequence[Run], before: RunSet | None = None) -> RunSet:
        """Return the set of these runs; what ``before`` has open is shared, not opened again.

        ``NotFound`` or ``CorruptionError`` when a run cannot be read, ``Unavailable`` when storage does not answer.
        """
        known = {} if before is None else {each.run: each for each in before.opened}
        opened = [known.get(run) or _open(objects, run) for run in runs]
        return cls(objects, opened, 0 if before is None else before.number + 1)

    @property
    def next_position(self) -> int:
        """The position behind the last range; 0 if there is none."""
        return self.runs[-1].next_position if self.runs else 0

    @property
    def ids(self) -> int:
        """How many entries there are."""
        return sum(run.ids for run in self.runs)

    @property
    def memory_bytes(self) -> int:
        """What filters and indexes take, in memory or mapped."""
        return sum(part.front_bytes for run in self.runs for part in run.parts)

    @property
    def size_bytes(self) -> int:
        """What the runs take where they are stored."""
        return sum(run.size_bytes for run in self.runs)

    @property
    def damaged(self) -> frozenset[str]:
        """The keys of the runs in which damage was seen so far: they are worth being made again."""
        return frozenset(each.run.key for each in self.opened if any(part.is_damaged for part in each.parts))

    # Many at once.

    def find_many(self, keys: NDArray[np.uint64], first_position: int = 0, behind: int = 0) -> Found:
        """Look up identities, shape (n, 2); of an id that was stored several times the newest record counts.

        Records before ``first_position`` count for nothing. Only runs that reach behind position ``behind`` are
        searched. ``NotFound`` when an object is gone: look again in the newest set. ``Unavailable`` when storage does
        not answer.
        """
        answers = Answers(len(keys))
        high, low = mixed_keys(keys)
        quests = []
        for each in self.opened:
            if each.run.next_position <= max(behind, first_position):
                continue
            for part, rows in _candidates(each, high, low):
                base, end = each.run.first_position, each.run.next_position
                if part.is_mapped and len(rows) <= FEW:
                    search_few(part, base, end, rows.tolist(), high, low, answers)
                else:
                    quests.append(Quest(part, base, end, rows, high[rows], low[rows]))
        search_all(self._objects, quests, answers)
        return answers.settled(first_position)

    # One.

    def find_one(self, high: int, low: int, first_position: int = 0, behind: int = 0) -> Hit | None:
        """Look up one identity, as ``find_many`` does; ``CorruptionError`` when a page that may have it is damaged."""
        high, low = mixed_key(high, low)
        least = max(behind, first_position)
        for run, parts, _ in self._newest_first:
            if run.next_position <= least:
                break
            part = parts[high >> 64 - run.bits] if len(parts) > 1 else parts[0]
            if part.may_have_one(high, low):
                found = find_in_part(part, high, low)
                if found is not None:
                    place, fingerprint = found
                    position = run.first_position + (place >> PLACE_SHIFT)
                    hit = Hit(position, fingerprint, bool(place & START), bool(place & END))
                    return hit if position >= first_position else None
        return None

    # Times.

    def timestamps_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the commits of these positions were made, microseconds since 1970; -1 where no run can tell.

        Ask only for positions of segments whose first and last timestamps differ: a run says nothing of others.
        """
        times = np.full(len(positions), -1, np.int64)
        for each in self.opened:
            inside = np.flatnonzero((positions >= each.run.first_position) & (positions < each.run.next_position))
            relative = positions[inside] - each.run.first_position
            for part in each.times:
                mine = np.flatnonzero(relative >= part.told.first)  # a later part's answer replaces an earlier one's
                times[inside[mine]] = part.timestamps_of(relative[mine])
        return times


def readable(
    objects: RunObjects, runs: Sequence[Run], before: RunSet | None = None
) -> tuple[RunSet, list[tuple[Run, OncelogError]]]:
    """Return the set of those runs that can be opened, and the others with the reason.

    What a run covers that is not in the set is not forgotten: it must come from the log. ``Unavailable`` is raised.
    """
    good: list[Run] = []
    bad: list[tuple[Run, OncelogError]] = []
    opened = RunSet(objects, [], 0) if before is None else before
    for run in runs:
        try:
            opened = RunSet.open(objects, [*good, run], opened)
            good.append(run)
        except (CorruptionError, NotFound, Unsupported) as error:
            bad.append((run, error))
    return RunSet.open(objects, good, opened), bad


def _open(objects: RunObjects, run: Run) -> _OpenRun:
    return _OpenRun(run, objects.open(run), OpenTimes.of(objects, run))


def _candidates(each: _OpenRun, high: Column, low: Column) -> Iterator[tuple[OpenPart, Rows]]:
    """Yield the parts of a run, each with the rows of the keys that may be in it."""
    if len(each.parts) == 1:
        passed = np.flatnonzero(each.parts[0].may_have(high, low))
        if len(passed) and each.run.ids:
            yield each.parts[0], passed
        return
    numbers = (high >> np.uint64(64 - each.run.bits)).astype(np.uint16)
    order = np.argsort(numbers, kind="stable")  # a radix sort
    ends = np.cumsum(np.bincount(numbers, minlength=len(each.parts)))
    high, low = high[order], low[order]
    start = 0
    for part, end in zip(each.parts, ends.tolist(), strict=True):
        mine = slice(start, end)
        start = end
        passed = order[mine][part.may_have(high[mine], low[mine])]
        if len(passed) and part.head.count:
            yield part, passed
