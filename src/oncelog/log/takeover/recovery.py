"""Rebuilding the dedup window before the first write: the newest readable snapshot, and all that came after it.

The log is the truth: a snapshot only saves reading it. Whatever happens to snapshots, the window that comes out is the
one the last writer had, but for what it had not stored.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oncelog import limits
from oncelog.dedup.identity import Hasher
from oncelog.dedup.producers import Producers
from oncelog.dedup.refreshing import window_class
from oncelog.dedup.table import Table
from oncelog.dedup.window import DedupWindow, WindowState
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unavailable
from oncelog.format.identities import Identities
from oncelog.format.manifest import PRODUCERS, Manifest, Segment
from oncelog.format.runs.run import Run
from oncelog.format.runs.run import covers as covers_ids
from oncelog.format.snapshot import Snapshot
from oncelog.log.memory import coverage
from oncelog.log.memory.coverage import Stretch
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet, readable
from oncelog.log.stored import bases, record_identities, snapshots
from oncelog.log.stored.adopted_ids import Adopted
from oncelog.log.stored.files import SealedFiles, rows_of
from oncelog.log.stored.manifests import Manifests
from oncelog.log.stored.rows import Rows, each
from oncelog.log.stored.staged import read_identities
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome

FOLD_ROWS = 8192


class Recovered(NamedTuple):
    """What the log remembers as the log says it, the position up to which a snapshot gave it, and the log's up-time."""

    window: DedupWindow | None
    adopted: Adopted
    watermark: int
    uptime_us: int
    producers: Producers
    runs: RunSet
    unreadable: tuple[Run, ...] = ()


class LeftTable(NamedTuple):
    """The table of a writer that has closed its log, and what the manifest said then."""

    table: Table
    log_id: str
    epoch: int
    next_position: int
    last_timestamp_us: int

    @classmethod
    def of(cls, window: DedupWindow | None, manifest: Manifest) -> LeftTable | None:
        """Return the table of a writer that has just closed its last segment; ``None`` if it is not worth its memory,
        has ids that are not stored, or there is none.
        """
        if not isinstance(window, Table) or window.pending_count or window.nbytes > limits.MEMORY_LEFT_BYTES_MAX:
            return None
        return cls(window, manifest.log_id, manifest.epoch, manifest.next_position, manifest.last_timestamp_us)

    def is_of(self, manifest: Manifest) -> bool:
        """Tell whether nobody but that writer has written before the one that took the log by this manifest."""
        before = (self.log_id, self.epoch, self.next_position, self.last_timestamp_us)
        return before == (manifest.log_id, manifest.epoch - 1, manifest.next_position, manifest.last_timestamp_us)


class Held(NamedTuple):
    """What a writer before this one, in the same process, has open: it is not read again."""

    adopted: Adopted | None = None
    runs: RunSet | None = None
    left: LeftTable | None = None

    def table(self, manifest: Manifest, runs: RunSet) -> Table | None:
        """Return the table of the writer before, if it has all ids that are not in these runs."""
        if self.left is None or self.runs is None or self.runs.runs != runs.runs or not self.left.is_of(manifest):
            return None
        self.left.table.drop_before(manifest.first_position)
        return self.left.table


def recover(
    home: LogHome,
    manifests: Manifests,
    manifest: Manifest,
    settings: LogSettings,
    hasher: Hasher,
    *,
    objects: RunObjects,
    held: Held = Held(),  # noqa: B008  (it never changes)
) -> Recovered:
    """Return what a log remembers of which nothing is in flight: all that the manifest calls closed is folded in."""
    taken = next(snapshots.readable(home, manifest.log_id, manifest.next_position), None)
    if settings.window.unbounded:
        return _recover_all(manifests, manifest, hasher, taken, objects, held)
    producers = bases.begin_producers(home, manifest, taken)
    if taken is not None and not covers(taken, settings):
        taken = None
    window = _from_snapshot(taken, settings)
    uptime_us = max(manifest.uptime_us, taken.uptime_us if taken else 0)
    start = max(taken.watermark if taken else 0, manifest.first_position)
    files = SealedFiles(home)
    segments = needed(manifests, manifest, start, uptime_us)
    if manifest.labels & PRODUCERS:
        before = segments[0].first_position if segments else manifest.next_position
        for rows in bases.labelled(home, manifests, manifest, start, before, labels=PRODUCERS):
            bases.fold_producers(producers, rows)
    for segment in segments:
        parts = rows_of(home, files, segment, start)
        if segment.labels & PRODUCERS:
            parts = bases.tapped(parts, producers)
        if segment.identities is None:  # what was adopted carries no sequences
            fold(window, parts, hasher)
    window.evict(uptime_us)
    duration_us = settings.window.duration_us
    recent = adopted_within(manifests, manifest, duration_us, uptime_us)
    runs, bad = readable(objects, needed_runs(manifest.memory, recent), held.runs)
    first = manifest.first_position
    covered = {
        one.identities for one in recent if covers_ids(runs.runs, max(one.first_position, first), one.next_position)
    }
    _check_few_enough(home, manifest, [one for one in recent if one.identities not in covered], bad)
    adopted = Adopted.holding(
        duration_us, recent, lambda segment: _identities(home, files, segment, hasher), held.adopted, covered
    )
    return Recovered(window, adopted, start, uptime_us, producers, runs, tuple(run for run, _ in bad))


def needed_runs(memory: Sequence[Run], files: Sequence[Segment]) -> list[Run]:
    """Return the runs in which ids of these files may be, oldest first. A bounded window needs no others."""
    needed = []
    for run in memory:
        at = bisect.bisect_right(files, run.first_position, key=lambda segment: segment.next_position)
        if at < len(files) and files[at].first_position < run.next_position:
            needed.append(run)
    return needed


def _recover_all(  # noqa: PLR0917
    manifests: Manifests, manifest: Manifest, hasher: Hasher, taken: Snapshot | None, objects: RunObjects, held: Held
) -> Recovered:
    """Return what a log remembers without bounds: its runs, and in the table every id that no readable run has."""
    runs, bad = readable(objects, manifest.memory, held.runs)
    tail = coverage.stretches(manifests, manifest, runs.runs)
    _check_small_enough(manifest, tail, bad)
    uptime_us = max(manifest.uptime_us, taken.uptime_us if taken else 0)
    usable = taken if taken is not None and not bad and _is_of_tail(taken, tail) else None
    start = manifest.first_position if usable is None else max(manifest.first_position, usable.watermark)
    table = None if bad else held.table(manifest, runs)
    if table is not None:
        producers = bases.recover_producers(objects.home, manifests, manifest, taken)
        return Recovered(table, Adopted(0), start, uptime_us, producers, runs)
    table = Table()
    if usable is not None:
        table.fold(_from_position(usable, tail[0].first_position if tail else manifest.next_position))
    producers = _fold_tail(objects.home, manifests, manifest, hasher, taken, table, _unfolded(tail, start))
    return Recovered(table, Adopted(0), start, uptime_us, producers, runs, tuple(run for run, _ in bad))


def _unfolded(tail: Sequence[Stretch], start: int) -> list[tuple[Segment, int]]:
    """Return the closed segments of the tail, each with the position from which on it is to be read."""
    begun = [(segment, max(start, stretch.first_position)) for stretch in tail for segment in stretch.segments]
    return [(segment, max(begin, segment.first_position)) for segment, begin in begun if segment.next_position > begin]


def _fold_tail(  # noqa: PLR0917
    home: LogHome,
    manifests: Manifests,
    manifest: Manifest,
    hasher: Hasher,
    taken: Snapshot | None,
    table: Table,
    unfolded: Sequence[tuple[Segment, int]],
) -> Producers:
    """Add the ids of the tail to the table; return how far every producer got.

    Reading is most of the work. Where the tail has all that tells of producers, it is read once for both. Older parts
    of the tail (a lost run) are read for ids alone: folded over a snapshot, they would take producers back.
    """
    since = bases.producers_since(manifest, taken)
    labelled = {one.number: one for one in bases.segments_of_producers(manifests, manifest, since)}
    starts = {segment.number: begin for segment, begin in unfolded}
    together = all(starts.get(number) == max(since, one.first_position) for number, one in labelled.items())
    producers = bases.begin_producers(home, manifest, taken)
    files = SealedFiles(home)
    for segment, begin in unfolded:
        parts = rows_of(home, files, segment, begin)
        if together and segment.number in labelled:
            parts = bases.tapped(parts, producers)
        for remembered in remembered_of(hasher, parts):
            table.fold(remembered.state())
    return producers if together else bases.recover_producers(home, manifests, manifest, taken)


def _check_small_enough(manifest: Manifest, tail: Sequence[Stretch], bad: Sequence[tuple[Run, OncelogError]]) -> None:
    """Raise if more is to be read than a writer should read before its first write."""
    _check_records(
        manifest, sum(one.records for one in tail), bad, "their ids were not remembered without bounds before"
    )


def _check_few_enough(
    home: LogHome, manifest: Manifest, uncovered: Sequence[Segment], bad: Sequence[tuple[Run, OncelogError]]
) -> None:
    """Raise if more ids of adopted files would be in memory than a writer should hold: 32 bytes each, and as much again
    while they are merged. Files with few ids among many records bring no run, so ids are counted where it matters.
    """
    if sum(one.entries for one in uncovered) > limits.MEMORY_FOLD_RECORDS_MAX:
        ids = sum(_count_ids(home, one) for one in uncovered)
        _check_records(manifest, ids, bad, "they were brought in before there were runs")


def _count_ids(home: LogHome, segment: Segment) -> int:
    """Return how many ids are beside an adopted file; if they are not there, all its records have to be read."""
    assert segment.identities is not None
    try:
        return len(read_identities(home, segment.identities).high)
    except (CorruptionError, NotFound):
        return segment.entries


def _check_records(manifest: Manifest, records: int, bad: Sequence[tuple[Run, OncelogError]], why: str) -> None:
    if records <= limits.MEMORY_FOLD_RECORDS_MAX:
        return
    what = f"{records} records of log {manifest.name!r} are in no run that can be read"
    todo = "`oncelog rebuild` makes the runs, beside or before a writer"
    if bad:
        message = f"{what} ({bad[0][1]}): {todo}"
        raise CorruptionError(message) from bad[0][1]
    message = f"{what}, because {why}: {todo}"
    raise Unavailable(message)


def _is_of_tail(taken: Snapshot, tail: Sequence[Stretch]) -> bool:
    """Tell whether a snapshot has all ids of these segments, as far as it goes."""
    held = {number for number, _ in taken.segments}
    segments = [segment for stretch in tail for segment in stretch.segments if segment.first_position < taken.watermark]
    return taken.tail_from >= 0 and all(segment.number in held for segment in segments)


def _from_position(taken: Snapshot, start: int) -> WindowState:
    """Return what a snapshot of a table has from a position on."""
    kept = taken.positions >= start
    return WindowState(
        keys=taken.identities[kept],
        positions=taken.positions[kept],
        fingerprints=taken.fingerprints[kept],
        ticks=taken.ticks[kept],
        times=taken.times[kept],
        starts=taken.starts[kept],
    )


def adopted_within(manifests: Manifests, manifest: Manifest, duration_us: int, uptime_us: int) -> list[Segment]:
    """Return the adopted segments that are within the window's duration, oldest first."""
    recent: list[Segment] = []
    for segment in manifests.closed_back(manifest):
        if segment.next_position <= manifest.first_position or segment.last_uptime_us + duration_us <= uptime_us:
            break
        recent += [segment] if segment.identities is not None else []
    return recent[::-1]


def _identities(home: LogHome, files: SealedFiles, segment: Segment, hasher: Hasher) -> Identities:
    """Return an adopted segment's identities: from beside it or, when those are lost or damaged, from its records."""
    assert segment.identities is not None
    try:
        return read_identities(home, segment.identities)  # deleted once a run covers them
    except (CorruptionError, NotFound):
        return record_identities.identities_of(hasher, files.rows(segment, 0))


def ids_of(home: LogHome, files: SealedFiles, hasher: Hasher, segment: Segment, first: int) -> Iterator[Remembered]:
    """Yield what is remembered of a closed segment from a position on: of an adopted one as is kept beside it."""
    if segment.identities is None:
        yield from remembered_of(hasher, rows_of(home, files, segment, first))
        return
    found = _identities(home, files, segment, hasher)
    order = np.argsort(found.rows)
    count = len(order)
    whole = Remembered(
        found.keys[order],
        segment.first_position + found.rows[order].astype(np.int64),
        found.fingerprints[order],
        np.ones(count, np.bool_),
        np.full(count, segment.last_uptime_us),
        np.full(count, segment.first_timestamp_us),
    )
    yield whole.between(first, segment.next_position)


def covers(taken: Snapshot, settings: LogSettings) -> bool:
    """Tell whether a snapshot was taken of a window that was at least as large as it is to be now."""
    return taken.max_keys >= settings.window.keys_max and taken.duration_us >= settings.window.duration_us


def _from_snapshot(taken: Snapshot | None, settings: LogSettings) -> DedupWindow:
    kept = settings.window
    kind = window_class(refresh_on_hit=kept.refresh_on_hit)
    if taken is None:
        return kind(kept.duration_us, kept.keys_max)
    state = WindowState(
        keys=taken.identities,
        positions=taken.positions,
        fingerprints=taken.fingerprints,
        ticks=taken.ticks,
        times=taken.times,
        starts=taken.starts,
    )
    return kind.load(state, kept.duration_us, kept.keys_max)


def needed(manifests: Manifests, manifest: Manifest, start: int, uptime_us: int) -> Sequence[Segment]:
    """Return the segments from ``start`` on that the window can still need, oldest first.

    Walking back from the end: what is older than the duration is not needed, nor what lies before twice as many ids as
    the window has keys (twice, because an id may occur again once it was forgotten).
    """
    found: list[Segment] = []
    window = manifest.settings.window
    ids = 0
    for segment in manifests.closed_back(manifest):
        expired = segment.last_uptime_us + window.duration_us <= uptime_us
        if segment.next_position <= max(start, manifest.first_position) or expired or ids > 2 * window.keys_max:
            break
        found.append(segment)
        ids += segment.ids
    return found[::-1]


def fold(window: DedupWindow, parts: Iterator[Rows], hasher: Hasher) -> None:
    """Add the ids of stored records to a window, as its writer did when it stored them."""
    for remembered in remembered_of(hasher, parts):
        fold_some(window, remembered)


class Remembered(NamedTuple):
    """What a window remembers of neighbouring records that have an identity: who they are, where, and of when."""

    keys: NDArray[np.uint64]
    positions: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]
    starts: NDArray[np.bool_]
    ticks: NDArray[np.int64]
    times: NDArray[np.int64]

    def cut(self, start: int, end: int) -> Remembered:
        """Return those from ``start`` to ``end``."""
        part = slice(start, end)
        return Remembered(
            self.keys[part],
            self.positions[part],
            self.fingerprints[part],
            self.starts[part],
            self.ticks[part],
            self.times[part],
        )

    def between(self, first_position: int, next_position: int) -> Remembered:
        """Return those from one position to before another."""
        low, high = np.searchsorted(self.positions, (first_position, next_position)).tolist()
        return self.cut(low, high)

    @classmethod
    def joined(cls, found: Sequence[Remembered]) -> Remembered:
        """Return what is remembered of neighbouring records as one."""
        none = cls(
            np.empty((0, 2), np.uint64),
            np.empty(0, np.int64),
            np.empty(0, np.uint64),
            np.empty(0, np.bool_),
            np.empty(0, np.int64),
            np.empty(0, np.int64),
        )
        return cls(*(np.concatenate(column) for column in zip(none, *found, strict=True)))

    def state(self) -> WindowState:
        """Return them as a table takes them."""
        return WindowState(self.keys, self.positions, self.fingerprints, self.ticks, self.times, self.starts)

    def commits(self) -> Iterator[Remembered]:
        """Yield what was committed together: those of one up-time."""
        ends = [*self.borders().tolist(), len(self.ticks)]
        return (self.cut(start, end) for start, end in zip([0, *ends], ends, strict=False))

    def borders(self) -> NDArray[np.int64]:
        """Return where another commit begins than the first."""
        return np.flatnonzero(np.diff(self.ticks)) + 1


def remembered_of(hasher: Hasher, parts: Iterable[Rows]) -> Iterator[Remembered]:
    """Yield what a window remembers of records, some blocks at a time."""
    gathered: list[Rows] = []
    count = 0
    for rows in parts:
        if "id" not in rows.payload.schema.names and rows.purged is None:
            continue
        gathered.append(rows)
        count += rows.count
        if count >= FOLD_ROWS:
            yield _remembered(hasher, gathered)
            gathered, count = [], 0
    if gathered:
        yield _remembered(hasher, gathered)


def _remembered(hasher: Hasher, parts: Sequence[Rows]) -> Remembered:
    known_as = record_identities.named(hasher, parts)
    return Remembered(
        known_as.keys,
        np.concatenate([np.arange(rows.first_position, rows.next_position) for rows in parts])[known_as.rows],
        known_as.fingerprints(),
        known_as.starts,
        np.concatenate([each(rows.uptime_us, rows.count) for rows in parts])[known_as.rows],
        np.concatenate([each(rows.timestamp_us, rows.count) for rows in parts])[known_as.rows],
    )


def fold_some(window: DedupWindow, given: Remembered) -> None:
    """Add some blocks at once, or one by one when an id occurs again: then the window must age as it did."""
    if not len(given.keys):
        return
    window.evict(int(given.ticks[0]))
    handles = window.find(given.keys)
    known = handles >= 0
    distinct = window.distinct(given.keys)
    if given.ticks[0] != given.ticks[-1] and (known.any() or not distinct):
        for commit in given.commits():
            fold_some(window, commit)
        return
    if not distinct:
        middle = len(given.keys) // 2
        fold_some(window, given.cut(0, middle))
        fold_some(window, given.cut(middle, len(given.keys)))
        return
    if known.any():
        # It was stored, so its writer had forgotten it, and everything before it.
        window.evict_through(int(handles.max()))
    window.add(given.keys, given.positions, given.fingerprints, given.starts)
    window.commit_each(given.ticks, given.times)
    window.evict(int(given.ticks[-1]))
