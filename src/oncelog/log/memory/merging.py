"""Merging: neighbouring runs become one, in a stream of slices, so that memory is bounded by one part of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from oncelog import limits
from oncelog.dedup.runs.builder import PartBuilder
from oncelog.dedup.runs.entries import Entries
from oncelog.errors import CorruptionError, OncelogError
from oncelog.format.runs import pages as page_format
from oncelog.format.runs.pages import PAGE_ENTRIES
from oncelog.format.runs.run import Digest, Run
from oncelog.format.runs.times import Commits
from oncelog.log.memory import coverage
from oncelog.log.memory.building import RunStore, part_bits
from oncelog.log.memory.objects import OpenPart, RunObjects
from oncelog.log.memory.times import OpenTimes

SLICE_IDS = 32_000
"""About so many ids are merged at once."""

READ_PAGES = 64
"""So many pages of an input are read at once: 256 KiB."""

_KEYS = 1 << 64


def merge_runs(  # noqa: PLR0917
    objects: RunObjects,
    log_id: str,
    key: str,
    runs: Sequence[Run],
    first_position: int = 0,
    check: Callable[[], None] = lambda: None,
    passing: Callable[[Entries], None] = lambda _: None,
) -> Run:
    """Store neighbouring runs, oldest first, as one under a key that nobody else uses.

    Entries before ``first_position``, which are truncated, are left out. The digest of the result is compared with
    those of the inputs: ``CorruptionError``, and nothing stays stored, when they differ. ``check`` is called before
    every slice: an error that it raises ends the merge, and nothing stays stored. ``passing`` gets all entries, in
    sorted pieces.
    """
    base = max(runs[0].first_position, first_position)
    store = RunStore(objects.home, log_id, key)
    try:
        dropped = _store_parts(objects, log_id, runs, base, store, check, passing)
        _check_digest(runs, base, store.digest + dropped)
        store.add_times(_commits(objects, runs, base))
        return store.finish(base, runs[-1].next_position)
    except OncelogError:
        store.abandon()
        raise


def _store_parts(  # noqa: PLR0917
    objects: RunObjects,
    log_id: str,
    runs: Sequence[Run],
    base: int,
    store: RunStore,
    check: Callable[[], None],
    passing: Callable[[Entries], None],
) -> Digest:
    """Store the parts; return the digest of what was left out, with positions relative to ``base``."""
    ids = sum(run.ids for run in runs)
    bits = part_bits(ids)
    stream = _MergedEntries(objects, runs, base)
    for part in range(1 << bits):
        builder = PartBuilder(log_id, part, bits)
        for bound in _slice_bounds(part, bits, ids):
            check()
            pieces = stream.take(bound)
            for entries in pieces:
                passing(entries)
            builder.add(Entries.merged(pieces))
        store.add_part(*builder.finish())
    return stream.dropped


def _check_digest(runs: Sequence[Run], base: int, digest: Digest) -> None:
    expected = Digest()
    for run in runs:
        expected += run.digest.moved(run.first_position - base)
    if digest != expected:
        names = ", ".join(run.key for run in runs)
        message = f"merging {names}: entries were lost or changed on the way; nothing was stored, the runs stay"
        raise CorruptionError(message)


def _slice_bounds(part: int, bits: int, ids: int) -> Iterator[int]:
    """Yield where the slices of a part end, so that each has about ``SLICE_IDS``: mixed keys are as good as random."""
    width = _KEYS >> bits
    slices = max(1, -(-(ids >> bits) // SLICE_IDS))
    for number in range(1, slices + 1):
        yield part * width + width * number // slices


def merged(objects: RunObjects, runs: Sequence[Run]) -> Iterator[Entries]:
    """Yield the entries of neighbouring runs, in slices, sorted; positions are relative to the first run's first."""
    if runs:
        ids = sum(run.ids for run in runs)
        stream = _MergedEntries(objects, runs, runs[0].first_position)
        for bound in _slice_bounds(0, 0, ids):
            yield Entries.merged(stream.take(bound))


class _MergedEntries:
    """The entries of several runs in the order of their keys, without those before ``base``."""

    def __init__(self, objects: RunObjects, runs: Sequence[Run], base: int) -> None:
        self._cursors = [_Cursor(objects.open(run), run.first_position - base) for run in runs]

    @property
    def dropped(self) -> Digest:
        """The digest of what was left out so far, with positions relative to ``base``."""
        return sum((cursor.dropped for cursor in self._cursors), Digest())

    def take(self, bound: int) -> list[Entries]:
        """Return the next entries, up to but not including the first half ``bound`` (2**64: all), in sorted pieces."""
        return [piece for cursor in self._cursors for piece in cursor.take(bound)]


class _Cursor:
    """The entries of one run in the order of their keys, with ``shift`` added to their positions.

    Those whose positions would be below zero are left out, and summed in ``dropped``.
    """

    def __init__(self, parts: list[OpenPart], shift: int) -> None:
        self.dropped = Digest()
        self._shift = shift
        self._pieces = (entries for part in parts for _, entries in pieces_of(part))
        self._held = Entries.none()

    def take(self, bound: int) -> list[Entries]:
        """Return the next entries, up to but not including the first half ``bound``, in pieces."""
        held = [self._held]
        while bound == _KEYS or not len(held[-1]) or int(held[-1].high[-1]) < bound:
            following = next(self._pieces, None)
            if following is None:
                break
            held.append(self._moved(following))
        last = held[-1]
        cut = len(last) if bound == _KEYS else int(np.searchsorted(last.high, np.uint64(bound)))
        self._held = last[cut:]
        return [*held[:-1], last[:cut]]

    def _moved(self, entries: Entries) -> Entries:
        if self._shift < 0:
            old = entries.positions < -self._shift
            self.dropped += entries[old].digest().moved(self._shift)
            entries = entries[~old]
        return entries.moved(self._shift)


def pieces_of(part: OpenPart) -> Iterator[tuple[int, Entries]]:
    """Yield the entries of a part, checked, some pages at a time, each time with the number of the first page."""
    for first in range(0, part.head.pages, READ_PAGES):
        numbers = range(first, min(first + READ_PAGES, part.head.pages))
        pages = part.read(first, len(numbers))
        bad = part.bad_pages(pages, first, numbers)
        if bad:
            raise page_format.damaged(part.key, bad[0])
        yield first, Entries.of_pages(pages, min(len(numbers) * PAGE_ENTRIES, part.head.count - first * PAGE_ENTRIES))


def _commits(objects: RunObjects, runs: Sequence[Run], base: int) -> Iterator[Commits]:
    """Yield the commits of runs, relative to ``base``: but for those that were over before it.

    The last one that begins at or before ``base`` is kept, as beginning there.
    """
    before = Commits.none()
    for run in runs:
        for times in OpenTimes.of(objects, run):
            for commits in times.commits():
                positions = commits.positions + (run.first_position - base)
                cut = int(np.searchsorted(positions, 0, side="right"))
                if cut:
                    before = Commits(np.zeros(1, np.int64), commits.timestamps_us[cut - 1 : cut])
                if cut < len(positions):
                    yield before
                    yield Commits(positions[cut:], commits.timestamps_us[cut:])
                    before = Commits.none()
    yield before


def to_merge(memory: Sequence[Run]) -> list[Run] | None:
    """Return the neighbours to merge next, if any."""
    for group in reversed(coverage.neighbours(memory)):
        chosen = worth_merging(group)
        if chosen is not None:
            return group[chosen]
    if len(memory) < limits.MEMORY_RUNS_MAX * 2 // 3:
        return None  # with more, the smallest neighbours are merged although they are of different sizes
    return cheapest_merge(memory)


def cheapest_merge(memory: Sequence[Run]) -> list[Run] | None:
    """Return the smallest neighbours, if there are any."""
    groups = coverage.neighbours(memory)
    together = [group[at : at + limits.MEMORY_MERGED_RUNS] for group in groups for at in range(len(group) - 1)]
    return min(together, key=lambda runs: sum(run.ids for run in runs) / len(runs), default=None)


def worth_merging(runs: Sequence[Run]) -> slice | None:
    """Return which neighbours to merge next: so many as are merged, of one size class, the newest such; or ``None``.

    One that is older than a larger run counts as of that run's class: otherwise it would keep its neighbours apart for
    ever. So classes never grow from old to new, and of each there are fewer runs than are merged.
    """
    ends: dict[int, int] = {}
    least = 1
    for start in range(len(runs) - 1, -1, -1):
        least = max(least, _size_class(runs[start].ids))
        end = ends.setdefault(least, start + 1)
        if end - start == limits.MEMORY_MERGED_RUNS:
            return slice(start, end)
    return None


def _size_class(ids: int) -> int:
    """Return the least ids of a run of the same class. A merge of as many runs as are merged is of the next class.

    >>> [_size_class(ids) for ids in (100, limits.MEMORY_RUN_IDS, 2_097_151, 2_097_152)]
    [64, 262144, 262144, 2097152]
    """
    least = 1
    while ids >= least * limits.MEMORY_MERGED_RUNS:
        least *= limits.MEMORY_MERGED_RUNS
    return least
