"""Rebuilding the memory of a log from its records: what no sound run covers becomes runs.

Without bounds that is the whole log. With a bounded window it is what lies between the first and the last adopted file
within the duration.

Threads, or the tasks of a Spark, read some segments each, hash and sort their ids, and store them as a small run: a few
figures come back. The small runs of neighbouring segments are merged here, in a stream, and come into the manifest by
one version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, Unavailable, Unsupported
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.runs.run import Run
from oncelog.log.jobs.rebuild_snapshot import Rebuilt
from oncelog.log.jobs.workers import Hands, JobContext
from oncelog.log.memory import coverage
from oncelog.log.memory.building import delete_run, store_run
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.coverage import Stretch
from oncelog.log.memory.merging import merge_runs
from oncelog.log.memory.objects import RunObjects
from oncelog.log.stored import object_keys
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.takeover.recovery import Remembered, adopted_within, remembered_of
from oncelog.log.upkeep import sealing
from oncelog.log.upkeep.memory_keeper import commits_of, entries_of

RUN_RECORDS = 500_000
"""About so many records are read by one piece of work: their ids are in memory at once, at about 200 bytes each."""

Progress = Callable[[int, int], None]


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

    Anybody may do this, also beside the writer. All runs come into the manifest by one version: one that is replaced
    goes only together with those that hold its ids.
    """

    def __init__(self, manifests: Manifests, objects: RunObjects, clock: Clock, hands: Hands) -> None:
        self._manifests = manifests
        self._objects = objects
        self._clock = clock
        self._hands = hands

    def run_adopted(self, known: Known, done: Rebuilt) -> Rebuilt:
        """Rebuild the runs of adopted files that are within the duration; return that and what was ``done`` before."""
        duration_us = known.manifest.settings.window.duration_us
        known, files = self._manifests.look(
            known, lambda newest: adopted_within(self._manifests, newest, duration_us, newest.uptime_us)
        )
        if not files:
            return done
        made = self.run(known, None, files[0].first_position, files[-1].next_position)
        return msgspec.structs.replace(
            done, ids=done.ids + made.ids, records=done.records + made.records, runs=made.runs
        )

    def run(self, known: Known, progress: Progress | None, first: int = 0, end: int | None = None) -> Rebuilt:
        """Rebuild what is to be rebuilt, between two positions if they are given; return what was read and made."""
        manifest = known.manifest
        there = [
            run for run in manifest.memory if run.next_position > first and (end is None or run.first_position < end)
        ]
        sound = [run for run in there if self._is_sound(run)]
        known, stretches = self._manifests.look(
            known, lambda newest: coverage.stretches(self._manifests, newest, sound, first, end)
        )
        total, done = sum(stretch.records for stretch in stretches), 0
        made: list[tuple[Run, Stretch]] = []
        for stretch in stretches:

            def note(records: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + records, total)

            made.append((self._made(known, stretch, note), stretch))
            done += stretch.records
        self._publish(known, made, [run for run in there if run not in sound])
        ids = sum(run.ids for run in (*sound, *(run for run, _ in made)))
        return Rebuilt(snapshot="", ids=ids, position=manifest.next_position, records=total, runs=len(made))

    def _made(self, known: Known, stretch: Stretch, note: Callable[[int], None]) -> Run:
        """Have the ids of a stretch put into small runs, and merge them into one."""
        made: dict[int, Run] = {}
        try:
            for run in self._each(known, list(_cut(stretch))):
                made[run.first_position] = run
                note(sum(run.next_position - run.first_position for run in made.values()))
            if len(made) == 1:
                return made.pop(stretch.first_position)
            return self._merged(known, [made[first] for first in sorted(made)])
        finally:
            for run in made.values():
                delete_run(self._objects.home, run)

    def _each(self, known: Known, left: list[Stretch]) -> Iterator[Run]:
        """Yield a run for every part. Segments that moved to another file since the listing are read there."""
        while left:
            desk = JobContext.of(self._objects.home, known.manifest, self._clock)
            pieces = [self._piece(known, part) for part in left]
            again = []
            for part, run in zip(left, self._hands.each(desk, make_run, pieces), strict=True):
                if run is None:
                    again.append(part)
                else:
                    yield run
            newer = self._manifests.newest(known) or known
            if again and newer.version == known.version:
                where = f"positions {again[0].first_position} to {again[0].next_position} of log"
                message = f"{where} {known.manifest.name!r} are in a file that is missing: restore it from a copy"
                raise CorruptionError(message)
            known, left = newer, again

    def _piece(self, known: Known, part: Stretch) -> RunPiece:
        """Return what there is to do for a part; its segments may be in other files than before."""
        manifest = known.manifest
        _, segments = self._manifests.look(known, lambda newest: tuple(self._newest(newest, part)))
        return RunPiece(manifest.log_id, part.first_position, part.next_position, segments, manifest.staging_floor_us)

    def _merged(self, known: Known, small: Sequence[Run]) -> Run:
        manifest = (self._manifests.newest(known) or known).manifest
        key = object_keys.new_key(self._clock, manifest.staging_floor_us).removesuffix(".parquet")
        return merge_runs(self._objects, manifest.log_id, key, small)

    def _is_sound(self, run: Run) -> bool:
        try:
            check_run(self._objects, run)
        except (CorruptionError, NotFound, Unsupported):
            return False
        return True

    def _newest(self, manifest: Manifest, part: Stretch) -> Iterator[Segment]:
        """Yield the segments of a part as a manifest has them now: they may be in other files."""
        for segment in self._manifests.closed_from(manifest, part.first_position):
            if segment.first_position >= part.next_position:
                break
            yield segment

    def _publish(self, known: Known, made: Sequence[tuple[Run, Stretch]], replaced: Sequence[Run]) -> None:
        if not made and not replaced:
            return
        after = self._manifests.update(coverage.rebuilt(self._manifests, made, replaced), known).manifest
        if any(run not in after.memory for run, _ in made):
            for run, _ in made:
                delete_run(self._objects.home, run)
            message = f"log {after.name!r} changed while its memory was rebuilt: rebuild again"
            raise Unavailable(message)
        sealing.collect(self._objects.home, self._manifests)


def _cut(stretch: Stretch) -> Iterator[Stretch]:
    """Yield a stretch in parts of whole segments, none of which has many more records than a run may have."""
    first, held = stretch.first_position, list[Segment]()
    for segment in stretch.segments:
        if held and segment.next_position - first > RUN_RECORDS:
            yield Stretch(first, tuple(held))
            first, held = segment.first_position, []
        held.append(segment)
    yield Stretch(first, tuple(held))
