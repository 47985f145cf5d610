"""Rebuilding the memory of a log without bounds from its records: what no sound run covers becomes runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, Unavailable, Unsupported
from oncelog.format.manifest import Manifest, Segment
from oncelog.format.runs.run import Run
from oncelog.log.jobs.rebuild_snapshot import Rebuilt, remembered
from oncelog.log.jobs.workers import Desk, Hands
from oncelog.log.memory import coverage
from oncelog.log.memory.building import delete_run, store_run
from oncelog.log.memory.checking import check_run
from oncelog.log.memory.coverage import Stretch
from oncelog.log.memory.objects import RunObjects
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.takeover.recovery import Remembered
from oncelog.log.upkeep import sealing
from oncelog.log.upkeep.memory_keeper import commits_of, entries_of

RUN_RECORDS = 2_000_000
"""The most records of one run that is made here: so many ids are in memory at once."""

Progress = Callable[[int, int], None]


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

    def run(self, known: Known, progress: Progress | None) -> Rebuilt:
        """Rebuild what is to be rebuilt; return what was read and made."""
        manifest = known.manifest
        sound = [run for run in manifest.memory if self._is_sound(run)]
        known, stretches = self._manifests.look(
            known, lambda newest: coverage.stretches(self._manifests, newest, sound)
        )
        parts = [part for stretch in stretches for part in _cut(stretch)]
        total, done = sum(part.records for part in parts), 0
        made: list[tuple[Run, Stretch]] = []
        for part in parts:
            _, run = self._manifests.look(known, lambda newest, part=part: self._store(newest, part))  # type: ignore[misc]
            made.append((run, part))
            done += part.records
            if progress is not None:
                progress(done, total)
        self._publish(known, made, [run for run in manifest.memory if run not in sound])
        ids = sum(run.ids for run in (*sound, *(run for run, _ in made)))
        return Rebuilt(snapshot="", ids=ids, position=manifest.next_position, records=total, runs=len(made))

    def _is_sound(self, run: Run) -> bool:
        try:
            check_run(self._objects, run)
        except (CorruptionError, NotFound, Unsupported):
            return False
        return True

    def _store(self, manifest: Manifest, part: Stretch) -> Run:
        """Store the ids of neighbouring segments as a run."""
        home = self._objects.home
        units = list(sealing.units(self._newest(manifest, part)))
        found = list(_flat(self._hands.each(Desk.of(home, manifest, self._clock), remembered, units)))
        ids = Remembered.joined(found).state()
        key = sealing.new_key(self._clock, manifest.staging_floor_us).removesuffix(".parquet")
        first = part.first_position
        return store_run(
            home, manifest.log_id, key, entries_of(ids, first), first, part.next_position, commits_of(ids, first)
        )

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


def _flat(found: Iterator[list[Remembered]]) -> Iterator[Remembered]:
    for some in found:
        yield from some
