"""The runs of a log as one immutable set: which ids are remembered, and where their newest records are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog.dedup.kernels import kernels_at_hand
from oncelog.dedup.runs.mix import Halves, mixed_key, mixed_keys
from oncelog.dedup.runs.order import in_order
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unsupported
from oncelog.format.runs.pages import END, PLACE_SHIFT, START
from oncelog.format.runs.run import Run, part_bounds
from oncelog.log.memory.objects import OpenPart, RunObjects, may_have
from oncelog.log.memory.quest import Found, Quest, QuestAnswers, find_in_part, search_all
from oncelog.log.memory.run_sieve import RunSieve
from oncelog.log.memory.times import OpenTimes

Column = NDArray[np.uint64]
Rows = NDArray[np.int64]

FEW = 8
"""So few keys that may be in a mapped part are searched one by one: most of them are not there."""

SMALL = 32
"""A batch that is no larger is looked up key by key where runs are mapped."""

FILTERED = 16
"""So many keys or more are asked of the filters together; with compiled loops, fewer."""

SIFTED = 128
"""So few keys of a batch that pass the sieve are looked up key by key: nearly all of them are in no run."""


class Hit(NamedTuple):
    """Where one id is stored: the newest record that has it. ``start`` and ``end``: of its batch it is first, last."""

    position: int
    fingerprint: int
    start: bool
    end: bool


class OpenRun(NamedTuple):
    """A run with its parts; ``bounds`` are the first halves of keys at which parts begin, but for the first part."""

    run: Run
    parts: list[OpenPart]
    bounds: Column
    times: list[OpenTimes]

    @property
    def is_damaged(self) -> bool:
        """Whether damage was seen in an object of the run."""
        return any(part.is_damaged for part in self.parts) or any(part.is_damaged for part in self.times)


class RunSet:
    """Runs, oldest first, whose ranges do not overlap. Never changed: a new set is made from this one.

    ``number`` grows with every set that is made from another. Runs *behind* the sieve are asked only for keys that pass
    it, those *before* it for every key. Safe to share between threads.
    """

    def __init__(
        self, objects: RunObjects, opened: Sequence[OpenRun], number: int, sieve: RunSieve | None = None
    ) -> None:
        self.number = number
        self.runs = tuple(each.run for each in opened)
        self.sieve = sieve
        self._objects = objects
        self.opened = tuple(opened)
        self._newest_first = self.opened[::-1]
        self._passes = _pass if sieve is None else sieve.may_have
        keys = frozenset[str]() if sieve is None else sieve.keys  # it may have more by the next look
        self._behind = tuple(each for each in opened if each.run.key in keys)
        self._before = tuple(each for each in opened if each.run.key not in keys)

    @classmethod
    def open(
        cls, objects: RunObjects, runs: Sequence[Run], before: RunSet | None = None, sieve: RunSieve | None = None
    ) -> RunSet:
        """Return the set of these runs; what ``before`` has open is shared, not opened again.

        Without a ``sieve`` it has the one of ``before``, if there is one.
        ``NotFound`` or ``CorruptionError`` when a run cannot be read, ``Unavailable`` when storage does not answer.
        """
        known = {} if before is None else {each.run: each for each in before.opened}
        opened = [known.get(run) or _open(objects, run) for run in runs]
        if before is None:
            return cls(objects, opened, 0, sieve)
        return cls(objects, opened, before.number + 1, sieve or before.sieve)

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
        """What filters and indexes take, in memory or mapped, and the sieve."""
        fronts = sum(part.front_bytes for run in self.runs for part in run.parts)
        return fronts + (0 if self.sieve is None else self.sieve.nbytes)

    @property
    def size_bytes(self) -> int:
        """What the runs take where they are stored."""
        return sum(run.size_bytes for run in self.runs)

    @property
    def damaged(self) -> frozenset[str]:
        """The keys of the runs in which damage was seen so far: they are worth being made again."""
        return frozenset(each.run.key for each in self.opened if each.is_damaged)

    # Many at once.

    def find_many(self, keys: NDArray[np.uint64], first_position: int = 0) -> Found:
        """Look up identities, shape (n, 2); of an id that was stored several times the newest record counts.

        Records before ``first_position`` count for nothing. ``NotFound`` when an object is gone: look again in the
        newest set. ``Unavailable`` when storage does not answer.
        """
        return self.find_any(keys, first_position) or Found.nothing(len(keys))

    def find_any(self, keys: NDArray[np.uint64], first_position: int = 0) -> Found | None:
        """Look up identities, as ``find_many`` does; ``None`` when none is remembered and none failed, as with most
        batches.
        """
        answers = QuestAnswers(len(keys))
        if len(keys) <= SMALL and self._objects.is_here:
            self._note_singly(np.arange(len(keys)), mixed_keys(keys), first_position, answers)
        elif self._before:
            self._search(keys, first_position, answers)
        elif self._behind:
            assert self.sieve is not None
            self._search_sifted(*self.sieve.sifted(keys), first_position, answers)
        return answers.settled(first_position)

    def _search(self, keys: NDArray[np.uint64], first_position: int, answers: QuestAnswers) -> None:
        """Search all runs, those behind the sieve for the keys that pass it."""
        high, low = mixed_keys(keys)
        quests = self._quests(self._before, np.arange(len(keys)), (high, low), first_position, answers)
        if self._behind:
            assert self.sieve is not None
            passed = self.sieve.passing(high, low)
            quests += self._quests(self._behind, passed, (high[passed], low[passed]), first_position, answers)
        search_all(self._objects, quests, answers)

    def _search_sifted(self, rows: Rows, keys: Halves, first_position: int, answers: QuestAnswers) -> None:
        """Search runs, all of which are behind the sieve, for mixed keys that pass it."""
        if len(rows) > SIFTED or not self._objects.is_here:
            search_all(self._objects, self._quests(self._behind, rows, keys, first_position, answers), answers)
            return
        if len(rows) >= FILTERED or kernels_at_hand(len(rows)) is not None:
            left = np.flatnonzero(self._may_have(*keys, first_position))
            rows, keys = rows[left], (keys[0][left], keys[1][left])
        self._note_singly(rows, keys, first_position, answers)

    def _may_have(self, high: Column, low: Column, first_position: int) -> NDArray[np.bool_]:
        """Tell of mixed keys, which are few and in no order, whether some run may have them.

        Where a run has several parts, nearly each key belongs to another one.
        """
        found = np.zeros(len(high), np.bool_)
        for run, parts, _, _ in self._behind:
            if run.next_position <= first_position:
                continue
            if len(parts) == 1:
                found |= may_have(parts, [len(high)], high, low)
            else:
                each = zip(high.tolist(), low.tolist(), strict=True)
                found |= [parts[one >> 64 - run.bits].may_have_one(one, two) for one, two in each]
        return found

    def _quests(
        self, runs: Sequence[OpenRun], rows: Rows, keys: Halves, first_position: int, answers: QuestAnswers
    ) -> list[Quest]:
        """Return the searches for mixed keys in those parts of runs that may have them; short ones are done at once."""
        quests: list[Quest] = []
        if not runs or not len(rows):
            return quests
        order, high = in_order(keys[0])  # neighbours are near each other in filters and pages; those of a part together
        low, rows = keys[1][order], rows[order]
        for each in runs:
            if each.run.next_position <= first_position:
                continue
            for part, passed in _candidates(each, high, low):
                quest = Quest(part, each.run, rows[passed], high[passed], low[passed])
                if part.is_mapped and len(passed) <= FEW:
                    quest.search_singly(answers)
                else:
                    quests.append(quest)
        return quests

    def _note_singly(self, rows: Rows, keys: Halves, first_position: int, answers: QuestAnswers) -> None:
        """Note what is known of mixed keys."""
        for row, high, low in zip(rows.tolist(), *(half.tolist() for half in keys), strict=True):
            try:
                hit = self._hit(high, low, first_position)
            except CorruptionError as error:
                answers.fail(np.array([row]), self.next_position, error)
                continue
            if hit is not None:
                answers.note_one(row, hit.fingerprint, hit.position << PLACE_SHIFT | hit.start * START | hit.end * END)

    # One.

    def find_one(self, high: int, low: int, first_position: int = 0) -> Hit | None:
        """Look up one identity, as ``find_many`` does; ``CorruptionError`` when a page that may have it is damaged."""
        return self._hit(*mixed_key(high, low), first_position)

    def _hit(self, high: int, low: int, first_position: int) -> Hit | None:
        """Return where the newest record of a mixed key is; ``None`` if no run has it, or it was truncated away."""
        runs = self._newest_first
        if self._behind and not self._passes(high, low):
            runs = self._before[::-1]
        for run, parts, _, _ in runs:
            if run.next_position <= first_position:
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
    try:
        return RunSet.open(objects, runs, before), []
    except (CorruptionError, NotFound, Unsupported):
        pass  # which of them, is seen by opening one after the other
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


def _pass(_high: int, _low: int) -> bool:
    """Let every key pass: there is no sieve."""
    return True


def _open(objects: RunObjects, run: Run) -> OpenRun:
    return OpenRun(run, objects.open(run), part_bounds(run.bits), OpenTimes.of(objects, run))


def _candidates(each: OpenRun, high: Column, low: Column) -> Iterator[tuple[OpenPart, Rows]]:
    """Yield the parts of a run, each with the rows of the sorted keys that may be in it."""
    ends = [*np.searchsorted(high, each.bounds).tolist(), len(high)] if len(each.bounds) else [len(high)]
    passed = np.flatnonzero(may_have(each.parts, ends, high, low))
    if not len(passed):
        return
    start = 0
    for part, end in zip(each.parts, np.searchsorted(passed, ends).tolist(), strict=True):
        if end > start and part.head.count:
            yield part, passed[start:end]
        start = end
