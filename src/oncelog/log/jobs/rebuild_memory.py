"""Rebuilding the memory of a log from its records: what no sound run covers becomes runs.

Without bounds that is the whole log. With a bounded window it is what lies between the first and the last adopted file
within the duration, and what the runs cover that are there and not sound.

Threads, or the tasks of a Spark, read some segments each, hash and sort their ids, and store them as a small run: a few
figures come back. Each comes into the manifest as soon as it is made, and is merged with its neighbours as a writer
would: a rebuilding that is cut short goes on where it stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, Unavailable, Unsupported
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.runs.run import Run
from oncelog.log.jobs.rebuild_snapshot import Rebuilt
from oncelog.log.jobs.workers import Hands, JobContext
from oncelog.log.memory import coverage
from oncelog.log.memory.building import commits_of, delete_run, entries_of, store_run
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.coverage import Stretch
from oncelog.log.memory.merging import merge_runs, to_merge
from oncelog.log.memory.objects import RunObjects
from oncelog.log.stored import object_keys
from oncelog.log.stored.manifests import Change, Known, Manifests
from oncelog.log.takeover.recovery import Remembered, adopted_within, remembered_of
from oncelog.log.upkeep import sealing

RUN_RECORDS = 500_000
"""About so many records are read by one piece of work: their ids are in memory at once, at about 200 bytes each."""

Progress = Callable[[int, int], None]

Range = tuple[int, int]
"""A position, and the one behind the last."""

Bundle = Sequence[Stretch]
"""Parts of a stretch whose ids come into the manifest together, as one run."""


class RunPiece(msgspec.Struct, frozen=True):
    """Neighbouring segments that are to become a run: where they begin and end, and the log's staging floor."""

    log_id: str
    first_position: int
    next_position: int
    segments: tuple[Segment, ...]
    floor_us: int


def make_run(desk: JobContext, piece: RunPiece) -> Run | None:
    """Store the ids of some segments as a run that nothing refers to; ``None`` if a segment is elsewhere by now."""
    try:
        found = Remembered.joined(list(remembered_of(desk.hasher, desk.rows(piece.segments))))
    except NotFound:
        return None
    ids, first = found.state(), piece.first_position
    key = object_keys.new_key(desk.clock, piece.floor_us).removesuffix(".parquet")
    entries, commits = entries_of(ids, first), commits_of(ids, first)
    return store_run(desk.home, piece.log_id, key, entries, first, piece.next_position, commits)


class Rebuilding:
    """One rebuilding: sound runs stay, the rest of the closed segments is read and becomes runs.

    Anybody may do this, also beside the writer. What the writer puts into runs meanwhile, or truncates, is left to it.
    A run that is not sound goes only together with the one that holds its ids.
    """

    def __init__(self, manifests: Manifests, objects: RunObjects, clock: Clock, hands: Hands) -> None:
        self._manifests = manifests
        self._objects = objects
        self._clock = clock
        self._hands = hands

    def run_all(self, known: Known, progress: Progress | None) -> Rebuilt:
        """Rebuild all that is to be rebuilt; return what was read and made."""
        return self._run(known, [(0, known.manifest.next_position)], self._unsound(known), progress)

    def run_adopted(self, known: Known, done: Rebuilt) -> Rebuilt:
        """Rebuild the runs of adopted files that are within the duration, and every run that is there and not sound;
        return that and what was ``done`` before.
        """
        duration_us = known.manifest.settings.window.duration_us
        known, files = self._manifests.look(
            known, lambda newest: adopted_within(self._manifests, newest, duration_us, newest.uptime_us)
        )
        bad = self._unsound(known)
        ranges = [(run.first_position, run.next_position) for run in bad]
        ranges += [(files[0].first_position, files[-1].next_position)] if files else []
        made = self._run(known, _joined(ranges), bad, None)
        return msgspec.structs.replace(
            done, ids=done.ids + made.ids, records=done.records + made.records, runs=made.runs
        )

    def _unsound(self, known: Known) -> list[Run]:
        return [run for run in known.manifest.memory if not self._is_sound(run)]

    def _run(self, known: Known, ranges: Sequence[Range], bad: Sequence[Run], progress: Progress | None) -> Rebuilt:
        before = known.manifest
        known, left = self._left(known, ranges, bad)
        total, done = sum(stretch.records for stretch in left), 0

        def note(records: int) -> None:
            nonlocal done
            done += records
            if progress is not None:
                progress(min(done, total), total)

        while left:
            memory = known.manifest.memory
            self._fill(known, [bundle for stretch in left for bundle in _bundles(stretch, bad)], bad, note)
            known, left = self._left(known, ranges, bad)
            if left and known.manifest.memory == memory:
                message = f"log {before.name!r} changed while its memory was rebuilt: rebuild again"
                raise Unavailable(message)
        memory = known.manifest.memory
        ids = sum(run.ids for run in memory if any(_within([run], *ends) for ends in ranges))
        made = sum(run not in before.memory for run in memory)
        return Rebuilt(snapshot="", ids=ids, position=before.next_position, records=done, runs=made)

    def _left(self, known: Known, ranges: Sequence[Range], bad: Sequence[Run]) -> tuple[Known, list[Stretch]]:
        """Return the newest manifest, and what its runs do not cover but for the bad ones."""

        def uncovered(manifest: Manifest) -> list[Stretch]:
            sound = [run for run in manifest.memory if run not in bad]
            found = (coverage.stretches(self._manifests, manifest, sound, *ends) for ends in ranges)
            return [stretch for stretches in found for stretch in stretches]

        return self._manifests.look(self._manifests.newest(known) or known, uncovered)

    def _fill(self, known: Known, bundles: Sequence[Bundle], bad: Sequence[Run], note: Callable[[int], None]) -> None:
        """Have the ids of each part put into a small run, and publish each bundle once all its parts are made."""
        bundle_of = {part.first_position: bundle for bundle in bundles for part in bundle}
        made: dict[int, Run] = {}
        try:
            for run in self._each(known, [part for bundle in bundles for part in bundle]):
                made[run.first_position] = run
                note(run.next_position - run.first_position)
                bundle = bundle_of[run.first_position]
                if all(part.first_position in made for part in bundle):
                    self._publish(known, self._one_of(known, bundle, made), bundle, bad)
        finally:
            for run in made.values():
                delete_run(self._objects.home, run)

    def _one_of(self, known: Known, bundle: Bundle, made: dict[int, Run]) -> Run:
        """Return the small runs of a bundle as one, and take it out of what is to be deleted."""
        small = [made[part.first_position] for part in bundle]
        if len(small) == 1:
            return made.pop(bundle[0].first_position)
        return self._merged((self._manifests.newest(known) or known).manifest, small)

    def _each(self, known: Known, left: list[Stretch]) -> Iterator[Run]:
        """Yield a run for every part. Segments that moved to another file since the listing are read there."""
        pieces = [self._piece(known, part) for part in left]
        while left:
            desk = JobContext.of(self._objects.home, known.manifest, self._clock)
            again, missed = [], []
            for part, piece, run in zip(left, pieces, self._hands.each(desk, make_run, pieces), strict=True):
                if run is None:
                    again.append(part)
                    missed.append(piece.segments)
                else:
                    yield run
            known = self._manifests.newest(known) or known
            left, pieces = again, [self._piece(known, part) for part in again]
            for piece, segments in zip(pieces, missed, strict=True):
                if piece.segments == segments:
                    where = f"positions {piece.first_position} to {piece.next_position} of log"
                    message = f"{where} {known.manifest.name!r} are in a file that is missing: restore it from a copy"
                    raise CorruptionError(message)

    def _piece(self, known: Known, part: Stretch) -> RunPiece:
        """Return what there is to do for a part; its segments may be in other files than before."""
        manifest = known.manifest
        _, segments = self._manifests.look(known, lambda newest: tuple(self._newest(newest, part)))
        return RunPiece(manifest.log_id, part.first_position, part.next_position, segments, manifest.staging_floor_us)

    def _newest(self, manifest: Manifest, part: Stretch) -> Iterator[Segment]:
        """Yield the segments of a part as a manifest has them now: they may be in other files."""
        for segment in self._manifests.closed_from(manifest, part.first_position):
            if segment.first_position >= part.next_position:
                break
            yield segment

    def _is_sound(self, run: Run) -> bool:
        try:
            check_run(self._objects, run)
        except (CorruptionError, NotFound, Unsupported):
            return False
        return True

    def _publish(self, known: Known, run: Run, bundle: Bundle, bad: Sequence[Run]) -> None:
        """Have the manifest name a run, unless others have put these ids into runs, and merge what is worth it."""
        stretch = Stretch(run.first_position, tuple(segment for part in bundle for segment in part.segments))
        replaced = _within(bad, run.first_position, run.next_position)
        if self._took(coverage.built(self._manifests, run, stretch, replaced), run, known):
            while self._merge(known, bad):
                continue
            sealing.collect(self._objects.home, self._manifests)

    def _merge(self, known: Known, bad: Sequence[Run]) -> bool:
        """Merge runs as a writer would, so that there are never too many; tell whether there were any to merge."""
        known, merged = self._manifests.look(
            self._manifests.newest(known) or known, partial(self._merged_neighbours, bad)
        )
        if merged is None:
            return False
        run, inputs = merged
        self._took(coverage.merged(run, inputs), run, known)
        return True

    def _merged_neighbours(self, bad: Sequence[Run], manifest: Manifest) -> tuple[Run, Sequence[Run]] | None:
        inputs = to_merge([run for run in manifest.memory if run not in bad])
        return None if inputs is None else (self._merged(manifest, inputs), inputs)

    def _merged(self, manifest: Manifest, inputs: Sequence[Run]) -> Run:
        key = object_keys.new_key(self._clock, manifest.staging_floor_us).removesuffix(".parquet")
        return merge_runs(self._objects, manifest.log_id, key, inputs, manifest.first_position)

    def _took(self, change: Change, run: Run, known: Known) -> bool:
        """Tell whether the manifest took a run; if it did not, the run is deleted. If that is not known, it stays."""
        taken = run in self._manifests.update(change, known).manifest.memory
        if not taken:
            delete_run(self._objects.home, run)
        return taken


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Return ranges in their order, those that overlap as one.

    >>> _joined([(8, 9), (0, 5), (3, 7)])
    [(0, 7), (8, 9)]
    """
    found: list[Range] = []
    for first, end in sorted(ranges):
        if found and first < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def _within(runs: Sequence[Run], first: int, end: int) -> list[Run]:
    """Return the runs that cover anything between two positions."""
    return [run for run in runs if run.next_position > first and run.first_position < end]


def _bundles(stretch: Stretch, bad: Sequence[Run]) -> Iterator[Bundle]:
    """Yield the parts of a stretch: those in the range of one bad run together, every other one by itself."""

    def replaces(segment: Segment) -> str | None:
        return next((run.key for run in _within(bad, segment.first_position, segment.next_position)), None)

    first = stretch.first_position
    for key, segments in itertools.groupby(stretch.segments, replaces):
        parts = list(_cut(Stretch(first, tuple(segments))))
        first = parts[-1].next_position
        yield from [parts] if key is not None else ([part] for part in parts)


def _cut(stretch: Stretch) -> Iterator[Stretch]:
    """Yield a stretch in parts of whole segments, none of which has many more records than a run may have."""
    first, held = stretch.first_position, list[Segment]()
    for segment in stretch.segments:
        if held and segment.next_position - first > RUN_RECORDS:
            yield Stretch(first, tuple(held))
            first, held = segment.first_position, []
        held.append(segment)
    yield Stretch(first, tuple(held))
