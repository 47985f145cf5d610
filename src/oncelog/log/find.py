"""Finding an id: where its record is, from what the log remembers, without reading the log.

A writer that is open here is asked. Without one, the memory is built as a writer would build it: the runs, and the tail
that no run covers; what is in the open segment is read. What was built is kept for the next question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.identity import Hasher
from oncelog.errors import CorruptionError, InvalidArgument, NotFound
from oncelog.format.manifest import Manifest
from oncelog.log.append.answers import RECALLED_US, recalled_times
from oncelog.log.append.decisions import Seen, is_newer, known_in_window
from oncelog.log.append.payloads import intake_of
from oncelog.log.ingest.staging import identities_of
from oncelog.log.memory.objects import RunObjects
from oncelog.log.read.scan import Scan
from oncelog.log.stored import record_identities, secrets
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.rows import Rows, each
from oncelog.log.stored.segment_index import SegmentIndex
from oncelog.log.takeover import recovery
from oncelog.log.takeover.recovery import Held, Recovered
from oncelog.storage.base import LogHome
from oncelog.types import Location, moment

_T = TypeVar("_T")


class Compared(NamedTuple):
    """Which rows have an id that the log remembers, and which of those have other content than that record."""

    known: NDArray[np.bool_]
    conflicts: NDArray[np.bool_]


class Finder:
    """Finds ids for one handle of a log that has no writer open."""

    def __init__(self, home: LogHome, manifests: Manifests, objects: RunObjects, name: str) -> None:
        self._home = home
        self._manifests = manifests
        self._objects = objects
        self._name = name
        self._index = SegmentIndex(manifests)
        self._built: tuple[int, Recovered] | None = None

    def find(self, known: Known, id: str, stream: str | None) -> Location | None:
        """Return where an id is, ``None`` if it is not remembered; ``InvalidArgument`` where ids are not kept."""
        return self._retried(known, lambda known: self._find(known, id, stream))

    def _find(self, known: Known, id: str, stream: str | None) -> Location | None:
        check_keeps_ids(known.manifest)
        hasher = secrets.hasher_of(self._home, known.manifest)
        name = hasher.identity((stream or "") if hasher.by_stream else "", id)
        known, found = self._manifests.look(known, lambda manifest: self._memory(known.version, manifest, hasher))
        return self._in_open_segment(known, hasher, name) or self._in_memory(known, found, name)

    def compare(self, known: Known, table: pa.Table | pa.RecordBatch) -> Compared:
        """Look up the ids of a table's rows; rows are not compared with each other."""
        there, other = np.zeros(table.num_rows, np.bool_), np.zeros(table.num_rows, np.bool_)
        if known.manifest.settings.idempotence == "off" or not table.num_rows:
            return Compared(there, other)
        hasher = secrets.hasher_of(self._home, known.manifest)
        payload = intake_of(table, known.manifest.settings, known.manifest.log_id)
        who = identities_of(hasher, [(payload, 0)])
        found, fingerprints = self._retried(known, lambda known: self._find_many(known, who.keys, hasher))
        rows = who.rows.astype(np.int64)
        there[rows], other[rows] = found, found & (fingerprints != who.fingerprints)
        return Compared(there, other)

    def _retried(self, known: Known, look: Callable[[Known], _T]) -> _T:
        """Return what is found by a manifest, or by a newer one if what the first one names was merged or sealed since.

        ``NotFound`` if the log was deleted, never because an object is gone: that says nothing of the id.
        """
        while True:
            try:
                return look(known)
            except NotFound as error:
                newer = self._manifests.newest(known)
                if newer is None or not self._manifests.is_there(known):
                    raise
                if newer.version == known.version:
                    message = f"{error}, though the log remembers ids there: run `oncelog rebuild`"
                    raise CorruptionError(message) from error
                known = newer

    def _find_many(
        self, known: Known, keys: NDArray[np.uint64], hasher: Hasher
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
        """Return which identities, shape (n, 2), are remembered, and the fingerprints that the log has for them."""
        known, memory = self._manifests.look(known, lambda manifest: self._memory(known.version, manifest, hasher))
        there, fingerprints = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.uint64)
        recalled = memory.runs.find_many(keys, known.manifest.first_position)
        found = Seen(memory.window, memory.adopted).elsewhere(keys, recalled)
        assert found is not None
        found.check()
        there |= found.found
        fingerprints[found.found] = found.fingerprints[found.found]
        assert memory.window is not None
        handles = memory.window.find(keys)
        known_there = known_in_window(memory.window, handles, found)
        there |= known_there
        fingerprints[known_there] = memory.window.fingerprints(handles[known_there])
        for who in self._open_records(known, hasher):
            newest = {
                tuple(key): mark for key, mark in zip(who.keys.tolist(), who.fingerprints().tolist(), strict=True)
            }
            for at in np.flatnonzero(np.isin(keys[:, 0], who.keys[:, 0])):
                mark = newest.get(tuple(keys[at].tolist()))
                if mark is not None:
                    there[at], fingerprints[at] = True, mark
        return there, fingerprints

    def _open_records(self, known: Known, hasher: Hasher) -> Iterator[record_identities.Named]:
        """Yield who the records are that no manifest counts yet."""
        scan = Scan(self._home, self._manifests, self._name)
        scan.begin(known.manifest.next_position)
        while found := scan.next_rows():
            for rows in found:
                yield record_identities.named(hasher, [rows])

    def _memory(self, version: int, manifest: Manifest, hasher: Hasher) -> Recovered:
        if self._built is None or self._built[0] != version:
            held = Held(runs=self._built[1].runs) if self._built is not None else Held()
            found = recovery.recover(
                self._home, self._manifests, manifest, manifest.settings, hasher, objects=self._objects, held=held
            )
            self._built = version, found
        return self._built[1]

    def _in_open_segment(self, known: Known, hasher: Hasher, name: tuple[int, int]) -> Location | None:
        """Return where an id is among records that no manifest counts yet, the newest if it is there twice."""
        scan = Scan(self._home, self._manifests, self._name)
        scan.begin(known.manifest.next_position)
        location = None
        while found := scan.next_rows():
            for rows in found:
                who = record_identities.named(hasher, [rows])
                same = np.flatnonzero((who.keys == np.array(name, np.uint64)).all(axis=1))
                if len(same):
                    row = int(who.rows[same[-1]])
                    location = Location(
                        position=rows.first_position + row,
                        segment=rows.segment,
                        entry=rows.first_entry + row,
                        timestamp=moment(int(each(rows.timestamp_us, rows.count)[row])),
                        fingerprint=int(who.fingerprints()[same[-1]]),
                    )
        return location

    def _in_memory(self, known: Known, found: Recovered, name: tuple[int, int]) -> Location | None:
        assert found.window is not None
        handle = found.window.find_one(*name)
        hit = found.runs.find_one(*name, known.manifest.first_position)
        if handle >= 0 and not is_newer(hit, found.window, handle):
            position, fingerprint, time_us, _ = found.window.at(handle)
            return self._placed(known, found, position, fingerprint, time_us)
        met = Seen(found.window, found.adopted).elsewhere_one(*name, hit)
        return None if met is None else self._placed(known, found, *met, RECALLED_US)

    def _placed(self, known: Known, found: Recovered, position: int, fingerprint: int, time_us: int) -> Location:
        positions = np.array([position])
        _, places = self._manifests.look(known, lambda manifest: self._index.places(manifest, positions))
        if time_us == RECALLED_US:
            time_us = int(recalled_times(places, positions, np.zeros(1, np.int64), found.runs.timestamps_of)[0])
        return Location(
            position=position,
            segment=int(places.segments[0]),
            entry=int(places.entries[0]),
            timestamp=moment(time_us),
            fingerprint=fingerprint,
        )


def surviving(home: LogHome, manifests: Manifests, known: Known, found: Location) -> Location:
    """Return where the record is that stands for one that was purged; what was not purged is where it was found.

    Only a log in which something was purged is read for this. A survivor that was truncated away leaves the purged row,
    whose place a retry is answered with, too.
    """
    if found.position >= known.manifest.purged_until:
        return found
    row = _row(home, manifests, known.manifest.name, found.position)
    if row is None or row.purged is None:
        return found
    stands_for = _row(home, manifests, known.manifest.name, int(row.purged.survivors[0]))
    if stands_for is None:
        return found
    return Location(
        position=stands_for.first_position,
        segment=stands_for.segment,
        entry=stands_for.first_entry,
        timestamp=moment(int(each(stands_for.timestamp_us, 1)[0])),
        fingerprint=found.fingerprint,
    )


def _row(home: LogHome, manifests: Manifests, name: str, position: int) -> Rows | None:
    """Return the row at a position, ``None`` if it was truncated away."""
    scan = Scan(home, manifests, name)
    try:
        scan.begin(position)
    except NotFound:
        return None
    return next((rows.cut(0, 1) for rows in scan.next_rows()), None)


def check_keeps_ids(manifest: Manifest) -> None:
    """Raise ``InvalidArgument`` for a log that remembers no ids."""
    if manifest.settings.idempotence == "off":
        message = f"log {manifest.name!r} has idempotence off: it remembers no ids"
        raise InvalidArgument(message)
